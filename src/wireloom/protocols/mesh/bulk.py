"""Many datagrams of one read: checked packet by packet, made into messages only where somebody asks for them.

Part of `session.py` for the hub. Packets that are journaled and passed on stay the bytes they are; mesh subscribers
get them unchanged, signed by whoever wrote them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wireloom.model import Authenticity, Direction, Message, ProtocolViolation
from wireloom.protocols.contract import Bulk, Rejected, Run
from wireloom.protocols.mesh import frames, scan
from wireloom.protocols.mesh.encryption import open_packet
from wireloom.protocols.mesh.frames import EventType, Type
from wireloom.protocols.mesh.messages import to_message

if TYPE_CHECKING:
    from wireloom.protocols.mesh.session import MeshSession

KERNEL_FROM = 8
"""Reads of fewer datagrams are taken apart by the readable code: a kernel call costs more than a few packets do."""

ALIKE_FROM = 64
"""Reads of fewer are checked packet by packet: looking whether they are all of one sender would not pay."""

Row = tuple[int, int, Authenticity, bool, bool]
"""An accepted event: where it begins and ends; what is known about its sender; whether it may be passed on (it has a
NODE ID); whether it may be given to peers of other protocols (it can be read here)."""


class MeshBulk(Bulk):
    """The accepted packets of one read."""

    unanswered = 0

    def __init__(self, session: MeshSession, data: bytes) -> None:
        self._session = session
        self._data = data
        self.count = 0
        self.rows: dict[str, list[Row]] = {}
        self.rest: list[Message] = []

    def topics(self) -> Sequence[str]:
        """The Event Names of this read, each once."""
        return list(self.rows)

    def messages(self, topic: str | None = None) -> list[Message]:
        """The events of one name, or of all."""
        rows = self.rows.get(topic, []) if topic is not None else [row for each in self.rows.values() for row in each]
        return [
            self._message(start, end, authenticity)
            for start, end, authenticity, _, delivered in sorted(rows)
            if delivered
        ]

    def _message(self, start: int, end: int, authenticity: Authenticity) -> Message:
        settings = self._session.settings
        packet = frames.decode(self._data[start:end], settings.limits)
        opened = open_packet(packet, self._session.gate.trust.encryption_keys, settings.max_plain)
        return to_message(packet, Direction.DGRAM, authenticity, opened=opened)

    def count_of(self, topic: str) -> int:
        """How many events of one name there are."""
        return len(self.rows.get(topic, ()))

    def forward(self, topic: str) -> bytes:
        """The packets of one name as they came, urgent ones first; without NODE ID they are not passed on."""
        if not self._session.relays(topic):
            self._session.count("mesh.relay.withheld")
            return b""
        packets = [self._data[start:end] for start, end, _, relayed, _ in self.rows.get(topic, ()) if relayed]
        if any(map(frames.is_urgent, packets)):
            packets.sort(key=lambda packet: not frames.is_urgent(packet))
        return b"".join(packets)

    def authors(self, topic: str) -> Sequence[str]:
        """The nodes that wrote the events of one name; empty text for those nothing is proved of."""
        return list(dict.fromkeys(map(self._author, self.rows.get(topic, ()))))

    def _author(self, row: Row) -> str:
        start, end, authenticity, _, _ = row
        if authenticity is not Authenticity.VERIFIED:
            return ""
        node_id = frames.decode(self._data[start:end], self._session.settings.limits).get(Type.NODE_ID) or b""
        return f"mesh:{node_id.hex()}"

    def drop(self, topic: str, author: str) -> list[bytes]:
        """Take the events of one name and one node out."""
        rows = self.rows.get(topic, [])
        dropped = [row for row in rows if self._author(row) == author]
        self.rows[topic] = [row for row in rows if row not in dropped]
        if not self.rows[topic]:
            del self.rows[topic]
        self.count -= len(dropped)
        return [self._data[row[0] : row[1]] for row in dropped]

    def others(self) -> list[Message]:
        """Hellos, heartbeats, what they imply, and what nobody here understands."""
        return self.rest

    def take(self, topic: str) -> list[Message]:
        """Take the events of one name out."""
        taken = self.messages(topic)
        self.rows.pop(topic, None)
        return taken

    def acknowledgements(self, refused: frozenset[str] = frozenset()) -> bytes:
        """Mesh acknowledges nothing."""
        return b""


class BatchReader:
    """Reads datagrams for one session."""

    kind = MeshBulk

    def __init__(self, session: MeshSession) -> None:
        self._session = session
        self._limits = session.settings.limits
        scan.warm()

    def read(self, data: bytes, ends: Sequence[int], now: float) -> Run:
        """The accepted packets of one read, and the refused ones."""
        bulk = MeshBulk(self._session, data)
        starts = [0, *ends[:-1]]
        refused: dict[int, Rejected] = {}
        rest: Iterable[int] = range(len(ends))
        if len(ends) >= KERNEL_FROM:
            rest = self._usual(bulk, data, starts, ends, refused, now)
        for index in rest:
            at, stop = starts[index], ends[index]
            try:
                self._one(bulk, data, at, stop, now)
            except ProtocolViolation as violation:
                refused[index] = self._session.refuse(violation, data[at:stop])
        bulk.count = len(ends) - len(refused)
        if bulk.count:
            self._session.heard(now)
        if refused:
            kept = [
                data[at:stop] for index, (at, stop) in enumerate(zip(starts, ends, strict=True)) if index not in refused
            ]
            return Run(
                b"".join(kept), bulk=bulk if kept else None, refused=[refused[index] for index in sorted(refused)]
            )
        return Run(data, bulk=bulk)

    def _usual(
        self,
        bulk: MeshBulk,
        data: bytes,
        starts: Sequence[int],
        ends: Sequence[int],
        refused: dict[int, Rejected],
        now: float,
    ) -> list[int]:
        """Take the events of the usual shape without taking them apart; returns the numbers of all other packets."""
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
        rows: dict[bytes, list[Row]] = {}
        if self._all_pass(data, buffer, columns, begins, now + session.epoch):
            for at, stop, title_at, title_end in zip(begins, stops, first.tolist(), last, strict=True):
                title = data[title_at:title_end]
                if title in rows:
                    rows[title].append((at, stop, _VERIFIED, True, True))
                else:
                    rows[title] = [(at, stop, _VERIFIED, True, True)]
            bulk.rows = {title.decode(): found for title, found in rows.items()}
            return rest
        shapes = zip(begins, *(columns[name].tolist() for name in _SHAPE), strict=True)
        outcomes = session.gate.check_usual(data, shapes, session.peer, now + session.epoch)
        named = (columns[scan.NODE] >= 0).tolist()
        for row in zip(begins, stops, outcomes, named, first.tolist(), last, strict=True):
            at, stop, outcome, relayed, title_at, title_end = row
            if isinstance(outcome, Authenticity):
                title = data[title_at:title_end]
                if title in rows:
                    rows[title].append((at, stop, outcome, relayed, True))
                else:
                    rows[title] = [(at, stop, outcome, relayed, True)]
            elif outcome is None:
                rest.append(bisect_right(ends, at))
            else:
                refused[bisect_right(ends, at)] = session.refuse(outcome, data[at:stop])
        bulk.rows = {title.decode(): found for title, found in rows.items()}
        return sorted(rest)

    def _all_pass(
        self, data: bytes, buffer: NDArray[np.uint8], columns: NDArray[np.int64], begins: list[int], now: float
    ) -> bool:
        """Whether all packets have an HMAC of one sender, as most reads do, and every one of them is right and new."""
        node, key_id, tag = columns[scan.NODE], columns[scan.KEY_ID], columns[scan.HMAC]
        if (
            columns.shape[1] < ALIKE_FROM
            or (tag < 0).any()
            or (columns[scan.SIGNATURE] >= 0).any()
            or (columns[scan.SIGNED_AT] > int(now)).any()
        ):
            return False
        senders = np.concatenate((buffer[node[:, None] + _SIXTEEN], buffer[key_id[:, None] + _FOUR]), axis=1)
        if (senders != senders[0]).any():
            return False
        places = zip(begins, tag.tolist(), columns[scan.COVERED].tolist(), strict=True)
        ids = columns[scan.MESSAGE_ID].tolist()
        return self._session.gate.check_alike(data, senders[0].tobytes(), places, ids, now)

    def _one(self, bulk: MeshBulk, data: bytes, at: int, stop: int, now: float) -> None:
        """Any packet, by the readable code."""
        session = self._session
        packet = frames.decode(data[at:stop], self._limits)
        accepted = session.gate.check(packet, session.peer, now + session.epoch)
        if packet.event_type == EventType.EVENT:
            names = [field.value.decode() for field in accepted.opened.data if field.type == Type.STRING]
            if names:
                named = packet.get(Type.NODE_ID) is not None
                row = (at, stop, accepted.authenticity, named, not accepted.opened.locked)
                bulk.rows.setdefault(names[0], []).append(row)
                return
        messages, _ = session.accept(accepted, now)
        bulk.rest += messages


_VERIFIED = Authenticity.VERIFIED
_SIXTEEN, _FOUR = np.arange(16), np.arange(4)
_SHAPE = (scan.NODE, scan.KEY_ID, scan.HMAC, scan.SIGNATURE, scan.MESSAGE_ID, scan.SIGNED_AT, scan.COVERED)
