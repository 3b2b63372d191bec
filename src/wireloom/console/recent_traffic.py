"""The newest part of the journal, decoded for people: messages, topics, exchanges, rejects.

Traffic may be faster than a person can read. One poll decodes at most `LOOK` bytes. Older bytes are skipped and
counted, so the cost of the console does not depend on the message rate.
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
from wireloom.journal.archive_disk import ArchiveDisk, disk_for
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.exclusions import TAKEN, Exclusions
from wireloom.journal.segment import REFUSED
from wireloom.model import Kind, Message, WireloomError, iso_time, type_of_json
from wireloom.protocols.publish_rules import OPERATION, Verb, as_meant
from wireloom.protocols.registry import protocol
from wireloom.store import StoreError

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
        """Append a line; text from peers is escaped, so that it can be shown."""
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


@dataclass(slots=True, eq=False)
class _Asked:
    message: Message
    verb: Verb
    inbound: bool
    """True for a request from a peer to the hub, False for one from the hub to a provider."""
    caller: _Asked | None = None
    """The request of the peer, if this is its copy from the hub to the provider."""
    provider: str | None = None
    """The protocol of the provider that it was relayed to, and the time that the provider took."""
    provider_us: int | None = None
    progress: int = 0

    def took(self, answered: int | None) -> int | None:
        """Microseconds to an answer at that time."""
        asked = self.message.time
        return None if answered is None or asked is None else (answered - asked) // 1000


class RecentTraffic:
    """Recent traffic. `look` reads the disk: call it in a thread, one call at a time."""

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
        self._to_pass_on: dict[tuple[str | None, bytes], deque[_Asked]] = {}
        """Requests of peers whose copy to a provider was not seen yet, by topic and body."""
        self._calls = Exclusions(TAKEN)
        """Requests that a provider takes, of a protocol whose other requests are publishes."""

    def look(self) -> None:
        """Read what was committed since the last call."""
        if self._tail is None:
            self._tail = Tail(self.folder, time.time_ns() - FIRST_LOOK_NS, disk=self._disk())
        elif (behind := self._tail.behind()) > 2 * LOOK:
            self.skipped += behind
            self._tail, self._calls = Tail.at_end(self.folder), Exclusions(TAKEN)
            self._to_pass_on.clear()
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

    def _disk(self) -> Disk:
        """What the last while is read from: also from the archive, where there is one that answers."""
        disk = disk_for(self.folder)
        if isinstance(disk, ArchiveDisk):
            try:
                disk.archive.refresh()
            except StoreError:
                return LOCAL
        return disk

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
        if entry.inbound and message.topic is not None and message.kind in (Kind.EVENT, Kind.REQUEST):
            topic = self._topics.setdefault(message.topic, _Topic())
            self._topics.move_to_end(message.topic)
            topic.protocols.add(message.protocol)
            topic.messages += 1
            topic.bytes += len(message.body)
            topic.last = message.time or 0
            if len(self._topics) > MAX_TOPICS:
                self._topics.popitem(last=False)
        if meant.verb is not None and message.id is not None:
            self._ask(_Asked(message, meant.verb, entry.inbound))
        elif message.correlation_id is not None:
            self._answered(message, (message.connection, message.correlation_id))

    def _ask(self, asked: _Asked) -> None:
        message = asked.message
        key = message.connection, message.id or ""
        self._forget(key)
        if asked.inbound and asked.verb is Verb.REQUEST and message.topic is not None:
            self._to_pass_on.setdefault(_said(message), deque()).append(asked)
        elif not asked.inbound and (waiting := self._to_pass_on.get(_said(message))):
            # The hub passes on requests in the order in which they came.
            asked.caller = waiting[0]
            asked.caller.provider = message.protocol
            self._passed_on(asked.caller)
        self._asked[key] = asked
        if len(self._asked) > MAX_OPEN:
            self._forget(next(iter(self._asked)))

    def _passed_on(self, asked: _Asked) -> None:
        """The copy of a request to a provider was seen, or is no longer expected."""
        said = _said(asked.message)
        waiting = self._to_pass_on.get(said, deque())
        if asked in waiting:
            waiting.remove(asked)
            if not waiting:
                del self._to_pass_on[said]

    def _forget(self, key: tuple[str | None, str]) -> _Asked | None:
        asked = self._asked.pop(key, None)
        if asked is not None:
            self._passed_on(asked)
        return asked

    def _answered(self, message: Message, key: tuple[str | None, str]) -> None:
        asked = self._asked.get(key)
        if asked is None:
            return
        if message.kind is Kind.PROGRESS:
            asked.progress += 1
        elif message.kind in _OUTCOMES:
            outcome = "cancelled" if message.status == "cancelled" else _OUTCOMES[message.kind]
            self._over(key, message.time, outcome, message.status)

    def _closed(self, block: Block) -> None:
        connection = f"{block.connection or 0:016x}"
        for key in [key for key in self._asked if key[0] == connection]:
            self._over(key, None, "unanswered", None)

    def _over(self, key: tuple[str | None, str], time: int | None, outcome: str, status: str | None) -> None:
        """A request is over. One that was passed on is told together with what a peer asked, once that is over."""
        asked = self._forget(key)
        assert asked is not None
        if asked.caller is None:
            self.exchanges.add(_exchange(asked, time, outcome, status))
        else:
            asked.caller.provider_us = asked.took(time)


def _said(request: Message) -> tuple[str | None, bytes]:
    """Topic and body, equal for a request and its copy to the provider; yamp has `null` for an empty body."""
    return request.topic, b"" if request.body == b"null" else request.body


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
        # Text that was cut inside a character is still text.
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
    return {
        "requested_at": iso_time(message.time or 0),
        "protocol": message.protocol,
        "topic": message.topic,
        "verb": str(asked.verb),
        "operation": message.attributes.get(OPERATION),
        "request_id": message.id,
        "outcome": outcome,
        "status": status,
        "latency_us": asked.took(answered),
        "progress_count": asked.progress,
        "passed_on": not asked.inbound,
        "provider": asked.provider,
        "provider_us": asked.provider_us,
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
