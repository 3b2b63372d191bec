"""The packets of a capture as arrays: pcap and pcapng by kernels that make no object a packet.

`PacketScanner` is given bytes as they come (a mapped file, pieces of a decompressed one) and keeps what must be
known between two pieces: byte order, interfaces, the last time. `tests/captures/plain.py` is the reference.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.pipeline.captures import pcap
from wireloom.pipeline.captures.pcap import (
    BYTE_ORDER,
    INTERFACE,
    LATEST_NS,
    MAX_BLOCK,
    MAX_PACKET,
    OLD_PACKET,
    PACKET,
    PCAP_MICRO,
    PCAP_NANO,
    SECTION,
    SIMPLE_PACKET,
    CaptureDamage,
)

MOST_PACKETS = 1 << 17
"""So many packets are indexed at a time."""

_DONE, _FULL, _STOPPED, _CUT, _FAULTY, _LENGTH, _TRAILER, _INTERFACE = range(8)
_REASONS = {
    _FAULTY: pcap.WRONG_BLOCK,
    _LENGTH: pcap.WRONG_LENGTH,
    _TRAILER: pcap.WRONG_TRAILER,
    _INTERFACE: pcap.NO_INTERFACE,
}


@dataclass(frozen=True, slots=True)
class CapturedPackets:
    """A row a packet; `offset` is where its captured bytes begin in `data`."""

    data: NDArray[np.uint8]
    offset: NDArray[np.int64]
    captured: NDArray[np.int64]
    original: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    link: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offset)

    def after(self, place: int) -> CapturedPackets:
        """Only those that end after a place in the data."""
        keep = self.offset + self.captured > place
        offset, captured, original = self.offset[keep], self.captured[keep], self.original[keep]
        return CapturedPackets(self.data, offset, captured, original, self.time_ns[keep], self.link[keep])


class PacketScanner:
    """Takes the bytes of one capture in pieces. After `damage` is set, there is nothing more to read."""

    def __init__(self) -> None:
        self.damage: CaptureDamage | None = None
        self._form = 0
        self._big = False
        self._link = 0
        self._interfaces = np.zeros((16, 4), np.int64)
        """Link type, snap length, resolution and offset of each; there is room for more than there are."""
        self._known = 0
        self._last_ns = 0

    def scan(
        self, data: NDArray[np.uint8], start: int, stop: int, base: int = 0, *, final: bool
    ) -> tuple[CapturedPackets, int]:
        """Packets of data[start:] that begin before `stop`, at most `MOST_PACKETS`, and where to go on.

        `base` is the offset in the capture of data[0]. What is left over needs more bytes, unless the data is
        `final`: then it is damage.
        """
        rows = np.empty((4, MOST_PACKETS), np.int64)
        link = np.empty(MOST_PACKETS, np.int32)
        found, at = 0, start
        if not self._form:
            at = self._begin(data, at, base, final)
        while self.damage is None and self._form:
            if self._form != SECTION:
                nano = 1 if self._form == PCAP_NANO else 1000
                found, at, status = _scan_pcap(data, at, stop, self._big, nano, rows)
                link[:found] = self._link
            else:
                found, at, status, self._last_ns = _scan_pcapng(
                    data, at, stop, self._big, self._interfaces[: self._known], self._last_ns, rows, link, found
                )
            at = int(at)
            if status == _STOPPED:
                described = self._describe(data, at)
                if isinstance(described, str):
                    self.damage = CaptureDamage(base + at, described)
                    break
                if described is not None:
                    at = described
                    continue
                status = _CUT
            if status in _REASONS:
                self.damage = CaptureDamage(base + at, _REASONS[status])
            elif status == _CUT and final:
                self.damage = CaptureDamage(base + at, pcap.CUT_OFF)
            break
        offset, captured, original, time_ns = rows[:, :found]
        return CapturedPackets(data, offset, captured, original, time_ns, link[:found]), at

    def _begin(self, data: NDArray[np.uint8], at: int, base: int, final: bool) -> int:
        """Find out the format from the first bytes; a pcap's file header is taken off."""
        head = data[at : at + 24].tobytes()
        if len(head) < 4:
            if final:
                self.damage = CaptureDamage(base + at, pcap.NO_CAPTURE)
            return at
        for order in "<>":
            (magic,) = struct.unpack_from(order + "I", head)
            if magic == SECTION:
                self._form = magic
                return at
            if magic in (PCAP_MICRO, PCAP_NANO):
                if len(head) < 24:
                    if final:
                        self.damage = CaptureDamage(base + at, pcap.CUT_OFF)
                    return at
                self._form, self._big = magic, order == ">"
                self._link = struct.unpack_from(order + "I", head, 20)[0] & 0xFFFF
                return at + 24
        self.damage = CaptureDamage(base + at, pcap.NO_CAPTURE)
        return at

    def _describe(self, data: NDArray[np.uint8], at: int) -> int | str | None:
        """Take in a section header or an interface description: where it ends, what is wrong with it, or None
        while it is not all there.
        """
        head = data[at : at + 12].tobytes()
        big = self._big
        if head[:4] == SECTION.to_bytes(4, "little"):
            orders = [order for order in "<>" if struct.unpack_from(order + "I", head, 8)[0] == BYTE_ORDER]
            if not orders:
                return pcap.WRONG_ORDER
            big = orders[0] == ">"
        order = ">" if big else "<"
        kind, size = struct.unpack_from(order + "II", head)
        if size < 12 or size % 4 or size > MAX_BLOCK:
            return pcap.WRONG_BLOCK
        if size > len(data) - at:
            return None
        if struct.unpack_from(order + "I", data[at + size - 4 : at + size].tobytes())[0] != size:
            return pcap.WRONG_TRAILER
        if kind == SECTION:
            self._big, self._known = big, 0
        elif size < 20:
            return pcap.WRONG_BLOCK
        else:
            found = pcap.parse_interface(data[at + 8 : at + size - 4].tobytes(), order)
            if self._known == len(self._interfaces):
                self._interfaces = np.concatenate([self._interfaces, np.zeros_like(self._interfaces)])
            self._interfaces[self._known] = (found.link, found.snap, found.resolution, found.offset_s)
            self._known += 1
        return int(at + size)


@kernel
def _number(data, at, big):  # type: ignore[no-untyped-def]
    if big:
        return (
            np.int64(data[at]) << 24
            | np.int64(data[at + 1]) << 16
            | np.int64(data[at + 2]) << 8
            | np.int64(data[at + 3])
        )
    return (
        np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
    )


@kernel
def _scan_pcap(data, start, stop, big, unit_ns, rows):  # type: ignore[no-untyped-def]
    """How many packets, where the next one begins, and why no more."""
    end = np.int64(len(data))
    at, row = np.int64(start), 0
    while at < stop:
        if row == rows.shape[1]:
            return row, at, _FULL
        if end - at < 16:
            return row, at, _CUT
        captured = _number(data, at + 8, big)
        if captured > MAX_PACKET:
            return row, at, _LENGTH
        if captured > end - at - 16:
            return row, at, _CUT
        rows[0, row] = at + 16
        rows[1, row] = captured
        rows[2, row] = _number(data, at + 12, big)
        rows[3, row] = _number(data, at, big) * 1_000_000_000 + _number(data, at + 4, big) * unit_ns
        row += 1
        at += 16 + captured
    return row, at, _DONE


@kernel
def _to_ns(high, low, resolution, offset_s):  # type: ignore[no-untyped-def]
    """`pcap.Interface.time_ns` for a kernel; sums in floating point first tell what would not fit."""
    ticks = np.uint64(high) << np.uint64(32) | np.uint64(low)
    power = resolution & 0x7F
    whole = np.int64(0)
    if resolution & 0x80:
        if power < 64:
            seconds = ticks >> np.uint64(power)
            rest = ticks & ((np.uint64(1) << np.uint64(power)) - np.uint64(1))
            if power > 32:
                rest, power = rest >> np.uint64(power - 32), 32
            if np.float64(seconds) * 1e9 + 2e9 + np.float64(offset_s) * 1e9 > 9.2233720368e18:
                return np.int64(LATEST_NS)
            whole = np.int64(seconds) * 1_000_000_000 + np.int64(rest * np.uint64(1_000_000_000) >> np.uint64(power))
    else:
        scale = np.uint64(1)
        for _ in range(abs(power - 9)):
            if power > 28:
                return max(np.int64(offset_s) * 1_000_000_000, np.int64(0))
            scale *= np.uint64(10)
        if power > 9:
            ticks = ticks // scale
            scale = np.uint64(1)
        if np.float64(ticks) * np.float64(scale) + np.float64(offset_s) * 1e9 > 9.2233720368e18:
            return np.int64(LATEST_NS)
        whole = np.int64(ticks * scale)
    return max(whole + offset_s * 1_000_000_000, np.int64(0))


@kernel
def _scan_pcapng(data, start, stop, big, interfaces, last_ns, rows, links, row):  # type: ignore[no-untyped-def]
    """The same for pcapng, and the last time. Stops before sections and interfaces: those are Python's."""
    end = np.int64(len(data))
    at = np.int64(start)
    while at < stop:
        if row == rows.shape[1]:
            return row, at, _FULL, last_ns
        if end - at < 12:
            return row, at, _CUT, last_ns
        kind = _number(data, at, big)
        if kind == INTERFACE or _number(data, at, False) == SECTION:
            return row, at, _STOPPED, last_ns
        size = _number(data, at + 4, big)
        if size < 12 or size & 3 or size > MAX_BLOCK:
            return row, at, _FAULTY, last_ns
        if size > end - at:
            return row, at, _CUT, last_ns
        if _number(data, at + size - 4, big) != size:
            return row, at, _TRAILER, last_ns
        if kind in (PACKET, OLD_PACKET, SIMPLE_PACKET):
            number = np.int64(0)
            if kind == SIMPLE_PACKET:
                if size < 16:
                    return row, at, _FAULTY, last_ns
                original = _number(data, at + 8, big)
                head, captured = 12, min(original, size - 16)
            else:
                if size < 32:
                    return row, at, _FAULTY, last_ns
                head, number = 28, _number(data, at + 8, big)
                if kind == OLD_PACKET:
                    number = number >> 16 if big else number & 0xFFFF
                captured, original = _number(data, at + 20, big), _number(data, at + 24, big)
            if number >= len(interfaces):
                return row, at, _INTERFACE, last_ns
            if kind == SIMPLE_PACKET and interfaces[number, 1]:
                captured = min(captured, interfaces[number, 1])
            if captured > size - head - 4:
                return row, at, _LENGTH, last_ns
            if kind != SIMPLE_PACKET:
                last_ns = _to_ns(
                    _number(data, at + 12, big),
                    _number(data, at + 16, big),
                    interfaces[number, 2],
                    interfaces[number, 3],
                )
            rows[0, row] = at + head
            rows[1, row] = captured
            rows[2, row] = original
            rows[3, row] = last_ns
            links[row] = interfaces[number, 0]
            row += 1
        at += size
    return row, at, _DONE, last_ns
