"""One pass over the flows of a part of a capture: makes pieces of streams from packets."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from wireloom.model import Direction
from wireloom.pipeline.captures import tcp
from wireloom.pipeline.captures.connections import OTHER, PLAIN, CapturedConnection, Half, Held
from wireloom.pipeline.captures.counts import Counts
from wireloom.pipeline.captures.detect import MOST_DATAGRAMS, Choice, recognise
from wireloom.pipeline.captures.flows import FlowKey, Flows
from wireloom.pipeline.captures.headers import Segments
from wireloom.pipeline.captures.pcap import TCP, UDP, UPPER_PDU
from wireloom.protocols.contract import Framing
from wireloom.protocols.registry import protocol, protocols

_DISSECTORS = "wireloom."


class FlowPass:
    """Assigns the packets of one part of a capture to connections and streams.

    The results are attributes:

    - `pieces[:made]`: the pieces of all streams, with the columns of `tcp.ROW`;
    - `halves`: the streams by their numbers;
    - `held`: bytes that have waited since an earlier part;
    - `datagrams`: the rows of UDP packets, by protocol;
    - `final`: the numbers of streams that have ended;
    - `ended`: connections that have ended, and why.
    """

    def __init__(
        self,
        connections: dict[FlowKey, CapturedConnection],
        choice: Choice,
        idle_us: int,
        counts: Counts,
        segments: Segments,
        flows: Flows,
    ) -> None:
        self.connections = connections
        self.choice = choice
        self.idle_us = idle_us
        self.counts = counts
        self.segments = segments
        self.flows = flows
        self.pieces = tcp.room(len(segments))
        self.made = 0
        self.halves: list[tuple[CapturedConnection, Half]] = []
        self.held: list[Held] = []
        self.datagrams: dict[str, list[tuple[CapturedConnection, NDArray[np.int64]]]] = {}
        self.final: set[int] = set()
        self.ended: list[tuple[CapturedConnection, str | None]] = []
        self._waiting = tcp.waiting_room()
        self._holes = tcp.holes_room()
        self._has_holes = False
        """Whether `_holes` has any entries."""
        self._numbers: dict[int, int] = {}
        """Stream numbers by the `id()` of their halves."""

    def walk(self) -> None:
        """Process all flows."""
        handlers = {TCP: self._walk_tcp, UDP: self._walk_datagrams, UPPER_PDU: self._walk_pdus}
        for number, key in enumerate(self.flows.keys):
            first, last = int(self.flows.bounds[number]), int(self.flows.bounds[number + 1])
            handlers[key[0]](key, first, last)

    def _connection(self, key: FlowKey) -> CapturedConnection:
        known = self.connections.get(key)
        if known is None:
            known = self.connections[key] = CapturedConnection.new(key)
        return known

    def _walk_tcp(self, key: FlowKey, first: int, last: int) -> None:
        own = self.segments
        if not self.choice.auto and self.choice.by_port(TCP, key[2], key[4]) is None:
            self._leave_out(first, last)
            return
        while True:
            connection = self._connection(key)
            streams = self._streams(connection)
            self._load(connection)
            stopped, why, self.made = tcp.walk(
                self.flows.order, first, last, self.flows.side, own.flags, own.seq, own.ack, own.start, own.kept,
                own.size, own.time_us, streams, self.idle_us, connection.numbers, connection.sides,
                self._waiting, self._holes, self.pieces, self.made,
            )  # fmt: skip
            self._store(connection)
            if not connection.id and connection.numbers[tcp.FIRST] >= 0:
                self._identify(connection)
            self._note_ends(connection)
            connection.packets += int(stopped) - first
            first = int(stopped)
            if why == tcp.FULL:
                self.pieces = np.concatenate([self.pieces, tcp.room(last - first)])
            elif why == tcp.END:
                return
            else:
                self.end(connection, "idle" if why == tcp.SILENT else "reset")
                del self.connections[key]

    def _streams(self, connection: CapturedConnection) -> NDArray[np.int64]:
        """The numbers of a connection's streams."""
        return np.array([self.number(connection, half) for half in connection.halves], np.int64)

    def number(self, connection: CapturedConnection, half: Half) -> int:
        """The number of a stream."""
        known = self._numbers.get(id(half))
        if known is None:
            known = self._numbers[id(half)] = len(self.halves)
            self.halves.append((connection, half))
        return known

    def _identify(self, connection: CapturedConnection) -> None:
        """Find out which side is the client, give the connection its id, and guess its protocol from its port."""
        transport = UDP if connection.key[0] == UDP else TCP
        ports = (connection.key[2], connection.key[4])
        client = int(connection.numbers[tcp.CLIENT])
        if client < 0:
            client = self.choice.client_side(transport, ports)
        connection.identify(client)
        chosen = self.choice.by_port(transport, ports[1 - client], ports[client])
        if chosen is not None and connection.key[0] != UPPER_PDU:
            connection.choose(chosen.protocol, chosen.wrapping)

    def _load(self, connection: CapturedConnection) -> None:
        """Load a connection's waiting pieces and holes into the kernel's arrays."""
        if self._has_holes:
            self._holes[:] = 0
        self._has_holes = False
        for side, half in enumerate(connection.halves):
            if half.holes:
                self._has_holes = True
                self._holes[side, -len(half.holes) :] = half.holes
            for index, held in enumerate(half.held):
                place = -1
                if held.content is not None:
                    # Places in held bytes count from -2 downwards, here from the start of this `Held`.
                    place = -2
                self._waiting[side, index] = (held.begin, held.end, place, len(self.segments) + len(self.held))
                self.held.append(held)

    def _store(self, connection: CapturedConnection) -> None:
        """Copy the waiting pieces into the connection: the packets are not in memory in the next part."""
        own = self.segments
        self._has_holes = self._has_holes or bool(self._holes.any())
        for side, half in enumerate(connection.halves):
            half.held = []
            if self._has_holes:
                half.holes = self._holes[side][self._holes[side, :, 0] < self._holes[side, :, 1]].tolist()
            for begin, end, place, packet in self._waiting[side, : connection.sides[side, tcp.WAITING]].tolist():
                size = end - begin
                if packet >= len(own):
                    old = self.held[packet - len(own)]
                    skip = 0 if place == -1 else -place - 2
                    content = None if old.content is None else old.content[skip : skip + size]
                    half.held.append(Held(begin, end, content, old.file, old.offset + skip))
                else:
                    content = None if place == -1 else own.data[place : place + size].tobytes()
                    offset = int(own.offset[packet]) + (0 if place == -1 else place - int(own.start[packet]))
                    half.held.append(Held(begin, end, content, int(own.file[packet]), offset))

    def _note_ends(self, connection: CapturedConnection) -> None:
        """Note the directions that have ended, and the connection if both have."""
        for half, side in zip(connection.halves, connection.sides, strict=True):
            if (side[tcp.FIN_AT] >= 0 and side[tcp.NEXT] >= side[tcp.FIN_AT]) or connection.numbers[tcp.CLOSED]:
                self.final.add(self.number(connection, half))
        if connection.numbers[tcp.CLOSED] and not connection.closed_told:
            connection.closed_told = True
            reason = "reset" if connection.numbers[tcp.CLOSED] == tcp.BY_RST else "close"
            self.ended.append((connection, reason))

    def give_up(self, connection: CapturedConnection, now_us: int) -> None:
        """Give up the missing bytes of a connection that has been silent for too long."""
        self._give_up(connection, now_us - tcp.LONGEST_WAIT_US)
        if not connection.id:
            self._identify(connection)
        self._note_ends(connection)

    def _give_up(self, connection: CapturedConnection, before_us: int) -> None:
        if len(self.pieces) - self.made < 8 * tcp.MOST_WAITING:
            self.pieces = np.concatenate([self.pieces, tcp.room(0)])
        self._load(connection)
        self.made = tcp.give_up(
            connection.numbers, connection.sides, self._waiting, self._holes, self._streams(connection), before_us,
            self.pieces, self.made,
        )  # fmt: skip
        self._store(connection)

    def end(self, connection: CapturedConnection, reason: str | None) -> None:
        """End a connection. Without a reason it is the input that ends."""
        if not connection.id:
            return
        streams = self._streams(connection)
        if connection.key[0] == TCP:
            self._give_up(connection, tcp.ANY_TIME)
        self.final.update(streams.tolist())
        if not connection.closed_told:
            connection.closed_told = True
            one_fin = bool((connection.sides[:, tcp.FIN_AT] >= 0).any())
            self.ended.append((connection, "close" if reason == "idle" and one_fin else reason))

    def _walk_pdus(self, key: FlowKey, first: int, last: int) -> None:
        """Process payloads that were exported with tags (upper PDUs). They are in stream order already."""
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
        made, count = self.made, len(rows)
        while len(self.pieces) - made < count:
            self.pieces = np.concatenate([self.pieces, tcp.room(count)])
        self.pieces[made : made + count] = np.column_stack(
            [
                streams[self.flows.side[rows]],
                np.zeros(count, np.int64),
                own.start[rows],
                own.kept[rows],
                rows,
                own.time_us[rows],
            ]
        )
        self.made += count

    def _begin(self, key: FlowKey, rows: NDArray[np.int64]) -> CapturedConnection:
        """The connection that these datagrams belong to. The sender of the first one is the client."""
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
        known = self.connections.get(key)
        before = times[0] if known is None else int(known.numbers[tcp.LAST])
        silences = np.diff(np.maximum.accumulate(np.maximum(times, before)), prepend=before) > self.idle_us
        bounds = [0, *np.flatnonzero(silences).tolist(), last - first]
        for begin, stop in itertools.pairwise(bounds):
            if silences[begin] if begin < len(silences) else False:
                gone = self.connections.pop(key, None)
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
                self.datagrams.setdefault(connection.protocol, []).append((connection, rows))

    def _recognise_datagrams(self, connection: CapturedConnection, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Recognise the protocol by the first few datagrams. Returns the rows from the recognised one on."""
        own = self.segments
        for index, row in enumerate(rows.tolist()):
            if not self.choice.auto or connection.tries == MOST_DATAGRAMS:
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
        self.counts.other_packets += len(rows)
        self.counts.other_bytes += int(self.segments.size[rows].sum())
