"""The newest part of the journal, decoded for people: messages, topics, exchanges, rejects.

Traffic may be faster than anybody reads. A look takes at most `LOOK` bytes; what is older is passed over and counted,
so that the console costs about the same at any rate.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path

from wireloom.escaping import visible
from wireloom.journal import Block, Entry, Record, Tail
from wireloom.journal.excluded import TAKEN, Exclusions
from wireloom.journal.segment import REFUSED
from wireloom.model import Kind, Message, WireloomError, iso_time, type_of_json
from wireloom.protocols.published import OPERATION, Verb, as_meant
from wireloom.protocols.registry import protocol

LOOK = 256 * 1024
FIRST_LOOK_NS = 60 * 10**9
KEEP = 1000
BODY = 4096
"""Bytes of a body that are shown."""
MAX_TOPICS = 1000
MAX_OPEN = 5000

Line = dict[str, type_of_json]
_OUTCOMES = {Kind.RESPONSE: "done", Kind.ERROR: "error", Kind.ACK: "done"}


class Ring:
    """The last lines of something, numbered, so that each reader takes what is new to it.

    >>> ring = Ring(2)
    >>> for letter in "abc":
    ...     ring.add({"letter": letter})
    >>> ring.since(2), ring.newest
    ([{'letter': 'c'}], 3)
    """

    def __init__(self, size: int = KEEP) -> None:
        self._lines: deque[Line] = deque(maxlen=size)
        self.newest = 0

    def add(self, line: Line) -> None:
        """Append a line; what peers wrote in it can be shown as it is."""
        self._lines.append(showable(line))
        self.newest += 1

    def since(self, number: int) -> list[Line]:
        """The lines after that number, as far as they are still here."""
        fresh = min(self.newest - number, len(self._lines))
        return list(itertools.islice(self._lines, len(self._lines) - fresh, None)) if fresh > 0 else []


@dataclass(slots=True)
class _Topic:
    protocols: set[str] = field(default_factory=set)
    messages: int = 0
    bytes: int = 0
    last: int = 0


@dataclass(slots=True)
class _Asked:
    message: Message
    verb: Verb
    progress: int = 0


class Lately:
    """What was said lately. `look` reads the disk: call it in a thread, one call at a time."""

    def __init__(self, journal: Path | str) -> None:
        self.folder = Path(journal)
        self.messages = Ring()
        self.exchanges = Ring()
        self.rejects = Ring()
        self.skipped = 0
        self._tail: Tail | None = None
        self._refused = Tail(self.folder / REFUSED)
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._asked: OrderedDict[tuple[str | None, str], _Asked] = OrderedDict()
        self._calls = Exclusions(TAKEN)
        """Requests that a provider takes, of a protocol whose other requests are publishes."""

    def look(self) -> None:
        """Take in what was committed since the last look."""
        if self._tail is None:
            self._tail = Tail(self.folder, time.time_ns() - FIRST_LOOK_NS)
        elif (behind := self._tail.behind()) > 2 * LOOK:
            self.skipped += behind
            self._tail, self._calls = Tail.at_end(self.folder), Exclusions(TAKEN)
        left = LOOK
        while left > 0 and (piece := self._tail.read(LOOK)):
            left -= LOOK
            for found in piece:
                if isinstance(found, Entry):
                    self._message(found)
                elif isinstance(found, Record):
                    self._calls.note(found.block)
                    if found.block.record == "closed":
                        self._closed(found.block)
        if self._refused.folder.is_dir():
            while piece := self._refused.read(LOOK):
                for found in piece:
                    if isinstance(found, Record) and found.block.record == "refused":
                        self.rejects.add(_reject(found.block))

    def topics(self) -> list[Line]:
        """The topics seen, the latest first."""
        return [
            {
                "topic": visible(name),
                "protocols": [*sorted(seen.protocols)],
                "messages": seen.messages,
                "bytes": seen.bytes,
                "last": iso_time(seen.last),
            }
            for name, seen in itertools.islice(reversed(self._topics.items()), 200)
        ]

    def _message(self, entry: Entry) -> None:
        called = entry in self._calls or not entry.inbound
        message, meant = as_meant(entry.message, called=called)
        asked = self._asked.get((message.connection, message.correlation_id or ""))
        answers = None if asked is None else asked.message.topic
        self.messages.add(_line(message, entry) | {"answers": answers, "operation": meant.operation})
        if message.topic is not None and message.kind in (Kind.EVENT, Kind.REQUEST):
            topic = self._topics.setdefault(message.topic, _Topic())
            self._topics.move_to_end(message.topic)
            topic.protocols.add(message.protocol)
            topic.messages += 1
            topic.bytes += len(message.body)
            topic.last = message.time or 0
            if len(self._topics) > MAX_TOPICS:
                self._topics.popitem(last=False)
        if meant.verb is not None and message.id is not None:
            self._asked[message.connection, message.id] = _Asked(message, meant.verb)
            if len(self._asked) > MAX_OPEN:
                self._asked.popitem(last=False)
        elif message.correlation_id is not None:
            self._answered(message, (message.connection, message.correlation_id))

    def _answered(self, message: Message, key: tuple[str | None, str]) -> None:
        asked = self._asked.get(key)
        if asked is None:
            return
        if message.kind is Kind.PROGRESS:
            asked.progress += 1
        elif message.kind in _OUTCOMES:
            del self._asked[key]
            outcome = "cancelled" if message.status == "cancelled" else _OUTCOMES[message.kind]
            self.exchanges.add(_exchange(asked, message.time, outcome, message.status))

    def _closed(self, block: Block) -> None:
        connection = f"{block.connection or 0:016x}"
        for key in [key for key in self._asked if key[0] == connection]:
            self.exchanges.add(_exchange(self._asked.pop(key), None, "unanswered", None))


def showable(line: Line) -> Line:
    """A line for a page: every text in it has escapes for what is not shown as itself; `text` keeps its line ends.

    >>> showable({"topic": "a\\n\\u202eb", "text": "two\\nlines", "attributes": {"x": ["\\x9b"]}})
    {'topic': 'a\\\\n\\\\u202eb', 'text': 'two\\nlines', 'attributes': {'x': ['\\\\u009b']}}
    """

    def escaped(value: type_of_json, keep: str = "") -> type_of_json:
        match value:
            case str():
                return visible(value, keep)
            case list():
                return [escaped(each) for each in value]
            case dict():
                return showable(value)
            case _:
                return value

    return {visible(name): escaped(value, "\n\r\t" if name == "text" else "") for name, value in line.items()}


def shown(body: bytes) -> Line:
    """A body for people: text where it is text, and always hex; long ones are cut.

    >>> shown(b"hi")
    {'text': 'hi', 'hex': '6869'}
    >>> shown(bytes([255]))
    {'text': None, 'hex': 'ff'}
    """
    part = body[:BODY]
    try:
        # A cut in the middle of a character is no reason to call it bytes.
        text: str | None = part.decode() if len(part) == len(body) else part.decode(errors="ignore")
    except UnicodeDecodeError:
        text = None
    if text is not None and any(ord(letter) < 32 and letter not in "\t\r\n" for letter in text):
        text = None
    return {"text": text, "hex": part.hex()}


def readable(message: Message) -> str | None:
    """A body that is no text as JSON, where its protocol knows the format; None where it does not.

    >>> readable(Message(Kind.EVENT, "a", b"\\x81\\xa1n\\x01", content_type="application/msgpack", protocol="yamp"))
    '{"n": 1}'
    """
    form = protocol(message.protocol).format_for(message.content_type) if message.content_type else None
    if form is None or len(message.body) > BODY:
        return None
    try:
        value = form.loads(message.body)
        return None if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False, default=_plain)
    except (WireloomError, ImportError, ValueError, TypeError):
        return None


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def body_of(message: Message) -> Line:
    """The body of a message for people: `shown`, with a text wherever its protocol knows the format."""
    body = shown(message.body)
    if body["text"] is None:
        body["text"] = readable(message)
    return body


def _line(message: Message, entry: Entry) -> Line:
    return {
        "time": iso_time(message.time or 0),
        "protocol": message.protocol,
        "connection": message.connection,
        "direction": str(message.direction),
        "kind": str(message.kind),
        "topic": message.topic,
        "id": message.id,
        "correlation_id": message.correlation_id,
        "status": message.status,
        "content_type": message.content_type,
        "body_size": len(message.body),
        "attributes": dict(message.attributes),
        "segment": entry.segment,
        "offset": entry.offset,
        **body_of(message),
    }


def _exchange(asked: _Asked, answered: int | None, outcome: str, status: str | None) -> Line:
    message = asked.message
    took = None if answered is None or message.time is None else (answered - message.time) // 1000
    return {
        "requested_at": iso_time(message.time or 0),
        "protocol": message.protocol,
        "topic": message.topic,
        "verb": str(asked.verb),
        "operation": message.attributes.get(OPERATION),
        "request_id": message.id,
        "outcome": outcome,
        "status": status,
        "latency_us": took,
        "progress_count": asked.progress,
    }


def _reject(block: Block) -> Line:
    details = block.details
    return {
        "time": iso_time(block.time_ns),
        "protocol": block.protocol,
        "source": block.source,
        "clause": details.get("clause"),
        "detail": details.get("detail"),
        "size": details.get("size"),
        "text": None,
        "hex": block.payload.hex(),
    }
