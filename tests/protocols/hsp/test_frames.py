"""The wire of hsp, byte by byte: "Data Types" and "Commands" of the specification."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.hsp.strategies import any_frame, mutated_stream
from wireloom.model import ProtocolViolation
from wireloom.protocols.hsp import HSP, frames
from wireloom.protocols.hsp.frames import Ack, Command, Data, DataAck, Error, ErrorUndef, Ping, Pong

UNLIMITED = frames.MAX_PAYLOAD_LIMIT

# One row a command, written out by hand from the diagrams of the specification.
LAYOUT = [
    (Data(0x0102, b"abc"), "00" "0102" "00000003" "616263"),
    (DataAck(0x01020304, 0x0506, b"abc"), "01" "01020304" "0506" "00000003" "616263"),
    (Ack(0x01020304), "02" "01020304"),
    (Ping(), "03"),
    (Pong(), "04"),
    (Error(0x01020304, 0x0506, b"abc"), "05" "01020304" "0506" "00000003" "616263"),
    (ErrorUndef(0x01020304), "06" "01020304"),
]  # fmt: skip
NAMES = [type(frame).__name__ for frame, _ in LAYOUT]

# Headers up to their length field, and the id that is answered when the length is refused.
WITH_PAYLOAD = [(b"\x00\x00\x07", None), (b"\x01\x00\x00\x00\x09\x00\x07", 9), (b"\x05\x00\x00\x00\x09\x00\x07", None)]


def test_the_table_of_commands() -> None:
    assert {command.name: command.value for command in Command} == {
        "DATA": 0,
        "DATA_ACK": 1,
        "ACK": 2,
        "PING": 3,
        "PONG": 4,
        "ERROR": 5,
        "ERROR_UNDEF": 6,
    }


@pytest.mark.parametrize(("frame", "wire"), LAYOUT, ids=NAMES)
def test_each_command_is_written_as_its_diagram_shows(frame: frames.Frame, wire: str) -> None:
    assert frames.encode(frame).hex() == wire


@pytest.mark.parametrize(("frame", "wire"), LAYOUT, ids=NAMES)
def test_each_command_is_read_as_its_diagram_shows(frame: frames.Frame, wire: str) -> None:
    assert frames.decode(bytes.fromhex(wire)) == (frame, len(wire) // 2)


@pytest.mark.parametrize(("frame", "wire"), LAYOUT, ids=NAMES)
def test_a_part_of_a_frame_is_no_frame_yet(frame: frames.Frame, wire: str) -> None:
    data = bytes.fromhex(wire)
    assert [frames.decode(data[:size]) for size in range(len(data))] == [None] * len(data)


def test_key_fields_are_unsigned() -> None:
    top = DataAck(0xFFFFFFFF, 0xFFFF, b"")
    assert frames.encode(top).hex() == "01ffffffffffff00000000"
    assert frames.decode(frames.encode(top)) == (top, 11)
    assert frames.decode(frames.encode(Ack(0x80000000))) == (Ack(0x80000000), 5)
    assert frames.decode(frames.encode(Data(0x8000, b""))) == (Data(0x8000, b""), 7)


def test_key_fields_are_big_endian() -> None:
    assert frames.decode(bytes.fromhex("0100000001000200000001ff")) == (DataAck(1, 2, b"\xff"), 12)


def test_payloads_are_left_as_they_are() -> None:
    every_byte = bytes(range(256))
    assert frames.encode(Data(1, every_byte))[7:] == every_byte
    assert frames.decode(frames.encode(Error(1, 2, every_byte))) == (Error(1, 2, every_byte), 11 + 256)


def test_a_payload_may_be_empty() -> None:
    assert frames.decode(bytes.fromhex("00000700000000")) == (Data(7, b""), 7)


@given(any_frame())
def test_what_is_encoded_decodes_to_the_same_frame(frame: frames.Frame) -> None:
    wire = frames.encode(frame)
    assert frames.decode(wire) == (frame, len(wire))
    assert frames.decode(bytearray(wire)) == (frame, len(wire))


@given(st.binary(max_size=9), any_frame(), st.binary(max_size=9))
def test_a_frame_is_found_where_it_stands(before: bytes, frame: frames.Frame, after: bytes) -> None:
    wire = frames.encode(frame)
    assert frames.decode(before + wire + after, len(before)) == (frame, len(before) + len(wire))


@given(st.one_of(mutated_stream(), st.binary(max_size=80)))
def test_garbage_gives_frames_or_a_violation_with_a_clause_and_nothing_else(data: bytes) -> None:
    position = 0
    try:
        while (found := frames.decode(data, position, 64)) is not None:
            frame, end = found
            assert frames.encode(frame) == data[position:end]
            position = end
    except ProtocolViolation as violation:
        assert violation.clause in HSP.clauses


@pytest.mark.parametrize("command", [7, 8, 127, 128, 255])
def test_an_unknown_command_is_a_violation(command: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"command {command}$") as caught:
        frames.decode(bytes((command,)))
    assert (caught.value.clause, caught.value.reply) == ("hsp.command.unknown", b"")


def test_the_default_limit_is_8192() -> None:
    assert frames.MAX_PAYLOAD_DEFAULT == 8192
    fits = frames.encode(Data(1, bytes(8192)))
    assert frames.decode(fits) == (Data(1, bytes(8192)), len(fits))
    with pytest.raises(ProtocolViolation, match="payload of 8193 bytes; max_payload is 8192"):
        frames.decode(frames.encode(Data(1, bytes(8193))))


@pytest.mark.parametrize(("head", "reply_to"), WITH_PAYLOAD, ids=["DATA", "DATA_ACK", "ERROR"])
def test_a_limit_is_checked_when_the_length_is_there_and_only_a_data_ack_is_answered(
    head: bytes, reply_to: int | None
) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        frames.decode(head + b"\xff\xff\xff\xff")
    assert caught.value.clause == "hsp.payload.too-large"
    assert caught.value.reply == (b"" if reply_to is None else frames.encode(ErrorUndef(reply_to)))
    assert frames.decode(head + b"\xff\xff\xff") is None


@pytest.mark.parametrize(("head", "reply_to"), WITH_PAYLOAD, ids=["DATA", "DATA_ACK", "ERROR"])
def test_the_length_field_keeps_its_four_bytes_whatever_the_limit(head: bytes, reply_to: int | None) -> None:
    for limit in (0, 1, 255, 65535, UNLIMITED):
        assert frames.decode(head + b"\x00\x00\x00\x00", 0, limit) is not None
        assert frames.decode(head + b"\x00\x00\x00", 0, limit) is None
    # The largest length there is can be asked for, and is then waited for.
    assert frames.decode(head + b"\xff\xff\xff\xff", 0, UNLIMITED) is None


@pytest.mark.parametrize("limit", [0, 1, 100, 65536])
@pytest.mark.parametrize(("head", "reply_to"), WITH_PAYLOAD, ids=["DATA", "DATA_ACK", "ERROR"])
def test_a_limit_counts_payload_bytes_and_includes_itself(head: bytes, reply_to: int | None, limit: int) -> None:
    assert frames.decode(head + limit.to_bytes(4) + bytes(limit), 0, limit) is not None
    with pytest.raises(ProtocolViolation):
        frames.decode(head + (limit + 1).to_bytes(4), 0, limit)


def test_no_memory_is_taken_for_a_length_that_is_only_announced() -> None:
    announced = b"\x00\x00\x07" + (2**30).to_bytes(4)
    tracemalloc.start()
    try:
        assert frames.decode(announced, 0, UNLIMITED) is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_frames_are_values() -> None:
    assert Data(7, b"x") == Data(7, b"x") != DataAck(0, 7, b"x")
    assert len({Ack(1), Ack(1), ErrorUndef(1)}) == 2
    with pytest.raises(AttributeError):
        Ack(1).message_id = 2  # type: ignore[misc]


@pytest.mark.parametrize("frame", [Ack(-1), Ack(2**32), Data(-1, b""), Data(65536, b"")])
def test_numbers_that_do_not_fit_their_field_are_never_written(frame: frames.Frame) -> None:
    with pytest.raises(struct.error):
        frames.encode(frame)


def test_header_sizes_are_those_of_the_diagrams() -> None:
    for frame, wire in LAYOUT:
        payload = getattr(frame, "payload", b"")
        assert frames.header_size(int(wire[:2], 16)) == len(wire) // 2 - len(payload)
