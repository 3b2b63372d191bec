"""The process of a hub keeps the buffers of large reads."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource
from wireloom.hub.process_tuning import keep_buffers
if {keeps}:
    keep_buffers()
held = []
def read():
    held.append(b"x" * 200_000)
    if len(held) == 4:
        held.clear()
for _ in range(100):
    read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(400):
    read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep buffers")
def test_large_buffers_are_had_again_without_asking_the_system() -> None:
    def faults(keeps: bool) -> int:
        command = [sys.executable, "-c", COUNT.format(keeps=keeps)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    # Each of the 400 buffers has 49 pages.
    kept, returned = faults(keeps=True), faults(keeps=False)
    assert kept < 400
    # Without the setting it depends on what else lies at the end of the heap: sometimes nothing is returned either.
    assert kept <= returned
