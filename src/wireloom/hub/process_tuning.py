"""How the process of a hub keeps its memory, and shares the interpreter between the event loop and threads."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What these settings are called in glibc's malloc.h, as numbers."""
KEPT = 64 * 1024 * 1024
"""Bytes that stay with the process when nothing needs them."""
LARGEST = 16 * 1024 * 1024
"""Buffers up to this size are among them."""


def keep_buffers() -> None:
    """Keep the buffers of large reads for those that follow, where the C library can be told to (glibc).

    As it is, it gives each back to the system, and the next one is had page by page, each of them cleared: where
    nothing is synced, that was more than a third of the time.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        adjust = ctypes.CDLL(None).mallopt
        adjust(_MMAP_THRESHOLD, LARGEST)
        adjust(_TRIM_THRESHOLD, KEPT)


def prefer_the_loop() -> None:
    """Let the event loop wait for a thread that runs Python (that reads the journal, say) for a millisecond at most.

    As it is, it is five, each time that the loop has slept, read or written.
    """
    sys.setswitchinterval(0.001)


def collect_rarely() -> None:
    """Leave what is there at the start out of garbage collections, and have fewer of them.

    A full collection looks at every object of the process: 80 ms of a hub with a thousand connections, about once a
    second. Messages are freed without it, because they hold no references to each other.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
