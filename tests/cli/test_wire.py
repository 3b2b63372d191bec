"""`decode` and `encode`: bytes to lines of JSON and back, one stream at a time, without reading it whole."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.running import started, wireloom
from wireloom.cli.wire import decode_chunks
from wireloom.model import Direction
from wireloom.protocols.contract import Decoded, Rejected
from wireloom.protocols.registry import protocol

VECTORS = Path(__file__).parents[1] / "vectors"
EVENT = bytes.fromhex("00 0007 00000005") + b"hello"
REQUEST = bytes.fromhex("01 0000002a 0007 00000002 ff00")
ACK = bytes.fromhex("02 0000002a")
ERROR = bytes.fromhex("05 0000002a 0194 00000003") + b"no!"
STREAM = EVENT + REQUEST + ACK + ERROR + bytes.fromhex("06 00000001 03 04")


def test_decode_gives_the_fields_of_every_message() -> None:
    done = wireloom("decode", "hsp", stdin=STREAM)
    assert (done.code, done.errors) == (0, "")
    lines = [json.loads(line) for line in done.lines]
    assert [line["kind"] for line in lines] == ["event", "request", "response", "error", "error", "ping", "pong"]
    event, request, answer, error = lines[:4]
    assert (event["topic"], event["body"], event["id"]) == ("hsp/7", "hello", None)
    assert (event["offset"], event["size"]) == (0, 12)
    assert (request["id"], request["body_base64"], request["offset"]) == ("42", "/wA=", 12)
    assert "body" not in request
    assert (answer["correlation_id"], answer["status"]) == ("42", "done")
    assert (error["status"], error["body"]) == ("404", "no!")
    assert all(line["attributes"] is not None for line in lines)


def test_decode_then_encode_gives_the_same_bytes(tmp_path: Path) -> None:
    decoded = wireloom("decode", "hsp", stdin=STREAM)
    assert wireloom("encode", "hsp", stdin=decoded.out).out == STREAM
    path = tmp_path / "stream.bin"
    path.write_bytes(STREAM)
    lines = tmp_path / "lines.json"
    lines.write_bytes(wireloom("decode", "hsp", path).out)
    assert wireloom("encode", "hsp", lines).out == STREAM


@pytest.mark.parametrize("vector", sorted(VECTORS.glob("*-*.json")), ids=lambda p: p.stem)
def test_raw_keeps_every_byte_of_recorded_conversations(vector: Path) -> None:
    name = vector.stem.partition("-")[0]
    streams = _streams(json.loads(vector.read_text()))
    assert streams
    for stream in streams[:30]:
        decoded = wireloom("decode", name, "--raw", stdin=stream)
        assert wireloom("encode", name, stdin=decoded.out).out == stream


def _streams(value: object) -> list[bytes]:
    """Every hex text of a recording that is long enough to be frames."""
    if isinstance(value, dict):
        return [found for item in value.values() for found in _streams(item)]
    if isinstance(value, list):
        return [found for item in value for found in _streams(item)]
    if isinstance(value, str) and len(value) > 20 and not set(value) - set("0123456789abcdef"):
        return [bytes.fromhex(value)]
    return []


def test_bytes_that_do_not_decode_give_a_reject_and_exit_code_1() -> None:
    done = wireloom("decode", "hsp", stdin=EVENT + b"\x09rest")
    assert done.code == 1
    assert json.loads(done.lines[-1]) == {
        "reject": {"clause": "hsp.command.unknown", "detail": "command 9", "offset": 12}
    }
    assert len(done.lines) == 2


def test_stream_that_ends_inside_a_frame_is_a_reject() -> None:
    done = wireloom("decode", "hsp", stdin=STREAM + EVENT[:-1])
    assert done.code == 1
    assert json.loads(done.lines[-1])["reject"]["clause"] == "stream.cut"
    assert json.loads(done.lines[-1])["reject"]["offset"] == len(STREAM)


def test_raw_keeps_rejected_bytes_too() -> None:
    stream = EVENT + b"\x09" + b"rest" * 1000
    done = wireloom("decode", "hsp", "--raw", stdin=stream)
    assert done.code == 1
    assert b"".join(base64.b64decode(json.loads(line)["raw_base64"]) for line in done.lines) == stream
    assert wireloom("encode", "hsp", stdin=done.out).out == stream


def test_hex_in_and_out() -> None:
    text = b"0000 07 00000005\n68656c6c6f\n\n03\n"
    done = wireloom("decode", "hsp", "--hex", stdin=text)
    assert [json.loads(line)["kind"] for line in done.lines] == ["event", "ping"]
    assert wireloom("encode", "hsp", "--hex", stdin=done.out).lines == [EVENT.hex(), "03"]


def test_wrong_hex_names_the_line() -> None:
    done = wireloom("decode", "hsp", "--hex", stdin=b"03\nxyz\n")
    assert done.code == 2
    assert done.errors == "wireloom: line 2 is not pairs of hex digits: b'xyz\\n'\n"


@pytest.mark.parametrize("form", ["json", "toml"])
def test_topics_name_numbers(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"topics.{form}"
    path.write_text('{"7": "sensors/kitchen"}' if form == "json" else '[topics]\n7 = "sensors/kitchen"\n')
    done = wireloom("decode", "hsp", "--topics", path, stdin=EVENT)
    assert json.loads(done.lines[0])["topic"] == "sensors/kitchen"
    line = b'{"kind": "event", "topic": "sensors/kitchen", "body": "hello"}\n'
    assert wireloom("encode", "hsp", "--topics", path, stdin=line).out == EVENT


@pytest.mark.parametrize("content", ["[]", '{"a": "b"}', "junk", '{"1": 2}'])
def test_wrong_topics_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "topics.json"
    path.write_text(content)
    done = wireloom("decode", "hsp", "--topics", path)
    assert done.code == 2
    assert str(path) in done.errors and done.errors.count("\n") == 1


def test_settings_by_name() -> None:
    done = wireloom("decode", "hsp", "--set", "max_payload=4", stdin=EVENT)
    assert json.loads(done.lines[0])["reject"]["clause"] == "hsp.payload.too-large"
    wrong = wireloom("decode", "hsp", "--set", "max_paylod=4")
    assert (wrong.code, wrong.out) == (2, b"")
    assert "known: max_numbers, max_payload" in wrong.errors
    assert "NAME=VALUE" in wireloom("decode", "hsp", "--set", "max_payload").errors


def test_option_of_a_protocol_comes_from_the_protocol() -> None:
    assert wireloom("decode", "yamp", "--format", "msgpack").code == 0
    help_ = wireloom("decode", "--help").out.decode()
    for option in ("--format", "--trust", "--key HEX --iv HEX"):
        assert option in help_
    wrong = wireloom("decode", "hsp", "--format", "msgpack")
    assert wrong.code == 2
    assert "unknown option --format; options that only hsp has: none" in wrong.errors


def test_format_says_what_bodies_of_yamp_are_where_no_handshake_does() -> None:
    event = b"\5" + bytes(16) + b"\1a" + bytes.fromhex("00000004 81a16101")
    for words, content_type in (((), "application/json"), (("--format", "msgpack"), "application/msgpack")):
        (line,) = wireloom("decode", "yamp", *words, stdin=event).lines
        assert json.loads(line)["content_type"] == content_type
        assert wireloom("encode", "yamp", *words, stdin=line.encode()).out == event


@pytest.mark.parametrize(("words", "direction"), [((), "c2s"), (("--direction", "s2c"), "s2c")])
def test_direction_says_who_sent_it(words: tuple[str, ...], direction: str) -> None:
    lines = wireloom("decode", "hsp", *words, stdin=STREAM).lines
    assert {json.loads(line)["direction"] for line in lines} == {direction}
    assert wireloom("decode", "hsp", "--direction", "up").code == 2


def test_unknown_protocol_and_missing_file() -> None:
    assert "unknown protocol 'smtp'; known: emp, hsp" in wireloom("decode", "smtp").errors
    assert wireloom("decode", "hsp", "nowhere.bin").errors == "wireloom: nowhere.bin: no such file or directory\n"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"junk", "line 2"),
        (b"[]", "line 2: it must be a JSON object"),
        (b'{"kind": "evnt"}', "line 2: kind is 'evnt'"),
        (b'{"kind": "cancel"}', "line 2: hsp has no frame"),
        (b'{"reject": {}}', "decode --raw"),
    ],
)
def test_line_that_cannot_be_encoded_is_named(line: bytes, complaint: str) -> None:
    done = wireloom("encode", "hsp", stdin=b'{"kind": "ping"}\n' + line + b"\n")
    assert done.code == 2
    assert complaint in done.errors and done.errors.count("\n") == 1


def test_decode_shows_messages_before_the_input_ends() -> None:
    with started("decode", "hsp") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.buffer.write(EVENT + ACK[:2])
        process.stdin.buffer.flush()
        assert json.loads(process.stdout.readline())["body"] == "hello"
        process.stdin.buffer.write(ACK[2:])
        process.stdin.buffer.flush()
        assert json.loads(process.stdout.readline())["kind"] == "response"


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([EVENT, REQUEST, ACK, ERROR, b"\x03", b"\xff", b"\x00\x00"]), max_size=12),
    st.integers(1, 40),
)
def test_chunks_of_any_size_give_the_same_and_keep_every_byte(frames: list[bytes], size: int) -> None:
    stream = b"".join(frames)
    hsp = protocol("hsp")

    def run(chunk: int) -> tuple[list[object], bytes]:
        pieces = [stream[start : start + chunk] for start in range(0, len(stream), chunk)]
        decoder = hsp.decoder(Direction.C2S, hsp.settings())
        found = [pair for batch in decode_chunks(decoder, pieces, keep=True) for pair in batch]
        shown: list[object] = [
            (item.clause, item.offset) if isinstance(item, Rejected) else (item.message, item.offset, item.size)
            for item, _ in found
            if isinstance(item, Decoded | Rejected)
        ]
        return shown, b"".join(raw for _, raw in found)

    whole, small = run(len(stream) or 1), run(size)
    assert whole == small
    assert small[1] == stream


def test_a_trust_file_tells_who_signed_a_packet(tmp_path: Path) -> None:
    key, trust = tmp_path / "node.json", tmp_path / "trust.json"
    assert wireloom("keys", "new", key).code == 0
    assert wireloom("keys", "trust", trust, key).code == 0
    event = b'{"kind": "event", "topic": "a/b", "body": "1"}\n'
    packet = wireloom("encode", "mesh", "--hex", "--set", f"key={key}", stdin=event).out
    assert json.loads(wireloom("decode", "mesh", "--hex", stdin=packet).out)["authenticity"] == "unchecked"
    assert (
        json.loads(wireloom("decode", "mesh", "--hex", "--trust", trust, stdin=packet).out)["authenticity"]
        == "verified"
    )


def test_key_and_iv_open_what_was_encrypted() -> None:
    words = ["--key", "11" * 32, "--iv", "22" * 16]
    call = {"kind": "request", "topic": "A.B", "body": '["x"]', "content_type": "application/json",
            "id": "00000000-0000-0000-0000-000000000001",
            "attributes": {"message_id": "9", "encryption": "aes"}}  # fmt: skip
    sealed = wireloom("encode", "wolpertinger", *words, stdin=json.dumps(call).encode()).out
    assert json.loads(wireloom("decode", "wolpertinger", stdin=sealed).out)["kind"] == "other"
    opened = json.loads(wireloom("decode", "wolpertinger", *words, stdin=sealed).out)
    assert (opened["kind"], opened["topic"], opened["body"]) == ("request", "A.B", '["x"]')
