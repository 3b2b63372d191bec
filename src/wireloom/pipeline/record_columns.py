"""Records and addresses of many blocks as columns: what `index.py` is for frames.

A hub with a hundred thousand connections writes as many records `opened`, and every connection has addresses of its
own. Here no Python object is made for each of them. Needs numpy, numba and pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from wireloom.journal import blocks
from wireloom.journal.blocks import Block, BlockFault
from wireloom.journal.index import BlockIndex, endpoints
from wireloom.kernels import given, kernel
from wireloom.protocols.columns import gather

NAMES = ("opened", "closed", "refused", "started", "principal", "taken", "context", "topics")
"""The records that readers ask for."""
OTHER = len(NAMES)
_LETTERS = np.zeros((len(NAMES), 16), np.uint8)
for _row, _name in enumerate(NAMES):
    _LETTERS[_row, : len(_name)] = np.frombuffer(_name.encode(), np.uint8)
_RECORD_WORD = len("record=")
_LONGEST_ADDRESS = len("255.255.255.255:4294967295")
"""A port has four bytes in the tags, though none is so large."""


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """A row a record: its row in the index, its name (an index into `NAMES`, or `OTHER`), and where its JSON is."""

    row: NDArray[np.int64]
    name: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def of(self, *names: str) -> RecordColumns:
        """Those of some names."""
        chosen = np.flatnonzero(np.isin(self.name, [NAMES.index(name) for name in names]))
        return RecordColumns(self.row[chosen], self.name[chosen], self.start[chosen], self.end[chosen])


@kernel
def _find(data, offset, size, letters, name, start, end):  # type: ignore[no-untyped-def]
    """The name of each record, and where its details begin and end. The blocks are known to be well-formed."""
    for row in range(offset.shape[0]):
        captured = np.int64(data[offset[row] + 20]) | np.int64(data[offset[row] + 21]) << 8
        captured |= np.int64(data[offset[row] + 22]) << 16 | np.int64(data[offset[row] + 23]) << 24
        at, stop = offset[row] + 28 + captured + (-captured & 3), offset[row] + size[row] - 4
        comment, comment_end = at, at
        while stop - at >= 4:
            code, length = data[at] | data[at + 1] << 8, np.int64(data[at + 2]) | np.int64(data[at + 3]) << 8
            at += 4
            if code == 0:
                break
            if code == 1:
                comment, comment_end = at, at + length
            at += length + (-length & 3)
        word = comment + _RECORD_WORD
        last = word
        while last < comment_end and 97 <= data[last] <= 122:
            last += 1
        name[row] = letters.shape[0]
        for known in range(letters.shape[0]):
            same = last - word <= letters.shape[1]
            for place in range(letters.shape[1]):
                letter = letters[known, place]
                if same and (data[word + place] if word + place < last else 0) != letter:
                    same = False
            if same:
                name[row] = known
        while last < comment_end and data[last] != 123:
            last += 1
        start[row] = last
        end[row] = comment_end


def find_records(data: NDArray[np.uint8], index: BlockIndex) -> RecordColumns:
    """The records among the blocks of an index."""
    rows = np.flatnonzero(index.is_record)
    name = np.empty(len(rows), np.uint8)
    start, end = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    _find(given(data), given(index.offset[rows]), given(index.size[rows]), given(_LETTERS), name, start, end)
    return RecordColumns(rows, name, start, end)


def details(data: NDArray[np.uint8], records: RecordColumns, schema: pa.Schema) -> pa.Table | None:
    """Some members of the details of records, a row a record; members that a record lacks are null.

    None where the details of one are not of that form: then they must be read one by one.
    """
    if not len(records.row):
        return schema.empty_table()
    places = np.stack([records.start, np.full(len(records.row), -1)], axis=1).ravel()
    sizes = np.stack([records.end - records.start, np.ones(len(records.row), np.int64)], axis=1).ravel()
    lines = gather(data, places, sizes, b"\n").buffers()[2]
    try:
        found = pyarrow.json.read_json(
            pa.BufferReader(lines),
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(lines.size + 1, 1 << 16)),
            pyarrow.json.ParseOptions(schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    return found.select(schema.names) if found.num_rows == len(records.row) else None


def parsed(data: NDArray[np.uint8], index: BlockIndex, records: RecordColumns) -> list[Block]:
    """Records as objects; those whose details are damaged are left out."""
    found = []
    for at, size in zip(index.offset[records.row].tolist(), index.size[records.row].tolist(), strict=True):
        try:
            found.append(blocks.parse_packet(data.data, at, size, check_hash=False))
        except BlockFault:
            continue
    return found


@kernel
def _number(out, at, value):  # type: ignore[no-untyped-def]
    """Write a decimal number; where it ends."""
    digits = np.int64(1)
    while digits * 10 <= value:
        digits *= 10
    while digits > 0:
        out[at] = 48 + value // digits % 10
        digits //= 10
        at += 1
    return at


@kernel
def _format(data, tags_start, host_tag, port_tag, out, offsets, known, slow):  # type: ignore[no-untyped-def]
    """The addresses of one end as text, for IPv4; tags with anything else are marked as slow."""
    place = np.int64(0)
    for row in range(tags_start.shape[0]):
        at = tags_start[row]
        host, port = np.int64(-1), np.int64(0)
        slow[row] = False
        while True:
            tag = np.int64(data[at]) << 8 | np.int64(data[at + 1])
            length = np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
            at += 4
            if tag == 0:
                break
            if 20 <= tag <= 26 and tag != 24:
                if length != 4 or tag in (22, 23):
                    slow[row] = True
                else:
                    value = np.int64(data[at]) << 24 | np.int64(data[at + 1]) << 16
                    value |= np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
                    if tag == host_tag:
                        host = value
                    elif tag == port_tag:
                        port = value
            at += length
        known[row] = host >= 0 and not slow[row]
        offsets[row] = place
        if known[row]:
            for shift in (24, 16, 8, 0):
                place = _number(out, place, host >> shift & 255)
                out[place] = 58 if shift == 0 else 46
                place += 1
            place = _number(out, place, port)
    offsets[tags_start.shape[0]] = place


def address_columns(data: NDArray[np.uint8], tags_start: NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    """Sources and destinations as `host:port`, from the tags of some blocks; null where there is none."""
    ends = (
        (blocks.TAG_SOURCE_IP[4], blocks.TAG_SOURCE_PORT),
        (blocks.TAG_DESTINATION_IP[4], blocks.TAG_DESTINATION_PORT),
    )
    found = [_addresses(given(data), given(tags_start), *tags, end) for end, tags in enumerate(ends)]
    return found[0], found[1]


def _addresses(
    data: NDArray[np.uint8], tags_start: NDArray[np.int64], host_tag: int, port_tag: int, end: int
) -> pa.Array:
    count = len(tags_start)
    out, offsets = np.empty(count * _LONGEST_ADDRESS, np.uint8), np.empty(count + 1, np.int32)
    known, slow = np.empty(count, np.bool_), np.empty(count, np.bool_)
    _format(data, tags_start, host_tag, port_tag, out, offsets, known, slow)
    valid = pa.array(known, pa.bool_()).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(out)])
    others = np.flatnonzero(slow)
    if not len(others):
        return texts
    told = [endpoints(data, int(tags_start[row]))[end] for row in others]
    return pc.replace_with_mask(texts, pa.array(slow), pa.array(told, pa.string()))


def hex_texts(numbers: NDArray[np.uint64]) -> pa.Array:
    """Numbers as 16 hex digits each: the names of connections.

    >>> hex_texts(np.array([7, 255], np.uint64)).to_pylist()
    ['0000000000000007', '00000000000000ff']
    """
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    pairs = numbers.astype(">u8").view(np.uint8)
    text = np.stack([digits[pairs >> 4], digits[pairs & 15]], axis=1)
    offsets = np.arange(0, 16 * len(numbers) + 1, 16, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def warm() -> None:
    """Compile or load the kernels."""
    from wireloom.journal.index import index_blocks

    tags = blocks.encode_tags("any", "127.0.0.1:1", "127.0.0.1:2")
    block = blocks.encode_packet(1, 0, tags, 0, b"", blocks.record_comment("opened", {}, 1), 1)
    data = np.frombuffer(block, np.uint8)
    found = index_blocks(data, 0, len(data), check_hash=False)
    find_records(data, found)
    address_columns(data, found.tags_start)
