"""Small files of the pipeline, replaced so that a power cut leaves the old one or the new one, never anything else."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from wireloom.journal.disk import CREATE, LOCAL, Disk, write_all


def replace_file(path: Path, content: bytes, disk: Disk = LOCAL) -> None:
    """Replace a file. When this returns, the new content survives a power cut; if it raises, the old does."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(draft)
    file = disk.open(draft, CREATE)
    try:
        try:
            write_all(disk, file, [content], 0)
            disk.sync(file)
        finally:
            disk.close(file)
        disk.rename(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(draft)
        raise
    disk.sync_folder(path.parent)
