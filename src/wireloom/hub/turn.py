"""A turn handles together what all connections received in one iteration of the event loop.

Theory of operation
-------------------
The problem: many devices, each with one message in flight, cause many tiny reads. Each read has a fixed cost: a decode
call, a journal block, a routing pass, a commit, an acknowledgement and the journal block of that acknowledgement.

The idea: pay the fixed cost once for each turn instead of once for each read.

1. `add` stores a read. The first read of an iteration schedules `run` behind all callbacks that are ready now.
2. `take_all` groups the reads by listener and `Session.batch_key`. It joins the reads of a group, and one kernel call
   decodes them into one batch (`PublishColumns.take`).
3. The batch is checked against rights and rates, appended to the journal in one pass, and routed once.
4. Once the batch is durable, `acknowledge` writes one answer to each connection. It appends the journal blocks of the
   answers in one pass.

The invariant: messages of one connection stay in order. The kernel stops at the first frame that it does not know. The
connection's own driver takes the remaining bytes, after the batch was routed.

These reads go to the connection's own driver instead, and take the same path through the router: a read that is alone
in its group, a long read, and a read of a connection in an unusual state (incomplete frame, handshake, encryption).
Drivers take long reads in chunks (`peers/chunked_driver.py`). So a turn is long only where many peers sent something.

Example: 500 devices publish one reading each, and all 500 sockets are readable in one iteration. The hub makes one
kernel call, one journal append, one fan-out and one group commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, cast

from wireloom.model import PeerClosed
from wireloom.protocols.column_session import KERNEL_FROM, ColumnSession

LONGEST = 16 * 1024
"""Maximum bytes of a read that is decoded together with reads of other connections."""
TOGETHER = 128 * 1024
"""Maximum bytes that one kernel call decodes."""

if TYPE_CHECKING:
    from wireloom.hub.connection import Connection
    from wireloom.hub.hub import Hub
    from wireloom.protocols.contract import Publishes
    from wireloom.protocols.publish_columns import PublishColumns
    from wireloom.transports.base import Pipe


class Turn:
    """The reads of the current iteration of the event loop."""

    def __init__(self, hub: Hub) -> None:
        # Imported here because it needs numba, which is slow to import.
        from wireloom.transports.many_writes import warm, write_each

        warm()
        self.write_each = write_each
        self._hub = hub
        self._reads: dict[Connection, bytes] = {}
        """The first read of each connection."""
        self._pieces: dict[Connection, list[bytes]] = {}
        """All reads of the connections that have more than one. These are few, and they send much."""

    def add(self, connection: Connection, data: bytes) -> None:
        """Store a read. `run` takes it at the end of this iteration."""
        reads = self._reads
        if not reads:
            self._hub.call_soon(self.run)
        if connection in reads:
            self._pieces.setdefault(connection, [reads[connection]]).append(data)
        else:
            reads[connection] = data

    def take_now(self, connection: Connection) -> None:
        """Take the read of one connection now, before something else happens to this connection."""
        data = self._reads.pop(connection, None)
        if connection in self._pieces:
            data = b"".join(self._pieces.pop(connection))
        if data is not None:
            connection.driver.received(data)

    def run(self) -> None:
        """Take all reads, then commit."""
        self.take_all()
        self._hub.commit.flush()

    def take_all(self) -> None:
        """Take all reads that have arrived."""
        reads, self._reads = self._reads, {}
        if not reads:
            return
        if self._pieces:
            reads.update({connection: b"".join(pieces) for connection, pieces in self._pieces.items()})
            self._pieces = {}
        hub = self._hub
        hub.watch.took(sum(map(len, reads.values())))
        if len(reads) == 1:
            connection, data = reads.popitem()
            connection.driver.received(data)
            return
        now = hub.now()
        groups: dict[Hashable, dict[Connection, bytes]] = {}
        alone: list[tuple[Connection, bytes]] = []
        # Routes need each message by itself.
        longest = 0 if hub.router.routes else LONGEST
        for connection, data in reads.items():
            key = connection.turn_key(now) if len(data) <= longest else None
            if key is None:
                alone.append((connection, data))
            elif key in groups:
                groups[key][connection] = data
            else:
                groups[key] = {connection: data}
        for group in groups.values():
            for part in _in_parts(group):
                if len(part) > 1 and sum(map(len, part.values())) >= KERNEL_FROM:
                    alone += self._take_together(list(part), list(part.values()))
                else:
                    alone += part.items()
        for connection, data in alone:
            connection.driver.received(data)
        hub.after_read()

    def _take_together(self, connections: list[Connection], reads: list[bytes]) -> list[tuple[Connection, bytes]]:
        """Decode, record and route the reads of several connections. Returns what their own drivers must take."""
        ends = list(accumulate(map(len, reads)))
        starts = [0, *ends[:-1]]
        # Only connections with a ColumnSession have a `turn_key`.
        sessions = cast("list[ColumnSession]", [connection.session for connection in connections])
        columns = sessions[0].columns
        assert columns is not None
        buffer = b"".join(reads)
        taken = columns.take(sessions, buffer, starts, ends)
        if taken.batch is not None:
            # In reads of several connections the kernel decodes publishes only.
            self._route(connections, cast("PublishColumns", taken.batch))
        left: list[tuple[Connection, bytes]] = []
        if taken.ends == ends:
            return left
        for connection, session, stopped, end, is_odd in zip(
            connections, sessions, taken.ends, ends, taken.odd, strict=True
        ):
            if stopped < end:
                if is_odd:
                    left.append((connection, buffer[stopped:end]))
                else:
                    session.keep(buffer[stopped:end])
        return left

    def _route(self, connections: list[Connection], batch: PublishColumns) -> None:
        hub, source = self._hub, connections[0]
        router = hub.router
        if (
            not hub.topic_limits.allow(batch)
            or (source.protocol.request_is_publish and router.providers and router.may_call(source, batch))
            or not self._are_allowed(connections, batch)
        ):
            # A call or a refusal concerns one message. So this batch is handled message by message.
            for connection, part in zip(connections, batch.as_messages(), strict=True):
                if part.data:
                    connection.on_batch(part)
            return
        # Connections with the same key have the same context.
        context = source.context()
        runs: list[tuple[int, int, int, int]] = []
        indexes: list[int] = []
        for connection, count, start, end in zip(
            connections, batch.counts().tolist(), batch.starts, batch.ends, strict=True
        ):
            indexes.append(len(runs))
            if count:  # otherwise the kernel took nothing of this read: no block
                runs.append((start, end, *connection.count_read(count, context)))
        tickets = hub.journal.append_runs(batch.buffer, *zip(*runs, strict=True))
        hub.metrics.received.add(batch.count, source.name)
        hub.metrics.received_bytes.add(sum(batch.ends) - sum(batch.starts), source.name)
        router.route(connections, batch, int(tickets[-1]))
        for topic, read in zip(batch.events().topics, batch.last_reads(), strict=True):
            hub.last_values.note(topic, int(tickets[indexes[read]]))

    def _are_allowed(self, connections: list[Connection], batch: PublishColumns) -> bool:
        """Whether every connection may publish its part of a batch. If so, charge each for its part."""
        guarded = [(read, each) for read, each in enumerate(connections) if each.is_guarded]
        for read, connection in guarded:
            if not connection.may_publish_topics(batch.topics_of(read)):
                return False
        for read, connection in guarded:
            connection.charge(int(batch.bounds[read + 1] - batch.bounds[read]))
        return True

    def acknowledge(self, sources: Sequence[Connection], batch: Publishes) -> None:
        """Answer the publishes of a batch that is now durable: one write for each connection."""
        hub = self._hub
        hub.metrics.acknowledged.add(batch.unanswered, sources[0].name)
        frames, ends, counts = batch.acknowledgements()
        runs: list[tuple[int, int, Pipe, int, int]] = []
        start = answered = 0
        for read, (connection, end, count) in enumerate(zip(sources, ends, counts, strict=True)):
            if count:
                is_direct = len(sources) > 1 and connection not in hub.unwritten
                place = connection.count_answers(count) if is_direct else None
                if place is not None:
                    runs.append((start, end, *place))
                    answered += count
                else:
                    with contextlib.suppress(PeerClosed):
                        connection.send_frames(frames[start:end], count)
                batch.settle(read)
            start = end
        if runs:
            hub.metrics.sent.add(answered, sources[0].name)
            begin, end_of, pipes, lines, sequences = zip(*runs, strict=True)
            self.write_each(pipes, frames, begin, end_of)
            hub.journal.append_runs(frames, begin, end_of, lines, sequences)


def _in_parts(group: dict[Connection, bytes]) -> Iterator[dict[Connection, bytes]]:
    """Split the reads of a group into parts of at most `TOGETHER` bytes."""
    if len(group) * LONGEST <= TOGETHER or sum(map(len, group.values())) <= TOGETHER:
        yield group
        return
    part: dict[Connection, bytes] = {}
    size = 0
    for connection, data in group.items():
        if size + len(data) > TOGETHER:
            yield part
            part, size = {}, 0
        part[connection] = data
        size += len(data)
    yield part
