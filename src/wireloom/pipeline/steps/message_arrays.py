"""Rows of `messages` as numpy arrays: what every step that looks at many messages works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.model import KINDS, Direction, Kind
from wireloom.pipeline.dictionary_columns import unified
from wireloom.pipeline.name_hash import name_hashes
from wireloom.protocols.publish_rules import Verb

DAY_US = 86_400_000_000
DIRECTIONS = tuple(Direction)
_KIND_CODES = {str(kind): code for code, kind in enumerate(KINDS)}
_DIRECTION_CODES = {str(direction): code for code, direction in enumerate(DIRECTIONS)}


class View:
    """A table with columns of `messages` (or `rejects`), in order of time; arrays are made when asked for."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def column(self, name: str) -> pa.Array:
        """A column in one piece."""
        return one_piece(self.rows[name])

    def codes(self, name: str) -> tuple[NDArray[np.int64], list[str | None]]:
        """A column with few distinct values as codes and values. Null gets a code of its own, the last."""
        return codes(self.column(name))

    @cached_property
    def time_us(self) -> NDArray[np.int64]:
        """Microseconds since 1970."""
        return micros(self.column("time"))

    @cached_property
    def kind(self) -> NDArray[np.uint8]:
        """Kinds as indexes into `KINDS`."""
        return _translate(*self.codes("kind"), _KIND_CODES)

    @cached_property
    def carried_by(self) -> NDArray[np.uint8]:
        """The kinds of frames that carried the messages. An acknowledged publish is an event carried by a request."""
        verb, names = self.codes("verb")
        publishes = np.array([name == Verb.PUBLISH for name in names] or [False])[verb]
        return np.where(publishes, np.uint8(KINDS.index(Kind.REQUEST)), self.kind)

    @cached_property
    def direction(self) -> NDArray[np.uint8]:
        """Directions as indexes into `DIRECTIONS`."""
        return _translate(*self.codes("direction"), _DIRECTION_CODES)

    @cached_property
    def protocol(self) -> tuple[NDArray[np.int64], list[str | None]]:
        """Codes and names of protocols."""
        return self.codes("protocol")

    @cached_property
    def connection(self) -> tuple[NDArray[np.int64], list[str | None]]:
        """Codes and names of connections."""
        return self.codes("connection")

    @cached_property
    def connections(self) -> pa.Array:
        """The names that the codes of `connection` stand for."""
        encoded = words(self.column("connection"))
        names = encoded.dictionary
        return pa.concat_arrays([names, pa.nulls(1, pa.string())]) if encoded.null_count else names

    @cached_property
    def connection_hash(self) -> NDArray[np.uint64]:
        """The hashes of those names, see `name_hashes`."""
        return name_hashes(self.connections)

    def attribute(self, name: str, rows: NDArray[np.int64]) -> pa.Array:
        """One attribute of some rows as text, null where a message has none."""
        chosen = self.column("attributes").take(pa.array(rows))
        return pc.map_lookup(chosen, pa.scalar(name), "first")

    def is_true(self, name: str | None, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether an attribute is `true`, for some rows."""
        if name is None or not len(rows):
            return np.zeros(len(rows), np.bool_)
        return truths(pc.fill_null(pc.equal(self.attribute(name, rows), "true"), False))


WORDS = pa.dictionary(pa.int32(), pa.string())
"""The type of text columns with few distinct values: dictionary-encoded."""


def words(column: pa.Array) -> pa.Array:
    """Text as `WORDS`."""
    if pa.types.is_dictionary(column.type):
        return column if column.type == WORDS else column.cast(WORDS)
    return column.dictionary_encode() if len(column) else pa.array([], WORDS)


def typed(values: Mapping[str, object], schema: pa.Schema) -> pa.Table:
    """Columns as a table of that schema; text becomes words where the schema says so."""
    columns = []
    for field in schema:
        value = values[field.name]
        column = one_piece(value) if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array(value)
        columns.append(words(column) if field.type == WORDS else column.cast(field.type))
    return pa.table(columns, schema=schema)


def files_in_order(column: pa.Array) -> NDArray[np.int64]:
    """Files as numbers that sort as their names do."""
    numbers, names = codes(column)
    rank = (
        np.argsort(np.argsort([name or "" for name in names], kind="stable"), kind="stable") if names else np.zeros(1)
    )
    return rank.astype(np.int64)[numbers]


def in_order(rows: pa.Table) -> pa.Table:
    """Rows of messages in order, see `order_of`: as they are, mostly."""
    time_us = micros(one_piece(rows["time"]))
    offset = one_piece(rows["offset"]).to_numpy()
    file = codes(one_piece(rows["file"]))[0]
    later, same = time_us[1:] > time_us[:-1], time_us[1:] == time_us[:-1]
    if (later | (same & (file[1:] == file[:-1]) & (offset[1:] > offset[:-1]))).all():
        return rows
    connection, direction = (codes(one_piece(rows[name]))[0].astype(np.int64) for name in ("connection", "direction"))
    stream = connection * len(DIRECTIONS) + direction
    places = files_in_order(one_piece(rows["file"]))
    sequence = one_piece(rows["sequence"]).to_numpy()
    return rows.take(pa.array(order_of(time_us, places, offset, stream, sequence)))


def order_of(
    time_us: NDArray[np.int64],
    file: NDArray[np.int64],
    offset: NDArray[np.int64],
    stream: NDArray[np.integer],
    sequence: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The order of messages: by time, then by file and offset. But messages of one stream with the same time are
    ordered by `sequence`, as they were sent. A stream is one direction of a connection.

    Why: a packet that was captured late may complete many messages at the same time. The file holds their bytes in the
    order of capture, which may differ from the order of the stream. Such messages keep their set of positions among
    those of other streams, and are sorted by sequence within that set.
    """
    order = np.lexsort((offset, file, time_us))
    own = order[np.argsort(stream[order], kind="stable")]
    together = (stream[own][1:] == stream[own][:-1]) & (time_us[own][1:] == time_us[own][:-1])
    if not (together & (sequence[own][1:] < sequence[own][:-1])).any():
        return order
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    ordered = np.empty(len(order), np.int64)
    ordered[place[np.lexsort((place, stream, time_us))]] = np.lexsort((sequence, stream, time_us))
    return ordered


def one_piece(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = unified(column).combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def codes(column: pa.Array) -> tuple[NDArray[np.int64], list[str | None]]:
    """A column with few distinct values as codes and values. Null gets a code of its own, the last."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names: list[str | None] = encoded.dictionary.to_pylist()
    indices = encoded.indices
    if indices.null_count:
        indices = indices.fill_null(len(names))
        names = [*names, None]
    return indices.to_numpy(zero_copy_only=False), names


def micros(column: pa.Array) -> NDArray[np.int64]:
    """Timestamps as microseconds since 1970."""
    found: NDArray[np.int64] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def truths(column: pa.Array) -> NDArray[np.bool_]:
    """Booleans, none of them null."""
    found: NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return found


def timestamps(time_us: NDArray[np.int64], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Microseconds since 1970 as timestamps."""
    return pa.array(time_us, pa.int64(), mask=missing).cast(pa.timestamp("us", tz="UTC"))


def dates(time_us: NDArray[np.int64]) -> pa.Array:
    """The days of moments, in UTC."""
    return pa.array((time_us // DAY_US).astype(np.int32)).cast(pa.date32())


def coded(numbers: NDArray[np.integer], words: Sequence[str | None]) -> pa.Array:
    """Codes into words as a dictionary array; None is null."""
    known = [word for word in dict.fromkeys(words) if word is not None]
    place = {word: number for number, word in enumerate(known)}
    table = np.array([-1 if word is None else place[word] for word in words] or [-1], np.int32)
    indices = table[numbers]
    missing = indices < 0 if None in words else None
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=missing), pa.array(known, pa.string()))


def spread(numbers: NDArray[np.integer], words: pa.Array) -> pa.Array:
    """Codes into words that are a column already, as a dictionary array; equal words become one."""
    encoded = words.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(pa.array(numbers)), encoded.dictionary)


def constant(word: str | None, count: int) -> pa.Array:
    """One word, or null, as often as needed."""
    return coded(np.zeros(count, np.int32), [word])


def text_buffers(column: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets and bytes of a column of text or binary."""
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return starts, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def valid(column: pa.Array) -> NDArray[np.bool_]:
    """Whether each value is there."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return truths(column.is_valid())


def _translate(numbers: NDArray[np.int64], words: list[str | None], known: dict[str, int]) -> NDArray[np.uint8]:
    return np.array([known[word] if word is not None else 255 for word in words] or [0], np.uint8)[numbers]
