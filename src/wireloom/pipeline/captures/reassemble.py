"""Reassembly, second step: copies the pieces of all streams into one buffer, for the column decoders.

Theory of operation
===================

**The problem.** `tcp.walk` does not copy bytes. It produces pieces: rows that say which bytes of which packet come next
in which stream (`tcp.ROW`). The pieces of all streams are interleaved, as the packets were. But a decoder needs the
bytes of one stream contiguously, after those it could not use last time (the beginning of a frame, for example).

**The idea.** Sort the pieces by stream. The sort is stable, so the order within a stream stays. Compute with cumulative
sums where each piece belongs in one output buffer. Before the pieces of each stream, leave room for its kept bytes.
Then one kernel call (`_copy`) copies all pieces. Each stream becomes a `StreamPart`: a slice of that buffer, with its
gaps and a `Trace` that tells file, offset and time of every byte.

**Places.** The `place` of a piece says where its bytes are:

- 0 and above: an index into the data of the packets of this part.
- -1: nowhere. The piece is a gap: the bytes were not captured.
- -2 and below: index `-place - 2` into bytes held from an earlier part, which came too early then.

**The invariant.** `data[start:end]` of a part holds the kept bytes and then the new ones, in stream order. Gaps take up
no bytes in it. Every byte that is not copied is counted in `Half.seen`.

**Example.** Stream 0 has 2 kept bytes and pieces of 3 and 4 bytes. Stream 1 has no kept bytes and a piece of 5. The
buffer has 14 bytes: stream 0 is `data[0:9]`, with its pieces at 2 and 5; stream 1 is `data[9:14]`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import given, kernel
from wireloom.pipeline.captures import tcp
from wireloom.pipeline.captures.connections import OTHER, SEEK, RejectedBytes
from wireloom.pipeline.captures.flow_pass import FlowPass
from wireloom.pipeline.captures.provenance import Trace
from wireloom.pipeline.captures.streams import GAP, LATE, Gap, Report, StreamPart

_LATE = {
    tcp.LATE: (LATE, "bytes after the end of the connection"),
    tcp.MISSED: (GAP, "late: captured after what follows was read without these bytes"),
}
"""Clause and text of the rejects for pieces that came too late."""


def assemble(walk: FlowPass, report: Report) -> list[StreamPart]:
    """Make a part for each stream that has new bytes, has ended, or whose protocol is not known yet."""
    pieces = walk.pieces[: walk.made]
    late = pieces[:, 1] >= tcp.LATE
    pieces = pieces[~late] if late.any() else pieces
    order = np.argsort(pieces[:, 0], kind="stable")
    pieces = pieces[order]
    stream, kind, place, size, packet, time_us = pieces.T
    touched = np.unique(np.concatenate([stream, np.array(sorted(walk.final), np.int64), _undecided(walk, stream)]))
    touched = touched[[_wants(walk, int(number)) for number in touched]] if len(touched) else touched
    keeps = np.isin(stream, touched)
    if not keeps.all():
        for number, count in zip(*_sums(stream[~keeps], size[~keeps]), strict=True):
            walk.halves[number][1].seen += count
        pieces = pieces[keeps]
        stream, kind, place, size, packet, time_us = pieces.T
    first = np.searchsorted(stream, touched)
    last = np.searchsorted(stream, touched, side="right")
    kept = [walk.halves[number][1].kept() for number in touched.tolist()]
    sizes = np.where(kind == tcp.DATA, size, 0)
    before = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum(sizes, out=before[1:])
    prefix = np.array([len(content) for content, _ in kept], np.int64)
    shift = np.cumsum(prefix)
    total = int(before[-1] + prefix.sum())
    data = np.empty(total, np.uint8)
    at = before[:-1] + np.repeat(shift, last - first)
    held = np.frombuffer(b"".join(h.content or b"" for h in walk.held), np.uint8)
    place = _absolute(walk, place, packet)
    _copy(given(walk.segments.data), given(held), given(place), given(at), given(sizes), data)
    file, offset = _origins(walk, packet, place)
    whole = Trace(at, time_us, file, offset)
    parts = []
    for index, number in enumerate(touched.tolist()):
        connection, half = walk.halves[number]
        content, trace = kept[index]
        begin, stop = int(first[index]), int(last[index])
        start = int(before[begin] + shift[index] - prefix[index])
        end = int(before[stop] + shift[index])
        if content:
            data[start : start + len(content)] = np.frombuffer(content, np.uint8)
        real = (
            np.flatnonzero(kind[begin:stop] == tcp.DATA) + begin
            if (kind[begin:stop] != tcp.DATA).any()
            else slice(begin, stop)
        )
        new = Trace(whole.at[real], whole.time_us[real], whole.file[real], whole.offset[real])
        traced = Trace.joined([trace.moved(start), new]) if content else new
        gaps = [
            Gap(int(at[g]), int(size[g]), (int(time_us[g]), int(file[g]), int(offset[g])))
            for g in np.flatnonzero(kind[begin:stop] == tcp.GAP) + begin
        ]
        part = StreamPart(
            connection, half, data, start, end, len(content), traced, report, walk.choice,
            gaps=gaps, final=number in walk.final,
        )  # fmt: skip
        if half.unwrapping is not None and half.mode != SEEK:
            part.raw_from = start + len(half.carry)
        half.seen += int(sizes[begin:stop].sum())
        parts.append(part)
    return parts


def _sums(stream: NDArray[np.int64], size: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """The distinct streams, and the sum of the sizes for each."""
    numbers, where = np.unique(stream, return_inverse=True)
    return numbers.tolist(), np.bincount(where, weights=size, minlength=len(numbers)).astype(np.int64).tolist()


def _undecided(walk: FlowPass, streams: NDArray[np.int64]) -> NDArray[np.int64]:
    """Both streams of each connection whose protocol is not known yet."""
    numbers = []
    for number in np.unique(streams).tolist():
        connection, _ = walk.halves[number]
        if connection.protocol is None and connection.id:
            numbers += [walk.number(connection, half) for half in connection.halves]
    return np.array(numbers, np.int64)


def _wants(walk: FlowPass, number: int) -> bool:
    """Whether the bytes of a stream are to be decoded; else they are only counted."""
    connection, half = walk.halves[number]
    return connection.protocol != OTHER and not half.over


def _absolute(walk: FlowPass, place: NDArray[np.int64], packet: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert places in one `Held` into places in the concatenation of all `Held`; still from -2 downwards."""
    if not walk.held:
        return place
    starts = np.cumsum([0, *(len(h.content or b"") for h in walk.held)])
    old = packet - len(walk.segments)
    return np.where((old >= 0) & (place < -1), place - starts[np.maximum(old, 0)], place)


def _origins(
    walk: FlowPass, packet: NDArray[np.int64], place: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """File and offset of the first byte of each piece."""
    own = walk.segments
    if not walk.held:
        return own.file[packet].astype(np.int64), own.offset[packet] + np.maximum(place - own.start[packet], 0)
    old = packet >= len(own)
    new = np.where(old, 0, packet)
    index = np.where(old, packet - len(own), 0)
    starts = np.cumsum([0, *(len(h.content or b"") for h in walk.held)])
    if len(own):
        file, offset = own.file[new].astype(np.int64), own.offset[new] + np.maximum(place - own.start[new], 0)
    else:
        file, offset = np.zeros(len(packet), np.int64), np.zeros(len(packet), np.int64)
    held_file = np.array([h.file for h in walk.held], np.int64)[index]
    held_offset = np.array([h.offset for h in walk.held], np.int64)[index] + np.maximum(-place - 2 - starts[index], 0)
    return np.where(old, held_file, file), np.where(old, held_offset, offset)


def tell_late(walk: FlowPass, report: Report) -> None:
    """Report a reject for each piece that came too late for its stream, if the protocol of the stream is known."""
    own, pieces = walk.segments, walk.pieces[: walk.made]
    for stream, kind, place, size, packet, time_us in pieces[pieces[:, 1] >= tcp.LATE].tolist():
        connection, half = walk.halves[stream]
        half.seen += size
        if connection.protocol in (None, OTHER):
            continue
        offset = int(own.offset[packet]) + place - int(own.start[packet])
        content = own.data[place : place + min(size, 4096)].tobytes()
        clause, words = _LATE[kind]
        report(connection, half, RejectedBytes(clause, words, time_us, int(own.file[packet]), offset, content, size))


@kernel
def _copy(data, held, place, at, size, out):  # type: ignore[no-untyped-def]
    """Copy pieces into the output buffer (see "Places")."""
    for row in range(len(place)):
        source, target = place[row], np.uint64(at[row])
        if source >= 0:
            begin = np.uint64(source)
            for position in range(np.uint64(size[row])):
                out[target + np.uint64(position)] = data[begin + np.uint64(position)]
        elif source < -1:
            begin = np.uint64(-source - 2)
            for position in range(np.uint64(size[row])):
                out[target + np.uint64(position)] = held[begin + np.uint64(position)]
