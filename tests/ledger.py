"""The ledger: what clients sent and were told, held against the journal and the tables.

A test gives each connection of its clients a `Line`. The client writes down on it what it is about to send, and what
was acknowledged. The test lets readers look at the journal while it is written, and after each crash (`observe`, or
`note` for what another reader gave in parts). At the end `check` reads the journal as it is then, and says in one
message what does not hold:

- everything acknowledged is in the journal;
- nothing is in the journal that nobody sent, or more often than it was sent, or under another topic or protocol;
- what one connection sent stands under one connection of the journal, in the order sent, without a hole;
- a name (hub, epoch, packet id, number in the block) has one content, whenever and by whomever it is read;
- what a reader has seen once is there for ever.

`check_tables` goes on from there: every message of the journal is one row of `messages`, and no other row is there.

Contents identify messages, so no two messages of a test may have the same. Records and continued blocks take packet
ids, too: they are compared like messages. Before retention removes segments, the test says so (`let_go`). Where a test
tries several outcomes of one moment, each goes on with a ledger of its own (`fork`), which costs next to nothing.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from wireloom.journal import Entry, Offset, Record, Unreadable, blocks, read_all
from wireloom.journal.blocks import canonical_json
from wireloom.journal.disk import LOCAL, READ, Disk, read_range
from wireloom.journal.exclusions import TAKEN, Exclusions
from wireloom.model import Kind
from wireloom.protocols.publish_rules import as_meant

LOST = "acknowledged, but not in the journal"
STRANGE = "in the journal, but never sent"
TWICE = "in the journal more often than sent"
CHANGED = "in the journal under another topic or protocol"
ORDER = "not in the order sent"
TWO_CONTENTS = "names with two contents"
TWO_PLACES = "names that stand twice in one reading"
UNREADABLE = "bytes that do not decode"
GONE = "seen by a reader, but gone"
NO_ROW = "in the journal, but not in the tables"
NO_ENTRY = "in the tables, but not (or not so often) in the journal"

SHOWN = 5
"""Messages that a failure names; the others are counted."""
SHORT = 30
"""Bytes of a content that are shown."""
LARGEST_HEAD = 4096
"""Bytes that are read to find out what a segment's header says."""
PUBLISH = "$hub/publish/"
"""Before the topic of an acknowledged publish, in protocols that have no other way to ask for one."""

Found = Entry | Record | Unreadable
Content = tuple[object, ...]
"""Everything that a reader tells of a message or a record; `described` writes it for people."""


class Imbalance(AssertionError):
    """What does not hold. `kinds` are the headings above of which there is something to say."""

    def __init__(self, folder: Path, faults: Iterable[tuple[str, list[str]]]) -> None:
        self.kinds: list[str] = []
        text = [f"the ledger does not balance with {folder}"]
        for kind, found in faults:
            self.kinds.append(kind)
            text += [f"{len(found)} {kind}:", *(f"  {each}" for each in found[:SHOWN])]
            if len(found) > SHOWN:
                text.append(f"  and {len(found) - SHOWN} more")
        super().__init__("\n".join(text))


class Name(NamedTuple):
    """What a message is called for ever."""

    hub: str
    epoch: str
    packet_id: int
    number: int

    def __str__(self) -> str:
        return f"{self.hub or '-'}/{self.epoch or '-'}/{self.packet_id}.{self.number}"


@dataclass(slots=True, eq=False)
class Sent:
    """One message, each time it is sent."""

    line: Line
    number: int
    content: bytes
    topic: str
    sent_at: float
    acknowledged_at: float | None = None

    def __str__(self) -> str:
        told = (
            "" if self.acknowledged_at is None else f", acknowledged after {self.acknowledged_at - self.sent_at:.3f} s"
        )
        return f"{self.line} #{self.number} {shown(self.content)} (sent at {self.sent_at:.3f} s{told})"


@dataclass(slots=True, eq=False)
class Line:
    """What a client sent on one connection, in this order. One thread or task writes it."""

    client: str
    connection: int
    """Counts the connections of this client."""
    protocol: str
    topic: str
    repeats: bool = False
    """Whether the protocol itself sends a message again on the same connection when the answer takes long."""
    began: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    acknowledged: int = 0
    """How many messages were acknowledged."""

    def send(self, number: int, content: bytes, topic: str | None = None) -> Sent:
        """Call this before the message is given to the socket: a hub may have it before the client goes on."""
        message = Sent(self, number, content, self.topic if topic is None else topic, time.monotonic() - self.began)
        self.sent.append(message)
        return message

    def acknowledge(self, message: Sent) -> None:
        """The hub has said that it has this message."""
        message.acknowledged_at = time.monotonic() - self.began
        self.acknowledged += 1

    def __str__(self) -> str:
        return f"{self.protocol} client {self.client} connection {self.connection}"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `messages`, as far as it is compared. `file` is the name of the segment, without folders."""

    connection: str | None
    direction: str
    kind: str
    topic: str | None
    body: bytes
    file: str
    offset: int

    def __str__(self) -> str:
        return f"{self.direction} {self.kind} {self.topic} {shown(self.body)} at {self.file}:{self.offset}"


class Published(NamedTuple):
    """A message of a client in the journal."""

    connection: str
    protocol: str
    topic: str
    content: bytes

    def __str__(self) -> str:
        return f"{self.protocol} {self.topic} {shown(self.content)} of connection {self.connection}"


class Balance(NamedTuple):
    """What was compared, for a line of output."""

    sent: int
    acknowledged: int
    journal: int
    """Messages of clients in the journal."""
    names: int


class Ledger:
    """One test's ledger. Lines may be written by many threads; everything else is for one."""

    def __init__(self, disk: Disk = LOCAL) -> None:
        self.disk = disk
        """Where journals are read from."""
        self.lines: list[Line] = []
        self._began = time.monotonic()
        self._connections = Counter[str]()
        self.names: list[dict[Name, Content]] = [{}]
        """Every name that was ever read, and what it stood for. The last is this ledger's; those before it belong to the
        ledgers that it is a fork of."""
        self._origins: dict[Path, tuple[str, str]] = {}
        """By segment, which keeps its name for ever."""
        self._two_contents: list[str] = []
        self._two_places: list[str] = []
        self._unreadable: list[str] = []
        self._may_be_gone = frozenset[Name]()
        self._may_be_missing = frozenset[bytes]()
        """Contents; retention may have taken them, as it may the names."""

    def line(self, client: str, protocol: str, topic: str, *, repeats: bool = False) -> Line:
        """A new connection of a client."""
        self._connections[client] += 1
        line = Line(client, self._connections[client], protocol, topic, repeats, self._began)
        self.lines.append(line)
        return line

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged so far."""
        return sum(line.acknowledged for line in self.lines)

    def observe(self, folder: Path, found: Iterable[Found] | None = None, *, may_lose: bool = False) -> set[Name]:
        """Read a journal, also one that is being written, and hold it against what readers saw before; its names.

        `found`: what a reader gave of it just now, if it is read already. `may_lose`: the journal is not synced and the
        power was cut, so the end of what was there may be gone. Imbalance says what does not hold.
        """
        present = self.note(folder, read_all(folder, disk=self.disk) if found is None else found)
        balance(folder, *self._compare_readers(present, may_lose=may_lose))
        return present

    def note(self, folder: Path, found: Iterable[Found]) -> set[Name]:
        """Remember the names of what some reader, such as a `Tail`, gave in one reading; these names.

        What does not hold is told by the next `observe` or `check`.
        """
        names, last, known = set[Name](), self.names[-1], self.names[:-1]
        segment, hub, epoch = "", "", ""
        for each in found:
            if isinstance(each, Unreadable):
                self._unreadable.append(f"{each.clause} at {each.segment}:{each.offset}")
                continue
            if each.segment != segment:
                segment = each.segment
                hub, epoch = self._origin(folder / segment)
            for place, content in named(each):
                name = Name(hub, epoch, *place)
                if name in names:
                    self._two_places.append(f"{name}: {described(content)} in {segment}")
                names.add(name)
                before = next((layer[name] for layer in known if name in layer), None) if known else None
                if before is None:
                    before = last.setdefault(name, content)
                if before != content:
                    self._two_contents.append(
                        f"{name} was {described(before)}, and is {described(content)} in {segment}"
                    )
        return names

    def _origin(self, segment: Path) -> tuple[str, str]:
        found = self._origins.get(segment)
        if found is None:
            found = self._origins[segment] = origin(segment, self.disk)
        return found

    def check(self, folder: Path, found: Iterable[Found] | None = None, *, may_lose: bool = False) -> Balance:
        """Hold a journal against everything known. As `observe`, and what clients were told must be there."""
        published: list[Published] = []
        reading = read_all(folder, disk=self.disk) if found is None else found
        present = self.note(folder, keep_published(reading, published))
        balance(
            folder,
            *self._compare_readers(present, may_lose=may_lose),
            *self._compare_clients(published, may_lose=may_lose),
        )
        sent = sum(len(line.sent) for line in self.lines)
        return Balance(sent, self.acknowledged, len(published), sum(map(len, self.names)))

    def _compare_readers(self, present: Set[Name], *, may_lose: bool) -> Iterator[tuple[str, Iterable[object]]]:
        """What readers saw, among themselves and against what is there now."""
        yield TWO_CONTENTS, self._two_contents
        yield TWO_PLACES, self._two_places
        yield UNREADABLE, self._unreadable
        if not may_lose:
            gone = ((layer, name) for layer in self.names for name in layer.keys() - present - self._may_be_gone)
            yield GONE, sorted(f"{name}: {described(layer[name])}" for layer, name in gone)

    def _compare_clients(self, published: list[Published], *, may_lose: bool) -> Iterator[tuple[str, Iterable[object]]]:
        """Clients against the journal."""
        sendings: dict[bytes, list[Sent]] = {}
        for line in self.lines:
            for message in line.sent:
                sendings.setdefault(message.content, []).append(message)
        times = Counter(each.content for each in published)
        known = [each for each in published if each.content in sendings]
        if not may_lose:
            missing = (content for content in sendings if content not in times and content not in self._may_be_missing)
            yield LOST, (each for content in missing for each in sendings[content] if each.acknowledged_at is not None)
        yield STRANGE, (each for each in published if each.content not in sendings)
        often = (content for content, same in sendings.items() if times[content] > len(same))
        too_often = (content for content in often if not any(message.line.repeats for message in sendings[content]))
        yield TWICE, (f"{times[content]} times: {sendings[content][-1]}" for content in too_often)
        yield CHANGED, (f"{sendings[each.content][0]}: {each}" for each in known if is_changed(each, sendings))
        yield ORDER, out_of_order(known, sendings, self._may_be_missing)

    def let_go(self, folder: Path, segments: Iterable[str]) -> None:
        """Retention is about to remove these segments: what is in them may be missing from now on."""
        names = set(segments)
        found = [each for each in read_all(folder, disk=self.disk) if each.segment in names]
        published: list[Published] = []
        self._may_be_gone |= self.note(folder, keep_published(found, published))
        self._may_be_missing |= {each.content for each in published}

    def fork(self, disk: Disk | None = None) -> Ledger:
        """A ledger, of another disk if one is given, that knows all that this one does, and goes on by itself.

        It shares what is known already. So this ledger must rest until the fork is done with, and whoever sends on
        behalf of the fork begins a line of its own.
        """
        other = Ledger(self.disk if disk is None else disk)
        other.lines, other._connections = list(self.lines), self._connections.copy()
        other._began, other._origins = self._began, self._origins
        other.names = [*self.names, {}]
        other._two_contents, other._two_places = list(self._two_contents), list(self._two_places)
        other._unreadable = list(self._unreadable)
        other._may_be_gone, other._may_be_missing = self._may_be_gone, self._may_be_missing
        return other

    def check_tables(self, folder: Path, rows: Iterable[Row]) -> int:
        """Compare the rows of `messages` with the journal; how many there are."""
        left = Counter(rows)
        total = left.total()
        missing = []
        taken = Exclusions(TAKEN)
        for entry in read_all(folder, disk=self.disk):
            if isinstance(entry, Record):
                taken.note(entry.block)
            if isinstance(entry, Entry):
                row = row_of(entry, called=entry in taken)
                if left[row] > 0:
                    left[row] -= 1
                else:
                    missing.append(row)
        balance(folder, (NO_ROW, missing), (NO_ENTRY, (+left).elements()))
        return total


def origin(segment: Path, disk: Disk) -> tuple[str, str]:
    """The hub and the epoch that a segment's header names; empty in format 1, which has neither."""
    file = disk.open(segment, READ)
    try:
        head = blocks.head_of(read_range(disk, file, 0, LARGEST_HEAD))
    finally:
        disk.close(file)
    return head.hub, head.epoch


def named(found: Entry | Record) -> Iterator[tuple[Offset, Content]]:
    """The places that a message or a record takes, and what stands there."""
    if isinstance(found, Record):
        block = found.block
        details = shortened(canonical_json(block.details))
        yield Offset(block.packet_id, 0), ("record", block.record, block.connection, details, block.time_ns)
        return
    m, place = found.message, found.place
    # Only what people want to see is kept as it is: there are millions.
    ids, attributes = (m.id, m.correlation_id, m.connection), repr(m.attributes) if m.attributes else ""
    rest = hash((ids, m.direction, m.status, m.content_type, m.time, attributes, found.sequence))
    yield place, (m.protocol, m.kind, m.topic, shortened(m.body), rest)
    if place.number == 0 and found.last_packet_id > place.packet_id:
        for packet_id in range(place.packet_id + 1, found.last_packet_id + 1):
            yield Offset(packet_id, 0), ("more of", place)


def keep_published(found: Iterable[Found], published: list[Published]) -> Iterator[Found]:
    """Pass everything on; what clients sent for others to read is added to `published`."""
    for each in found:
        if isinstance(each, Entry) and each.inbound and each.message.kind in (Kind.EVENT, Kind.REQUEST):
            message = each.message
            topic = (message.topic or "").removeprefix(PUBLISH)
            if not topic.startswith("$hub/"):
                connection = sys.intern(message.connection or "")
                published.append(Published(connection, message.protocol, topic, message.body))
        yield each


def is_changed(published: Published, sendings: dict[bytes, list[Sent]]) -> bool:
    """Whether it was never sent like that."""
    said = {(message.line.protocol, message.topic) for message in sendings[published.content]}
    return (published.protocol, published.topic) not in said


def out_of_order(
    published: Iterable[Published], sendings: dict[bytes, list[Sent]], may_be_missing: Set[bytes]
) -> Iterator[str]:
    """Each connection of the journal must hold the beginning of one line, message by message."""
    lines: dict[str, Line] = {}
    taken: dict[Line, int] = {}
    """How many messages of a line were found."""
    for each in published:
        line = lines.get(each.connection)
        if line is None:
            # A message that was sent again stands on several lines: this is one that no connection has yet.
            free = [message.line for message in sendings[each.content] if message.line not in taken]
            if not free:
                yield f"{each}: its client has no connection left that this could be"
                continue
            line = next((line for line in free if line.sent[0].content == each.content), free[0])
            lines[each.connection] = line
            taken[line] = 0
        at = taken[line]
        while at < len(line.sent) and line.sent[at].content != each.content and line.sent[at].content in may_be_missing:
            at += 1
        if at < len(line.sent) and line.sent[at].content == each.content:
            taken[line] = at + 1
        elif not (line.repeats and any(message.line is line for message in sendings[each.content])):
            due = line.sent[at] if at < len(line.sent) else f"nothing more of {line}"
            yield f"{each} stands where {due} was due"
            # Go on behind it, so that one hole is one fault.
            places = (place for place, message in enumerate(line.sent) if message.content == each.content)
            taken[line] = max([at, *(place + 1 for place in places)])


def shortened(body: bytes) -> bytes | tuple[bytes, int, int]:
    """A short body as it is; of a longer one its beginning, length and checksum."""
    return body if len(body) <= SHORT else (body[:SHORT], len(body), zlib.crc32(body))


def shown(body: bytes | tuple[bytes, int, int]) -> str:
    """A body for people."""
    short = shortened(body) if isinstance(body, bytes) else body
    return repr(short) if isinstance(short, bytes) else f"{short[0]!r}... ({short[1]} bytes, crc32 {short[2]:08x})"


def described(content: Content) -> str:
    """A content for people. The last number of a message stands for everything that is not shown."""
    match content:
        case ("record", record, connection, (bytes() | tuple()) as details, time_ns):
            return f"record {record} conn={connection} {shown(details)} {time_ns}"
        case (protocol, kind, topic, (bytes() | tuple()) as body, int() as rest):
            return f"{protocol} {kind} {topic} {shown(body)} {rest & 0xFFFFFFFF:08x}"
    return " ".join(map(str, content))


def row_of(entry: Entry, *, called: bool = False) -> Row:
    """The row that a message of the journal must become; `called`: a provider took this request."""
    m, _ = as_meant(entry.message, called=called)
    return Row(m.connection, str(m.direction), str(m.kind), m.topic, m.body, entry.segment, entry.offset)


def rows_of(warehouse: Path) -> Iterator[Row]:
    """The table `messages` of a warehouse."""
    from wireloom.pipeline.query import ask

    answer = ask(warehouse, 'select connection, direction, kind, topic, body, file, "offset" from messages')
    for connection, direction, kind, topic, body, file, offset in answer.rows:
        yield Row(connection, direction, kind, topic, bytes(body or b""), Path(file).name, offset)  # type: ignore[arg-type,call-overload]


def balance(folder: Path, *faults: tuple[str, Iterable[object]]) -> None:
    """Imbalance, if there is any fault of any kind."""
    listed = [(kind, [str(each) for each in found]) for kind, found in faults]
    if any(found for _, found in listed):
        raise Imbalance(folder, ((kind, found) for kind, found in listed if found))
