"""Dictionary columns whose chunks have different words, brought to the same words."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa

Rows = TypeVar("Rows", pa.Table, pa.ChunkedArray)


def unified(rows: Rows) -> Rows:
    """The same rows, with one dictionary for all chunks of a column.

    Arrow looks up a new place for every index, also for those under a null. These may be anything, and what `take`
    and `filter` leave there is whatever was in memory: a lookup far outside ends the process. So they become 0 first.

    >>> import pyarrow as pa
    >>> words = [pa.array(each).dictionary_encode() for each in (["a", None], ["b", "a"])]
    >>> unified(pa.chunked_array(words)).chunk(1).indices.to_pylist()
    [1, 0]
    """
    if isinstance(rows, pa.ChunkedArray):
        return _tame(rows).unify_dictionaries()
    for number, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type) and rows.column(number).null_count:
            rows = rows.set_column(number, field, _tame(rows.column(number)))
    return rows.unify_dictionaries()


def _tame(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type) or not column.null_count:
        return column
    return pa.chunked_array([_tame_chunk(chunk) for chunk in column.chunks], column.type)


def _tame_chunk(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
    indices = chunk.indices
    if not indices.null_count:
        return chunk
    filled = indices.fill_null(0).to_numpy()
    missing = indices.is_null().to_numpy(zero_copy_only=False)
    # An index needs a word to point at, even where it does not count.
    words = chunk.dictionary if len(chunk.dictionary) else pa.array([""], chunk.type.value_type)
    return pa.DictionaryArray.from_arrays(pa.array(np.ascontiguousarray(filled), mask=missing), words)
