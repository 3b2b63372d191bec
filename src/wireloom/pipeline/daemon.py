"""The parent of Spark's Python workers: loads the kernels once, then forks workers that have them.

Spark starts it by `spark.python.daemon.module`. It starts one for workers proper and one for each kind
of planning step; only the first profits from the kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from importlib import import_module

_WORKER = "pyspark.worker"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's settings."""
_KEPT, _LARGE = 256 << 20, 32 << 20
"""So much freed memory is kept; a single piece above the other, which is the most that can be set, is not."""


def keep_memory() -> None:
    """Let this process keep what it frees, up to 256 MiB, where the C library can be told so.

    Columns of a few megabytes come and go with every batch; given back to the system each time, their pages must be
    made anew, which takes a third of the time of decoding.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)


def main() -> None:
    """What Spark runs: `python -m wireloom.pipeline.daemon MODULE`."""
    from pyspark.daemon import manager

    module = sys.argv[1] if len(sys.argv) > 1 else _WORKER
    # What is imported before the fork, no worker has to import again.
    import_module(module)
    import_module("wireloom.pipeline.decode_job")
    if module == _WORKER:
        keep_memory()
        from wireloom.pipeline import decode
        from wireloom.pipeline.captures import reader as capture_reader

        decode.warm()
        capture_reader.warm()
    # A worker collects garbage after every task. What was there before the fork is none: to look through it all takes
    # 70 ms, as long as a task of 16 MiB.
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
