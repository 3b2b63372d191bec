"""`wireloom journal` and the JSON form of messages."""

from __future__ import annotations

import argparse
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.cli import journal as command
from wireloom.cli.jsonlines import message_from_json, message_to_json
from wireloom.journal import Journal, read_all, read_blocks, segments
from wireloom.journal.segment import committed_path, segment_name
from wireloom.journal.verify import verify
from wireloom.model import Authenticity, ConfigError, Direction, JournalError, Kind, Message

from .conftest import data


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["journal", *map(str, arguments)])
    return int(parsed.run(parsed))


def test_ls_shows_every_segment_with_its_state(tmp_path, capsys):
    with Journal.open(tmp_path, segment_bytes=1000) as journal:
        for number in range(20):
            journal.append("hsp", 1, Direction.C2S, number, data("x" * 50))
            journal.commit()
        names = [path.name for path in segments(tmp_path)]
        assert run("ls", tmp_path) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["segment", "bytes", "state", "first", "last", "blocks"]
    assert [row.split()[0] for row in rows] == names
    assert [("sealed" in row) for row in rows] == [True] * (len(rows) - 1) + [False]
    assert "being written" in rows[-1]
    assert sum(int(row.split()[-1]) for row in rows) == 21


def test_cat_json_gives_one_message_a_line(folder, capsys):
    assert run("cat", folder, "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["event", "event", "request", "response", "event", "ping"]
    assert lines[0]["body"] == "hello" and lines[0]["topic"] == "sensors/kitchen"
    assert lines[2]["body_base64"] == "/wA=" and "body" not in lines[2]
    raw = (folder / lines[0]["segment"]).read_bytes()
    assert raw[lines[0]["offset"] :][: lines[0]["size"]] == data("hello")
    for line in lines:
        assert {"id", "correlation_id", "status", "attributes", "protocol", "time"} <= set(line)
        assert len(line["connection"]) == 16
        assert line["direction"] in ("c2s", "s2c")
        assert line["time"].endswith("Z")


def test_cat_is_readable_and_shows_records_too(folder, capsys):
    assert run("cat", folder) == 0
    text = capsys.readouterr().out
    assert "event sensors/kitchen hello" in text
    assert "-- opened" in text and "-- refused clause=hsp.command.unknown" in text


def test_cat_tells_bytes_that_do_not_decode(tmp_path, capsys):
    with Journal.open(tmp_path) as journal:
        journal.append("hsp", 1, Direction.C2S, 0, b"\x09")
    assert run("cat", tmp_path, "--json") == 1
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["reject"]["clause"] == "hsp.command.unknown"
    assert run("cat", tmp_path) == 1
    assert "REJECT hsp.command.unknown" in capsys.readouterr().out


def test_verify_finds_nothing_in_a_sound_journal(folder, capsys):
    assert run("verify", folder) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "2 segments, 13 blocks" in output.out and "no fault" in output.out


def test_verify_finds_every_flipped_bit_of_a_payload_and_goes_on_after_it(folder, capsys):
    (segment,) = segments(folder)
    damaged = bytearray(segment.read_bytes())
    hurt = [block for block in read_blocks(segment) if block.payload][:2]
    for block in hurt:
        damaged[block.payload_offset + 1] ^= 4
    segment.write_bytes(damaged)
    assert run("verify", folder) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{segment}: wrong hash at byte {block.offset}" for block in hurt]


def test_verify_finds_a_hole_a_cut_and_a_wrong_committed_length(tmp_path, capsys):
    with Journal.open(tmp_path, segment_bytes=1000) as journal:
        for number in range(20):
            journal.append("hsp", 1, Direction.C2S, number, data("x" * 50))
            journal.commit()
    first, second, third, *_ = segments(tmp_path)
    second.unlink()
    third.write_bytes(third.read_bytes()[:-3])
    committed_path(first).write_text(f"{10**9:020d}\n")
    assert run("verify", tmp_path) == 1
    errors = capsys.readouterr().err
    assert "1000000000 bytes are committed, the file ends" in errors
    assert f"{third}: goes on after packet id" in errors
    assert "the segment before it ends with" in errors
    assert f"{third}: block cut off" in errors


@pytest.mark.parametrize("which", [0, 1, -1])
def test_verify_finds_a_sealed_segment_that_has_become_empty(tmp_path, capsys, which):
    with Journal.open(tmp_path, segment_bytes=1000) as journal:
        for number in range(20):
            journal.append("hsp", 1, Direction.C2S, number, data("x" * 50))
            journal.commit()
    empty = segments(tmp_path)[which]
    empty.write_bytes(b"")
    assert run("verify", tmp_path) == 1
    assert capsys.readouterr().err == f"{empty}: a sealed segment that is empty at byte 0\n"


def test_a_segment_that_is_only_just_begun_is_no_fault(tmp_path, capsys):
    with Journal.open(tmp_path):
        begun = tmp_path / segment_name(2, "0" * 16)
        begun.touch()
        committed_path(begun).write_text(f"{0:020d}\n")
        for what in ("ls", "cat", "verify"):
            assert run(what, tmp_path) == 0
        assert capsys.readouterr().err == ""


def test_segments_that_retention_takes_while_others_are_read_are_passed_over(tmp_path, monkeypatch):
    with Journal.open(tmp_path, segment_bytes=1000) as journal:
        for number in range(20):
            journal.append("hsp", 1, Direction.C2S, number, data("x" * 50))
            journal.commit()
    first, *rest = segments(tmp_path)
    kept = [each for path in rest for each in read_all(path)]
    first.unlink()
    for room in ("reader", "verify"):
        monkeypatch.setattr(f"wireloom.journal.{room}.segments", lambda *_: [first, *rest])
    assert list(read_all(tmp_path)) == kept
    assert list(verify(tmp_path)) == []


def test_what_is_no_journal_is_called_so(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    for what in ("ls", "cat", "verify"):
        with pytest.raises(JournalError, match="no journal"):
            run(what, tmp_path)
    with pytest.raises(JournalError, match="no journal"):
        run("ls", tmp_path / "a.txt")


TEXTS = st.none() | st.text(max_size=10)


@given(
    st.builds(
        Message,
        kind=st.sampled_from(Kind),
        topic=TEXTS,
        body=st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
        id=TEXTS,
        correlation_id=TEXTS,
        status=TEXTS,
        content_type=st.none() | st.text(min_size=1, max_size=10),
        attributes=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
        protocol=st.sampled_from(["", "hsp"]),
        time=st.none() | st.integers(0, 2**62),
        connection=st.none() | st.just("0000000000000001"),
        direction=st.none() | st.sampled_from(Direction),
        authenticity=st.sampled_from(Authenticity),
    )
)
def test_a_message_survives_its_json_form(message):
    line = json.loads(json.dumps(message_to_json(message, 3, 4)))
    assert (line["offset"], line["size"]) == (3, 4)
    assert message_from_json(line) == message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({}, "kind is None"),
        ({"kind": "event", "topic": 7}, "topic is 7; it must be text"),
        ({"kind": "event", "body_base64": "?"}, "body cannot be turned into bytes"),
        ({"kind": "event", "attributes": []}, None),
        ({"kind": "event", "attributes": [1]}, "attributes is"),
        ({"kind": "event", "time": "noon"}, "time is 'noon'"),
        ({"kind": "event", "direction": "up"}, "direction is 'up'; it must be one of c2s, s2c, dgram"),
    ],
)
def test_a_wrong_line_is_told_by_its_key(line, says):
    if says is None:
        assert message_from_json(line).attributes == {}
    else:
        with pytest.raises(ConfigError, match=says):
            message_from_json(line)
