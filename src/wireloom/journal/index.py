"""Indexes the blocks in a byte range of a segment as arrays. The pipeline reads journals with it.

It reads the same format as `blocks.py` (docs/reference/journal-format.md), by a kernel that makes no object per block.
Needs numpy and numba, so no reader in this folder imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wireloom.journal import blocks
from wireloom.journal.blocks import Block
from wireloom.journal.crc32 import CRC_TABLES, crc32, u32
from wireloom.journal.keys import DECRYPTION_SECRETS, Keys, keys_in
from wireloom.kernels import inlined, kernel

C2S, S2C, DGRAM = 0, 1, 2
"""The direction codes of a `BlockIndex`."""
NO_CONTEXT = -1

_FAULTS = (
    "",
    "block cut off",
    "wrong block length",
    "wrong trailing length",
    "no block",
    "wrong captured length",
    "block without flags, hash and packet id",
    "wrong hash",
    "tags without an end",
    "tags without a dissector's name",
    "comment of no known form",
    "too many dissectors' names",
)
_CUT, _LENGTH, _TRAILING, _NONE, _CAPTURED, _OPTIONS, _HASH, _TAGS, _UNNAMED, _COMMENT, _MANY = range(1, 12)
_MAX_NAMES = 256
_PREFIX = np.frombuffer(blocks.DISSECTOR_PREFIX.encode(), np.uint8)


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """A row a packet block, in order; offsets count from the beginning of the data.

    `protocol` is an index into `protocols`, `direction` one of C2S, S2C, DGRAM (0 for records),
    `connection` 0 where a record concerns none, `context` NO_CONTEXT where a block names none.
    `end` says how far the data was understood, and `fault` why not further.
    """

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    packet_id: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    connection: NDArray[np.uint64]
    direction: NDArray[np.uint8]
    sequence: NDArray[np.int64]
    payload_start: NDArray[np.int64]
    payload_end: NDArray[np.int64]
    protocol: NDArray[np.int16]
    context: NDArray[np.int64]
    more: NDArray[np.bool_]
    is_record: NDArray[np.bool_]
    tags_start: NDArray[np.int64]
    protocols: list[str]
    end: int
    fault: str | None

    def __len__(self) -> int:
        return len(self.offset)


def index_blocks(data: NDArray[np.uint8], start: int, end: int, *, check_hash: bool = True) -> BlockIndex:
    """The packet blocks in data[start:end]; `start` is 0 or where a block begins.

    Stops at the first block that is cut off or damaged and says so in `end` and `fault`. `check_hash=False`
    trusts the bytes.
    """
    data = _read_only(data)
    end = min(end, len(data))
    count = _count(data, start, end)
    wide = np.empty((8, count), np.int64)
    offset, size, packet_id, time_ns, sequence, payload_start, payload_end, context = wide
    tags_start = np.empty(count, np.int64)
    connection = np.empty(count, np.uint64)
    protocol = np.empty(count, np.int16)
    small = np.empty((3, count), np.uint8)
    names = np.zeros((_MAX_NAMES, 2), np.int64)
    found, name_count, position, fault = _scan(
        *(data, start, end, check_hash, CRC_TABLES),
        *(offset, size, packet_id, time_ns, sequence, payload_start, payload_end, context),
        *(tags_start, connection, protocol, small, names),
    )
    return BlockIndex(
        offset=offset[:found],
        size=size[:found],
        packet_id=packet_id[:found],
        time_ns=time_ns[:found],
        connection=connection[:found],
        direction=small[0, :found],
        sequence=sequence[:found],
        payload_start=payload_start[:found],
        payload_end=payload_end[:found],
        protocol=protocol[:found],
        context=context[:found],
        more=small[1, :found].view(np.bool_),
        is_record=small[2, :found].view(np.bool_),
        tags_start=tags_start[:found],
        protocols=[
            data[at : at + length].tobytes().decode(errors="replace").removeprefix(blocks.DISSECTOR_PREFIX)
            for at, length in names[:name_count]
        ],
        end=int(position),
        fault=_FAULTS[fault] or None,
    )


def endpoints(data: NDArray[np.uint8], tags_start: int) -> tuple[str | None, str | None]:
    """Source and destination as `host:port`, from the tags of one block."""
    _, source, destination, _ = blocks.parse_tags(data.data[tags_start:], tags_start)
    return source, destination


def records(data: NDArray[np.uint8], index: BlockIndex) -> list[Block]:
    """The records among the blocks of an index, parsed."""
    rows = np.flatnonzero(index.is_record)
    return list(_parse(data, index.offset[rows], index.size[rows]))


def keys_before(data: NDArray[np.uint8], start: int) -> dict[int, Keys]:
    """The keys stated from the segment's beginning up to `start`, by connection."""
    data = _read_only(data)
    places = np.empty((2, _count(data, 0, start, DECRYPTION_SECRETS)), np.int64)
    found = _blocks_of(data, start, places, DECRYPTION_SECRETS)
    stated = (each for at, size in places[:, :found].T.tolist() for each in keys_in(data.data, at, at + size))
    return {each.connection: each for each in stated}


def warm() -> None:
    """Compile or load the kernels, so that the first call does not pay for it."""
    head = np.frombuffer(blocks.segment_head("0", "", "", 0, 0), np.uint8)
    index_blocks(head, 0, len(head))
    keys_before(head, len(head))


def _read_only(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same bytes, not writable: one type of array, so one compilation of each kernel."""
    view = data.view()
    view.flags.writeable = False
    return view


def _parse(data: NDArray[np.uint8], offset: NDArray[np.int64], size: NDArray[np.int64]) -> Iterator[Block]:
    view = data.data  # hashes are the business of `index_blocks`
    for at, length in zip(offset.tolist(), size.tolist(), strict=True):
        yield blocks.parse_packet(view, at, length, check_hash=False)


@kernel
def _u16(data, at):  # type: ignore[no-untyped-def]
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@kernel
def _hex(data, at, digits):  # type: ignore[no-untyped-def]
    """A number of so many lowercase hex digits, and whether it is one."""
    value = np.uint64(0)
    for position in range(at, at + digits):
        letter = data[position]
        if 48 <= letter <= 57:
            digit = letter - 48
        elif 97 <= letter <= 102:
            digit = letter - 87
        else:
            return np.uint64(0), False
        value = value << np.uint64(4) | np.uint64(digit)
    return value, True


@kernel
def _block_at(data, offset, end):  # type: ignore[no-untyped-def]
    """Type and size of a block, and what is wrong with it: `blocks.block_at`."""
    if end - offset < 12:
        return 0, 0, _CUT
    size = np.int64(u32(data, offset + 4))
    if size < 12 or size & 3:
        return 0, 0, _LENGTH
    if size > end - offset:
        return 0, 0, _CUT
    if np.int64(u32(data, offset + size - 4)) != size:
        return 0, 0, _TRAILING
    return np.int64(u32(data, offset)), size, 0


@kernel
def _count(data, start, end, wanted=6):  # type: ignore[no-untyped-def]
    """How many packet blocks, or blocks of another type, there are at most."""
    count, offset = 0, start
    while offset < end:
        block_type, size, fault = _block_at(data, offset, end)
        if fault:
            break
        count += block_type == wanted
        offset += size
    return count


@kernel
def _blocks_of(data, end, places, wanted):  # type: ignore[no-untyped-def]
    """Where the blocks of one type are."""
    found, offset = 0, 0
    while offset < end:
        block_type, size, fault = _block_at(data, offset, end)
        if fault:
            break
        if block_type == wanted:
            places[0, found] = offset
            places[1, found] = size
            found += 1
        offset += size
    return found


@inlined
def _is(data, at, end, text):  # type: ignore[no-untyped-def]
    """Whether the bytes at `at` are those of a text."""
    same = end - at >= len(text)
    if same:
        for position in range(len(text)):
            if data[at + position] != text[position]:
                same = False
    return same


_CONN, _CTX, _MAP, _MORE, _RECORD, _RECORD_CONN = (
    np.frombuffer(each, np.uint8) for each in (b"conn=", b" ctx=", b" map=", b" more", b"record=", b" conn=")
)
_C2S_SEQ, _S2C_SEQ, _DGRAM_SEQ = (
    np.frombuffer(each, np.uint8) for each in (b" dir=c2s seq=", b" dir=s2c seq=", b" dir=dgram seq=")
)


@kernel
def _frames_comment(data, at, end):  # type: ignore[no-untyped-def]
    """Connection, direction, sequence, map, more, and whether the comment is of that form."""
    nothing = np.uint64(0), 0, np.int64(0), np.int64(NO_CONTEXT), False, False
    if end - at < 31 or not _is(data, at, end, _CONN):
        return nothing
    connection, good = _hex(data, at + 5, 16)
    at += 21
    if not good:
        return nothing
    if _is(data, at, end, _C2S_SEQ):
        direction = C2S
        at += 13
    elif _is(data, at, end, _S2C_SEQ):
        direction = S2C
        at += 13
    elif _is(data, at, end, _DGRAM_SEQ):
        direction = DGRAM
        at += 15
    else:
        return nothing
    sequence, digits = np.int64(0), 0
    while at < end and 48 <= data[at] <= 57:
        sequence = sequence * 10 + np.int64(data[at] - 48)
        digits += 1
        at += 1
        if digits > 18:
            return nothing
    if digits == 0:
        return nothing
    context = np.int64(NO_CONTEXT)
    if end - at >= 13 and (_is(data, at, end, _CTX) or _is(data, at, end, _MAP)):
        number, good = _hex(data, at + 5, 8)
        if not good:
            return nothing
        context = np.int64(number)
        at += 13
    more = _is(data, at, end, _MORE)
    if more:
        at += 5
    return connection, direction, sequence, context, more, at == end


@kernel
def _record_comment(data, at, end):  # type: ignore[no-untyped-def]
    """The connection a record concerns (0: none), and whether the comment is of that form."""
    if not _is(data, at, end, _RECORD):
        return np.uint64(0), False
    at += 7
    letters = 0
    while at < end and 97 <= data[at] <= 122:
        at += 1
        letters += 1
    if not 1 <= letters <= 32:
        return np.uint64(0), False
    connection = np.uint64(0)
    if end - at >= 22 and _is(data, at, end, _RECORD_CONN):
        connection, good = _hex(data, at + 6, 16)
        if not good:
            return np.uint64(0), False
        at += 22
    braces = end - at >= 3 and data[at] == 32 and data[at + 1] == 123 and data[end - 1] == 125
    return connection, braces


@kernel
def _name_code(data, at, length, names, count, latest):  # type: ignore[no-untyped-def]
    """The code of a dissector's name, taking it in if it is new; -1 when there are too many."""
    for attempt in range(-1, count):
        code = latest if attempt == -1 else attempt
        if code < count and names[code, 1] == length:
            known = names[code, 0]
            same = True
            for position in range(length):
                if data[known + position] != data[at + position]:
                    same = False
                    break
            if same:
                return code, count
    if count == len(names):
        return -1, count
    names[count, 0] = at
    names[count, 1] = length
    return count, count + 1


@kernel
def _scan(  # type: ignore[no-untyped-def]
    data, start, end, check_hash, tables,
    offsets, sizes, packet_ids, times, sequences, payload_starts, payload_ends, contexts,
    tags_starts, connections, protocols, small, names,
):  # fmt: skip
    row, name_count, latest = 0, 0, 0
    offset = np.int64(start)
    while offset < end:
        block_type, size, fault = _block_at(data, offset, end)
        if fault:
            return row, name_count, offset, fault
        if block_type == 0:
            return row, name_count, offset, _NONE
        if block_type != 6:
            offset += size
            continue
        if size < 32:
            return row, name_count, offset, _LENGTH
        captured = np.int64(u32(data, offset + 20))
        body, stop = offset + 28, offset + size - 4
        at = body + captured + (-captured & 3)
        if at > stop:
            return row, name_count, offset, _CAPTURED
        packet_id = np.int64(0)
        stated = np.uint32(0)
        seen = 0
        comment, comment_end = at, at
        while stop - at >= 4:
            code, length = _u16(data, at), _u16(data, at + 2)
            at += 4
            if code == 0 or length > stop - at:
                break
            if code == 5 and length == 8:
                packet_id = np.int64(u32(data, at)) | np.int64(u32(data, at + 4)) << 32
                seen |= 1
            elif code == 2 and length == 4:
                seen |= 2
            elif code == 3 and length == 5 and data[at] == 2:
                stated = u32(data, at + 1)
                seen |= 4
            elif code == 1:
                comment, comment_end = at, at + length
            at += length + (-length & 3)
        if seen != 7:
            return row, name_count, offset, _OPTIONS
        if check_hash and crc32(data, body, body + captured, tables, 0) != stated:
            return row, name_count, offset, _HASH
        at, stop = body, body + captured
        name, name_length = body, np.int64(0)
        while True:
            if stop - at < 4:
                return row, name_count, offset, _TAGS
            tag = np.int64(data[at]) << 8 | np.int64(data[at + 1])
            length = np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
            at += 4
            if tag == 0:
                break
            if length > stop - at:
                return row, name_count, offset, _TAGS
            if tag == 12:
                name, name_length = at, length
                while name_length > 0 and data[name + name_length - 1] == 0:
                    name_length -= 1
            at += length
        if name_length == 0 or (name_length == len(_PREFIX) and _is(data, name, name + name_length, _PREFIX)):
            return row, name_count, offset, _UNNAMED
        latest, name_count = _name_code(data, name, name_length, names, name_count, latest)
        if latest < 0:
            return row, name_count, offset, _MANY
        connection, direction, sequence, context, more, good = _frames_comment(data, comment, comment_end)
        record = False
        if not good:
            connection, record = _record_comment(data, comment, comment_end)
            if not record:
                return row, name_count, offset, _COMMENT
            direction, sequence, context, more = C2S, np.int64(0), np.int64(NO_CONTEXT), False
        offsets[row] = offset
        sizes[row] = size
        packet_ids[row] = packet_id
        times[row] = np.int64(u32(data, offset + 12)) << 32 | np.int64(u32(data, offset + 16))
        sequences[row] = sequence
        payload_starts[row] = at
        payload_ends[row] = stop
        contexts[row] = context
        tags_starts[row] = body
        connections[row] = connection
        protocols[row] = latest
        small[0, row] = direction
        small[1, row] = more
        small[2, row] = record
        row += 1
        offset += size
    return row, name_count, offset, 0
