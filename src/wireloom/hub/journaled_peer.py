"""What the journal records of one peer: everything that it sends, and what the hub sends to it except event deliveries.

Each direction of a connection is a line in the journal's table (`journal/lines.py`). A run of frames states its line,
the number of messages before it, and the context that a reader needs: topic numbers, negotiated settings, keys.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wireloom.hub.outbox import Outbox
from wireloom.journal.context import Context, Principal
from wireloom.journal.keys import Keys
from wireloom.journal.lines import Line
from wireloom.protocols.contract import Batch, Session, SessionState
from wireloom.transports.base import Pipe

if TYPE_CHECKING:
    from wireloom.hub.hub import Hub

_NO_PIECES = (b"", b"")
_NO_LINES = (None, None)
_OPEN = SessionState.OPEN


@functools.lru_cache(maxsize=256)
def _shared(numbers: tuple[tuple[int, str], ...], agreed: tuple[tuple[str, str | bool], ...]) -> Context:
    return Context(dict(numbers), dict(agreed))


def _context(numbers: Mapping[int, str], agreed: Mapping[str, str | bool]) -> Context | None:
    """The context that a reader needs, shared by all connections with the same one. None if it is empty."""
    return _shared(tuple(numbers.items()), tuple(agreed.items())) if numbers or agreed else None


class JournaledPeer(Outbox):
    """The side of a connection that is recorded in the journal."""

    # A base class like `Outbox`, for the same reason: memory of idle connections.
    __slots__ = (
        "_agreed",
        "_context",
        "_inbound",
        "_is_open_book",
        "_keys",
        "_lines",
        "_numbers",
        "_outbound",
        "_pieces",
        "_principal",
        "_recorded",
        "_sends_as",
        "local",
    )

    def __init__(self, hub: Hub, name: str) -> None:
        super().__init__(hub, name)
        self._recorded = [0, 0]
        """Messages in the journal: received, and sent.

        If a protocol does not separate directions, the first counts all.
        """
        self._lines: tuple[Line | None, Line | None] = _NO_LINES
        """The lines in the journal's table for received and for sent frames. They are created on first use."""
        self._pieces = _NO_PIECES
        """Fragments of messages that are not sent completely: of control messages and answers, and of deliveries."""
        self._numbers: Mapping[int, str] | None = None
        self._agreed: Mapping[str, str | bool] | None = None
        self._context: Context | None = None
        self._keys: Keys | None = None
        self._principal: Principal | None = None
        """The proved principal, as the journal states it in each segment. None if nothing was proved."""
        self.local = ""

    def _record_for(self, session: Session) -> None:
        """From now on the peer uses this session."""
        self.session = session
        self._inbound, self._outbound = session.inbound, session.outbound
        self._sends_as = 0 if self._inbound is self._outbound else 1
        kind = type(session)
        self._is_open_book = kind.secrets is Session.secrets and kind.recordable is Session.recordable
        """Whether the protocol neither encrypts nor sends credentials. Then the journal records all bytes unchanged."""

    def _end_records(self) -> None:
        """The connection is closed: record incomplete messages that were sent, and release the lines."""
        for line in self._lines:
            if line is not None:
                self.hub.journal.release(line)
        self._lines = _NO_LINES
        for pieces in self._pieces:
            if pieces:
                self._append_outbound(pieces, 0)

    def count_read(self, count: int, context: Context | None) -> tuple[int, int]:
        """Count messages that the peer sent. Returns the slot of its line in the journal, and how many came before."""
        line = self._lines[0]
        if line is None or line.context is not context or line.principal is not self._principal:
            line = self._line(0, context)
        before = self._recorded[0]
        self._recorded[0] = before + count
        return line.slot, before

    def count_answers(self, count: int) -> tuple[Pipe, int, int] | None:
        """Count acknowledgements that are written now, without the session's queue.

        Returns the pipe, the slot of its line in the journal, and how many messages were sent before. Returns None if
        they must go through the session's queue. The caller knows that this queue is empty.
        """
        session, pipe = self.session, self._pipe
        if session.state is not _OPEN or session.offloads or pipe is None or pipe.carries_messages:
            return None
        line = self._lines[1]
        if line is None or line.principal is not self._principal:
            # Acknowledgements name no topics, so they do not depend on the context.
            line = self._line(1, self.context())
        session.sent += count
        self._sent_seen += count
        recorded, which = self._recorded, self._sends_as
        before = recorded[which]
        recorded[which] = before + count
        return pipe, line.slot, before

    def _line(self, side: int, context: Context | None) -> Line:
        journal, line = self.hub.journal, self._lines[side]
        if line is None:
            ends = (self.local or None, self.peer or None) if side else (self.peer or None, self.local or None)
            direction = self._outbound if side else self._inbound
            line = journal.line(self.id, self.name, direction, *ends, inbound=not side)
            self._lines = (self._lines[0], line) if side else (line, self._lines[1])
        journal.describe(line, context, self._principal)
        return line

    def _record(self, batch: Batch, said: Sequence[bytes]) -> int:
        """Append what the peer sent to the journal. Returns the ticket. `said` are records about the batch."""
        before = self._recorded[0]
        self._recorded[0] += batch.count
        context = self.context() if batch.numbers is None else _context(batch.numbers, self.session.agreed())
        return self.hub.journal.append(
            self.name,
            self.id,
            self._inbound,
            before,
            batch.data,
            source=self.peer or None,
            destination=self.local or None,
            topics=context,
            keys=None if self._is_open_book else self._keys_in_force(),
            principal=self._principal,
            said=said,
        )

    def context(self) -> Context | None:
        """The topic numbers and negotiated settings, in the journal's form. Made once for each change."""
        numbers, agreed = self.session.topic_numbers(), self.session.agreed()
        if numbers is not self._numbers or agreed is not self._agreed:
            self._numbers, self._agreed = numbers, agreed
            self._context = _context(numbers, agreed)
        return self._context

    def _keys_in_force(self) -> Keys | None:
        """The keys that decrypt a conversation, unless the configuration forbids recording them."""
        if self._keys is None and self.hub.config.journal.keys:
            secrets = self.session.secrets
            if secrets:
                self._keys = Keys(self.name, self.id, secrets)
        return self._keys

    def _record_refused(self, clause: str, detail: str, data: bytes) -> None:
        self.hub.refused(self.name, self.id, self._inbound, data, clause, detail, self.peer, self.local)

    @property
    def heard(self) -> int:
        """How many messages came so far. The watchdog compares it to find silent peers."""
        return self._recorded[0]

    def record_sent(self, data: bytes) -> None:
        """Record outgoing bytes that are not event deliveries."""
        assert self._pipe is not None
        session = self.session
        if self._pipe.carries_messages:
            count = session.messages_in(data)
            self._sent_seen += count
            self.hub.metrics.sent.add(count, self.name)
            self._record_outbound(data, count)
            return
        count, self._sent_seen = session.sent - self._sent_seen, session.sent
        self.hub.metrics.sent.add(count, self.name)
        kept = data if self._is_open_book else session.recordable(data)
        if kept:
            self._append_outbound(kept, count)

    def _record_outbound(self, data: bytes, count: int, *, delivered: bool = False) -> None:
        kept = self.session.recordable(data)
        pieces = self._pieces
        if not count and self._pipe is not None and self._pipe.carries_messages:
            # A fragment of a message. The journal stores whole messages, so that each block can be read by itself.
            held = pieces[delivered] + kept
            self._pieces = (pieces[0], held) if delivered else (held, pieces[1])
            return
        if pieces[delivered]:
            kept = pieces[delivered] + kept
            self._pieces = (pieces[0], b"") if delivered else (b"", pieces[1])
        if kept:
            self._append_outbound(kept, count)

    def _append_outbound(self, kept: bytes, count: int) -> None:
        self.hub.journal.append(
            self.name,
            self.id,
            self._outbound,
            self._recorded[self._sends_as],
            kept,
            source=self.local or None,
            destination=self.peer or None,
            inbound=False,
            topics=self.context(),
            keys=None if self._is_open_book else self._keys_in_force(),
            principal=self._principal,
        )
        self._recorded[self._sends_as] += count


class RecordedPipe(Pipe):
    """The pipe that the driver uses: it records what is written."""

    def __init__(self, pipe: Pipe, connection: JournaledPeer) -> None:
        self._pipe = pipe
        self._connection = connection
        self.peername = pipe.peername
        # The other attributes have defaults for most pipes, and then need no memory.
        if pipe.tls is not None:
            self.tls = pipe.tls
        if pipe.carries_messages or pipe.max_write:
            self.carries_messages, self.max_write = pipe.carries_messages, pipe.max_write

    def write(self, data: bytes) -> None:
        """Send first, then record: the peer can already react meanwhile."""
        self._pipe.write(data)
        self._connection.record_sent(data)

    def finish(self) -> None:
        """Say that no more will be written."""
        self._pipe.finish()

    def pause_reading(self) -> None:
        """Stop reading."""
        self._pipe.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._pipe.resume_reading()

    def close(self) -> None:
        """Close when everything is sent."""
        self._pipe.close()

    def abort(self) -> None:
        """Close at once."""
        self._pipe.abort()
