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
        scan.warm()

    def read(self, data: bytes, ends: Sequence[int], now: float) -> Run:
        """The accepted packets of one read, and the refused ones."""
        bulk = MeshBulk(self._session, data)
        refused: list[Rejected] = []
        starts = (0, *ends[:-1])
        usual = self._usual(data, starts, ends, now) if len(ends) >= KERNEL_FROM else {}
        rows: dict[bytes, list[tuple[int, int, Authenticity, bool, bool]]] = {}
        gate, source, time = self._session.gate, self._session.peer, now + self._session.epoch
        check = gate.check_usual
        gate.refresh(time)
        kept: list[int] = []
        for index, at in enumerate(starts):
            stop = ends[index]
            try:
                shape = usual.get(index)
                if shape is not None:
                    name, size, node, key, tag, signature, message_id, signed_at, covered = shape
                    authenticity = check(
                        data[node : node + 16] if node >= 0 else None,
                        data[key : key + 4] if key >= 0 else None,
                        message_id,
                        signed_at,
                        data[tag : tag + 32] if tag >= 0 else None,
                        data[signature : signature + 64] if signature >= 0 else None,
                        data[at:covered],
                        source,
                        time,
                    )
                    if authenticity is not None:
                        title = data[name : name + size]
                        if title not in rows:
                            rows[title] = []
                        rows[title].append((at, stop, authenticity, node >= 0, True))
                        kept.append(index)
                        continue
                self._one(bulk, data, at, stop, now)
                kept.append(index)
            except ProtocolViolation as violation:
                refused.append(self._session.refuse(violation, data[at:stop]))
        for title, found in rows.items():
            name_text = title.decode()
            bulk.rows[name_text] = sorted((*bulk.rows.get(name_text, ()), *map(Row._make, found)))
        bulk.count = len(kept)
        if kept:
            self._session.heard(now)
        accepted = data if not refused else b"".join(data[starts[index] : ends[index]] for index in kept)
        return Run(accepted, bulk=bulk if kept else None, refused=refused)

    def _usual(
        self, data: bytes, starts: Sequence[int], ends: Sequence[int], now: float
    ) -> dict[int, tuple[int, int, int, int, int, int, int, int, int]]:
        """What `Gate.check_usual` needs to know of each event that it may be asked about, by its number."""
        start, end = np.array(starts, np.int64), np.array(ends, np.int64)
        table = scan.read_packets(np.frombuffer(data, np.uint8), start, end - start, self._limits)
        signed = (table[:, scan.HMAC] >= 0) | (table[:, scan.SIGNATURE] >= 0)
        fit = (table[:, scan.PLAIN] == 1) & (table[:, scan.EVENT_TYPE] == EventType.EVENT)
        fit &= ~signed | ((table[:, scan.SORTED] == 1) & (table[:, scan.KEY_ID] >= 0))
        rows = np.flatnonzero(fit)
        return dict(zip(rows.tolist(), zip(*table[rows][:, _NEEDED].T.tolist(), strict=True), strict=True))

    def _one(self, bulk: MeshBulk, data: bytes, at: int, stop: int, now: float) -> None:
        """Any packet, by the readable code."""
        session = self._session
        packet = frames.decode(data[at:stop], self._limits)
        accepted = session.gate.check(packet, session.peer, now + session.epoch)
        if packet.event_type == EventType.EVENT:
            names = [field.value.decode() for field in accepted.opened.data if field.type == Type.STRING]
            if names:
                named = packet.get(Type.NODE_ID) is not None
                row = Row(at, stop, accepted.authenticity, named, not accepted.opened.locked)
                bulk.rows.setdefault(names[0], []).append(row)
                return
        messages, _ = session.accept(accepted, now)
        bulk.rest += messages


_NEEDED = [
    scan.NAME, scan.NAME_SIZE, scan.NODE, scan.KEY_ID, scan.HMAC, scan.SIGNATURE, scan.MESSAGE_ID, scan.SIGNED_AT,
    scan.COVERED,
]  # fmt: skip
