"""Captures in, rows out: packets to flows, flows to streams, streams to messages. Bounded memory, any size of input.

    reader = CaptureReader(Choice.parse())
    for segments in packets_of(files): rows = reader.feed(segments)
    rest = reader.finish()

What is not finished is kept from one piece to the next; `freeze` hands it out as bytes, so that another reader can go
on. However the packets are cut into pieces, the rows are the same.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numba
import numpy as np
from numpy.typing import NDArray

from wireloom.model import Direction
from wireloom.pipeline.captures import state, tcp
from wireloom.pipeline.captures.choosing import (
    ENOUGH,
    IDLE_S,
    MOST_DATAGRAMS,
    PLAIN,
    WEBSOCKET,
    Choice,
    looks_encrypted,
    recognise,
)
from wireloom.pipeline.captures.connections import OTHER, READ, SEEK, WAIT, Connection, Half, Held, Refused
from wireloom.pipeline.captures.flows import FlowKey, Flows, group_flows
from wireloom.pipeline.captures.headers import Segments
from wireloom.pipeline.captures.plain import TCP, UDP, UPPER_PDU
from wireloom.pipeline.captures.rows import CLOSED, MIDSTREAM, OPENED, OVERHEAD, Rows, Speaker
from wireloom.pipeline.captures.streams import LATE, TRUNCATED, Part
from wireloom.pipeline.captures.trace import Trace
from wireloom.pipeline.captures.websocket import looks_like_request
from wireloom.pipeline.decode import Audited, DecodedRange
from wireloom.protocols.columns import ColumnDecoder, Reject, Spans, Stream
from wireloom.protocols.contract import Framing, Settings
from wireloom.protocols.registry import protocol, protocols

_DISSECTORS = "wireloom."


@dataclass(slots=True)
class Counts:
    """What was seen of packets."""

    packets: int = 0
    other_packets: int = 0
    other_bytes: int = 0
    """Payload of connections that are none of ours."""
    lost_fragments: int = 0


@cache
def _decoder(name: str) -> tuple[ColumnDecoder, Settings]:
    found = protocol(name)
    return found.columns(), found.lenient()


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
    ) -> None:
        self.choice = choice
        self.idle_us = int(idle_s * 1_000_000)
        self.group, self.groups = group, groups
        self.files: list[str] = []
        self.connections: dict[FlowKey, Connection] = {}
        self.latest_us = 0
        self.counts = Counts()
        self.trust = trust

    def file_number(self, name: str) -> int:
        """The number by which `Segments.file` names a capture."""
        if name not in self.files:
            self.files.append(name)
        return self.files.index(name)

    def feed(self, segments: Segments) -> DecodedRange:
        """Take packets in the order of capture."""
        self.counts.packets += len(segments)
        if len(segments):
            self.latest_us = max(self.latest_us, int(segments.time_us.max()))
        piece = _Piece(self, segments, group_flows(segments, self.group, self.groups))
        piece.walk()
        silent = [c for c in self.connections.values() if self.latest_us - int(c.numbers[tcp.LAST]) > self.idle_us]
        for connection in silent:
            piece.end(connection, "idle")
            del self.connections[connection.key]
        return piece.rows()

    def freeze(self) -> bytes:
        """What is not finished, for a reader that goes on with the next captures."""
        return state.freeze(self.connections.values(), self.files, self.latest_us)

    def thaw(self, frozen: bytes) -> None:
        """Go on where another reader was; before anything else is read."""
        known, files, self.latest_us = state.thaw(frozen)
        self.files[:] = files
        self.connections = {connection.key: connection for connection in known}

    def finish(self) -> DecodedRange:
        """The input is over: what is not finished never will be."""
        nothing = _no_segments()
        piece = _Piece(self, nothing, group_flows(nothing))
        for connection in self.connections.values():
            piece.end(connection, None)
        self.connections.clear()
        return piece.rows()


class _Piece:
    """One piece of the input on its way to rows."""

    def __init__(self, reader: CaptureReader, segments: Segments, flows: Flows) -> None:
        self.reader = reader
        self.segments = segments
        self.flows = flows
        self.rows_ = Rows(reader.files, Audited(reader.trust))
        self._pieces = tcp.room(len(segments))
        self._made = 0
        self._waiting = tcp.waiting_room()
        self._halves: list[tuple[Connection, Half]] = []
        self._numbers: dict[int, int] = {}
        """Streams by the identity of their halves."""
        self._held: list[Held] = []
        self._datagrams: dict[str, list[tuple[Connection, NDArray[np.int64]]]] = {}
        self._final: set[int] = set()
        self._ended: list[tuple[Connection, str | None]] = []

    # Packets to pieces of streams

    def walk(self) -> None:
        """Go through the flows."""
        handlers = {TCP: self._walk_tcp, UDP: self._walk_datagrams, UPPER_PDU: self._walk_pdus}
        for number, key in enumerate(self.flows.keys):
            first, last = int(self.flows.bounds[number]), int(self.flows.bounds[number + 1])
            handlers[key[0]](key, first, last)

    def _connection(self, key: FlowKey) -> Connection:
        known = self.reader.connections.get(key)
        if known is None:
            known = self.reader.connections[key] = Connection.new(key)
        return known

    def _walk_tcp(self, key: FlowKey, first: int, last: int) -> None:
        own = self.segments
        if not self.reader.choice.auto and self.reader.choice.by_port(TCP, key[2], key[4]) is None:
            self._leave_out(first, last)
            return
        while True:
            connection = self._connection(key)
            streams = self._streams(connection)
            self._load(connection)
            stopped, why, self._made = tcp.walk(
                self.flows.order, first, last, self.flows.side, own.flags, own.seq, own.ack, own.start, own.kept,
                own.size, own.time_us, streams, self.reader.idle_us, connection.numbers, connection.sides,
                self._waiting, self._pieces, self._made,
            )  # fmt: skip
            self._store(connection)
            if not connection.id and connection.numbers[tcp.FIRST] >= 0:
                self._identify(connection)
            self._note_ends(connection)
            first = int(stopped)
            if why == tcp.FULL:
                self._pieces = np.concatenate([self._pieces, tcp.room(last - first)])
            elif why == tcp.END:
                return
            else:
                self.end(connection, "idle" if why == tcp.SILENT else "reset")
                del self.reader.connections[key]

    def _streams(self, connection: Connection) -> NDArray[np.int64]:
        """The numbers of a connection's streams."""
        return np.array([self._number(connection, half) for half in connection.halves], np.int64)

    def _number(self, connection: Connection, half: Half) -> int:
        known = self._numbers.get(id(half))
        if known is None:
            known = self._numbers[id(half)] = len(self._halves)
            self._halves.append((connection, half))
        return known

    def _identify(self, connection: Connection) -> None:
        """Who is the client, what id the connection has, what it speaks by its port."""
        transport = TCP if connection.key[0] == TCP else UDP
        ports = (connection.key[2], connection.key[4])
        client = int(connection.numbers[tcp.CLIENT])
        if client < 0:
            client = self.reader.choice.client_side(transport, ports)
        connection.identify(client)
        chosen = self.reader.choice.by_port(transport, ports[1 - client], ports[client])
        if chosen is not None and connection.key[0] != UPPER_PDU:
            connection.choose(chosen.protocol, chosen.wrapping)

    def _load(self, connection: Connection) -> None:
        """Put back what waits for bytes before it."""
        for side, half in enumerate(connection.halves):
            for index, held in enumerate(half.held):
                place = -1
                if held.content is not None:
                    # Places in kept bytes count from -2 downwards; here from the beginning of this one.
                    place = -2
                self._waiting[side, index] = (held.begin, held.end, place, len(self.segments) + len(self._held))
                self._held.append(held)

    def _store(self, connection: Connection) -> None:
        """Copy what waits: the packets are gone when it is wanted."""
        own = self.segments
        for side, half in enumerate(connection.halves):
            half.held = []
            for begin, end, place, packet in self._waiting[side, : connection.sides[side, tcp.WAITING]].tolist():
                size = end - begin
                if packet >= len(own):
                    old = self._held[packet - len(own)]
                    skip = 0 if place == -1 else -place - 2
                    content = None if old.content is None else old.content[skip : skip + size]
                    half.held.append(Held(begin, end, content, old.file, old.offset + skip))
                else:
                    content = None if place == -1 else own.data[place : place + size].tobytes()
                    offset = int(own.offset[packet]) + (0 if place == -1 else place - int(own.start[packet]))
                    half.held.append(Held(begin, end, content, int(own.file[packet]), offset))

    def _note_ends(self, connection: Connection) -> None:
        """Directions that are over, and the connection if both are."""
        for half, side in zip(connection.halves, connection.sides, strict=True):
            if (side[tcp.FIN_AT] >= 0 and side[tcp.NEXT] >= side[tcp.FIN_AT]) or connection.numbers[tcp.CLOSED]:
                self._final.add(self._number(connection, half))
        if connection.numbers[tcp.CLOSED] and not connection.closed_told:
            connection.closed_told = True
            reason = "reset" if connection.numbers[tcp.CLOSED] == tcp.BY_RST else "close"
            self._ended.append((connection, reason))

    def end(self, connection: Connection, reason: str | None) -> None:
        """Nothing more will come of a connection; no reason: it is the input that ends."""
        if not connection.id:
            return
        streams = self._streams(connection)
        if connection.key[0] == TCP:
            if len(self._pieces) - self._made < 8 * tcp.MOST_WAITING:
                self._pieces = np.concatenate([self._pieces, tcp.room(0)])
            self._load(connection)
            now = int(connection.numbers[tcp.LAST])
            self._made = tcp.give_up(connection.sides, self._waiting, streams, now, self._pieces, self._made)
            self._store(connection)
        self._final.update(streams.tolist())
        if not connection.closed_told:
            connection.closed_told = True
            one_fin = bool((connection.sides[:, tcp.FIN_AT] >= 0).any())
            self._ended.append((connection, "close" if reason == "idle" and one_fin else reason))

    def _walk_pdus(self, key: FlowKey, first: int, last: int) -> None:
        """Payloads that were cut out and tagged: they stand in order."""
        own, rows = self.segments, self.flows.order[first:last]
        name_at, name_size = int(own.seq[rows[0]]), int(own.ack[rows[0]])
        name = own.data[name_at : name_at + name_size].tobytes().decode(errors="replace").removeprefix(_DISSECTORS)
        if name not in protocols():
            self._leave_out(first, last)
            return
        if protocol(name).framing is Framing.DATAGRAM:
            self._walk_datagrams(key, first, last, name)
            return
        connection = self._begin(key, rows)
        connection.choose(name, PLAIN)
        streams = self._streams(connection)
        made, count = self._made, len(rows)
        while len(self._pieces) - made < count:
            self._pieces = np.concatenate([self._pieces, tcp.room(count)])
        self._pieces[made : made + count] = np.column_stack(
            [
                streams[self.flows.side[rows]],
                np.zeros(count, np.int64),
                own.start[rows],
                own.kept[rows],
                rows,
                own.time_us[rows],
            ]
        )
        self._made += count

    def _begin(self, key: FlowKey, rows: NDArray[np.int64]) -> Connection:
        """The connection some datagrams belong to; the first of them says who is the client."""
        connection = self._connection(key)
        times = self.segments.time_us[rows]
        if connection.numbers[tcp.FIRST] < 0:
            connection.numbers[tcp.FIRST] = times[0]
            if key[0] == UDP or not (key[2] or key[4]):
                connection.numbers[tcp.CLIENT] = self.flows.side[rows[0]]
            connection.sides[:, tcp.KNOWN] = tcp.FROM_START
            self._identify(connection)
        connection.numbers[tcp.LAST] = max(int(connection.numbers[tcp.LAST]), int(times.max()))
        return connection

    def _walk_datagrams(self, key: FlowKey, first: int, last: int, name: str | None = None) -> None:
        own, order = self.segments, self.flows.order
        times = own.time_us[order[first:last]]
        known = self.reader.connections.get(key)
        before = times[0] if known is None else int(known.numbers[tcp.LAST])
        silences = np.diff(np.maximum.accumulate(np.maximum(times, before)), prepend=before) > self.reader.idle_us
        bounds = [0, *np.flatnonzero(silences).tolist(), last - first]
        for begin, stop in itertools.pairwise(bounds):
            if silences[begin] if begin < len(silences) else False:
                gone = self.reader.connections.pop(key, None)
                if gone is not None:
                    self.end(gone, "idle")
            if begin == stop:
                continue
            rows = order[first + begin : first + stop]
            connection = self._begin(key, rows)
            connection.protocol = name or connection.protocol
            if connection.protocol is None:
                rows = self._recognise_datagrams(connection, rows)
            if connection.protocol is None or connection.protocol == OTHER:
                self._leave_out(first + begin, first + stop)
            elif len(rows):
                self._datagrams.setdefault(connection.protocol, []).append((connection, rows))

    def _recognise_datagrams(self, connection: Connection, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Look at the first few; those from the one that is recognised on."""
        own = self.segments
        for index, row in enumerate(rows.tolist()):
            if not self.reader.choice.auto or connection.tries == MOST_DATAGRAMS:
                connection.protocol = OTHER
                break
            connection.tries += 1
            head = own.data[own.start[row] : own.start[row] + own.kept[row]].tobytes()
            found = recognise(head, Direction.DGRAM, "udp")
            if found is not None:
                connection.protocol = found
                return rows[index:]
        return rows[:0]

    def _leave_out(self, first: int, last: int) -> None:
        rows = self.flows.order[first:last]
        self.reader.counts.other_packets += len(rows)
        self.reader.counts.other_bytes += int(self.segments.size[rows].sum())

    # Pieces of streams to messages

    def rows(self) -> DecodedRange:
        """Everything that can be told now."""
        parts = self._parts()
        self._choose(parts)
        self._decode(parts)
        for name, found in self._datagrams.items():
            self._decode_datagrams(name, found)
        self._tell()
        return self.rows_.decoded()

    def _parts(self) -> list[Part]:
        """The new bytes of every stream, behind those that were kept."""
        pieces = self._pieces[: self._made]
        late = pieces[:, 1] == tcp.LATE
        self._tell_late(pieces[late])
        pieces = pieces[~late] if late.any() else pieces
        order = np.argsort(pieces[:, 0], kind="stable")
        pieces = pieces[order]
        stream, kind, place, size, packet, time_us = pieces.T
        touched = np.unique(np.concatenate([stream, np.array(sorted(self._final), np.int64), self._undecided(stream)]))
        touched = touched[[self._wants(int(number)) for number in touched]] if len(touched) else touched
        keeps = np.isin(stream, touched)
        if not keeps.all():
            self.reader.counts.other_packets += int((~keeps).sum())
            self.reader.counts.other_bytes += int(size[~keeps].sum())
            pieces = pieces[keeps]
            stream, kind, place, size, packet, time_us = pieces.T
        first = np.searchsorted(stream, touched)
        last = np.searchsorted(stream, touched, side="right")
        kept = [self._kept(self._halves[number][1]) for number in touched.tolist()]
        sizes = np.where(kind == tcp.DATA, size, 0)
        before = np.zeros(len(pieces) + 1, np.int64)
        np.cumsum(sizes, out=before[1:])
        prefix = np.array([len(content) for content, _ in kept], np.int64)
        shift = np.cumsum(prefix)
        total = int(before[-1] + prefix.sum())
        data = np.empty(total, np.uint8)
        at = before[:-1] + np.repeat(shift, last - first)
        held = np.frombuffer(b"".join(h.content or b"" for h in self._held), np.uint8)
        place = self._absolute(place, packet)
        _copy(self.segments.data, held, place, at, sizes, data)
        file, offset = self._origins(packet, place)
        whole = Trace(at, time_us, file, offset)
        parts = []
        for index, number in enumerate(touched.tolist()):
            connection, half = self._halves[number]
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
            gaps = [(int(at[g]), int(size[g])) for g in np.flatnonzero(kind[begin:stop] == tcp.GAP) + begin]
            part = Part(
                connection, half, data, start, end, len(content), traced, self.rows_.reject,
                gaps=gaps, final=number in self._final,
            )  # fmt: skip
            if half.unwrapping is not None and half.mode != SEEK:
                part.raw_from = start + len(half.carry)
            half.seen += int(sizes[begin:stop].sum())
            parts.append(part)
        return parts

    def _undecided(self, streams: NDArray[np.int64]) -> NDArray[np.int64]:
        """Both streams of connections of which it is not known yet what they speak."""
        numbers = []
        for number in np.unique(streams).tolist():
            connection, _ = self._halves[number]
            if connection.protocol is None and connection.id:
                numbers += [self._number(connection, half) for half in connection.halves]
        return np.array(numbers, np.int64)

    def _wants(self, number: int) -> bool:
        """Whether a stream's bytes are of any use; those of others are counted."""
        connection, half = self._halves[number]
        return connection.protocol != OTHER and not half.over

    def _kept(self, half: Half) -> tuple[bytes, Trace]:
        """Bytes from before, and where they came from; half a header of the wrapping has no trace of its own."""
        raw = half.unwrapping.raw if half.unwrapping is not None else b""
        if not raw:
            return half.carry, half.trace
        trace = half.raw_trace.moved(len(half.carry))
        return half.carry + raw, Trace.joined([half.trace, trace]) if half.carry else trace

    def _absolute(self, place: NDArray[np.int64], packet: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in kept bytes as places in all kept bytes together: still from -2 downwards."""
        if not self._held:
            return place
        starts = np.cumsum([0, *(len(h.content or b"") for h in self._held)])
        old = packet - len(self.segments)
        return np.where((old >= 0) & (place < -1), place - starts[np.maximum(old, 0)], place)

    def _origins(
        self, packet: NDArray[np.int64], place: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """File and offset of the first byte of each piece."""
        own = self.segments
        if not self._held:
            return own.file[packet].astype(np.int64), own.offset[packet] + np.maximum(place - own.start[packet], 0)
        old = packet >= len(own)
        new = np.where(old, 0, packet)
        index = np.where(old, packet - len(own), 0)
        starts = np.cumsum([0, *(len(h.content or b"") for h in self._held)])
        if len(own):
            file, offset = own.file[new].astype(np.int64), own.offset[new] + np.maximum(place - own.start[new], 0)
        else:
            file, offset = np.zeros(len(packet), np.int64), np.zeros(len(packet), np.int64)
        held_file = np.array([h.file for h in self._held], np.int64)[index]
        held_offset = np.array([h.offset for h in self._held], np.int64)[index] + np.maximum(
            -place - 2 - starts[index], 0
        )
        return np.where(old, held_file, file), np.where(old, held_offset, offset)

    def _tell_late(self, pieces: NDArray[np.int64]) -> None:
        """Bytes after the end of their connection: each a reject."""
        own = self.segments
        for stream, _, place, size, packet, time_us in pieces.tolist():
            connection, half = self._halves[stream]
            if connection.protocol in (None, OTHER):
                continue
            offset = int(own.offset[packet]) + place - int(own.start[packet])
            content = own.data[place : place + min(size, 4096)].tobytes()
            words = "bytes after the end of the connection"
            half.seen += size
            self.rows_.reject(
                connection, half, Refused(LATE, words, time_us, int(own.file[packet]), offset, content, size)
            )

    def _choose(self, parts: list[Part]) -> None:
        """Settle what connections speak, and how each new stream is taken."""
        both: dict[int, list[Part]] = {}
        for part in parts:
            if part.connection.protocol is None:
                both.setdefault(id(part.connection), []).append(part)
        for own in both.values():
            self._recognise(own)
        for part in parts:
            connection, half = part.connection, part.half
            if connection.protocol in (None, OTHER) or half.mode != WAIT:
                continue
            head = part.head(3)
            if looks_encrypted(head):
                connection.protocol = OTHER
                continue
            if head or part.gaps or part.final:
                side = connection.halves.index(half)
                half.mode = SEEK if connection.sides[side, tcp.KNOWN] == tcp.MIDSTREAM else READ
                if half.mode == SEEK:
                    part.raw_from = -1

    def _recognise(self, parts: list[Part]) -> None:
        """Look at both beginnings as they grew, packet by packet, until one of them tells."""
        connection = parts[0].connection
        if not self.reader.choice.auto or connection.is_midstream:
            connection.protocol = OTHER
            return
        if connection.wrapping == WEBSOCKET:
            self._unwrap_heads(parts)
        grown = []
        for part in parts:
            at = part.trace.at[part.trace.at < part.stop].tolist()
            times = part.trace.time_us[: len(at)].tolist()
            ends = [*at[1:], part.stop] if at else []
            grown += [(time, end - part.start, part) for time, end in zip(times, ends, strict=True)]
        for _, size, part in sorted(grown, key=lambda entry: entry[:2]):
            half = part.half
            if size <= half.tried or half.tried >= ENOUGH:
                continue
            half.tried = size
            head = part.head(min(size, ENOUGH))
            if connection.wrapping == PLAIN and looks_like_request(head):
                connection.choose(None, WEBSOCKET)
                for other in parts:
                    other.half.tried = 0
                    other.raw_from = other.start
                self._recognise(parts)
                return
            found = recognise(head, half.direction, "ws" if connection.wrapping == WEBSOCKET else "tcp")
            if found is not None:
                connection.choose(found, connection.wrapping)
                return
        closed = connection.numbers[tcp.CLOSED] or all(part.final for part in parts)
        if closed or any(part.half.tried >= ENOUGH or part.gaps for part in parts):
            connection.protocol = OTHER

    def _unwrap_heads(self, parts: list[Part]) -> None:
        for part in parts:
            part.unwrap()
            if part.is_faulty:
                part.connection.protocol = OTHER

    def _decode(self, parts: list[Part]) -> None:
        """Go from gap to gap, all streams of one protocol at a time."""
        left = []
        for part in parts:
            if part.connection.protocol is None:
                part.keep()
            elif part.connection.protocol == OTHER:
                self._drop(part.connection)
            elif part.half.mode == WAIT:
                part.keep()
            else:
                left.append(part)
        while left:
            spans: dict[str, list[tuple[Part, tuple[int, int]]]] = {}
            for part in left:
                span = part.advance()
                if span is not None:
                    spans.setdefault(part.connection.protocol or "", []).append((part, span))
            for name, found in spans.items():
                self._decode_spans(name, found)
            left = [part for part in left if part.close_stretch()]

    def _drop(self, connection: Connection) -> None:
        if not connection.halves[0].over:
            self.reader.counts.other_bytes += sum(half.seen for half in connection.halves)
            connection.forget()

    def _decode_spans(self, name: str, found: list[tuple[Part, tuple[int, int]]]) -> None:
        decoder, settings = _decoder(name)
        parts = [part for part, _ in found]
        data = parts[0].data
        data.flags.writeable = False
        spans = Spans(
            data,
            np.array([start for _, (start, _) in found], np.int64),
            np.array([stop for _, (_, stop) in found], np.int64),
            np.arange(len(found), dtype=np.int32),
            [Stream(part.half.direction, {}, part.half.state) for part in parts],
        )
        columns = decoder.decode(spans, settings)
        data.flags.writeable = True
        trace = Trace.joined([part.trace for part in parts])
        speakers = [Speaker(p.connection, p.half, p.connection.halves.index(p.half)) for p in parts]
        self.rows_.messages(name, columns, data, speakers, np.arange(len(parts)), trace)
        final: dict[int, Reject] = {}
        streams = protocol(name).framing is Framing.STREAM
        for reject in columns.rejects:
            if streams:
                final[reject.span] = reject
                continue
            part = parts[reject.span]
            time_us, file, offset = part.trace.where(reject.offset)
            content = data[reject.offset : reject.offset + min(reject.size, 4096)].tobytes()
            refused = Refused(reject.clause, reject.detail, time_us, file, offset, content, reject.size)
            self.rows_.reject(part.connection, part.half, refused)
        for index, part in enumerate(parts):
            part.half.state = columns.state[index]
            part.decoded(int(columns.consumed[index]), final.get(index))

    def _decode_datagrams(self, name: str, found: list[tuple[Connection, NDArray[np.int64]]]) -> None:
        """Datagrams stand alone; those that the snap length cut are no messages."""
        own = self.segments
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
            content = own.data[start : start + min(kept, 4096)].tobytes()
            time_us, file, offset = int(own.time_us[row]), int(own.file[row]), int(own.offset[row])
            refused = Refused(TRUNCATED, words, time_us, file, offset, content, kept)
            connection, half = halves[of[index]]
            self.rows_.reject(connection, half, refused)
        rows, of = rows[~cut], of[~cut]
        decoder, settings = _decoder(name)
        start = own.start[rows]
        streams = [Stream(Direction.DGRAM, {}, half.state) for _, half in halves]
        columns = decoder.decode(Spans(own.data, start, start + own.size[rows], of.astype(np.int32), streams), settings)
        by_place = np.argsort(start, kind="stable")
        chosen = rows[by_place]
        trace = Trace(start[by_place], own.time_us[chosen], own.file[chosen].astype(np.int64), own.offset[chosen])
        for reject in columns.rejects:
            row = int(rows[reject.span])
            content = own.data[reject.offset : reject.offset + min(reject.size, 4096)].tobytes()
            refused = Refused(
                reject.clause, reject.detail, int(own.time_us[row]), int(own.file[row]),
                int(own.offset[row]) + reject.offset - int(own.start[row]), content, reject.size,
            )  # fmt: skip
            connection, half = halves[of[reject.span]]
            self.rows_.reject(connection, half, refused)
        speakers = [Speaker(*both, side) for both in halves for side in range(2)]
        self.rows_.messages(name, columns, own.data, speakers, of * 2 + self.flows.side[rows], trace)
        for index, (_, half) in enumerate(halves):
            half.state = columns.state[index]

    def _tell(self) -> None:
        """What happened to connections."""
        touched = {id(c): c for c, _ in self._halves}
        touched.update({id(c): c for found in self._datagrams.values() for c, _ in found})
        for connection in touched.values():
            if connection.protocol in (None, OTHER) or not connection.id:
                continue
            if not connection.opened_told:
                connection.opened_told = True
                what = MIDSTREAM if connection.is_midstream else OPENED
                self.rows_.event(what, connection, int(connection.numbers[tcp.FIRST]))
            for half in connection.halves:
                if half.overhead:
                    self.rows_.event(
                        OVERHEAD, connection, int(connection.numbers[tcp.LAST]), half=half, size=half.overhead
                    )
                    half.overhead = 0
        for connection, reason in self._ended:
            if connection.protocol in (None, OTHER):
                continue
            if reason is not None:
                closed_at = int(connection.numbers[tcp.CLOSED_AT])
                at = closed_at if closed_at >= 0 else int(connection.numbers[tcp.LAST])
                self.rows_.event(CLOSED, connection, at, reason=reason)
            connection.forget()


@numba.njit(cache=True, nogil=True)
def _copy(data, held, place, at, size, out):  # type: ignore[no-untyped-def]
    """Copy pieces to where they belong; negative places are in the bytes that were held."""
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


def _no_segments() -> Segments:
    small, wide = np.zeros(0, np.uint8), np.zeros(0, np.int64)
    return Segments(
        small, small, small, np.zeros((4, 0), np.uint64), np.zeros((2, 0), np.int32), wide, wide, wide, wide, wide,
        wide, np.zeros(0, np.int32), wide,
    )  # fmt: skip
