"""What is known of one journal on its way through power cuts, beside what the ledger knows.

A lineage is one history of a journal: its ledger, which block was written under which packet id, which state files were
told saved. At a power cut it splits (`fork`): each state of the disk that a cut may leave goes on as a history of its
own. `check` holds the journal on a disk against its lineage; Imbalance says what does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import NoReturn

from tests.ledger import TWO_CONTENTS, Content, Found, Imbalance, Ledger, balance, named
from wireloom.journal import Entry, Offset, Tail, Unreadable, blocks, read_all
from wireloom.journal.disk import Disk
from wireloom.journal.state import StateDamaged, load_state
from wireloom.journal.verify import verify
from wireloom.model import JournalError

FOLDER = Path("/data/journal")
STATE = Path("/data/cursor.json")

FAULT, READERS, STATE_LOST, STUCK = "faults", "readers that disagree", "state files lost", "reasons not to go on"


class Lineage:
    """See above."""

    def __init__(self, ledger: Ledger, *, sync: bool = True) -> None:
        self.ledger = ledger
        self.sync = sync
        self.told: int | None = None
        """What the state file was told to hold for good."""
        self.begun = 0
        """The newest that anybody began to save."""
        self._written: list[dict[tuple[str, str, int], int]] = [{}]
        """As `Ledger.names`."""

    @property
    def disk(self) -> Disk:
        return self.ledger.disk

    def fork(self, disk: Disk) -> Lineage:
        """A history that goes on by itself from here. The original must rest until the fork is done with."""
        other = Lineage(self.ledger.fork(disk), sync=self.sync)
        other.told, other.begun = self.told, self.begun
        other._written = [*self._written, {}]
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
                    fail(TWO_CONTENTS, f"packet id {key[2]} is written again with other bytes, to {path}")
            offset += size

    # What must hold

    def check(self, random: Random, *, everything: bool = False) -> int:
        """Hold a recovered journal against what is known; how many things are in it.

        `everything`: nothing was lost, as after a kill, so that also a journal that does not sync has it all.
        """
        balance(FOLDER, (FAULT, verify(FOLDER, disk=self.disk)))
        found = self._read()
        self.ledger.check(FOLDER, found, may_lose=not (self.sync or everything))
        if random.random() < 0.5:
            self._check_readers(found, random)
        self.check_state()
        return len(found)

    def observe(self) -> int:
        """A reader comes and reads everything; how many things."""
        found = self._read()
        self.ledger.observe(FOLDER, found, may_lose=not self.sync)
        return len(found)

    def _read(self) -> list[Found]:
        try:
            return list(read_all(FOLDER, disk=self.disk))
        except JournalError as error:
            fail(FAULT, f"read_all: {error}", error)

    def _check_readers(self, found: list[Found], random: Random) -> None:
        if (other := contents(_tail(self.disk))) != (everything := contents(found)):
            fail(READERS, f"Tail gives {len(other)} things, read_all {len(everything)}")
        # An offset that was seen once, here or before a power cut.
        layer = random.choice(self.ledger.names)
        places = [Offset(name.packet_id, name.number) for name in layer] if layer else [Offset(0, 0)]
        since = random.choice(places)
        expected = contents(each for each in found if isinstance(each, Entry) and each.place > since)
        given = contents(each for each in _tail(self.disk, since) if isinstance(each, Entry))
        if given != expected:
            fail(READERS, f"Tail since {since} gives {len(given)} messages, read_all {len(expected)}")

    def check_state(self) -> None:
        """The state file holds what was told saved, or something newer."""
        try:
            value = load_state(STATE, self.disk)
        except StateDamaged as damage:
            fail(STATE_LOST, str(damage), damage)
        if value is None:
            if self.told is not None:
                fail(STATE_LOST, f"there is none; it was told to be {self.told}")
            return
        number = value.get("n")
        if not isinstance(number, int) or not (self.told or 0) <= number <= self.begun:
            fail(STATE_LOST, f"it says {number}; told was {self.told}, begun {self.begun}")


def fail(kind: str, text: str, cause: Exception | None = None) -> NoReturn:
    """Something that must hold does not."""
    raise Imbalance(FOLDER, [(kind, [text])]) from cause


def contents(found: Iterable[Found]) -> list[tuple[Offset, Content]]:
    """What a reader gave, so that it can be compared."""
    return [each for one in found if not isinstance(one, Unreadable) for each in named(one)]


def _tail(disk: Disk, since: Offset | int = 0) -> list[Found]:
    tail = Tail(FOLDER, since, disk=disk)
    found: list[Found] = []
    try:
        while piece := tail.read():
            found += piece
    except JournalError as error:
        fail(READERS, f"Tail: {error}", error)
    finally:
        tail.close()
    return found
