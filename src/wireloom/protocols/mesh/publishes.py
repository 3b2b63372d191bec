"""Many datagrams of one read: each packet is checked, and decoded into a message only if one is needed.

Part of `session.py` for the hub. Packets are journaled and forwarded unchanged. Mesh subscribers get them with the
signature of their author.

`DatagramReader` takes a read apart. Events become rows of a `MeshPublishes`, in the order in which they came. Any other
packet (Hello, heartbeat, an event under `$hub/`) is an ordinary batch at its place, and ends the rows before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wireloom.model import Authenticity, Direction, Message, ProtocolViolation
from wireloom.protocols.contract import HUB_PREFIX, Batch, Events, Publishes, Rejected, Session
from wireloom.protocols.mesh import frames, scan
from wireloom.protocols.mesh.encryption import open_packet
from wireloom.protocols.mesh.frames import EventType, Type
from wireloom.protocols.mesh.messages import to_message

if TYPE_CHECKING:
    from wireloom.protocols.mesh.session import MeshSession

KERNEL_FROM = 8
"""Reads of fewer datagrams are parsed by the reference decoder: a kernel call would take longer."""

ALIKE_FROM = 64
"""Reads of fewer datagrams are checked packet by packet: the fast path for one sender would not pay."""


class Row(NamedTuple):
    """An accepted event."""

    start: int
    end: int
    """Where in the read it is."""
    authenticity: Authenticity
    node_id: bytes | None
    """Without a NODE ID it is not passed on to other nodes."""
    is_readable: bool
    """Whether it could be decrypted. Otherwise peers of other protocols do not get it."""
    name: str

    @property
    def author(self) -> str:
        """Who wrote it, as `Session.written_by` names them."""
        if self.node_id is None or self.authenticity is not _VERIFIED:
            return ""
        return f"mesh:{self.node_id.hex()}"

    @property
    def is_reserved(self) -> bool:
        """Whether its name is reserved for the hub."""
        return self.name.startswith(HUB_PREFIX)


class MeshPublishes(Publishes):
    """Accepted events of one read, one after the other. `data` holds exactly their packets."""

    __slots__ = ("_events", "_read", "_rows")

    def __init__(
        self, session: MeshSession, read: bytes, rows: Sequence[Row], refused: Sequence[Rejected] = ()
    ) -> None:
        super().__init__(cut(read, rows), ignored=len(rows), refused=refused)
        self.sessions = (session,)
        self.unanswered = 0
        self._read = read
        self._rows = rows
        self._events: MeshEvents | None = None

    def events(self) -> MeshEvents:
        """All of them."""
        if self._events is None:
            names = list(dict.fromkeys(map(_NAME, self._rows)))
            self._events = MeshEvents(self._session, self._read, names, self._rows)
        return self._events

    def topics(self) -> Iterable[tuple[str, str]]:
        """Each Event Name with each node that wrote such an event; empty text where nothing is proved."""
        return dict.fromkeys((row.name, row.author) for row in self._rows)

    def split(self, allowed: Callable[[str, str | None], bool]) -> tuple[Batch, Sequence[tuple[str, bytes]]]:
        """Remove events that are not allowed; the rest is still forwarded unchanged."""
        verdicts = {each: allowed(*each) for each in self.topics()}
        kept = [row for row in self._rows if verdicts[row.name, row.author]]
        dropped = [row for row in self._rows if not verdicts[row.name, row.author]]
        rest = MeshPublishes(self._session, self._read, kept, self.refused) if kept else Batch(refused=self.refused)
        return rest, [(row.name, self._read[row.start : row.end]) for row in dropped]

    def as_messages(self) -> Sequence[Batch]:
        """All of them as messages, in one batch."""
        messages = [_message(self._session, self._read, row) for row in self._rows]
        return [Batch(self.data, messages, refused=self.refused)]

    @property
    def _session(self) -> MeshSession:
        session: MeshSession = self.sessions[0]  # type: ignore[assignment]
        return session


class MeshEvents(Events):
    """Events of one read."""

    is_signed = True

    def __init__(self, session: MeshSession, read: bytes, topics: Sequence[str], rows: Sequence[Row]) -> None:
        self.topics = topics
        self._session = session
        self._read = read
        self._rows = rows
        self._by_name: dict[str, list[Row]] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, chosen: Sequence[int]) -> MeshEvents:
        """Those with one of the chosen names, in order."""
        if len(chosen) == len(self.topics):
            return self
        if self._by_name is None:
            # Index rows by name once: a hundred subscribers then need not scan all rows each.
            self._by_name = {}
            for row in self._rows:
                self._by_name.setdefault(row.name, []).append(row)
        names = [self.topics[code] for code in chosen]
        rows = [row for name in names for row in self._by_name[name]]
        if len(names) > 1:
            rows.sort()
        return MeshEvents(self._session, self._read, names, rows)

    def messages(self) -> list[Message]:
        """Those that can be read here."""
        return [_message(self._session, self._read, row) for row in self._rows if row.is_readable]

    def frames(self, session: Session, now: float) -> bytes | None:
        """For a mesh node the packets as they came, urgent ones first; for others what their session writes.

        What has no NODE ID, or a name that is not to be relayed, does not go to other nodes.
        """
        if not isinstance(session, type(self._session)):
            if not all(row.is_readable for row in self._rows):
                return None  # fewer are sent than there are
            return session.write_events(self.messages(), now)
        withheld = {name for name in self.topics if not self._session.relays(name)}
        for _ in withheld:
            self._session.count("mesh.relay.withheld")
        rows = [row for row in self._rows if row.node_id is not None and (not withheld or row.name not in withheld)]
        packets = [self._read[row.start : row.end] for row in rows]
        if any(map(frames.is_urgent, packets)):
            packets.sort(key=lambda packet: not frames.is_urgent(packet))
        return b"".join(packets)


class DatagramReader:
    """Reads datagrams for one session."""

    def __init__(self, session: MeshSession) -> None:
        self._session = session
        self._limits = session.settings.limits
        scan.warm()

    def read(self, data: bytes, ends: Sequence[int], now: float) -> list[Batch]:
        """The batches of one read, in order."""
        session, starts = self._session, [0, *ends[:-1]]
        found: dict[int, Row | Rejected | Sequence[Batch]] = {}
        """What became of each datagram, by its number."""
        rest: Iterable[int] = range(len(ends))
        if len(ends) >= KERNEL_FROM:
            rows, rest = self._usual(data, starts, ends, found, now)
            if len(rows) == len(ends):
                session.heard(now)
                return [MeshPublishes(session, data, rows)]
            found.update((bisect_right(ends, row.start), row) for row in rows)
        for index in rest:
            at, stop = starts[index], ends[index]
            try:
                found[index] = self._one(data, at, stop, now)
            except ProtocolViolation as violation:
                found[index] = session.refuse(violation, data[at:stop])
        return self._in_order(data, [found[index] for index in range(len(ends))], now)

    def _in_order(self, data: bytes, found: Sequence[Row | Rejected | Sequence[Batch]], now: float) -> list[Batch]:
        """Batches of what became of the datagrams of a read. Refused ones are with the rows around or behind them."""
        batches: list[Batch] = []
        rows: list[Row] = []
        refused: list[Rejected] = []
        for each in found:
            if isinstance(each, Row):
                rows.append(each)
            elif isinstance(each, Rejected):
                refused.append(each)
            else:
                if rows:
                    batches.append(MeshPublishes(self._session, data, rows, refused))
                    rows, refused = [], []
                batches += each
        if rows:
            batches.append(MeshPublishes(self._session, data, rows, refused))
        elif refused:
            batches.append(Batch(refused=refused))
        if any(not isinstance(each, Rejected) for each in found):
            self._session.heard(now)
        return batches

    def _usual(
        self,
        data: bytes,
        starts: Sequence[int],
        ends: Sequence[int],
        found: dict[int, Row | Rejected | Sequence[Batch]],
        now: float,
    ) -> tuple[list[Row], list[int]]:
        """Fast path: take the events of the usual shape without decoding them.

        Returns those that are accepted, and the numbers of all other packets. Refused ones are put in `found`.
        """
        session = self._session
        start, end = np.array(starts, np.int64), np.array(ends, np.int64)
        buffer = np.frombuffer(data, np.uint8)
        table = scan.read_packets(buffer, start, end - start, self._limits)
        signed = (table[scan.HMAC] >= 0) | (table[scan.SIGNATURE] >= 0)
        fit = (table[scan.PLAIN] == 1) & (table[scan.EVENT_TYPE] == EventType.EVENT)
        fit &= ~signed | ((table[scan.SORTED] == 1) & (table[scan.KEY_ID] >= 0) & (table[scan.PUBLIC] < 0))
        oldest, newest = session.gate.fresh(now + session.epoch)
        fit &= (table[scan.SIGNED_AT] >= oldest) & (table[scan.SIGNED_AT] <= newest)
        rest = np.flatnonzero(~fit).tolist()
        columns = table if not rest else table[:, fit]
        begins, stops = start[fit].tolist(), end[fit].tolist()
        first = columns[scan.NAME]
        last = (first + columns[scan.NAME_SIZE]).tolist()
        known: dict[bytes, str] = {}
        names = [
            known[title] if (title := data[at:stop]) in known else known.setdefault(title, title.decode())
            for at, stop in zip(first.tolist(), last, strict=True)
        ]
        sender = self._all_pass(data, buffer, columns, begins, now + session.epoch)
        rows: list[Row]
        if sender is not None:
            # Equal to `Row(...)` for each, without a Python call for each.
            fields = zip(begins, stops, repeat(_VERIFIED), repeat(sender), repeat(True), names)
            rows = list(map(tuple.__new__, repeat(Row), fields))
        else:
            shapes = zip(begins, *(columns[line].tolist() for line in _SHAPE), strict=True)
            outcomes = session.gate.check_usual(data, shapes, session.peer, now + session.epoch)
            rows = []
            for at, stop, outcome, node, name in zip(
                begins, stops, outcomes, columns[scan.NODE].tolist(), names, strict=True
            ):
                if isinstance(outcome, Authenticity):
                    rows.append(Row(at, stop, outcome, data[node : node + 16] if node >= 0 else None, True, name))
                elif outcome is None:
                    rest.append(bisect_right(ends, at))
                else:
                    found[bisect_right(ends, at)] = session.refuse(outcome, data[at:stop])
            rest.sort()
        if any(name.startswith(HUB_PREFIX) for name in known.values()):
            found.update((bisect_right(ends, row.start), self._reserved(data, row)) for row in rows if row.is_reserved)
            rows = [row for row in rows if not row.is_reserved]
        return rows, rest

    def _all_pass(
        self, data: bytes, buffer: NDArray[np.uint8], columns: NDArray[np.int64], begins: list[int], now: float
    ) -> bytes | None:
        """The sender, if the read is homogeneous: all packets have a valid HMAC of one sender, and all are new."""
        node, key_id, tag = columns[scan.NODE], columns[scan.KEY_ID], columns[scan.HMAC]
        if (
            columns.shape[1] < ALIKE_FROM
            or (tag < 0).any()
            or (columns[scan.SIGNATURE] >= 0).any()
            or (columns[scan.SIGNED_AT] > int(now)).any()
        ):
            return None
        senders = np.concatenate((buffer[node[:, None] + _SIXTEEN], buffer[key_id[:, None] + _FOUR]), axis=1)
        if (senders != senders[0]).any():
            return None
        places = zip(begins, tag.tolist(), columns[scan.COVERED].tolist(), strict=True)
        ids = columns[scan.MESSAGE_ID].tolist()
        sender = senders[0].tobytes()
        return sender[:16] if self._session.gate.check_alike(data, sender, places, ids, now) else None

    def _one(self, data: bytes, at: int, stop: int, now: float) -> Row | Sequence[Batch]:
        """Take any packet, by the reference decoder."""
        session, encoded = self._session, data[at:stop]
        packet = frames.decode(encoded, self._limits)
        accepted = session.gate.check(packet, session.peer, now + session.epoch)
        if packet.event_type == EventType.EVENT:
            names = [field.value.decode() for field in accepted.opened.data if field.type == Type.STRING]
            if names:
                node = packet.get(Type.NODE_ID)
                row = Row(at, stop, accepted.authenticity, node, not accepted.opened.locked, names[0])
                return self._reserved(data, row) if row.is_reserved else row
        return session.accept(accepted, encoded, now)

    def _reserved(self, data: bytes, row: Row) -> Sequence[Batch]:
        """An event under a name that is the hub's: whoever takes messages knows what to do with it."""
        return [Batch(data[row.start : row.end], [_message(self._session, data, row)])]


def cut(read: bytes, rows: Sequence[Row]) -> bytes:
    """The packets of some rows."""
    first, last = rows[0].start, rows[-1].end
    if sum(map(_END, rows)) - sum(map(_START, rows)) == last - first:
        return read[first:last]  # nothing lies between them
    return b"".join([read[row.start : row.end] for row in rows])


def _message(session: MeshSession, read: bytes, row: Row) -> Message:
    settings = session.settings
    packet = frames.decode(read[row.start : row.end], settings.limits)
    opened = open_packet(packet, session.gate.trust.encryption_keys, settings.max_plain)
    return to_message(packet, Direction.DGRAM, row.authenticity, opened=opened)


_START, _END, _NAME = attrgetter("start"), attrgetter("end"), attrgetter("name")
_VERIFIED = Authenticity.VERIFIED
_SIXTEEN, _FOUR = np.arange(16), np.arange(4)
_SHAPE = (scan.NODE, scan.KEY_ID, scan.HMAC, scan.SIGNATURE, scan.MESSAGE_ID, scan.SIGNED_AT, scan.COVERED)
