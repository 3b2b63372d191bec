"""Captures whose every row is known beforehand: conversations, what happened to their packets, and the tables to come.

`Talk` is one connection. Both sides speak in bursts; the packets of a burst are mixed up, repeated and lost as a seed
says, and the talk ends as it says. Beside the packets it notes what each table must hold. Nothing of the pipeline is
used for that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.captures.conversations import Wire
from tests.captures.writing import ACK, FIN, PSH, RST, START_NS, Captured
from wireloom.model import Kind, Message
from wireloom.protocols.hsp import frames
from wireloom.protocols.registry import protocol

PORTS = {"emp": 5040, "hsp": 5042, "yamp": 5043}
WAYS = ("c2s", "s2c")
LIMIT_US, LONGEST_WAIT_US = 30_000_000, 30_000_000
ENDS = ("close", "reset", "half-client", "half-server", "open", "lost-tail")
UNKNOWN = {"emp": "emp.response.unknown-id", "hsp": "hsp.response.unknown-id", "yamp": "yamp.response.unknown"}

Row = tuple[object, ...]


@dataclass(slots=True)
class Said:
    """A message, and the row it must become."""

    message: Message
    begin: int
    end: int
    kind: str
    topic: str | None
    verb: str | None
    time_us: int = -1
    """When its last byte was there, with all before it; -1: never."""


@dataclass
class Truth:
    """What the tables must hold, as rows of the columns that `test_truth.py` compares."""

    messages: list[Row] = field(default_factory=list)
    exchanges: list[Row] = field(default_factory=list)
    sessions: list[Row] = field(default_factory=list)
    rejects: list[Row] = field(default_factory=list)
    findings: list[Row] = field(default_factory=list)


class Talk:
    """One connection with a known truth."""

    def __init__(self, number: int, name: str, rng: random.Random, start_ns: int, end: str, *, lossy: bool) -> None:
        self.name, self.rng, self.end, self.lossy = name, rng, end, lossy
        self.client = f"10.1.{number >> 8 & 255}.{number & 255}:{20_000 + number % 40_000}"
        self.wire = Wire(
            self.client, f"10.0.0.2:{PORTS[name]}", (rng.randrange(2**32), rng.randrange(2**32)), start_ns, 1_000_000
        )
        self.wire.open()
        self.said: tuple[list[Said], list[Said]] = ([], [])
        self.size = [0, 0]
        self.segments: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]] = ([], [])
        """Of each side: begin, end and time of what was captured; time -1 of what was lost."""
        self.closed_us: int | None = None
        self.ended_us: list[int | None] = [None, None]
        self.reason: str | None = None
        self.number = number
        self._ids = 0
        self._open: list[tuple[Message, bool]] = []
        self._hole = rng.randrange(2) if lossy else None
        self.protocol, self.settings = protocol(name), protocol(name).settings()

    # What is said

    def talk(self, rounds: int, size: int) -> Talk:
        """Speak in bursts of about that many messages, then end."""
        if self.name != "hsp":
            for side in range(2):
                self._burst(side, [self._row(Message(Kind.OPEN))])
        for number in range(rounds):
            lose = self._hole if number == rounds // 2 else None
            self._burst(0, [self._ask() for _ in range(self.rng.randrange(1, size))], lose=lose == 0)
            self._burst(1, self._answers(), lose=lose == 1)
        self._finish()
        return self

    def _row(self, message: Message, kind: str = "", topic: str | None = None, verb: str | None = None) -> Said:
        return Said(message, 0, 0, kind or str(message.kind), topic, verb)

    def _id(self) -> str:
        self._ids += 1
        if self.name == "yamp":
            return f"{self.number:08x}-0000-7000-8000-{self._ids:012x}"
        return str(self._ids)

    def _ask(self) -> Said:
        """An event, a request, an acknowledged publish, or an operation of the hub."""
        rng, topic = self.rng, f"t/{self.rng.randrange(3)}"
        body = b'"' + b"x" * rng.randrange(60) + b'"'
        if self.name == "hsp":
            return self._ask_hsp(body)
        own = self._id() if self.name == "yamp" else None
        match rng.randrange(6):
            case 0 | 1:
                return self._row(Message(Kind.EVENT, topic, body, own), "event", topic)
            case 2:
                message = Message(Kind.REQUEST, f"$hub/publish/{topic}", body, self._id())
                self._open.append((message, False))
                return self._row(message, "event", topic, "publish")
            case 3:
                message = Message(Kind.REQUEST, "$hub/subscribe", b'{"topic": "a"}', self._id())
                self._open.append((message, False))
                return self._row(message, "request", None, "request")
        attributes = {"progressive": "true"} if self.name == "yamp" else {}
        message = Message(Kind.REQUEST, topic, body, self._id(), attributes=attributes)
        self._open.append((message, self.name == "yamp"))
        return self._row(message, "request", topic, "request")

    def _ask_hsp(self, body: bytes) -> Said:
        """Types of an application, among them those that a hub would take for its own."""
        type_ = self.rng.choice((7, 8, 0xFD00, 0xFD01, 0xFD05))
        if type_ == 0xFD00:
            body = b"\x00\x03a/b\x00" + body
        attributes = {"type": str(type_)}
        if self.rng.random() < 0.5:
            return self._row(Message(Kind.EVENT, f"hsp/{type_}", body, attributes=attributes), "event", f"hsp/{type_}")
        message = Message(Kind.REQUEST, f"hsp/{type_}", body, self._id(), attributes=attributes)
        self._open.append((message, False))
        return self._row(message, "request", f"hsp/{type_}", "request")

    def _answers(self) -> list[Said]:
        """Progress and answers to some of what was asked; a few are never answered."""
        rows, rng, waiting = [], self.rng, []
        for request, progressive in self._open:
            if rng.random() < 0.1:
                waiting.append((request, progressive))
                continue
            steps = rng.randrange(8) if progressive else 0
            rows += [self._answer(request, Kind.PROGRESS, "progress", b"1") for _ in range(steps)]
            if rng.random() < 0.9:
                failed = rng.random() < 0.2
                rows.append(self._answer(request, Kind.ERROR if failed else Kind.RESPONSE, "404" if failed else "done"))
        self._open = waiting
        rng.shuffle(rows) if self.name != "yamp" else None
        return rows or [self._event()]

    def _event(self) -> Said:
        own = self._id() if self.name == "yamp" else None
        topic, attributes = ("hsp/7", {"type": "7"}) if self.name == "hsp" else ("t/0", {})
        return self._row(Message(Kind.EVENT, topic, b"1", own, attributes=attributes), "event", topic)

    def _answer(self, request: Message, kind: Kind, status: str, body: bytes = b"") -> Said:
        topic = None if self.name == "hsp" else request.topic
        if kind is Kind.ERROR:
            body = b'{"code": "404", "reason": "no"}' if self.name == "yamp" else b"no"
        elif self.name != "hsp":
            body = body or b"null"
        own = self._id() if self.name == "yamp" else None
        shown = topic
        if topic is not None and topic.startswith("$hub/"):
            shown = topic.removeprefix("$hub/publish/") if topic.startswith("$hub/publish/") else None
        return self._row(
            Message(
                kind, topic, b"" if self.name == "hsp" and kind is Kind.RESPONSE else body, own, request.id, status
            ),
            "",
            shown,
        )

    # What becomes of the packets

    def _encoded(self, message: Message) -> bytes:
        if self.name == "hsp" and message.kind in (Kind.EVENT, Kind.REQUEST):
            type_ = int(message.attributes["type"])
            if message.kind is Kind.EVENT:
                return frames.encode(frames.Data(type_, message.body))
            return frames.encode(frames.DataAck(int(message.id or 0), type_, message.body))
        return self.protocol.encode(message, self.settings)

    def _burst(self, side: int, rows: Sequence[Said], *, lose: bool = False) -> None:
        """Messages in segments that are captured in a wrong order, some twice, one perhaps never."""
        rng, data, base = self.rng, bytearray(), self.size[side]
        for row in rows:
            encoded = self._encoded(row.message)
            row.begin, row.end = base + len(data), base + len(data) + len(encoded)
            data += encoded
            self.said[side].append(row)
        pieces, at = [], 0
        while at < len(data):
            size = rng.randrange(1, 400)
            pieces.append((at, bytes(data[at : at + size])))
            at += size
        lost = rng.randrange(len(pieces)) if lose else -1
        times = [-1] * len(pieces)
        order = sorted(range(len(pieces)), key=lambda place: place + rng.random() * rng.choice((1, 4, 12)))
        again = [place for place in order if rng.random() < 0.1]
        for place in [*order, *again]:
            if place == lost:
                continue
            if times[place] < 0:
                times[place] = self.wire.time_ns // 1000
            offset = base + pieces[place][0]
            self.wire.add(side, self.wire.isn[side] + 1 + offset, pieces[place][1], ACK | PSH)
        for (offset, piece), time_us in zip(pieces, times, strict=True):
            self.segments[side].append((base + offset, base + offset + len(piece), time_us))
        self.size[side] = self.wire.position[side] = base + len(data)

    def _finish(self) -> None:
        """End as planned; what follows from that is noted."""
        wire = self.wire
        if self.end == "lost-tail":
            # The last bytes of the server are lost, and both sides say that they are through.
            tail = self._event()
            encoded = self._encoded(tail.message)
            tail.begin, tail.end = self.size[1], self.size[1] + len(encoded)
            self.said[1].append(tail)
            self.segments[1].append((tail.begin, tail.end, -1))
            self.size[1] = wire.position[1] = tail.end
        sides = {"close": (0, 1), "lost-tail": (0, 1), "half-client": (0,), "half-server": (1,)}.get(self.end, ())
        for side in sides:
            self.ended_us[side] = wire.time_ns // 1000
            wire.close(FIN | ACK, sides=(side,))
        last_us = wire.packets[-1].time_ns // 1000
        # A side with a hole is through when nobody waits for the missing bytes any more; its last packet is older.
        for side in sides:
            if any(time_us < 0 for _, _, time_us in self.segments[side]):
                self.ended_us[side] = last_us
        if len(sides) == 2:
            self.closed_us, self.reason = last_us, "close"
        if self.end == "reset":
            self.closed_us, self.reason = wire.time_ns // 1000, "reset"
            wire.close(RST, sides=(0,))

    # What follows for the tables

    def truth(self, truth: Truth, watermark_us: int) -> None:
        """Add the rows of this connection; `watermark_us` is the time of the last message of all."""
        seen = [self._seen(side) for side in range(2)]
        sizes, gaps = [], 0
        for side in range(2):
            for sequence, row in enumerate(seen[side]):
                message = row.message
                truth.messages.append(
                    (self.client, WAYS[side], sequence, row.time_us, row.kind, row.topic, row.verb, message.id,
                     message.correlation_id, message.status, message.body, row.end - row.begin)
                )  # fmt: skip
            read = sum(row.end - row.begin for row in seen[side])
            captured = sum(end - begin for begin, end, time_us in self.segments[side] if time_us >= 0)
            # What cannot be read in a direction that goes on is one reject, once that direction has ended.
            is_over = self.closed_us is not None or self.ended_us[side] is not None
            sizes.append((len(seen[side]), captured if is_over else read))
            if is_over and any(time_us < 0 for _, _, time_us in self.segments[side]):
                truth.rejects.append((self.client, WAYS[side], "capture.gap", captured - read))
                gaps += 1
        self._exchanges(truth, seen, watermark_us)
        (m1, b1), (m2, b2) = sizes
        truth.sessions.append(
            (self.client, self.name, self.wire.packets[0].time_ns // 1000, self.closed_us, self.reason or "open",
             m1, m2, b1, b2, gaps, self.closed_us is None)
        )  # fmt: skip

    def _seen(self, side: int) -> list[Said]:
        """The messages before the first hole, each with the time when all of it was there."""
        rows, until, latest = list(self.said[side]), 0, 0
        found: list[Said] = []
        for _, end, time_us in self.segments[side]:
            if time_us < 0:
                break
            until, latest = end, max(latest, time_us)
            while rows and rows[0].end <= until:
                rows[0].time_us = latest
                found.append(rows.pop(0))
        return found

    def _exchanges(self, truth: Truth, seen: Sequence[Sequence[Said]], watermark_us: int) -> None:
        asked = {row.message.id: row for row in seen[0] if row.verb is not None}
        steps: dict[str | None, list[int]] = {}
        answers: dict[str | None, Said] = {}
        for row in seen[1]:
            request = row.message.correlation_id
            if request is None:
                continue
            if request not in asked or request in answers:
                truth.findings.append((self.client, UNKNOWN[self.name], row.message.id or request))
            elif row.message.kind is Kind.PROGRESS:
                steps.setdefault(request, []).append(row.time_us)
            else:
                answers[request] = row
        ends = [each for each in (self.closed_us, self.ended_us[1]) if each is not None]
        for request, row in asked.items():
            last = max([row.time_us, *steps.get(request, ())])
            answer = answers.get(request)
            answered, status, size, is_open = None, None, None, False
            if answer is not None:
                answered, status, size = answer.time_us, answer.message.status, len(answer.message.body)
                outcome = "error" if answer.message.kind is Kind.ERROR else "done"
                waited = answered - last
            else:
                outcome = "unanswered"
                waited = min([*ends, watermark_us]) - last
                is_open = not ends and watermark_us - last <= 600_000_000
            if waited > LIMIT_US:
                outcome = "timeout"
            truth.exchanges.append(
                (self.client, request, row.topic, row.verb, row.time_us, answered, outcome, status,
                 len(steps.get(request, ())), len(row.message.body), size, is_open)
            )  # fmt: skip


def captured(
    seed: int, talks: int, *, rounds: int = 4, size: int = 12, lossy: float = 0.3
) -> tuple[list[Captured], Truth]:
    """Packets of many connections at once, in order of time, and what the tables must hold of them."""
    rng = random.Random(seed)
    made = [
        Talk(
            number, rng.choice(tuple(PORTS)), random.Random(rng.random()), START_NS + rng.randrange(10**9),
            rng.choice(ENDS), lossy=rng.random() < lossy,
        ).talk(rounds, size)
        for number in range(talks)
    ]  # fmt: skip
    # The capture goes on for five minutes after all of that, on one more connection.
    later = Talk(talks, "hsp", rng, START_NS, "open", lossy=False)
    later.wire.step_ns = 1_000_000_000
    later.talk(1, 2)
    later.wire.time_ns += 300 * 10**9
    later.talk(1, 2)
    watermark = later.wire.packets[-1].time_ns // 1000
    made.append(later)
    truth = Truth()
    for talk in made:
        talk.truth(truth, watermark)
    packets = sorted((packet for talk in made for packet in talk.wire.packets), key=lambda packet: packet.time_ns)
    return packets, truth


Comparable = list[Any]
