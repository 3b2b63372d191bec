"""How a peer means sizes: told from the first frame of a stream, or from frames that follow each other."""

from __future__ import annotations

import struct

from wireloom.protocols.emp.frames import (
    FIRST_APPLICATION_TYPE,
    HELLO_SIZE,
    LAST_TYPE,
    MAX_MESSAGE_DEFAULT,
    SizeMode,
    Type,
)

_TELLING = 3
"""So many frames in a row show the size mode of a stream that does not begin with a `hello`."""
_MODES = (SizeMode.INCLUSIVE, SizeMode.EXCLUSIVE)
_HEAD = struct.Struct(">IBBxx")
_MORE = 0x80


def told_mode(buffer: bytes | bytearray, start: int = 0, max_message: int = MAX_MESSAGE_DEFAULT) -> SizeMode | None:
    """The size mode that the beginning of a stream shows; None while too little of the first frame is there.

    A `hello`, which every stream begins with, has the size 12 or 8. Where a stream is seen from its middle on, the
    mode is told in which frames follow each other. What makes no sense in either mode counts as inclusive.

    >>> told_mode(bytes.fromhex("0000000c0000000001000000")), told_mode(bytes.fromhex("000000080000000001000000"))
    (<SizeMode.INCLUSIVE: 'inclusive'>, <SizeMode.EXCLUSIVE: 'exclusive'>)
    >>> told_mode(bytes.fromhex("0000000905000000") + b"hello")
    <SizeMode.EXCLUSIVE: 'exclusive'>
    """
    available = len(buffer) - start
    if available < 4:
        return None
    size = int.from_bytes(buffer[start : start + 4])
    if size < 8:
        return SizeMode.EXCLUSIVE if size >= 4 else SizeMode.INCLUSIVE
    if size > max_message:
        return SizeMode.INCLUSIVE
    if available < 8:
        return None
    _, type_, flags = _HEAD.unpack_from(buffer, start)
    if type_ == Type.HELLO:
        return SizeMode.EXCLUSIVE if size == HELLO_SIZE - 4 and not flags & _MORE else SizeMode.INCLUSIVE
    if LAST_TYPE < type_ < FIRST_APPLICATION_TYPE:
        return SizeMode.INCLUSIVE
    if available < size:
        return None
    return max(_MODES, key=lambda mode: _frames_in_a_row(buffer, start, max_message, mode))


def _frames_in_a_row(buffer: bytes | bytearray, start: int, max_message: int, size_mode: SizeMode) -> float:
    """How well some frames follow each other; -1 if what is said to be a frame is none."""
    left_out = 4 if size_mode is SizeMode.EXCLUSIVE else 0
    at, end = start, len(buffer)
    for count in range(_TELLING):
        if at >= end:
            # Whatever was sent together mostly ends with a frame.
            return count + (0.5 if at == end else -1)
        head = bytes(buffer[at : at + 8])
        least = int.from_bytes(head[:4].ljust(4, b"\0")) + left_out
        if least > max_message or (len(head) >= 4 and least < 8):
            return -1
        # Peers send unused bits as zero.
        if len(head) == 8 and (LAST_TYPE < head[4] < FIRST_APPLICATION_TYPE or head[5] & 0x7F or head[6] or head[7]):
            return -1
        if len(head) < 8:
            return count
        at += least
    return _TELLING
