"""Captures as rows: files in order of time, fragments put together, packets through a `CaptureReader`.

for rows in read_captures(["a.pcap"], CaptureReader(Choice.parse())):
    rows.messages, rows.rejects
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from wireloom.pipeline.captures import headers, plain
from wireloom.pipeline.captures.choosing import Choice
from wireloom.pipeline.captures.connections import Refused
from wireloom.pipeline.captures.fragments import Fragments
from wireloom.pipeline.captures.headers import Segments
from wireloom.pipeline.captures.merging import Lane, in_order
from wireloom.pipeline.captures.packets import Packets
from wireloom.pipeline.captures.reader import CaptureReader
from wireloom.pipeline.captures.rows import DAMAGED, Rows
from wireloom.pipeline.captures.storage import Capture, first_time_ns
from wireloom.pipeline.decode import Audited, DecodedRange


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
    refused = Refused(
        DAMAGED, damage.reason, reader.latest_us, number, damage.offset, capture.lost, min(capture.lost_size, 2**31 - 1)
    )
    rows.reject(None, None, refused)
    return rows.decoded()


def join_fragments(packets: Packets, segments: Segments, fragments: Fragments) -> Segments:
    """Put datagrams in the place of the fragments that complete them."""
    rows = np.flatnonzero(segments.protocol == plain.FRAGMENT)
    if not len(rows):
        return segments
    whole: list[bytes] = []
    places: list[int] = []
    for row in rows.tolist():
        at, size = int(packets.offset[row]), int(packets.captured[row])
        packet = packets.data[at : at + size].tobytes()
        start = plain.network_start(packet, int(packets.link[row]))
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
    link = np.full(len(whole), plain.RAW, np.int32)
    made = headers.parse_headers(Packets(data, offset, sizes, sizes, packets.time_ns[index], link), 0, 0)
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
    head = struct.pack("<IHHiIII", plain.PCAP_MICRO, 2, 4, 0, 0, 65535, plain.RAW)
    section = struct.pack("<IIIHHqI", plain.SECTION, 28, plain.BYTE_ORDER, 1, 0, -1, 28)
    # The second packet leaves a gap behind the first, for which nobody waits when the capture ends.
    packets = _tcp_packet(1, 2, b"") + _tcp_packet(2, 0, b"a") + _tcp_packet(9, 0, b"b")
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate((head + packets, section)):
            path = Path(folder) / f"{number}.pcap"
            path.write_bytes(content)
            reader = CaptureReader(Choice.parse())
            for _ in read_captures([str(path)], reader):
                reader.finish()
