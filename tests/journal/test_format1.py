"""A journal of format 1, kept as data: every later version reads it, and finds in it what was found then."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from wireloom.cli.main import main
from wireloom.journal import Journal, Tail, read_all, segments
from wireloom.journal.keys import keys_in
from wireloom.journal.reader import Entry, Record
from wireloom.journal.verify import Verified, verify

FOLDER = Path(__file__).with_name("format1")
JOURNAL = FOLDER / "journal"
LONGEST = 200
"""Bytes of a body that are listed as they are."""


def listed(body: bytes) -> dict[str, object]:
    """A body as the listings have it."""
    if len(body) <= LONGEST:
        return {"body_base64": base64.b64encode(body).decode()}
    return {"body_sha256": hashlib.sha256(body).hexdigest(), "body_size": len(body)}


def listing(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def printed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, object]]:
    """What `journal cat --json` says, in the form of the listing: short, and nothing of what is not there."""
    assert main(["journal", "cat", str(folder), "--json", *options]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line in lines:
        text = line.pop("body", None)
        encoded = line.pop("body_base64", "")
        line.update(listed(text.encode() if text is not None else base64.b64decode(encoded)))
    return [{name: value for name, value in line.items() if value is not None and value != {}} for line in lines]


def assert_same(found: list[dict[str, object]], expected: list[dict[str, object]]) -> None:
    """Nothing is missing or different; a later version may say more of a message."""
    assert len(found) == len(expected)
    for new, old in zip(found, expected, strict=True):
        attributes = new.get("attributes", {})
        assert isinstance(attributes, dict)
        known = old.get("attributes", {})
        assert isinstance(known, dict)
        assert known.items() <= attributes.items()
        told = {**old, "attributes": attributes}
        if (old.get("protocol"), old.get("kind")) == ("yamp", "error"):
            assert str(new["status"]).isdecimal()  # the code, instead of `error`
            told["status"] = new["status"]
        assert told.items() <= {**new, "attributes": attributes}.items()


@pytest.mark.parametrize("options", [(), ("--since", "start")])
def test_cat_prints_what_it_printed_then(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    assert_same(printed(JOURNAL, capsys, *options), listing("messages.jsonl"))


def test_the_journal_has_what_its_description_says() -> None:
    lines = listing("messages.jsonl")
    assert {line["protocol"] for line in lines} == {"hsp", "emp", "yamp", "wolpertinger", "mesh"}
    assert {line.get("content_type") for line in lines} >= {
        "application/json",
        "application/msgpack",
        "application/cbor",
    }
    records = [found.block.record for found in read_all(JOURNAL) if isinstance(found, Record)]
    assert set(records) == {"started", "opened", "closed", "refused", "topics", "denied", "principal"}
    assert [path.name.endswith("Z.pcapng") for path in segments(JOURNAL)] == [True] * 3
    assert [len(list(keys_in(path.read_bytes(), 0, path.stat().st_size))) for path in segments(JOURNAL)] == [1, 2, 1]


def test_a_tail_reads_it_from_any_offset() -> None:
    places = [entry.place for entry in read_all(JOURNAL) if isinstance(entry, Entry)]
    for index in range(0, len(places), 40):
        tail, found = Tail(JOURNAL, places[index]), []
        while piece := tail.read(4096):
            found += [each.place for each in piece if isinstance(each, Entry)]
        assert found == places[index + 1 :]


def test_verify_finds_no_fault() -> None:
    seen = Verified()
    assert list(verify(JOURNAL, seen)) == []
    assert (seen.segments, seen.blocks) == (4, 313)


def test_a_writer_goes_on_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "journal"
    shutil.copytree(JOURNAL, folder)
    last = max(each.block.packet_id for each in read_all(JOURNAL) if isinstance(each, Record))
    with Journal.open(folder, sync=False) as journal:
        journal.record("started", {"again": True})
        journal.commit()
    assert list(verify(folder)) == []
    assert_same(printed(folder, capsys), listing("messages.jsonl"))
    said = [each.block for each in read_all(folder) if isinstance(each, Record) and "again" in each.block.details]
    assert [block.packet_id > last for block in said] == [True]
