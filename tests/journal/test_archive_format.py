"""An archived segment is the segment, its index says what is in it, and any range of it can be read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from wireloom.journal import Journal
from wireloom.journal import archive_pack as packing
from wireloom.journal.archive_format import (
    ArchiveDamaged,
    ArchivedSegment,
    FrameCache,
    Index,
    SegmentId,
    archived_segments,
    load_index,
)
from wireloom.journal.archive_pack import index_stored, pack
from wireloom.journal.keys import Keys, keys_in
from wireloom.journal.reader import blocks_in
from wireloom.journal.segment import segments
from wireloom.model import Direction, JournalError
from wireloom.store import ObjectMissing, open_store


@pytest.fixture
def sealed(tmp_path: Path, fill: Callable[[Journal], int]) -> Path:
    """A sealed segment with one of everything, keys included."""
    with Journal.open(tmp_path / "journal", hub="kitchen") as journal:
        connection = fill(journal)
        keys = Keys("wolpertinger", connection, {"aes_key": "c0ffee"})
        for number in range(50):
            journal.append("hsp", connection, Direction.C2S, number, bytes([3]) * 2000, keys=keys)
            journal.commit()
    return segments(tmp_path / "journal")[0]


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "FRAME_BYTES", 10_000)


def named(path: Path) -> SegmentId:
    found = SegmentId.of_file("kitchen", path)
    assert found is not None
    return found


@pytest.mark.usefixtures("small_frames")
def test_frames_are_whole_blocks_and_the_index_says_which(sealed: Path) -> None:
    packed = pack(named(sealed), sealed.read_bytes(), generation=3, latest_ns=5)
    index = packed.index
    assert len(index.frames) > 10
    data = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress(packed.stored)
    whole = list(blocks_in(data, 0))
    assert (index.first, index.last, index.blocks) == (1, whole[-1].packet_id, len(whole))
    assert index.records == sum(block.record is not None for block in whole)
    assert (index.from_ns, index.to_ns) == (min(b.time_ns for b in whole), max(b.time_ns for b in whole))
    assert index.latest_ns == index.to_ns
    assert (index.after, index.generation, index.length) == (0, 3, sealed.stat().st_size)
    for frame in index.frames:
        inside = [block for block in whole if frame.start <= block.offset < frame.start + frame.length]
        assert frame.length <= 10_000 or frame.blocks == 1
        assert (frame.first, frame.last, frame.blocks) == (inside[0].packet_id, inside[-1].packet_id, len(inside))
        assert (frame.from_ns, frame.to_ns) == (inside[0].time_ns, inside[-1].time_ns)
        assert list(blocks_in(data[frame.start : frame.start + frame.length], frame.start)) == inside


def test_keys_stay_behind_and_nothing_moves(sealed: Path) -> None:
    packed = pack(named(sealed), sealed.read_bytes())
    data = zstandard.ZstdDecompressor().decompress(packed.stored)
    original = sealed.read_bytes()
    assert b"c0ffee" in original and b"c0ffee" not in data
    assert list(keys_in(original, 0, len(original))) and not list(keys_in(data, 0, len(data)))
    assert list(blocks_in(data, 0)) == list(blocks_in(original, 0))
    assert [original[at : at + len(block)] for at, block in packed.secrets] == [block for _, block in packed.secrets]
    assert packed.index.withheld == len(packed.secrets) == 1
    # Whoever archives what was restored from an archive makes the same of it.
    assert pack(named(sealed), data).index.sha256 == packed.index.sha256


@pytest.mark.usefixtures("small_frames")
def test_any_range_is_that_of_the_segment(sealed: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "archive")
    packed = pack(named(sealed), sealed.read_bytes())
    store.put_new(named(sealed).object_key, packed.stored)
    store.put_new(named(sealed).index_key, packed.index.encode())
    data = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress(packed.stored)
    choose = random.Random(5)
    for cache in (None, FrameCache(25_000)):
        archived = ArchivedSegment(store, load_index(store, named(sealed)), cache)
        archived.check()
        for _ in range(200):
            start, end = choose.randrange(len(data) + 10), choose.randrange(len(data) + 10)
            assert archived.read(start, end) == data[start:end]


def test_an_index_says_what_was_encoded(sealed: Path) -> None:
    index = pack(named(sealed), sealed.read_bytes()).index
    assert Index.decode(index.encode(), "x") == index


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data.replace(b'"hub":"kitchen"', b'"hub":"bedroom"'),
        lambda data: b"[]",
        lambda data: b'{"format":"wireloom archive 1"}',
        lambda data: b'{"format":"wireloom archive 9"}',
    ],
)
def test_a_damaged_index_is_no_index(sealed: Path, damage: Callable[[bytes], bytes]) -> None:
    index = pack(named(sealed), sealed.read_bytes()).index
    with pytest.raises(ArchiveDamaged, match="some/object"):
        Index.decode(damage(index.encode()), "some/object")


def test_an_index_that_asks_for_too_much_is_refused(sealed: Path) -> None:
    index = pack(named(sealed), sealed.read_bytes()).index
    bomb = index.frames[0]._replace(length=1 << 40)
    for wrong in (replace(index, frames=(bomb,), length=1 << 40), replace(index, frames=())):
        with pytest.raises(ArchiveDamaged):
            Index.decode(wrong.encode(), "x")


@pytest.mark.usefixtures("small_frames")
def test_a_frame_that_is_not_what_the_index_says_is_found_out(sealed: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "archive")
    packed = pack(named(sealed), sealed.read_bytes())
    broken = bytearray(packed.stored)
    frame = packed.index.frames[4]
    broken[frame.offset + frame.size // 2] ^= 1
    store.put(named(sealed).object_key, bytes(broken))
    archived = ArchivedSegment(store, packed.index)
    assert archived.read(0, 100)
    with pytest.raises(ArchiveDamaged, match=r"pcapng\.zst"):
        archived.read(frame.start, frame.start + 1)


@pytest.mark.usefixtures("small_frames")
def test_the_index_of_a_stored_object_can_be_made_again(sealed: Path) -> None:
    packed = pack(named(sealed), sealed.read_bytes(), generation=2, latest_ns=9)
    assert index_stored(named(sealed), packed.stored, generation=2, latest_ns=9) == packed.index
    for wrong in (packed.stored[:-1], packed.stored[1:], packed.stored + b"x"):
        with pytest.raises((ArchiveDamaged, JournalError)):
            index_stored(named(sealed), wrong)


def test_what_is_no_sound_segment_is_not_archived(sealed: Path) -> None:
    data = sealed.read_bytes()
    for wrong in (b"", data[:-1], data[:-40] + bytes(40), data + b"\0" * 4):
        with pytest.raises(JournalError, match="cannot be archived"):
            pack(named(sealed), wrong)
    with pytest.raises(JournalError, match="first packet id"):
        pack(named(sealed)._replace(first=9), data)
    with pytest.raises(JournalError, match="of hub 'kitchen'"):
        pack(named(sealed)._replace(hub="bedroom"), data)


def test_only_segments_with_an_index_count(sealed: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path / "archive")
    segment = named(sealed)
    packed = pack(segment, sealed.read_bytes())
    store.put_new(segment.object_key, packed.stored)
    assert list(archived_segments(store)) == []
    with pytest.raises(ObjectMissing):
        load_index(store, segment)
    store.put_new(segment.index_key, packed.index.encode())
    store.put_new(segment._replace(refused=True).index_key, b"")
    store.put_new("bedroom/claim.json", b"")
    assert list(archived_segments(store, "kitchen")) == [segment, segment._replace(refused=True)]
    assert list(archived_segments(store)) == list(archived_segments(store, "kitchen", segment.epoch))
    assert list(archived_segments(store, "bedroom")) == []
