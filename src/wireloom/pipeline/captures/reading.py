"""Captures as rows: files in order of time, fragments put together, packets through a `CaptureReader`.

    for rows in read_captures(["a.pcap"], CaptureReader(Choice.parse())):
        rows.messages, rows.rejects
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from wireloom.pipeline.captures import headers, plain
from wireloom.pipeline.captures.connections import Refused
from wireloom.pipeline.captures.fragments import Fragments
from wireloom.pipeline.captures.headers import Segments
from wireloom.pipeline.captures.packets import Packets
from wireloom.pipeline.captures.reader import CaptureReader
from wireloom.pipeline.captures.rows import DAMAGED, Rows
from wireloom.pipeline.captures.storage import Capture, first_time_ns
from wireloom.pipeline.decode import DecodedRange


def read_captures(paths: Sequence[str], reader: CaptureReader, *, damages: bool = True) -> Iterator[DecodedRange]:
    """The rows of some captures, in pieces. `damages`: whether this reader reports files that cannot be read."""
    first = {path: first_time_ns(path) for path in paths}
    for path in sorted(paths, key=lambda each: (first[each], each)):
        capture, fragments = Capture(path), Fragments()
        number = reader.file_number(path)
        for packets, base in capture:
            yield reader.feed(join_fragments(packets, headers.parse_headers(packets, base, number), fragments))
        reader.counts.lost_fragments += fragments.lost
        if capture.damage is not None and damages:
            yield _tell_damage(capture, reader, number)


def _tell_damage(capture: Capture, reader: CaptureReader, number: int) -> DecodedRange:
    rows, damage = Rows(reader.files), capture.damage
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
    changed = {name: getattr(segments, name).copy() for name in ("protocol", "flags", "start", "kept", "size", "seq", "ack")}
    for name, values in changed.items():
        values[index] = getattr(made, name)
    ports, addresses = segments.ports.copy(), segments.addresses.copy()
    ports[:, index], addresses[:, index] = made.ports, made.addresses
    # Where the last fragment's bytes are stands for the whole datagram.
    return replace(segments, data=data, ports=ports, addresses=addresses, **changed)
