"""Counts the values of a body before any of them is created.

A byte of a body can become a hundred bytes of memory: an empty list is one byte in MessagePack, and about a hundred in
Python. So the number of values is limited before a peer's body is decoded. These functions scan a body without creating
values. They take constant memory, and time that is linear in its size.

CBOR can refer to a value elsewhere: shared values (tags 28 and 29) and references to strings (25 and 256). With them,
300 bytes can stand for more values than fit into memory. They are refused. So are numbers that are so large, or so
many, that arithmetic with them would be slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

VALUE = 16
"""Bytes that each value counts for, against a limit of size."""
LARGEST_NUMBER = 1024
"""Bytes of a CBOR number."""
LARGE_NUMBERS = 1000
"""CBOR numbers of more than eight bytes in one body: those with equal hashes would make a map slow."""

_CBOR_SIMPLE = re.compile(rb"[\x00-\x17\x20-\x37\x40\x60\x80\xa0\xe0-\xf7\xff]+")
_CBOR_REFERENCES = frozenset((25, 28, 29, 256))
_MSGPACK_SIMPLE = re.compile(rb"[\x00-\x7f\x80\x90\xa0\xc0\xc2\xc3\xe0-\xff]+")
_MSGPACK_SIZES = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8} | {
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17
}  # fmt: skip
_MSGPACK_LENGTHS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)} | {
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)
}  # fmt: skip
"""Bytes of the length, and bytes that are not counted in it."""
_JSON_PARTS = re.compile(rb'"(?:[^"\\]+|\\.)*+"|[,:\[{]', re.DOTALL)
_BSON_SIZES = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16} | {
    0x7F: 0, 0xFF: 0
}  # fmt: skip


class TooManyValues(ValueError):
    """A body holds more values than the limit."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} values")


def count_cbor(data: bytes, most: int) -> int:
    """How many values a CBOR item holds.

    >>> count_cbor(bytes.fromhex("83010203"), 10)
    4
    >>> count_cbor(bytes.fromhex("d81c8101"), 10)
    Traceback (most recent call last):
    ValueError: references to other values (tag 28) are refused
    """
    at = heads = declared = numbers = 0
    size = len(data)
    while at < size:
        run = _CBOR_SIMPLE.match(data, at)
        if run is not None:
            heads += run.end() - at
            at = run.end()
        else:
            major, info = data[at] >> 5, data[at] & 31
            width = 1 << (info - 24) if 24 <= info < 28 else 0
            value = int.from_bytes(data[at + 1 : at + 1 + width]) if width else info if info < 24 else 0
            at += 1 + width
            heads += 1
            if major in (2, 3):
                at += value
            elif major in (4, 5):
                declared += value * (major - 3)
            elif major == 6:
                if value in _CBOR_REFERENCES:
                    raise ValueError(f"references to other values (tag {value}) are refused")
                if value in (2, 3):
                    numbers += 1
                    _check_number(data, at, numbers)
        if max(heads, declared) > most:
            raise TooManyValues(most)
    return heads


def _check_number(data: bytes, at: int, numbers: int) -> None:
    """Refuse a number that is too large, or one large number too many; `at` is the position of its bytes."""
    head = data[at : at + 3]
    length = head[0] - 0x40 if head and 0x40 <= head[0] < 0x58 else LARGEST_NUMBER + 1
    if head[:1] == b"\x58" or head[:1] == b"\x59":
        length = int.from_bytes(head[1 : 2 + (head[0] - 0x58)])
    if length > LARGEST_NUMBER:
        raise ValueError(f"a number of more than {LARGEST_NUMBER} bytes")
    if numbers > LARGE_NUMBERS:
        raise ValueError(f"more than {LARGE_NUMBERS} numbers of more than eight bytes")


def count_msgpack(data: bytes, most: int) -> int:
    """How many values a MessagePack body holds.

    >>> count_msgpack(bytes.fromhex("93010203"), 10)
    4
    """
    at = heads = declared = 0
    size = len(data)
    while at < size:
        run = _MSGPACK_SIMPLE.match(data, at)
        if run is not None:
            heads += run.end() - at
            at = run.end()
        else:
            first = data[at]
            at += 1
            heads += 1
            if first < 0xA0:
                declared += (first & 15) * (1 if first & 16 else 2)
            elif first < 0xC0:
                at += first & 31
            elif first in _MSGPACK_SIZES:
                at += _MSGPACK_SIZES[first]
            elif first in _MSGPACK_LENGTHS:
                width, more = _MSGPACK_LENGTHS[first]
                at += width + more + int.from_bytes(data[at : at + width])
            elif first >= 0xDC:
                width = 2 << (first & 1)
                declared += int.from_bytes(data[at : at + width]) * (1 if first < 0xDE else 2)
                at += width
        if max(heads, declared) > most:
            raise TooManyValues(most)
    return heads


def count_json(data: bytes, most: int) -> int:
    """How many values a JSON text holds, roughly; those in texts are not counted where it matters.

    >>> count_json(b'{"a": [1, 2]}', 10)
    5
    """
    count = 1 + sum(map(data.count, (b",", b":", b"[", b"{")))
    if count > most:
        count = 1
        for part in _JSON_PARTS.finditer(data):
            count += data[part.start()] != 0x22
            if count > most:
                raise TooManyValues(most)
    return count


def count_bson(data: bytes, most: int) -> int:
    """How many values a BSON document holds, roughly: each has a name that ends with a NUL.

    >>> count_bson(bytes.fromhex("0c0000001061000100000000"), 10) <= 10
    True
    """
    count = data.count(0)
    if count <= most:
        return count
    count, at, size = 0, 4, len(data)
    while at < size:
        kind = data[at]
        at += 1
        if kind == 0:
            continue
        count += 1
        if count > most:
            raise TooManyValues(most)
        at = data.index(0, at) + 1
        if kind in _BSON_SIZES:
            at += _BSON_SIZES[kind]
        elif kind in (0x03, 0x04):
            at += 4
        elif kind == 0x0B:
            at = data.index(0, data.index(0, at) + 1) + 1
        else:
            # A length counts what follows it; that of code with a scope counts all of it, and so itself.
            beside = {0x05: 5, 0x0C: 16, 0x0F: 0}.get(kind, 4)
            at += int.from_bytes(data[at : at + 4], "little") + beside
    return count


COUNTERS: Mapping[str, Callable[[bytes, int], int]] = {
    "json": count_json,
    "msgpack": count_msgpack,
    "cbor": count_cbor,
    "bson": count_bson,
}
