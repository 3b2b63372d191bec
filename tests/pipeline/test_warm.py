"""What `wireloom warm` compiled is all that the pipeline needs: no batch waits for a compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from tests.captures.test_truth import read
from tests.captures.truth import captured
from tests.pipeline.conversations import make_conversations
from wireloom.cli.main import main
from wireloom.pipeline.decode import decode_range
from wireloom.pipeline.planning import latest, plan


def compiled():
    return {
        (name, key): list(value.signatures)
        for name, module in list(sys.modules.items())
        if name.startswith("wireloom.")
        for key, value in vars(module).items()
        if isinstance(value, Dispatcher)
    }


folder = Path(sys.argv[1])
assert main(["warm"]) == 0
before = compiled()
assert len(before) > 20
make_conversations(folder / "journal")
ranges = plan([str(folder / "journal")], {}, latest([str(folder / "journal")]))
assert sum(len(decode_range(part).messages) for part in ranges) > 100
packets, _ = captured(1, talks=24)
read(folder, packets, 2, 1)
for key, signatures in compiled().items():
    for each in signatures:
        if each not in before.get(key, ()):
            print("late:", *key, each)
"""


def test_no_kernel_is_compiled_after_warm(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "late:" not in done.stdout, done.stdout
