"""Small files that say how far somebody is: replaced whole or not at all, on disk when told so, with a checksum.

A state file is one JSON object. Its member `crc32` is the CRC-32 of the others in canonical form. A file without that
member was written before there was one and is taken as it is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from wireloom.journal.blocks import canonical_json
from wireloom.journal.disk import LOCAL, READ, Disk, read_range, replace_file
from wireloom.model import JournalError, type_of_json

_CHECKSUM = "crc32"
_LARGEST = 1 << 30


class StateDamaged(JournalError):
    """A state file that is not what was written."""


def save_state(path: Path, value: Mapping[str, type_of_json], disk: Disk = LOCAL) -> None:
    """Replace a state file. When this returns, the new content survives a power cut; if it raises, the old does."""
    replace_file(path, encode_state(value), disk)


def encode_state(value: Mapping[str, type_of_json]) -> bytes:
    """A line with its checksum."""
    return canonical_json({**value, _CHECKSUM: f"{zlib.crc32(canonical_json(value)):08x}"}) + b"\n"


def load_state(path: Path, disk: Disk = LOCAL) -> dict[str, type_of_json] | None:
    """What a state file says; None if there is none. Raises StateDamaged if it says nothing that can be trusted."""
    try:
        file = disk.open(path, READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateDamaged(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = read_range(disk, file, 0, _LARGEST)
    except OSError as error:
        raise StateDamaged(f"{path}: cannot be read: {error.strerror}") from None
    finally:
        disk.close(file)
    return decode_state(text, path)


def decode_state(text: bytes, path: Path) -> dict[str, type_of_json]:
    """What such a line says. Raises StateDamaged, which names the file, if it says nothing that can be trusted."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
    except (ValueError, RecursionError) as error:
        raise StateDamaged(f"{path}: is damaged: {error}") from None
    stated = value.pop(_CHECKSUM, None)
    if stated is not None and stated != f"{zlib.crc32(canonical_json(value)):08x}":
        raise StateDamaged(f"{path}: is damaged: its checksum is wrong")
    return value
