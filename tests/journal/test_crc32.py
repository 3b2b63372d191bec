"""The CRC-32 of the kernels."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wireloom.journal.crc32 import CRC_TABLES, crc32


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=20))
def test_it_is_that_of_zlib_and_goes_on_from_what_came_before(raw, before):
    array = np.frombuffer(before + raw, np.uint8)
    known = zlib.crc32(before)
    assert int(crc32(array, len(before), len(array), CRC_TABLES, known)) == zlib.crc32(raw, known)
