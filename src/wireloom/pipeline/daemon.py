"""The parent of Spark's Python workers: loads the kernels once, then forks workers that have them.

Spark starts it by `spark.python.daemon.module`. It starts one for workers proper and one for each kind
of planning step; only the first profits from the kernels.
"""

from __future__ import annotations

import sys
from importlib import import_module

_WORKER = "pyspark.worker"


def main() -> None:
    """What Spark runs: `python -m wireloom.pipeline.daemon MODULE`."""
    from pyspark.daemon import manager

    module = sys.argv[1] if len(sys.argv) > 1 else _WORKER
    # What is imported before the fork, no worker has to import again.
    import_module(module)
    import_module("wireloom.pipeline.files")
    if module == _WORKER:
        from wireloom.pipeline import decode
        from wireloom.pipeline.captures import reading

        decode.warm()
        reading.warm()
    manager()


if __name__ == "__main__":
    main()
