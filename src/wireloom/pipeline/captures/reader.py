"""Reads captures: packets become flows, flows become streams, streams become messages. Memory is bounded.

    reader = CaptureReader(Choice.parse())
    for rows in read_captures(["a.pcap"], reader):
        rows.messages, rows.rejects
    rest = reader.finish()

Unfinished connections are kept from one piece to the next. `freeze` serializes them, so that another reader can
continue. The rows do not depend on how the packets are cut into pieces.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from wireloom.pipeline.captures import headers, pcap, state, tcp
from wireloom.pipeline.captures.connections import OTHER, CapturedConnection, RejectedBytes
from wireloom.pipeline.captures.counts import Counts
from wireloom.pipeline.captures.decoding import decode_datagrams, decode_parts
from wireloom.pipeline.captures.detect import IDLE_S, MOST_CONNECTIONS, Choice, decide
from wireloom.pipeline.captures.flow_pass import FlowPass
from wireloom.pipeline.captures.flows import FlowKey, group_flows
from wireloom.pipeline.captures.fragments import Fragments
from wireloom.pipeline.captures.headers import Segments
from wireloom.pipeline.captures.merging import Lane, in_order
from wireloom.pipeline.captures.packets import CapturedPackets
from wireloom.pipeline.captures.reassemble import assemble, tell_late
from wireloom.pipeline.captures.rows import CLOSED, DAMAGED, ENDED, MIDSTREAM, OPENED, OVERHEAD, Rows
from wireloom.pipeline.captures.storage import Capture, first_time_ns
from wireloom.pipeline.decode import Audited, DecodedRange

LIMIT, CROWDED = "limit", "capture.crowded"
"""How connections end that are too many, and the clause of the reject that says so."""
_TOO_MANY = (
    f"more than {MOST_CONNECTIONS:,} connections at a time: what this one says from here on is read as a new one"
)


class CaptureReader:
    """Reads one group of flows. `files` are the names of captures by the numbers that `Segments.file` has."""

    def __init__(
        self,
        choice: Choice,
        *,
        idle_s: float = IDLE_S,
        group: int = 0,
        groups: int = 1,
        trust: str = "",
        keys: str = "",
        topics: Mapping[int, str] | None = None,
    ) -> None:
        self.choice = choice
        self.idle_us = int(idle_s * 1_000_000)
        self.group, self.groups = group, groups
        self.files: list[str] = []
        self.connections: dict[FlowKey, CapturedConnection] = {}
        self.fragments = Fragments()
        """Of all captures: a datagram may begin in one and end in the next."""
        self.latest_us = 0
        self.counts = Counts()
        self.trust, self.keys = trust, keys
        self.topics = topics or {}

    def file_number(self, name: str) -> int:
        """The number by which `Segments.file` names a capture."""
        if name not in self.files:
            self.files.append(name)
        return self.files.index(name)

    def feed(self, segments: Segments) -> DecodedRange:
        """Take packets in the order of capture."""
        self.counts.packets += len(segments)
        if not self.group:
            self.counts.other_packets += int((segments.protocol == headers.OTHER).sum())
        if len(segments):
            self.latest_us = max(self.latest_us, int(segments.time_us.max()))
        walk = self._walk(segments)
        walk.walk()
        for connection in list(self.connections.values()):
            silence = self.latest_us - int(connection.numbers[tcp.LAST])
            if silence > self.idle_us:
                walk.end(connection, "idle")
                del self.connections[connection.key]
            elif silence > tcp.LONGEST_WAIT_US and connection.sides[:, tcp.WAITING].any():
                walk.give_up(connection, self.latest_us)
        for connection in self._beyond_limit():
            walk.end(connection, LIMIT)
            del self.connections[connection.key]
        return self._rows(walk)

    def _beyond_limit(self) -> list[CapturedConnection]:
        """The connections that are too many: those that are closed, then those that were silent for longest."""
        many = len(self.connections) - MOST_CONNECTIONS
        if many <= 0:
            return []
        known = list(self.connections.values())
        known.sort(key=lambda each: (not each.closed_told, int(each.numbers[tcp.LAST])))
        return known[:many]

    def freeze(self) -> bytes:
        """What is not finished, for a reader that goes on with the next captures."""
        return state.freeze(self.connections.values(), self.files, self.latest_us, self.fragments)

    def thaw(self, frozen: bytes) -> None:
        """Go on where another reader was; before anything else is read."""
        known, files, self.latest_us = state.thaw(frozen, self.fragments)
        self.files[:] = files
        self.connections = {connection.key: connection for connection in known}

    def finish(self) -> DecodedRange:
        """The input is over: what is not finished never will be."""
        walk = self._walk(_no_segments())
        for connection in self.connections.values():
            walk.end(connection, None)
        self.connections.clear()
        return self._rows(walk)

    def _walk(self, segments: Segments) -> FlowPass:
        flows = group_flows(segments, self.group, self.groups)
        return FlowPass(self.connections, self.choice, self.idle_us, self.counts, segments, flows)

    def _rows(self, walk: FlowPass) -> DecodedRange:
        """Everything that can be told now."""
        rows = Rows(self.files, Audited(self.trust), self.choice, self.topics, self.keys)
        parts = assemble(walk, rows.reject)
        decide(parts, auto=self.choice.auto)
        tell_late(walk, rows.reject)
        decode_parts(parts, rows)
        for name in walk.datagrams:
            decode_datagrams(walk, name, rows)
        _tell(walk, rows)
        return rows.decoded()


def _tell(walk: FlowPass, rows: Rows) -> None:
    """What happened to connections."""
    touched = {id(c): c for c, _ in walk.halves}
    touched.update({id(c): c for found in walk.datagrams.values() for c, _ in found})
    for connection in touched.values():
        if connection.protocol == OTHER:
            walk.counts.add_other(connection)
        if connection.protocol in (None, OTHER) or not connection.id:
            continue
        if not connection.opened_told:
            connection.opened_told = True
            what = MIDSTREAM if connection.is_midstream else OPENED
            rows.event(what, connection, int(connection.numbers[tcp.FIRST]))
        for half in connection.halves:
            if half.overhead:
                rows.event(OVERHEAD, connection, int(connection.numbers[tcp.LAST]), half=half, size=half.overhead)
                half.overhead = 0
            if (ended := int(connection.numbers[tcp.ENDED + connection.halves.index(half)])) >= 0 and not half.end_told:
                half.end_told = True
                rows.event(ENDED, connection, ended, half=half)
    for connection, reason in walk.ended:
        if connection.protocol in (None, OTHER):
            continue
        if reason is not None:
            closed_at = int(connection.numbers[tcp.CLOSED_AT])
            at = closed_at if closed_at >= 0 else int(connection.numbers[tcp.LAST])
            rows.event(CLOSED, connection, at, reason=reason)
            if reason == LIMIT:
                # Connections that are closed already need no event: it was reported when they were closed.
                last = walk.segments
                rows.reject(
                    connection, None, RejectedBytes(CROWDED, _TOO_MANY, at, int(last.file[-1]), int(last.offset[-1]))
                )
        connection.forget()


def _no_segments() -> Segments:
    small, wide = np.zeros(0, np.uint8), np.zeros(0, np.int64)
    return Segments(
        small, small, small, np.zeros((4, 0), np.uint64), np.zeros((2, 0), np.int32), wide, wide, wide, wide, wide,
        wide, np.zeros(0, np.int32), wide,
    )  # fmt: skip


def read_captures(
    paths: Sequence[str | tuple[str, int, int]], reader: CaptureReader, *, damages: bool = True
) -> Iterator[DecodedRange]:
    """The rows of some captures, in pieces; each by its path, or path, how much is known, how much there is.

    `damages`: whether this reader reports files that cannot be read.
    """
    given = [(path, 0, None) if isinstance(path, str) else path for path in paths]
    lanes = [Lane(first_time_ns(path) // 1000, *_segments_of(path, known, size, reader)) for path, known, size in given]
    for segments in in_order(lanes):
        yield reader.feed(segments)
    reader.counts.lost_fragments = reader.fragments.lost
    for lane in lanes:
        if lane.capture.damage is not None and damages:
            yield _tell_damage(lane.capture, reader)


def _segments_of(path: str, known: int, size: int | None, reader: CaptureReader) -> tuple[Capture, Iterator[Segments]]:
    capture, number = Capture(path, size), reader.file_number(path)

    def segments() -> Iterator[Segments]:
        for found, base in capture:
            # A packet of which the end was missing belongs to those that are new.
            packets = found.after(known - base) if known else found
            yield join_fragments(packets, headers.parse_headers(packets, base, number), reader.fragments)

    return capture, segments()


def _tell_damage(capture: Capture, reader: CaptureReader) -> DecodedRange:
    number = reader.file_number(capture.path)
    rows, damage = Rows(reader.files, Audited("")), capture.damage
    assert damage is not None
    refused = RejectedBytes(
        DAMAGED, damage.reason, reader.latest_us, number, damage.offset, capture.lost, min(capture.lost_size, 2**31 - 1)
    )
    rows.reject(None, None, refused)
    return rows.decoded()


def join_fragments(packets: CapturedPackets, segments: Segments, fragments: Fragments) -> Segments:
    """Put datagrams in the place of the fragments that complete them."""
    rows = np.flatnonzero(segments.protocol == pcap.FRAGMENT)
    if not len(rows):
        return segments
    whole: list[bytes] = []
    places: list[int] = []
    for row in rows.tolist():
        at, size = int(packets.offset[row]), int(packets.captured[row])
        packet = packets.data[at : at + size].tobytes()
        start = pcap.network_start(packet, int(packets.link[row]))
        assert start is not None
        complete = bool(segments.kept[row] == segments.size[row])
        datagram = fragments.add(packet[start:], complete, int(segments.time_us[row]))
        if datagram is not None:
            whole.append(datagram)
            places.append(row)
    if not whole:
        return segments
    data = np.concatenate([packets.data, np.frombuffer(b"".join(whole), np.uint8)])
    data.flags.writeable = False
    sizes = np.array([len(datagram) for datagram in whole], np.int64)
    offset = len(packets.data) + np.cumsum(sizes) - sizes
    index = np.array(places)
    link = np.full(len(whole), pcap.RAW, np.int32)
    made = headers.parse_headers(CapturedPackets(data, offset, sizes, sizes, packets.time_ns[index], link), 0, 0)
    changed = {
        name: getattr(segments, name).copy() for name in ("protocol", "flags", "start", "kept", "size", "seq", "ack")
    }
    for name, values in changed.items():
        values[index] = getattr(made, name)
    ports, addresses = segments.ports.copy(), segments.addresses.copy()
    ports[:, index], addresses[:, index] = made.ports, made.addresses
    # Where the last fragment's bytes are stands for the whole datagram.
    return replace(segments, data=data, ports=ports, addresses=addresses, **changed)


def _tcp_packet(sequence: int, flags: int, body: bytes) -> bytes:
    """A packet of one side of a conversation over IPv4, as it stands in a capture."""
    network = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(body), 0, 0, 64, 6, 0, bytes([127, 0, 0, 1]), bytes(4))
    packet = network + struct.pack(">HHIIBBHHH", 4000, 4001, sequence, 0, 0x50, flags, 1024, 0, 0) + body
    return struct.pack("<IIII", sequence, 0, len(packet), len(packet)) + packet


def warm() -> None:
    """Compile or load the kernels, so that the first capture does not pay for it."""
    head = struct.pack("<IHHiIII", pcap.PCAP_MICRO, 2, 4, 0, 0, 65535, pcap.RAW)
    section = struct.pack("<IIIHHqI", pcap.SECTION, 28, pcap.BYTE_ORDER, 1, 0, -1, 28)
    # The third packet leaves a gap. At the end of the capture the gap is given up, so that code is compiled, too.
    packets = _tcp_packet(1, 2, b"") + _tcp_packet(2, 0, b"a") + _tcp_packet(9, 0, b"b")
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate((head + packets, section)):
            path = Path(folder) / f"{number}.pcap"
            path.write_bytes(content)
            reader = CaptureReader(Choice.parse())
            for _ in read_captures([str(path)], reader):
                reader.finish()
