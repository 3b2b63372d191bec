"""The most common frames without the detour through `frames.py`: data with its topic, requests, acknowledgements.

A session tries this first. It stops before everything else, anything unusual and anything wrong; then `frames.py` and
`protocol.py` decide. What it does give is the same, which the tests hold against each other.
"""

from __future__ import annotations

import struct

from wireloom.model import NO_ATTRIBUTES, Authenticity, Direction, Kind, Message, message_of
from wireloom.protocols.contract import Asker
from wireloom.protocols.hsp.frames import Command
from wireloom.protocols.hsp.profile import ENVELOPE, Names

_HEAD_DATA = struct.Struct(">HI")
_HEAD_DATA_ACK = struct.Struct(">IHI")
_ID = struct.Struct(">I")
_unpack_data, _unpack_data_ack, _unpack_id = _HEAD_DATA.unpack_from, _HEAD_DATA_ACK.unpack_from, _ID.unpack_from
_pack_event, _pack_request = struct.Struct(">BHI").pack, struct.Struct(">BIHI").pack
_pack_ack = struct.Struct(">BI").pack
# Looking up a member of an enum costs as much as making a message.
_DATA, _DATA_ACK, _ACK = int(Command.DATA), int(Command.DATA_ACK), int(Command.ACK)
_EVENT, _REQUEST, _RESPONSE, _NOBODY = Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Authenticity.NONE


def read_plain(
    buffer: bytes,
    start: int,
    max_payload: int,
    names: Names,
    direction: Direction,
    waiting: dict[int, Message | Asker],
    owed: dict[int, None],
    messages: list[Message],
    *,
    to_askers: bool = False,
) -> int:
    """Add the plain messages from `start` on to `messages`; returns where they end.

    It enters requests in `owed` and takes acknowledgements out of `waiting`, and ends before a frame where that is
    not possible. With `to_askers`, whoever asked gets the acknowledgement instead.
    """
    available = len(buffer)
    while start < available:
        command = buffer[start]
        if command == _ACK:
            end = start + 5
            if end > available:
                break
            number = _unpack_id(buffer, start + 1)[0]
            asked = waiting.pop(number, None)
            if asked is None:
                break
            start = end
            if to_askers and asked.__class__ is not Message:
                asked.answered(b"", None)  # type: ignore[union-attr]
                continue
            messages.append(message_of((
                _RESPONSE, None, b"", None, str(number), "done", None, NO_ATTRIBUTES,
                "hsp", None, None, direction, _NOBODY,
            )))  # fmt: skip
            continue
        if command == _DATA_ACK and available - start >= 11:
            number, type_, length = _unpack_data_ack(buffer, start + 1)
            at = start + 11
        elif command == _DATA and available - start >= 7:
            type_, length = _unpack_data(buffer, start + 1)
            at = start + 7
        else:
            break
        end = at + length
        if length > max_payload or end > available:
            break
        if type_ == ENVELOPE:
            # Two bytes with the length of the topic, the topic, one with that of the content type, and that.
            stop = at + 3 + (buffer[at] << 8 | buffer[at + 1]) if length > 2 else end + 1
            if stop > end or (stop := stop + buffer[stop - 1]) > end:
                break
            named = names.of_envelope(buffer[at:stop])
            at = stop
        else:
            named = names.of_number(type_)
        if named is None:
            break
        topic, content_type, attributes = named
        if command == _DATA:
            kind, identifier = _EVENT, None
        else:
            if number in owed:
                break
            owed[number] = None
            kind, identifier = _REQUEST, str(number)
        messages.append(message_of((
            kind, topic, buffer[at:end], identifier, None, None, content_type, attributes,
            "hsp", None, None, direction, _NOBODY,
        )))  # fmt: skip
        start = end
    return start


def write_request(number: int, type_: int, head: bytes, body: bytes) -> bytes:
    """A `DATA_ACK` whose payload is `head` and `body`.

    >>> write_request(1, 7, b"", b"hello").hex()
    '010000000100070000000568656c6c6f'
    """
    return _pack_request(_DATA_ACK, number, type_, len(head) + len(body)) + head + body


def write_event(type_: int, head: bytes, body: bytes) -> bytes:
    """A `DATA` whose payload is `head` and `body`.

    >>> write_event(7, b"", b"hello").hex()
    '0000070000000568656c6c6f'
    """
    return _pack_event(_DATA, type_, len(head) + len(body)) + head + body


def write_ack(number: int) -> bytes:
    """An `ACK`.

    >>> write_ack(1).hex()
    '0200000001'
    """
    return _pack_ack(_ACK, number)
