"""Finds the capture files that an input names, and reads them: plain or compressed, from a disk or a bucket.

Files are read in pieces and not memory-mapped. So an unreadable sector ends the capture, and not the process. A capture
in a bucket is called far.
"""

from __future__ import annotations

import fnmatch
import glob
import io
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

import numpy as np

from wireloom.journal.disk import LOCAL, READ, Disk
from wireloom.model import ConfigError
from wireloom.pipeline.captures.pcap import CaptureDamage
from wireloom.pipeline.segment_bytes import PAGE, UNREADABLE
from wireloom.store import ObjectMissing, Store, is_url, open_store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireloom.pipeline.captures.packets import CapturedPackets, PacketScanner

log = logging.getLogger("wireloom.pipeline")

SUFFIXES = (".pcap", ".pcapng", ".cap", ".ntar")
PACKED_SUFFIXES = (".gz", ".zst")
PIECE = 1 << 24
"""Bytes that are read at a time."""
_FIRST = 1 << 18
_STEP = 1 << 11
"""So many packed bytes are unpacked at a time. A block of zstd can unpack to 32,000 times its size."""
MOST_UNPACKED, MOST_RATIO = 1 << 30, 200
"""A compressed capture may unpack to so many bytes, or to so many times its size if that is more."""
_WITH_GZIP_HEAD = 31
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_GLOB = "*?["
_FETCH = 1 << 22
"""So many bytes of a capture in a bucket are asked for together."""


def is_far(path: str) -> bool:
    """Whether a capture is in a bucket and not on this machine.

    >>> is_far("s3://bucket/a.pcap"), is_far("/captures/a.pcap")
    (True, False)
    """
    return is_url(path)


def has_capture_name(name: str) -> bool:
    """Whether a file in a folder is taken for a capture.

    >>> has_capture_name("a.pcapng.zst"), has_capture_name("notes.txt")
    (True, False)
    """
    name = name.lower()
    for suffix in PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name.endswith(SUFFIXES)


def list_captures(given: str) -> dict[str, int]:
    """The captures an input names, with their sizes: a file, a folder's captures, or what a pattern matches."""
    return _list_far(given) if is_far(given) else _list_near(given)


def _list_near(given: str) -> dict[str, int]:
    path = Path(given)
    if path.is_dir():
        found = [Path(entry.path) for entry in os.scandir(path) if entry.is_file() and has_capture_name(entry.name)]
    elif path.exists() or not any(letter in given for letter in _GLOB):
        found = [path]
    else:
        matching = glob.glob(given, recursive=True)  # noqa: PTH207 - any absolute pattern
        found = [file for file in map(Path, matching) if file.is_file()]
    sizes = {}
    for file in found:
        try:
            sizes[str(file.resolve())] = file.stat().st_size
        except OSError as error:
            raise ConfigError(f"{file}: cannot read the capture: {error.strerror}") from None
    return dict(sorted(sizes.items()))


def _list_far(given: str) -> dict[str, int]:
    store, key = _bucket_of(given)
    is_pattern = any(letter in key for letter in _GLOB)
    if key and not is_pattern and has_capture_name(key):
        try:
            return {given: store.head(key).size}
        except ObjectMissing:
            raise ConfigError(f"{given}: there is no such capture") from None
    folder = key
    if is_pattern:
        folder = key[: min(key.index(letter) for letter in _GLOB if letter in key)].rpartition("/")[0]
    below = len(folder) + 1 if folder else 0
    found = {}
    for each in store.list(folder):
        inside = "/" not in each.key[below:] and has_capture_name(each.key)
        if fnmatch.fnmatchcase(each.key, key) if is_pattern else inside:
            found[f"{store.url}/{each.key}"] = each.size
    return found


def _bucket_of(url: str) -> tuple[Store, str]:
    """The store of a whole bucket, and the key in it."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return open_store(f"{scheme}://{bucket}"), key.strip("/")


class _FarFile(io.RawIOBase):
    """An object as a file."""

    def __init__(self, url: str) -> None:
        self._store, self._key = _bucket_of(url)
        self._size, self._at = self._store.head(self._key).size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        data = self._store.get_range(self._key, self._at, min(self._at + len(buffer), self._size))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def changed_at(path: str) -> float:
    """When a capture came here, or was last written to, in seconds since 1970.

    A copy may keep the time of its original; when it came here, the file's own record tells.
    """
    if is_far(path):
        store, key = _bucket_of(path)
        return store.head(key).modified.timestamp()
    try:
        found = Path(path).stat()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the capture: {error.strerror}") from None
    return max(found.st_mtime, found.st_ctime)


class Capture:
    """The packets of one capture, in pieces. After the last, `damage` says whether the file could be read to its end.

        for packets, base in Capture("a.pcap"):
            ...

    `base` is the offset in the (unpacked) capture of the piece's data. `limit`: read no more than so many bytes of a
    capture that is not packed, although it may have grown.
    """

    def __init__(self, path: str, limit: int | None = None, disk: Disk = LOCAL) -> None:
        self.path = path
        self.limit = limit
        self._disk = disk
        self.damage: CaptureDamage | None = None
        self.lost = b""
        """The first bytes that could not be read."""
        self.lost_size = 0

    def __iter__(self) -> Iterator[tuple[CapturedPackets, int]]:
        with _open(self.path) as file:
            if is_far(self.path) or _packing(file) is not None:
                yield from self._in_pieces(_parts(file))
                return
        size = min(Path(self.path).stat().st_size, 1 << 62 if self.limit is None else self.limit)
        if not size:
            self._damaged(CaptureDamage(0, "an empty file"), np.zeros(0, np.uint8), 0, 0)
            return
        yield from self._in_pieces(_stored(Path(self.path), size, self._disk), size)

    def _in_pieces(self, parts: Iterator[bytes], whole: int | None = None) -> Iterator[tuple[CapturedPackets, int]]:
        """What is in some parts of a capture; `whole` is how many bytes it has, where that is known."""
        scanner, rest, base, final, broken = _new_scanner(), b"", 0, False, ""
        data = np.zeros(0, np.uint8)
        while not final and scanner.damage is None:
            new, final, broken = _take(parts, PIECE)
            data = np.frombuffer(rest + new, np.uint8)
            at = 0
            while scanner.damage is None:
                packets, following = scanner.scan(data, at, len(data), base, final=final and not broken)
                if following == at and not len(packets):
                    break
                at = following
                yield packets, base
            if scanner.damage is None:
                rest, base = data[at:].tobytes(), base + at
        damage = scanner.damage or (CaptureDamage(base, broken) if broken else None)
        if damage is not None:
            left = data if scanner.damage is not None else np.frombuffer(rest, np.uint8)
            size = base + len(left)
            while whole is None and not final:
                more, final, _ = _take(parts, PIECE)
                size += len(more)
            self._damaged(damage, left, base, size if whole is None else whole)

    def _damaged(self, damage: CaptureDamage, data: NDArray[np.uint8], base: int, size: int) -> None:
        from wireloom.pipeline.schemas import KEPT_BYTES

        self.damage, self.lost_size = damage, size - damage.offset
        self.lost = data[damage.offset - base : damage.offset - base + KEPT_BYTES].tobytes()


def first_time_ns(path: str) -> int:
    """The time of a capture's first packet: what captures are ordered by. 0 for one without packets near its start."""
    with _open(path) as file:
        head, _, _ = _take(_parts(file), _FIRST)
    packets, _ = _new_scanner().scan(np.frombuffer(head, np.uint8), 0, len(head), final=False)
    return int(packets.time_ns[0]) if len(packets) else 0


class _Unpacker(Protocol):
    """What `zlib` and `zstandard` have in common: this unpacks one member of a packed file."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _packing(file: IO[bytes]) -> Callable[[], _Unpacker] | None:
    """What unpacks a file, told by its first bytes; None: it is not packed."""
    head = file.read(4)
    file.seek(0)
    if head[:2] == _GZIP:
        return lambda: zlib.decompressobj(_WITH_GZIP_HEAD)
    if head == _ZSTD:
        import zstandard

        return lambda: cast(_Unpacker, zstandard.ZstdDecompressor().decompressobj())
    return None


class _UnpacksToTooMuch(Exception):
    """A compressed capture is larger than allowed."""


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    """What a file holds, unpacked if it is packed."""
    packing = _packing(file)
    if packing is None:
        yield from iter(lambda: file.read(_FIRST), b"")
        return
    allowed = max(MOST_UNPACKED, MOST_RATIO * file.seek(0, os.SEEK_END))
    file.seek(0)
    for part in _unpacked(file, packing):
        allowed -= len(part)
        if allowed < 0:
            raise _UnpacksToTooMuch(
                f"it unpacks to more than {MOST_UNPACKED >> 30} GiB and {MOST_RATIO} times its size, which is the "
                "limit: unpack it first, if you trust it"
            )
        yield part


def _unpacked(file: IO[bytes], packing: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """The unpacked bytes of a compressed file, in small steps, so that damage costs few bytes before it."""
    data = file.read(_STEP)
    while data:
        member = packing()
        yield member.decompress(data)
        while not member.eof:
            data = file.read(_STEP)
            if not data:
                raise EOFError("it ends too early")
            yield member.decompress(data)
        # Zeros between members are padding.
        data = member.unused_data.lstrip(b"\0")
        while not data and (data := file.read(_STEP)):
            data = data.lstrip(b"\0")


def _stored(path: Path, size: int, disk: Disk) -> Iterator[bytes]:
    """The first bytes of a file on this machine, up to those that cannot be read."""
    file = disk.open(Path(os.path.realpath(path)), READ)
    at, most = 0, PIECE
    try:
        while at < size:
            try:
                piece = disk.pread(file, min(most, size - at), at)
            except OSError as error:
                # All that stands before the bad page is still to be had.
                if error.errno in UNREADABLE and most > PAGE:
                    most = PAGE
                    continue
                log.warning("%s: cannot be read at byte %d: %s", path, at, error.strerror or error)
                raise
            if not piece:
                return
            at += len(piece)
            yield piece
    finally:
        disk.close(file)


def _open(path: str) -> IO[bytes]:
    try:
        if is_far(path):
            return io.BufferedReader(cast(io.RawIOBase, _FarFile(path)), _FETCH)
        return Path(path).open("rb")
    except ObjectMissing:
        raise ConfigError(f"{path}: cannot read the capture: there is no such object") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the capture: {error.strerror or error}") from None


def _take(parts: Iterator[bytes], size: int) -> tuple[bytes, bool, str]:
    """At least so many bytes if there are; whether they are the last, and what is wrong with those that follow.

    That a file cannot be read just now is an error, and no damage: another attempt may bring all of it.
    """
    taken: list[bytes] = []
    try:
        for part in parts:
            taken.append(part)
            size -= len(part)
            if size <= 0:
                return b"".join(taken), False, ""
    except (EOFError, zlib.error, _zstd_error()) as error:
        return b"".join(taken), True, f"the compressed data is damaged or cut off: {error}"
    except _UnpacksToTooMuch as error:
        return b"".join(taken), True, str(error)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return b"".join(taken), True, f"cannot be read: {error.strerror or error}"
    return b"".join(taken), True, ""


def _zstd_error() -> type[Exception]:
    try:
        import zstandard
    except ImportError:
        return EOFError
    return cast(type[Exception], zstandard.ZstdError)


def _new_scanner() -> PacketScanner:
    # Whoever only lists captures need not load the kernels.
    from wireloom.pipeline.captures.packets import PacketScanner

    return PacketScanner()
