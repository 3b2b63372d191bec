"""What is known of one journal on its way through power cuts, and everything that must hold of it.

A lineage is one history of a journal: what was appended and acknowledged, what readers saw, which block was written under
which packet id, which state files were told saved. At a power cut it splits (`fork`): each state of the disk that a cut
may leave goes on as a history of its own. `check` holds the journal on a disk against its lineage.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

from wireloom.journal import Entry, Offset, Record, Tail, Unreadable, blocks, read_all
from wireloom.journal.disk import Disk
from wireloom.journal.state import StateDamaged, load_state
from wireloom.journal.verify import verify
from wireloom.model import JournalError

FOLDER = Path("/data/journal")
STATE = Path("/data/cursor.json")

LOST, UNSEEN, TWICE, ORDER, TWO_CONTENTS = "acknowledged, but gone", "seen, but gone", "twice", "order", "two contents"
FAULT, READERS, STATE_LOST, STUCK = "fault", "readers disagree", "state lost", "cannot go on"


class Violation(AssertionError):
    """Something that must hold does not. `kind` says what."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Name(NamedTuple):
    """What a message or a record is called for ever."""

    epoch: str
    packet_id: int
    number: int


Content = tuple[object, ...]
"""Everything that a reader tells of a message or a record."""


class Lineage:
    """See above."""

    def __init__(self, *, sync: bool = True) -> None:
        self.sync = sync
        self.sent: dict[int, list[tuple[bytes, str]]] = {}
        """Bodies and topics by connection, in the order appended."""
        self.acknowledged: dict[int, int] = {}
        """How many of them were told durable."""
        self.required: set[Name] = set()
        """What a reader saw and retention may not have taken."""
        self.gone: set[Name] = set()
        """What retention may have taken."""
        self.expired: set[tuple[int, int]] = set()
        """Connection and number of messages that retention may have taken."""
        self.told: int | None = None
        """What the state file was told to hold for good."""
        self.begun = 0
        """The newest that anybody began to save."""
        self._seen: list[dict[Name, Content]] = [{}]
        """Contents by name, the newest layer last; earlier ones belong to the lineage that this one came from."""
        self._written: list[dict[tuple[str, str, int], int]] = [{}]

    def fork(self) -> Lineage:
        """A history that goes on by itself from here. The original must rest until the fork is done with."""
        other = Lineage(sync=self.sync)
        other.sent, other.acknowledged = dict(self.sent), dict(self.acknowledged)
        other.required, other.gone, other.expired = set(self.required), set(self.gone), set(self.expired)
        other.told, other.begun = self.told, self.begun
        other._seen, other._written = [*self._seen, {}], [*self._written, {}]
        return other

    def note_written(self, path: Path, data: bytes, at: int) -> None:
        """Somebody writes to a segment: whatever becomes of it, no packet id may ever have other bytes."""
        epoch, folder = path.name[21:37], path.parent.name
        offset = blocks.check_head(data) if at == 0 else 0
        while offset + 12 <= len(data):
            try:
                kind, size = blocks.block_at(data, offset, len(data))
            except blocks.BlockFault:
                return
            if kind == blocks.ENHANCED_PACKET:
                key = folder, epoch, blocks.packet_id_at(data, offset)
                content = hash(data[offset : offset + size])
                before = next((each[key] for each in self._written if key in each), None)
                if before is None:
                    self._written[-1][key] = content
                elif before != content:
                    raise Violation(TWO_CONTENTS, f"packet id {key[2]} is written again with other bytes, to {path}")
            offset += size

    def note_seen(self, found: Iterable[Entry | Record | Unreadable]) -> list[Name]:
        """A reader gave this: a name has one content, and what was seen must stay."""
        names = []
        for each in found:
            if isinstance(each, Unreadable):
                raise Violation(FAULT, f"{each.clause} at {each.segment}:{each.offset}")
            name, content = named(each)
            before = next((layer[name] for layer in self._seen if name in layer), None)
            if before is None:
                self._seen[-1][name] = content
            elif before != content:
                raise Violation(TWO_CONTENTS, f"{name} was {str(before)[:80]} and is {str(content)[:80]}")
            names.append(name)
        # A reader that has a removed segment open still reads it.
        self.required.update(name for name in names if name not in self.gone)
        return names

    def let_go(self, segments: Iterable[str], disk: Disk) -> None:
        """Retention is about to take these segments: what is in them may be gone from now on."""
        gone = set(segments)
        for each in read_all(FOLDER, disk=disk):
            if each.segment in gone and not isinstance(each, Unreadable):
                self.gone.add(named(each)[0])
                if isinstance(each, Entry) and (place := _place(each)) is not None:
                    self.expired.add(place)
        self.required -= self.gone

    # What must hold

    def check(self, disk: Disk, random: Random, *, everything: bool = False) -> list[Entry | Record]:
        """Hold a recovered journal against what is known; Violation says what does not fit.

        `everything`: nothing was lost, as after a kill, so that also a journal that does not sync has it all.
        """
        faults = [str(fault) for fault in verify(FOLDER, disk=disk)]
        if faults:
            raise Violation(FAULT, "; ".join(faults[:3]))
        found = self.read(disk)
        self._check_messages(found, everything=everything)
        if random.random() < 0.5:
            self._check_readers(disk, found, random)
        self.check_state(disk)
        return found

    def read(self, disk: Disk) -> list[Entry | Record]:
        """Read everything and note it; what was seen before must be there."""
        try:
            found = list(read_all(FOLDER, disk=disk))
        except JournalError as error:
            raise Violation(FAULT, f"read_all: {error}") from error
        required = set(self.required)
        names = self.note_seen(found)
        if len(set(names)) < len(names):
            raise Violation(TWICE, "a name stands twice in the journal")
        gone = required - set(names)
        if gone and self.sync:
            some = ", ".join(f"{name}: {self._content(name)[:60]}" for name in sorted(gone)[:3])
            raise Violation(UNSEEN, f"{len(gone)} of {len(required)}: {some}")
        return [each for each in found if not isinstance(each, Unreadable)]

    def _content(self, name: Name) -> str:
        return repr(next(layer[name] for layer in self._seen if name in layer))

    def _check_messages(self, found: list[Entry | Record], *, everything: bool) -> None:
        numbers: dict[int, list[int]] = {}
        for each in found:
            if not isinstance(each, Entry) or (place := _place(each)) is None:
                continue
            connection, number = place
            numbers.setdefault(connection, []).append(number)
            body, topic = self.sent[connection][number]
            if (each.message.body, each.message.topic) != (body, topic):
                raise Violation(
                    TWO_CONTENTS, f"message {number} of connection {connection} is another or has another topic"
                )
        for connection, sent in self.sent.items():
            there = numbers.get(connection, [])
            if len(set(there)) < len(there):
                raise Violation(TWICE, f"messages of connection {connection}: {there}")
            if there != sorted(there):
                raise Violation(ORDER, f"messages of connection {connection}: {there}")
            last = there[-1] + 1 if there else 0
            missing = set(range(len(sent))) - set(there)
            gone = [number for number in missing if (connection, number) not in self.expired]
            lost = [number for number in gone if number < self.acknowledged.get(connection, 0)]
            if lost and (self.sync or everything):
                raise Violation(LOST, f"messages of connection {connection}: {lost[:5]} of {len(sent)}")
            holes = [number for number in gone if number < last]
            if holes:
                raise Violation(ORDER, f"messages of connection {connection}: {holes[:5]} missing before {last - 1}")

    def _check_readers(self, disk: Disk, found: list[Entry | Record], random: Random) -> None:
        everything = [named(each) for each in found]
        if (other := [named(each) for each in _tail(disk)]) != everything:
            raise Violation(READERS, f"Tail gives {len(other)} things, read_all {len(everything)}")
        entries = [each for each in found if isinstance(each, Entry)]
        # An offset that was seen once, here or before a power cut.
        layer = random.choice(self._seen)
        places = [Offset(name.packet_id, name.number) for name in layer] if layer else [Offset(0, 0)]
        since = random.choice(places)
        expected = [named(each) for each in entries if each.place > since]
        given = [named(each) for each in _tail(disk, since) if isinstance(each, Entry)]
        if given != expected:
            raise Violation(READERS, f"Tail since {since} gives {len(given)} messages, read_all {len(expected)}")

    def check_state(self, disk: Disk) -> None:
        """The state file holds what was told saved, or something newer."""
        try:
            value = load_state(STATE, disk)
        except StateDamaged as damage:
            raise Violation(STATE_LOST, str(damage)) from damage
        if value is None:
            if self.told is not None:
                raise Violation(STATE_LOST, f"there is none; it was told to be {self.told}")
            return
        number = value.get("n")
        if not isinstance(number, int) or not (self.told or 0) <= number <= self.begun:
            raise Violation(STATE_LOST, f"it says {number}; told was {self.told}, begun {self.begun}")


def named(found: Entry | Record) -> tuple[Name, Content]:
    """The name of a message or a record, and what it stands for."""
    epoch = found.segment[21:37]
    if isinstance(found, Record):
        block = found.block
        return Name(epoch, block.packet_id, 0), (block.record, block.connection, str(block.details), block.time_ns)
    said = found.message
    return Name(epoch, *found.place), (
        said.connection,
        said.direction,
        said.topic,
        said.time,
        found.sequence,
        said.body,
    )


def body_of(connection: int, number: int, size: int) -> bytes:
    """A body that says which message it is."""
    return b"%d:%d:" % (connection, number) + b"x" * size


def _place(entry: Entry) -> tuple[int, int] | None:
    """Which message of which connection this is; None for answers of the hub."""
    parts = bytes(entry.message.body or b"").split(b":", 2)
    return (int(parts[0]), int(parts[1])) if len(parts) == 3 else None


def _tail(disk: Disk, since: Offset | int = 0) -> list[Entry | Record]:
    tail = Tail(FOLDER, since, disk=disk)
    found: list[Entry | Record] = []
    try:
        while piece := tail.read():
            found += [each for each in piece if not isinstance(each, Unreadable)]
    except JournalError as error:
        raise Violation(READERS, f"Tail: {error}") from error
    finally:
        tail.close()
    return found
