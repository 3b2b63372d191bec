"""Settings for the whole suite."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Deadlines measure the machine, not the code; kernels compile on their first call.
settings.register_profile(
    "wireloom", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("deep", parent=settings.get_profile("wireloom"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "wireloom"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB, to see what happens when a disk is full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a full disk cannot be tried here: mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
