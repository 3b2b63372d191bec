"""Parts of streams, and datagrams, to messages: all of one protocol at a time, by its column decoder."""

from __future__ import annotations

import numpy as np

from wireloom.journal.keys import keys_for
from wireloom.model import Direction
from wireloom.pipeline.captures.connections import OTHER, WAIT, RejectedBytes
from wireloom.pipeline.captures.flow_pass import FlowPass
from wireloom.pipeline.captures.provenance import Trace
from wireloom.pipeline.captures.rows import Rows, Speaker
from wireloom.pipeline.captures.streams import TRUNCATED, StreamPart
from wireloom.pipeline.schemas import KEPT_BYTES
from wireloom.protocols.columns import Reject, Spans, Stream
from wireloom.protocols.contract import Framing
from wireloom.protocols.registry import protocol


def decode_parts(parts: list[StreamPart], rows_out: Rows) -> None:
    """Go from gap to gap, all streams of one protocol at a time."""
    left = []
    for part in parts:
        if part.connection.protocol is None:
            part.keep()
        elif part.connection.protocol == OTHER:
            part.connection.forget()
        elif part.half.mode == WAIT:
            part.keep()
        else:
            left.append(part)
    while left:
        # Most parts share a buffer; those that were unpacked have their own.
        spans: dict[tuple[str, int], list[tuple[StreamPart, tuple[int, int]]]] = {}
        for part in left:
            span = part.advance()
            if span is not None:
                spans.setdefault((part.connection.protocol or "", id(part.data)), []).append((part, span))
        for (name, _), found in spans.items():
            _decode_spans(name, found, rows_out)
        left = [part for part in left if part.close_stretch()]


def _decode_spans(name: str, found: list[tuple[StreamPart, tuple[int, int]]], rows_out: Rows) -> None:
    """All streams of one protocol in one call."""
    decoder, settings = protocol(name).columns(), rows_out.choice.settings(name)
    parts = [part for part, _ in found]
    data = parts[0].data
    data.flags.writeable = False
    files = {int(part.trace.file[0]) for part in parts}
    keys = {number: keys_for(rows_out.files[number], name, rows_out.keys) for number in files}
    spans = Spans(
        data,
        np.array([start for _, (start, _) in found], np.int64),
        np.array([stop for _, (_, stop) in found], np.int64),
        np.arange(len(found), dtype=np.int32),
        [
            Stream(
                part.half.direction,
                rows_out.topics,
                part.half.state,
                keys[int(part.trace.file[0])],
            )
            for part in parts
        ],
    )
    columns = decoder.decode(spans, settings)
    data.flags.writeable = True
    trace = Trace.joined([part.trace for part in parts])
    speakers = [Speaker(p.connection, p.half, p.connection.halves.index(p.half)) for p in parts]
    rows_out.messages(name, columns, data, speakers, np.arange(len(parts)), trace)
    final: dict[int, Reject] = {}
    streams = protocol(name).framing is Framing.STREAM
    for reject in columns.rejects:
        if streams:
            final[reject.span] = reject
            continue
        part = parts[reject.span]
        time_us, file, offset = part.trace.where(reject.offset)
        content = reject.content(data, KEPT_BYTES)
        refused = RejectedBytes(reject.clause, reject.detail, time_us, file, offset, content, reject.size)
        rows_out.reject(part.connection, part.half, refused)
    for index, part in enumerate(parts):
        part.remember(columns.state[index], columns.begun[index] if columns.begun else -1)
        part.decoded(int(columns.consumed[index]), final.get(index))


def decode_datagrams(walk: FlowPass, name: str, rows_out: Rows) -> None:
    """Datagrams stand alone; those that the snap length cut are no messages."""
    own, found = walk.segments, walk.datagrams[name]
    rows = np.concatenate([rows for _, rows in found])
    of = np.repeat(np.arange(len(found)), [len(rows) for _, rows in found])
    halves = [(connection, connection.halves[0]) for connection, _ in found]
    for _, half in halves:
        half.direction = Direction.DGRAM
    cut = own.kept[rows] < own.size[rows]
    for index in np.flatnonzero(cut).tolist():
        row = int(rows[index])
        start, kept, size = int(own.start[row]), int(own.kept[row]), int(own.size[row])
        words = f"the capture kept {kept} of {size} bytes"
        content = own.data[start : start + min(kept, KEPT_BYTES)].tobytes()
        time_us, file, offset = int(own.time_us[row]), int(own.file[row]), int(own.offset[row])
        refused = RejectedBytes(TRUNCATED, words, time_us, file, offset, content, kept)
        connection, half = halves[of[index]]
        rows_out.reject(connection, half, refused)
    rows, of = rows[~cut], of[~cut]
    decoder, settings = protocol(name).columns(), rows_out.choice.settings(name)
    start = own.start[rows]
    streams = [Stream(Direction.DGRAM, rows_out.topics, half.state) for _, half in halves]
    columns = decoder.decode(Spans(own.data, start, start + own.size[rows], of.astype(np.int32), streams), settings)
    by_place = np.argsort(start, kind="stable")
    chosen = rows[by_place]
    trace = Trace(start[by_place], own.time_us[chosen], own.file[chosen].astype(np.int64), own.offset[chosen])
    for reject in columns.rejects:
        row = int(rows[reject.span])
        content = own.data[reject.offset : reject.offset + min(reject.size, KEPT_BYTES)].tobytes()
        refused = RejectedBytes(
            reject.clause, reject.detail, int(own.time_us[row]), int(own.file[row]),
            int(own.offset[row]) + reject.offset - int(own.start[row]), content, reject.size,
        )  # fmt: skip
        connection, half = halves[of[reject.span]]
        rows_out.reject(connection, half, refused)
    speakers = [Speaker(*both, side) for both in halves for side in range(2)]
    rows_out.messages(name, columns, own.data, speakers, of * 2 + walk.flows.side[rows], trace)
    for index, (_, half) in enumerate(halves):
        half.state = columns.state[index]
