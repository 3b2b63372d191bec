"""Fragments of IP datagrams put together: RFC 791 section 3.2, RFC 8200 section 4.5. Bounded in number and time.

Fragments are rare, so this is plain Python: a packet at a time, and only those that are fragments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_DATAGRAMS = 1024
"""So many datagrams may be incomplete at a time; the oldest makes room."""
TIMEOUT_US = 60_000_000
LARGEST = 65535


@dataclass(slots=True)
class _Partial:
    """The pieces of one datagram so far, by where they begin."""

    time_us: int
    head: bytes = b""
    """The IP header as it would be without fragments; from the first fragment."""
    total: int = -1
    pieces: dict[int, bytes] = field(default_factory=dict)

    def whole(self) -> bytes | None:
        """The datagram, once every byte is there."""
        if self.total < 0 or not self.head:
            return None
        out = bytearray()
        for start, piece in sorted(self.pieces.items()):
            if start > len(out):
                return None
            out += piece[len(out) - start :]
        return self.head + bytes(out[: self.total]) if len(out) >= self.total else None


class Fragments:
    """Takes fragments, gives datagrams as raw IP packets."""

    def __init__(self) -> None:
        self._open: dict[tuple[bytes, bytes, int, int], _Partial] = {}
        self.lost = 0
        """Fragments whose datagram never became whole, or that were cut by the snap length."""

    def add(self, packet: bytes, complete: bool, time_us: int) -> bytes | None:
        """Take one fragment, from its IP header on; the datagram, if this made it whole."""
        parsed = _parse(packet) if complete else None
        if parsed is None:
            self.lost += 1
            return None
        key, head, offset, more, content = parsed
        known = self._open.get(key)
        if known is not None and time_us - known.time_us > TIMEOUT_US:
            self._drop(key)
            known = None
        if known is None:
            while len(self._open) >= MOST_DATAGRAMS:
                self._drop(next(iter(self._open)))
            known = self._open[key] = _Partial(time_us)
        if offset + len(content) > LARGEST or (more and len(content) % 8):
            self.lost += 1
            return None
        # Bytes that are there already win, also where a later fragment begins at the same place and is longer.
        first = known.pieces.get(offset, b"")
        known.pieces[offset] = first + content[len(first) :]
        if not offset and not known.head:
            known.head = head
        if not more and known.total < 0:
            known.total = offset + len(content)
        whole = known.whole()
        if whole is not None:
            del self._open[key]
        return whole

    def freeze(self, now_us: int) -> list[Any]:
        """Datagrams that may still become whole, as plain values."""
        waiting = [(key, known) for key, known in self._open.items() if now_us - known.time_us <= TIMEOUT_US]
        return [(key, known.time_us, known.head, known.total, list(known.pieces.items())) for key, known in waiting]

    def thaw(self, frozen: Iterable[Sequence[Any]]) -> None:
        """The inverse of `freeze`."""
        self._open = {key: _Partial(time_us, head, total, dict(pieces)) for key, time_us, head, total, pieces in frozen}

    def _drop(self, key: tuple[bytes, bytes, int, int]) -> None:
        self.lost += len(self._open.pop(key).pieces)


def _parse(packet: bytes) -> tuple[tuple[bytes, bytes, int, int], bytes, int, bool, bytes] | None:
    """Key, header without fragments, offset, whether more follows, and content."""
    if packet[0] >> 4 == 4:
        size, total = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
        field_ = int.from_bytes(packet[6:8], "big")
        # A length of 0 in the new header: "as long as the packet", and a datagram may be longer than 16 bits say.
        head = packet[:2] + b"\0\0" + packet[4:6] + b"\0\0" + packet[8:size]
        key = (packet[12:16], packet[16:20], int.from_bytes(packet[4:6], "big"), packet[9])
        return key, head, (field_ & 0x1FFF) * 8, bool(field_ & 0x2000), packet[size : total or len(packet)]
    at, place, following = 40, 6, packet[6]
    end = 40 + int.from_bytes(packet[4:6], "big")
    while following != 44:
        if len(packet) < at + 2:
            return None
        place, following, size = (
            at,
            packet[at],
            4 * (packet[at + 1] + 2) if following == 51 else 8 * (packet[at + 1] + 1),
        )
        at += size
    if len(packet) < at + 8:
        return None
    field_, ident = int.from_bytes(packet[at + 2 : at + 4], "big"), int.from_bytes(packet[at + 4 : at + 8], "big")
    bare = bytearray(packet[:at])
    bare[4:6] = b"\0\0"
    bare[place] = packet[at]
    key = (packet[8:24], packet[24:40], ident, packet[at])
    return key, bytes(bare), field_ & 0xFFF8, bool(field_ & 1), packet[at + 8 : end]
