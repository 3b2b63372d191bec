"""How long a person waits for `wireloom pipeline run` on a small input, from the command to its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Result
from benchmarks.pipeline import Shape, write_journal

GOAL_S = 25.0
RUNS = 3


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        folder = Path(name)
        journal = write_journal(folder, Shape("", 1_000))
        result = Result("`wireloom pipeline run` on a small input, runs in 25 s", "one", 1, "runs")
        for _ in range(RUNS):
            shutil.rmtree(folder / "warehouse", ignore_errors=True)
            command = [sys.executable, "-m", "wireloom", "pipeline", "run", "--once", "--master", "local[2,4]"]
            began = time.perf_counter()
            subprocess.run(
                [*command, "--input", str(journal), "--warehouse", str(folder / "warehouse")],
                check=True, capture_output=True, timeout=300,
            )  # fmt: skip
            took = time.perf_counter() - began
            print(f"    {took:.1f} s", flush=True)
            result.ours.append(GOAL_S / took)
            result.theirs.append(1.0)
    print(result.row(), flush=True)
    return [result]
