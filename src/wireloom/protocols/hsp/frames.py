"""The frames of hsp: seven commands, integers in big-endian, byte arrays with a 32-bit length.

Implements the sections "Data Types" and "Commands" of the hsp specification. One frame at a time;
`columns.py` does the same for thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from wireloom.model import ProtocolViolation

MAX_PAYLOAD_DEFAULT = 8192
MAX_PAYLOAD_LIMIT = 2**32 - 1

CLAUSES = {
    "hsp.command.unknown": "The command is one of 0 to 6 (Commands)",
    "hsp.payload.too-large": "The application may restrict the maximum length (ByteArray)",
    "hsp.message-id.reused": "A MessageID is reused only once a response was received for it (DATA_ACK)",
}


class Command(IntEnum):
    """The first byte of every frame."""

    DATA = 0
    DATA_ACK = 1
    ACK = 2
    PING = 3
    PONG = 4
    ERROR = 5
    ERROR_UNDEF = 6


@dataclass(frozen=True, slots=True)
class Data:
    """Send data, don't expect acknowledgement."""

    type: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class DataAck:
    """Send data, expect `Ack`, `Error` or `ErrorUndef` in return."""

    message_id: int
    type: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge a previous `DataAck`."""

    message_id: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Expect `Pong` in return."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Response to `Ping`."""


@dataclass(frozen=True, slots=True)
class Error:
    """A previous `DataAck` could not be processed: error code and details."""

    message_id: int
    type: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ErrorUndef:
    """A previous `DataAck` could not be processed, for an unknown reason."""

    message_id: int


Frame = Data | DataAck | Ack | Ping | Pong | Error | ErrorUndef

PING, PONG = Ping(), Pong()

# Plain numbers for the busiest function: looking up a member of an enum costs as much as the rest of a small frame.
_DATA, _DATA_ACK, _ACK, _PING, _PONG, _ERROR, _ERROR_UNDEF = (int(command) for command in Command)

_HEAD_DATA = struct.Struct(">BHI")
_HEAD_DATA_ACK = struct.Struct(">BIHI")
_HEAD_ID = struct.Struct(">BI")


def encode(frame: Frame) -> bytes:
    """A frame as bytes.

    >>> encode(Data(7, b"hello")).hex()
    '0000070000000568656c6c6f'
    >>> encode(Ack(1)).hex()
    '0200000001'
    """
    match frame:
        case Data(type_, payload):
            return _HEAD_DATA.pack(_DATA, type_, len(payload)) + payload
        case DataAck(message_id, type_, payload):
            return _HEAD_DATA_ACK.pack(_DATA_ACK, message_id, type_, len(payload)) + payload
        case Error(message_id, type_, payload):
            return _HEAD_DATA_ACK.pack(_ERROR, message_id, type_, len(payload)) + payload
        case Ack(message_id):
            return _HEAD_ID.pack(_ACK, message_id)
        case ErrorUndef(message_id):
            return _HEAD_ID.pack(_ERROR_UNDEF, message_id)
        case Ping():
            return bytes((_PING,))
        case Pong():
            return bytes((_PONG,))


def encode_requests(ids: Sequence[int], type_: int, head: bytes, bodies: Sequence[bytes]) -> bytes:
    """A `DATA_ACK` for each body, all of one type; payloads begin with `head`.

    >>> encode_requests([1, 2], 7, b"", [b"a", b"b"]).hex()
    '010000000100070000000161010000000200070000000162'
    """
    size, parts = len(head), list[bytes]()
    for number, body in zip(ids, bodies, strict=True):
        parts += (_HEAD_DATA_ACK.pack(_DATA_ACK, number, type_, size + len(body)), head, body)
    return b"".join(parts)


def encode_acks(ids: Iterable[int]) -> bytes:
    """An `ACK` for each id.

    >>> encode_acks([1, 2]).hex()
    '02000000010200000002'
    """
    return b"".join([_HEAD_ID.pack(_ACK, number) for number in ids])


def header_size(command: int) -> int:
    """How many bytes of a frame with this command come before its payload.

    >>> [header_size(command) for command in Command]
    [7, 11, 5, 1, 1, 11, 5]
    """
    if command == Command.DATA:
        return _HEAD_DATA.size
    if command in (Command.DATA_ACK, Command.ERROR):
        return _HEAD_DATA_ACK.size
    return _HEAD_ID.size if command in (Command.ACK, Command.ERROR_UNDEF) else 1


def needed(buffer: bytes, start: int) -> int:
    """How many bytes of the frame at `start` must be there before `decode`, which gave None, can say more."""
    head = header_size(buffer[start])
    if len(buffer) - start < head:
        return head
    return head + int.from_bytes(buffer[start + head - 4 : start + head])


def decode(
    buffer: bytes | bytearray, start: int = 0, max_payload: int = MAX_PAYLOAD_DEFAULT
) -> tuple[Frame, int] | None:
    """The frame at `start` and where it ends; None when only a part of it is there.

    >>> decode(bytes.fromhex("0000070000000568656c6c6f"))
    (Data(type=7, payload=b'hello'), 12)
    >>> decode(bytes.fromhex("00000700")) is None
    True
    >>> decode(b"\\x09")
    Traceback (most recent call last):
    wireloom.errors.ProtocolViolation: hsp.command.unknown: command 9
    """
    available = len(buffer) - start
    if available < 1:
        return None
    command = buffer[start]
    if command == _DATA:
        if available < _HEAD_DATA.size:
            return None
        _, type_, length = _HEAD_DATA.unpack_from(buffer, start)
        _check_length(length, max_payload, reply_to=None)
        body = start + _HEAD_DATA.size
        return (
            None if len(buffer) < body + length else (Data(type_, bytes(buffer[body : body + length])), body + length)
        )
    if command in (_DATA_ACK, _ERROR):
        if available < _HEAD_DATA_ACK.size:
            return None
        _, message_id, type_, length = _HEAD_DATA_ACK.unpack_from(buffer, start)
        _check_length(length, max_payload, reply_to=message_id if command == _DATA_ACK else None)
        body = start + _HEAD_DATA_ACK.size
        if len(buffer) < body + length:
            return None
        frame = DataAck if command == _DATA_ACK else Error
        return frame(message_id, type_, bytes(buffer[body : body + length])), body + length
    if command in (_ACK, _ERROR_UNDEF):
        if available < _HEAD_ID.size:
            return None
        _, message_id = _HEAD_ID.unpack_from(buffer, start)
        return (Ack(message_id) if command == _ACK else ErrorUndef(message_id)), start + _HEAD_ID.size
    if command == _PING:
        return PING, start + 1
    if command == _PONG:
        return PONG, start + 1
    raise ProtocolViolation("hsp.command.unknown", f"command {command}")


def _check_length(length: int, max_payload: int, reply_to: int | None) -> None:
    """Refuse a length before memory is taken for it; a `DATA_ACK` still gets its answer."""
    if length > max_payload:
        raise ProtocolViolation(
            "hsp.payload.too-large",
            f"payload of {length} bytes; max_payload is {max_payload}",
            reply=b"" if reply_to is None else encode(ErrorUndef(reply_to)),
        )
