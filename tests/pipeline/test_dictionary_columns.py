"""Words of several chunks brought together: whatever lies under a null, nothing is looked up there."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from wireloom.pipeline.dictionary_columns import unified

WORDS = st.lists(st.none() | st.sampled_from("abcdef"), max_size=6)


def encoded(words: list[str | None], under_null: int = 0) -> pa.DictionaryArray:
    known = sorted({word for word in words if word is not None})
    indices = np.array([under_null if word is None else known.index(word) for word in words], np.int32)
    missing = np.array([word is None for word in words], np.bool_)
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=missing), pa.array(known, pa.string()), safe=False)


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_the_words_stay_and_have_one_dictionary(chunks: list[list[str | None]]) -> None:
    column = pa.chunked_array([encoded(each) for each in chunks])
    for found in (unified(column), unified(pa.table({"x": column, "y": column}))["y"]):
        assert found.to_pylist() == [word for each in chunks for word in each]
        assert all(chunk.dictionary.equals(found.chunk(0).dictionary) for chunk in found.chunks)


FAR_AWAY = """
import pyarrow as pa
from tests.pipeline.test_dictionary_columns import encoded
from wireloom.pipeline.dictionary_columns import unified
for far in (-1, 2**30, -(2**31)):
    column = pa.chunked_array([encoded(["c"]), encoded(["a", None, "b"], far), encoded([None], far)])
    words = ["c", "a", None, "b", None]
    assert unified(column).to_pylist() == words
    assert unified(pa.table({"x": column}))["x"].to_pylist() == words
"""


def test_an_index_under_a_null_may_be_anything() -> None:
    """In a process of its own, because a lookup outside of memory ends it."""
    ended = subprocess.run([sys.executable, "-c", FAR_AWAY], env={"PYTHONPATH": ":".join(sys.path)}, check=False)
    assert ended.returncode == 0
