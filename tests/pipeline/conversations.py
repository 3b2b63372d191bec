"""Journals of whole conversations, right and wrong ones, and what a plain reader makes of them.

The reader (`expected`) goes through a journal message by message with a few dictionaries, as the specifications
are read. The pipeline must come to the same rows, however it is cut.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from wireloom.journal import Entry, Journal, Record, read_all
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.registry import protocol, protocols

START_NS = 1_794_800_000_000_000_000
LIMIT_US, FORGET_US, LINGER_US = 30_000_000, 600_000_000, 60_000_000
UIDS = [f"{number:08x}-0000-7000-8000-000000000000" for number in range(6)]


def make_conversations(folder: Path, *, seed: int = 0, steps: int = 400, segment_bytes: int = 20_000) -> None:
    """A few connections that talk at random, with few ids, so that everything that can go wrong does."""
    rng = random.Random(seed)
    with Journal.open(folder, segment_bytes=segment_bytes, sync=False) as journal:
        now = START_NS
        talks: list[_Talk] = []
        for _ in range(steps):
            now += rng.choices((1_000, 1_000_000, 400_000_000, 20_000_000_000, 45_000_000_000), (30, 30, 30, 9, 1))[0]
            if rng.random() < 0.01:
                now += 700_000_000_000
            if len(talks) < 4 and rng.random() < 0.2:
                talks.append(_Talk(journal, rng, rng.choice(("hsp", "emp", "yamp")), now))
            elif talks and rng.random() < 0.03:
                talks.pop(rng.randrange(len(talks))).close(now)
            elif talks:
                rng.choice(talks).say(now)
            if rng.random() < 0.2:
                journal.commit()


class _Talk:
    def __init__(self, journal: Journal, rng: random.Random, name: str, now: int) -> None:
        self.journal, self.rng, self.protocol = journal, rng, protocol(name)
        self.id = journal.new_connection_id()
        self.sent = dict.fromkeys((Direction.C2S, Direction.S2C), 0)
        self.ends = {
            Direction.C2S: ("10.0.0.1:4000", "10.0.0.2:5042"),
            Direction.S2C: ("10.0.0.2:5042", "10.0.0.1:4000"),
        }
        if rng.random() < 0.8:
            opened = {"protocol": name, "peer": "10.0.0.1:4000", "local": "10.0.0.2:5042"}
            journal.record("opened", opened, self.id, time_ns=now, protocol=name)
        if name != "hsp" and rng.random() < 0.9:
            for way in self.sent:
                self._write(way, [Message(Kind.OPEN)], now)

    def close(self, now: int) -> None:
        farewell = self.rng.choice((None, Kind.CLOSE, Kind.REDIRECT))
        if farewell and (self.protocol.name, farewell) in (
            ("emp", Kind.CLOSE),
            ("yamp", Kind.CLOSE),
            ("yamp", Kind.REDIRECT),
        ):
            self._write(Direction.S2C, [Message(farewell, attributes={"url": "tcp://a:1"})], now)
        if self.rng.random() < 0.1:
            self.journal.refuse(
                self.protocol.name, self.id, Direction.C2S, b"\x09" * 700, clause="x", detail="y", time_ns=now
            )
        reason = self.rng.choice(("close", "close", "error", "reset", "idle"))
        self.journal.record(
            "closed", {"reason": reason, "detail": ""}, self.id, time_ns=now, protocol=self.protocol.name
        )

    def say(self, now: int) -> None:
        way = self.rng.choice(tuple(self.sent))
        self._write(way, [self._message() for _ in range(self.rng.choice((1, 1, 1, 5)))], now)

    def _message(self) -> Message:
        rng = self.rng
        number = rng.randrange(1, 6)
        name = UIDS[number] if self.protocol.name == "yamp" else str(number)
        kinds = [Kind.REQUEST] * 4 + [Kind.RESPONSE] * 4 + [Kind.PING, Kind.PONG, Kind.EVENT]
        if self.protocol.name == "yamp":
            kinds += [Kind.PROGRESS, Kind.PROGRESS, Kind.CANCEL, Kind.CANCEL, Kind.ERROR]
        if self.protocol.name == "hsp":
            kinds += [Kind.ERROR]
        kind = rng.choice(kinds)
        body = b"1" * rng.randrange(9)
        topic = None if kind in (Kind.PING, Kind.PONG) else "a/b"
        if kind is Kind.REQUEST:
            wants = {"progressive": "true"} if rng.random() < 0.5 and self.protocol.name == "yamp" else {}
            return Message(kind, topic, body, name, attributes=wants)
        if kind is Kind.CANCEL:
            return Message(kind, topic, b"", UIDS[0], name, attributes={"kill": "true"} if rng.random() < 0.5 else {})
        if kind in (Kind.RESPONSE, Kind.PROGRESS, Kind.ERROR):
            status = rng.choice(("done", "cancelled")) if kind is Kind.RESPONSE else "7"
            own = UIDS[0] if self.protocol.name == "yamp" else None
            return Message(kind, topic, body if self.protocol.name == "yamp" else b"", own, name, status)
        own = UIDS[0] if self.protocol.name == "yamp" and kind is Kind.EVENT else None
        return Message(kind, topic, b"p" * rng.randrange(2) if kind in (Kind.PING, Kind.PONG) else body, own)

    def _write(self, way: Direction, messages: list[Message], now: int) -> None:
        settings = self.protocol.settings()
        topics = {1: "a/b"} if self.protocol.name == "hsp" else None
        data = b"".join(self.protocol.encode(message, settings, topics) for message in messages)
        self.journal.append(
            self.protocol.name, self.id, way, self.sent[way], data,
            source=self.ends[way][0], destination=self.ends[way][1], topics=topics, time_ns=now,
        )  # fmt: skip
        self.sent[way] += len(messages)


@dataclass
class _Open:
    message: Message
    time: int
    last: int
    size: int
    steps: int = 0


@dataclass
class Expected:
    """Rows as (connection, id, requested, answered, outcome, status, steps, open) and so on."""

    exchanges: list[tuple[object, ...]] = field(default_factory=list)
    findings: list[tuple[object, ...]] = field(default_factory=list)
    sessions: list[tuple[object, ...]] = field(default_factory=list)


def expected(folder: Path) -> Expected:
    """What the tables hold after everything in a journal has been read."""
    settings = {name: each.lenient() for name, each in protocols().items()}
    entries = list(read_all(folder, settings))
    times = [entry.message.time // 1000 for entry in entries if isinstance(entry, Entry) and entry.message.time]
    watermark = max(times)
    found = Expected()
    talks: dict[str, _Reader] = {}
    for entry in entries:
        if isinstance(entry, Entry):
            name = str(entry.message.connection)
            talks.setdefault(name, _Reader(name, found)).message(entry)
        elif isinstance(entry, Record) and entry.block.connection is not None:
            name = f"{entry.block.connection:016x}"
            talks.setdefault(name, _Reader(name, found)).record(entry)
    for talk in talks.values():
        talk.finish(watermark)
    return found


class _Reader:
    """One connection, read in order."""

    def __init__(self, name: str, found: Expected) -> None:
        self.name, self.found = name, found
        self.requests: dict[tuple[Direction, str], _Open] = {}
        self.pings: dict[tuple[Direction, bytes], int] = {}
        self.ping_times: dict[tuple[Direction, bytes], list[int]] = {}
        self.protocol = ""
        self.opened: int | None = None
        self.first: int | None = None
        self.closed: int | None = None
        self.reason: str | None = None
        self.farewell: tuple[int, str] | None = None
        self.counts = {Direction.C2S: [0, 0], Direction.S2C: [0, 0]}
        self.rejects = 0

    def record(self, record: Record) -> None:
        block = record.block
        time = block.time_ns // 1000
        self.first = time if self.first is None else min(self.first, time)
        self.protocol = self.protocol or (block.protocol if block.protocol in protocols() else "")
        if block.record == "opened":
            self.opened = time
        elif block.record == "closed":
            self.closed, self.reason = time, str(block.details["reason"])
            self._end(time)
        elif block.record == "refused":
            self.rejects += 1
            self.counts[Direction.C2S][1] += int(str(block.details["size"]))

    def _finding(self, rule: str, entry: Entry) -> None:
        message = entry.message
        self.found.findings.append((rule, self.name, entry.offset, message.id or message.correlation_id))

    def message(self, entry: Entry) -> None:
        m = entry.message
        assert m.direction is not None and m.time is not None
        time, way, other = m.time // 1000, m.direction, m.direction.opposite
        self.protocol = m.protocol
        self.first = time if self.first is None else min(self.first, time)
        self.counts[way][0] += 1
        self.counts[way][1] += entry.size
        self._greeting(entry, way)
        if m.kind in (Kind.CLOSE, Kind.REDIRECT) and self.farewell is None:
            self.farewell = time, str(m.kind)
        if m.kind is Kind.REQUEST:
            self._request(entry, (way, str(m.id)), time)
        elif m.kind in (Kind.RESPONSE, Kind.PROGRESS, Kind.ERROR) and m.correlation_id is not None:
            self._answer(entry, (other, m.correlation_id), time)
        elif m.kind is Kind.CANCEL and m.attributes.get("kill") == "true":
            key = way, str(m.correlation_id)
            pending = self._pending(key, time)
            if pending is not None:
                self._row(pending, None, "killed", None, None, False)
                del self.requests[key]
        elif m.kind is Kind.PING:
            self._ping(entry, way, time)
        elif m.kind is Kind.PONG:
            self._pong(entry, other, time)

    def _greeting(self, entry: Entry, way: Direction) -> None:
        m = entry.message
        if m.protocol == "hsp":
            return
        if (
            self.counts[way][0] == 1
            and m.kind is not Kind.OPEN
            and not (way is Direction.S2C and m.kind in (Kind.CLOSE, Kind.REDIRECT))
            and not (m.protocol == "emp" and m.kind is Kind.CLOSE)
        ):
            self._finding({"emp": "emp.handshake.order", "yamp": "yamp.handshake.first"}[m.protocol], entry)
        if self.counts[way][0] > 1 and m.kind is Kind.OPEN:
            self._finding({"emp": "emp.hello.repeated", "yamp": "yamp.handshake.repeated"}[m.protocol], entry)

    def _pending(self, key: tuple[Direction, str], time: int) -> _Open | None:
        pending = self.requests.get(key)
        return None if pending is None or time - pending.last > FORGET_US else pending

    def _request(self, entry: Entry, key: tuple[Direction, str], time: int) -> None:
        if key in self.requests:
            old = self.requests.pop(key)
            # Nobody waits for the old one any more, however long ago it was.
            if time - old.last <= FORGET_US:
                self._finding(
                    {"hsp": "hsp.message-id.reused", "emp": "emp.request.reused-id", "yamp": "yamp.request.uid-reused"}[
                        entry.message.protocol
                    ],
                    entry,
                )
            self._unanswered(old, time, False)
        self.requests[key] = _Open(entry.message, time, time, len(entry.message.body))

    def _answer(self, entry: Entry, key: tuple[Direction, str], time: int) -> None:
        m = entry.message
        pending = self._pending(key, time)
        if pending is None:
            self._finding(
                {"hsp": "hsp.response.unknown-id", "emp": "emp.response.unknown-id", "yamp": "yamp.response.unknown"}[
                    m.protocol
                ],
                entry,
            )
        elif m.kind is Kind.PROGRESS:
            if pending.message.attributes.get("progressive") != "true":
                self._finding("yamp.progress.unrequested", entry)
            pending.steps += 1
            pending.last = time
        else:
            outcome = "error" if m.kind is Kind.ERROR else "cancelled" if m.status == "cancelled" else "done"
            if time - pending.last > LIMIT_US:
                outcome = "timeout"
            self._row(pending, time, outcome, m.status, len(m.body), False)
            del self.requests[key]

    def _ping(self, entry: Entry, way: Direction, time: int) -> None:
        key = (way, entry.message.body if entry.message.protocol == "yamp" else b"")
        waiting = self.ping_times.setdefault(key, [])
        if entry.message.protocol == "emp" and waiting:
            if time - waiting[-1] <= FORGET_US:
                self._finding("emp.ping.overlap", entry)
            waiting.clear()
        waiting.append(time)

    def _pong(self, entry: Entry, way: Direction, time: int) -> None:
        key = (way, entry.message.body if entry.message.protocol == "yamp" else b"")
        waiting = self.ping_times.setdefault(key, [])
        if waiting and time - waiting[-1] <= FORGET_US:
            waiting.pop()
        else:
            self._finding(f"{entry.message.protocol}.pong.unasked", entry)

    def _unanswered(self, pending: _Open, end: int, waiting: bool) -> None:
        outcome = "timeout" if end - pending.last > LIMIT_US else "unanswered"
        self._row(pending, None, outcome, None, None, waiting)

    def _row(
        self, pending: _Open, answered: int | None, outcome: str, status: str | None, size: int | None, waiting: bool
    ) -> None:
        self.found.exchanges.append(
            (
                self.name, str(pending.message.id), pending.time, answered, outcome, status, pending.steps, pending.size,
                size, waiting,
            )
        )  # fmt: skip

    def _end(self, time: int) -> None:
        for pending in self.requests.values():
            self._unanswered(pending, time, False)
        self.requests.clear()

    def finish(self, watermark: int) -> None:
        """The input ends here."""
        for pending in self.requests.values():
            end = watermark if self.farewell is None else min(watermark, self.farewell[0])
            self._unanswered(pending, end, watermark - pending.last <= FORGET_US)
        reason = self.reason or "open"
        # After a goodbye the other end may stay: until it is closed, a connection is open.
        if self.closed is not None and self.farewell is not None and (reason == "close" or self.farewell[1] != "close"):
            reason = self.farewell[1]
        (m1, b1), (m2, b2) = self.counts[Direction.C2S], self.counts[Direction.S2C]
        opened = self.opened if self.opened is not None else self.first
        self.found.sessions.append(
            (self.name, self.protocol, opened, self.closed, reason, m1, m2, b1, b2, self.rejects, self.closed is None)
        )
