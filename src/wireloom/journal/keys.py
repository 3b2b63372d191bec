"""The keys of encrypted connections: Decryption Secrets Blocks, beside the frames that they open.

Implements "Keys" of docs/reference/journal-format.md. What a key is, only its protocol knows: here it is a few
settings with which recorded traffic of one connection can be read (`Session.secrets`). Capture tools pass over
secrets of a type they do not know.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.blocks import BlockFault, Buffer
from wireloom.model import ConfigError

KEY_FILE = "keys.jsonl"
"""Keys that somebody puts beside journals and captures, in which none are recorded."""
DECRYPTION_SECRETS = 10
SECRETS_TYPE = int.from_bytes(b"WLMK")
"""The type of our secrets, in the manner of the known ones: four letters."""
BLANKED_TYPE = int.from_bytes(b"WLM0")
"""The type of secrets that were blanked: readers pass over them."""
WRONG_KEYS = "keys that are damaged"

_HEAD = struct.Struct("<II")
_COMMENT = re.compile(rb"conn=([0-9a-f]{16}) crc32=([0-9a-f]{8})")


class Keys:
    """The keys of one connection, ready to be written. Never changes.

    >>> keys = Keys("wolpertinger", 7, {"aes_key": "00ff"})
    >>> parse(keys.block, 0, len(keys.block)) == keys
    True
    """

    __slots__ = ("block", "connection", "protocol", "values")

    def __init__(self, protocol: str, connection: int, values: Mapping[str, str]) -> None:
        self.protocol = protocol
        self.connection = connection
        self.values = dict(values)
        data = blocks.canonical_json({"protocol": protocol, "settings": dict(values)})
        comment = f"conn={connection:016x} crc32={zlib.crc32(data):08x}".encode()
        body = _HEAD.pack(SECRETS_TYPE, len(data)) + data + bytes(-len(data) & 3)
        self.block = blocks.block(DECRYPTION_SECRETS, body + blocks.comment_option(comment))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and other.block == self.block

    def __hash__(self) -> int:
        return hash(self.block)

    def __repr__(self) -> str:
        return f"<keys of {self.protocol} connection {self.connection:016x}>"


def parse(data: Buffer, offset: int, size: int) -> Keys | None:
    """The keys in the Decryption Secrets Block at `offset`; None for secrets of another type."""
    if size < 20:
        raise BlockFault(offset, WRONG_KEYS)
    kind, length = _HEAD.unpack_from(data, offset + 8)
    if kind != SECRETS_TYPE:
        return None
    start, end = offset + 16, offset + size - 4
    if length > end - start:
        raise BlockFault(offset, WRONG_KEYS)
    text = bytes(data[start : start + length])
    options = blocks.options(data, start + length + (-length & 3), end)
    comment = _COMMENT.fullmatch(next((value for code, value in options if code == blocks.OPTION_COMMENT), b""))
    if comment is None or int(comment[2], 16) != zlib.crc32(text):
        raise BlockFault(offset, WRONG_KEYS)
    try:
        found = json.loads(text)
        values = {str(name): str(value) for name, value in found["settings"].items()}
        return Keys(str(found["protocol"]), int(comment[1], 16), values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BlockFault(offset, WRONG_KEYS) from None


def blanked(data: Buffer, offset: int, size: int) -> bytes:
    """The block of keys at `offset` without the keys, just as long: what comes after it stays in its place.

    >>> keys = Keys("wolpertinger", 7, {"aes_key": "00ff"})
    >>> without = blanked(keys.block, 0, len(keys.block))
    >>> len(without) == len(keys.block), b"00ff" in without, parse(without, 0, len(without))
    (True, False, None)
    """
    if size < 20:
        return bytes(data[offset : offset + size])
    return blocks.block(DECRYPTION_SECRETS, _HEAD.pack(BLANKED_TYPE, size - 20) + bytes(size - 20))


def keys_in(data: Buffer, start: int, end: int) -> Iterator[Keys]:
    """The keys stated in a part of a segment; damaged ones are passed over, they open nothing."""
    offset = start
    while offset < end:
        try:
            block_type, size = blocks.block_at(data, offset, end)
        except BlockFault:
            return
        if block_type == DECRYPTION_SECRETS:
            try:
                found = parse(data, offset, size)
            except BlockFault:
                found = None
            if found is not None:
                yield found
        offset += size


def keys_for(file: str, protocol: str, given: str = "") -> tuple[Mapping[str, str], ...]:
    """The keys that may open connections of a protocol in a segment or a capture: candidates for each of them.

    They are in a key file that was `given`, and in one beside the file. A line is a JSON object as in a block of keys:
    `{"protocol": "wolpertinger", "settings": {"aes_key": ...}}`.
    """
    entries: list[tuple[str, Mapping[str, str]]] = []
    for path in (*filter(None, [given]), str(Path(file).with_name(KEY_FILE))):
        try:
            entries += read_key_file(path)
        except FileNotFoundError:
            continue
    return tuple([values for name, values in entries if name == protocol])


def read_key_file(path: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """The protocol and the settings in each line of a key file."""
    return _key_file(path, Path(path).stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _key_file(path: str, _: int) -> tuple[tuple[str, Mapping[str, str]], ...]:
    found = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            values = {str(name): str(value) for name, value in entry["settings"].items()}
            found.append((str(entry["protocol"]), values))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f'{path}:{number}: a line must be {{"protocol": "...", "settings": {{"name": "value"}}}}'
            ) from None
    return tuple(found)
