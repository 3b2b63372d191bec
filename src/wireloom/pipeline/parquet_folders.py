"""Plain folders of Parquet: what a warehouse of the format `parquet` shows of its tables.

The tables themselves, each with its log, stand aside. A table's plain folder has a second name, a hard link, for every
file of the newest version, and nothing else: whoever reads the folder, with any tool, reads the table. The log stays
the truth; a folder that a kill left behind is made to match it before the next batch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from wireloom.model import ConfigError


def change(source: Path, target: Path, added: Iterable[str], removed: Iterable[str] = ()) -> None:
    """Take files out of a plain folder and put others in; paths are relative to the table's folder `source`.

    Out first: somebody who looks in between may miss rows for a moment, but never sees one twice.
    """
    for path in removed:
        (target / path).unlink(missing_ok=True)
    for path in added:
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(source / path, place)


def match(source: Path, target: Path, wanted: Iterable[str]) -> None:
    """Make a plain folder show these files and no others."""
    target.mkdir(exist_ok=True)
    right = set(wanted)
    shown = {str(path.relative_to(target)) for path in target.rglob("*.parquet")}
    change(source, target, sorted(right - shown), sorted(shown - right))
    for folder in sorted((path for path in target.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def check_links(folder: Path, file: Path) -> None:
    """Refuse a disk on which a file cannot have two names."""
    second = folder / f".{file.name}.second"
    try:
        second.unlink(missing_ok=True)
        os.link(file, second)
        second.unlink()
    except OSError as error:
        raise ConfigError(
            f"{folder} is on a disk without hard links ({error.strerror}), which the table format 'parquet' needs: "
            "use 'delta', or another disk"
        ) from None
