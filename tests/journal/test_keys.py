"""Keys of encrypted connections in the journal: stated once a segment, before the frames that need them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.journal import Journal, blocks, index, segments
from wireloom.journal.keys import DECRYPTION_SECRETS, Keys, keys_in, parse
from wireloom.journal.reader import Entry, read_all, read_messages
from wireloom.journal.tail import Offset, Tail
from wireloom.journal.verify import verify
from wireloom.model import Direction, JournalError, Kind
from wireloom.protocols.wolpertinger import WolpertingerSettings, frames, layer1, layer2
from wireloom.protocols.wolpertinger.keys import Cipher

from .conftest import data
from .test_tshark import TSHARK, tshark

ONE = Keys("wolpertinger", 1, {"aes_key": "11" * 32, "aes_iv": "22" * 16})
TWO = Keys("wolpertinger", 2, {"aes_key": "33" * 32, "aes_iv": "44" * 16})


def stated(path: Path) -> list[Keys]:
    """The keys of a segment, by both readers."""
    raw = path.read_bytes()
    found = list(keys_in(raw, 0, len(raw)))
    fast = index.keys_before(np.frombuffer(raw, np.uint8), len(raw))
    assert fast == {each.connection: each for each in found}
    return found


def append(journal: Journal, keys: Keys | None, number: int = 0) -> int:
    return journal.append(
        "hsp", keys.connection if keys else 9, Direction.C2S, number, data(f"{number:06d}"), keys=keys
    )


@given(st.text(max_size=10), st.integers(0, 2**64 - 1), st.dictionaries(st.text(max_size=8), st.text(max_size=8)))
def test_keys_are_read_as_they_were_written(protocol: str, connection: int, values: dict[str, str]) -> None:
    keys = Keys(protocol, connection, values)
    assert len(keys.block) % 4 == 0
    found = parse(keys.block, 0, len(keys.block))
    assert found is not None
    assert (found, found.block) == (keys, keys.block)


def test_keys_are_stated_once_a_segment_before_the_first_frames_that_need_them(tmp_path: Path) -> None:
    with Journal.open(tmp_path, segment_bytes=2000) as journal:
        for number in range(40):
            append(journal, (ONE, TWO, None)[number % 3], number)
            journal.commit()
    found = segments(tmp_path)
    assert len(found) > 2
    for path in found[:-1]:
        assert stated(path) == [ONE, TWO] or stated(path) == [TWO, ONE]
        known: set[int] = set()
        raw = path.read_bytes()
        offset = blocks.check_head(raw)
        while offset < len(raw):
            block_type, size = blocks.block_at(raw, offset, len(raw))
            if block_type == DECRYPTION_SECRETS:
                keys = parse(raw, offset, size)
                assert keys is not None
                known.add(keys.connection)
            else:
                assert blocks.parse_packet(raw, offset, size).connection in {*known, 9, None}
            offset += size
    assert list(verify(tmp_path)) == []
    assert len(list(read_messages(tmp_path))) == 40


def test_keys_are_stated_again_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open(tmp_path, segment_bytes=1500)
    append(journal, ONE, 0)
    journal.commit()
    with monkeypatch.context() as broken:

        def fail(*_: object) -> int:
            raise OSError(28, "no space")

        broken.setattr(os, "pwritev", fail)
        for number in range(1, 30):
            append(journal, (ONE, TWO)[number % 2], number)
        with pytest.raises(JournalError):
            journal.commit()
    append(journal, TWO, 30)
    journal.commit()
    journal.close()
    assert list(verify(tmp_path)) == []
    assert [int(each.message.body) for each in read_messages(tmp_path)] == list(range(31))
    first, second, *_ = segments(tmp_path)
    assert stated(first) == [ONE]
    assert set(stated(second)) == {ONE, TWO}


def test_secrets_of_another_type_are_passed_over() -> None:
    other = blocks.block(DECRYPTION_SECRETS, struct.pack("<II", 0x544C534B, 4) + b"abcd" + blocks.comment_option(b"x"))
    assert parse(other, 0, len(other)) is None
    assert list(keys_in(other + ONE.block, 0, len(other + ONE.block))) == [ONE]


def test_damaged_keys_open_nothing_and_are_a_fault(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        append(journal, ONE)
    (path,) = segments(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"1111") + 1] ^= 1
    path.write_bytes(raw)
    assert stated(path) == []
    assert [str(each.reason) for each in verify(tmp_path)] == ["keys that are damaged"]
    for size in range(0, len(ONE.block), 4):
        cut = ONE.block[:size]
        assert list(keys_in(cut, 0, len(cut))) == []


def test_a_torn_tail_of_keys_is_cut(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        append(journal, ONE)
    (path,) = segments(tmp_path)
    size = path.stat().st_size
    committed = path.with_name(path.name + ".committed")
    for tail in (TWO.block, TWO.block[:20]):
        path.write_bytes(path.read_bytes()[:size] + tail)
        committed.write_bytes(b"%020d\n" % size)
        with Journal.open(tmp_path) as journal:
            assert [cut.cut_bytes for cut in journal.recovery.cuts] == [len(tail)]
        assert path.stat().st_size == size
        for later in segments(tmp_path)[1:]:
            later.unlink()


def test_keys_are_not_printed() -> None:
    assert "1111" not in repr(ONE)


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed: apt install tshark")
def test_tshark_reads_a_segment_with_keys(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        for number in range(4):
            append(journal, (ONE, TWO)[number % 2], number)
    rows = tshark(segments(tmp_path)[0], "frame.comment", "frame.packet_id")
    assert [row[0].partition(" ")[0] for row in rows[1:5]] == [f"conn={each:016x}" for each in (1, 2, 1, 2)]
    assert [int(row[1]) for row in rows] == list(range(1, 7))


def test_whoever_reads_a_journal_as_it_grows_learns_the_keys(tmp_path: Path) -> None:
    """A connection begins in plain text and goes on encrypted, segments later; everybody reads it."""
    cipher = Cipher(b"k" * 32, b"i" * 16)
    keys = Keys("wolpertinger", 5, {"aes_key": cipher.key.hex(), "aes_iv": cipher.iv.hex()})
    settings = WolpertingerSettings()
    with Journal.open(tmp_path, segment_bytes=700) as journal:
        tail, late = Tail(tmp_path), Tail.at_end(tmp_path)
        passing: Tail | None = None
        seen: dict[str, list[Kind]] = {"tail": [], "late": [], "passing": []}
        for number in range(12):
            xml = layer2.write(layer2.Error("Core", number))
            encrypted = number >= 3
            data = b"".join(map(frames.encode, layer1.pack(xml, number, settings, cipher if encrypted else None)))
            journal.append("wolpertinger", 5, Direction.C2S, number, data, keys=keys if encrypted else None)
            journal.commit()
            for name, reader in (("tail", tail), ("late", late), ("passing", passing)):
                found = [] if reader is None else read_up(reader)
                seen[name] += [each.message.kind for each in found if isinstance(each, Entry)]
            if number == 5:
                passing = Tail.at_end(tmp_path)
        again = Tail(tmp_path, Offset(10, 0))
        for everything in (read_all(tmp_path), read_up(again)):
            assert {each.message.kind for each in everything if isinstance(each, Entry)} == {Kind.ERROR}
    assert len(segments(tmp_path)) > 3
    assert {name: (len(kinds), set(kinds)) for name, kinds in seen.items()} == {
        name: (count, {Kind.ERROR}) for name, count in {"tail": 12, "late": 12, "passing": 6}.items()
    }


def read_up(tail: Tail) -> list[object]:
    found: list[object] = []
    while part := tail.read(200):
        found += part
    return found
