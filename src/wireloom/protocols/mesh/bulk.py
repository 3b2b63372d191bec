"""Many datagrams of one read: checked packet by packet, made into messages only where somebody asks for them.

Part of `session.py` for the hub. Packets that are journaled and passed on stay the bytes they are; mesh subscribers
get them unchanged, signed by whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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


class Row(NamedTuple):
    """An accepted event: where it is, and what may be done with it."""

    start: int
    end: int
    authenticity: Authenticity
    relayed: bool
    """It has a NODE ID, so it may be passed on."""
    delivered: bool
    """It can be read here, so it may be given to peers of other protocols."""


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
        return [self._message(row) for row in sorted(rows) if row.delivered]

    def _message(self, row: Row) -> Message:
        settings = self._session.settings
        packet = frames.decode(self._data[row.start : row.end], settings.limits)
        opened = open_packet(packet, self._session.gate.trust.encryption_keys, settings.max_plain)
        return to_message(packet, Direction.DGRAM, row.authenticity, opened=opened)

    def count_of(self, topic: str) -> int:
        """How many events of one name there are."""
        return len(self.rows.get(topic, ()))

    def forward(self, topic: str) -> bytes:
        """The packets of one name as they came, urgent ones first; without NODE ID they are not passed on."""
        packets = [self._data[row.start : row.end] for row in self.rows.get(topic, ()) if row.relayed]
        if any(map(frames.is_urgent, packets)):
            packets.sort(key=lambda packet: not frames.is_urgent(packet))
        return b"".join(packets)

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

    def read(self, data: bytes, ends: Sequence[int], now: float) -> Run:
        """The accepted packets of one read, and the refused ones."""
        bulk = MeshBulk(self._session, data)
        table: list[list[int]] | None = None
        if len(ends) >= KERNEL_FROM:
            end = np.array(ends, np.int64)
            start = np.concatenate((np.zeros(1, np.int64), end[:-1]))
            table = scan.read_packets(np.frombuffer(data, np.uint8), start, end - start, self._limits).tolist()
        refused: list[Rejected] = []
        kept: list[tuple[int, int]] = []
        view = memoryview(data)
        at = 0
        for index, stop in enumerate(ends):
            try:
                row = None if table is None else table[index]
                if row is None or not row[scan.PLAIN] or not self._usual(bulk, view, at, stop, row, now):
                    self._one(bulk, data, at, stop, now)
                kept.append((at, stop))
            except ProtocolViolation as violation:
                refused.append(self._session.refuse(violation, data[at:stop]))
            at = stop
        bulk.count = len(kept)
        if kept:
            self._session.heard(now)
        accepted = data if not refused else b"".join(data[start:stop] for start, stop in kept)
        return Run(accepted, bulk=bulk if kept else None, refused=refused)

    def _usual(self, bulk: MeshBulk, view: memoryview, at: int, stop: int, row: list[int], now: float) -> bool:
        """An event of the usual shape, checked without taking it apart; False when it needs a closer look."""
        tag, key, node = row[scan.HMAC], row[scan.KEY_ID], row[scan.NODE]
        if row[scan.EVENT_TYPE] != EventType.EVENT or row[scan.SIGNATURE] >= 0:
            return False
        if tag >= 0 and (key < 0 or not row[scan.SORTED]):
            return False
        session = self._session
        authenticity = session.gate.check_usual(
            bytes(view[node : node + 16]) if node >= 0 else None,
            bytes(view[key : key + 4]) if key >= 0 else b"",
            row[scan.MESSAGE_ID],
            row[scan.SIGNED_AT],
            view[tag : tag + 32] if tag >= 0 else None,
            view[at : row[scan.COVERED]],
            session.peer,
            now + session.epoch,
        )
        if authenticity is None:
            return False
        name = str(view[row[scan.NAME] : row[scan.NAME] + row[scan.NAME_SIZE]], "utf-8")
        found = Row(at, stop, authenticity, node >= 0, True)
        rows = bulk.rows.get(name)
        if rows is None:
            bulk.rows[name] = [found]
        else:
            rows.append(found)
        return True

    def _one(self, bulk: MeshBulk, data: bytes, at: int, stop: int, now: float) -> None:
        """Any packet, by the readable code."""
        session = self._session
        packet = frames.decode(data[at:stop], self._limits)
        accepted = session.gate.check(packet, session.peer, now + session.epoch)
        if packet.event_type == EventType.EVENT:
            names = [field.value.decode() for field in accepted.opened.data if field.type == Type.STRING]
            if names:
                row = Row(
                    at,
                    stop,
                    accepted.authenticity,
                    packet.get(Type.NODE_ID) is not None,
                    not accepted.opened.locked,
                )
                bulk.rows.setdefault(names[0], []).append(row)
                return
        messages, _ = session.accept(accepted, now)
        bulk.rest += messages
