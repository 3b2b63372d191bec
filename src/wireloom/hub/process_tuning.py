"""Settings of a hub's process: memory allocation, garbage collection, and thread switching."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of these settings in glibc's malloc.h."""
KEPT = 64 * 1024 * 1024
"""Bytes of free memory that the process keeps."""
LARGEST = 16 * 1024 * 1024
"""Buffers up to this size are kept."""


def keep_buffers() -> None:
    """Keep the buffers of large reads for later reads, where the C library supports it (glibc).

    By default glibc returns each large buffer to the system. The next one must be mapped and cleared page by page.
    Without syncs, this took more than a third of the time.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        adjust = ctypes.CDLL(None).mallopt
        adjust(_MMAP_THRESHOLD, LARGEST)
        adjust(_TRIM_THRESHOLD, KEPT)


def prefer_the_loop() -> None:
    """Let the event loop wait at most a millisecond for a thread that runs Python, such as a journal reader.

    The default is five milliseconds, each time that the loop has slept, read or written.
    """
    sys.setswitchinterval(0.001)


def collect_rarely() -> None:
    """Exclude objects that exist at the start from garbage collection, and collect less often.

    A full collection visits every object of the process: 80 ms for a hub with a thousand connections, about once a
    second. Messages are freed without it, because they have no reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
