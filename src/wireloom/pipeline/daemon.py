"""The parent of Spark's Python workers: loads the kernels once, then forks workers that have them.

Spark starts it by `spark.python.daemon.module`. It starts one for workers proper and one for each kind
of planning step; only the first profits from the kernels.
"""

from __future__ import annotations

import sys


def preload() -> None:
    """Import and compile, or load from the cache, everything a worker needs to decode."""
    from wireloom.pipeline.decode import warm

    warm()


def main() -> None:
    """What Spark runs."""
    from pyspark.daemon import manager

    if len(sys.argv) < 2 or sys.argv[1] == "pyspark.worker":
        preload()
    manager()


if __name__ == "__main__":
    main()
