"""Index of the run in the journal that contains the last value of each topic: bounded in memory, and saved to a file.

With the file, a restarted hub need not read the whole journal. Each line is a JSON object with a checksum (see
`journal/state.py`). `topics` maps topics to the packet id of the run with their last value. `upto` means that the file
is complete up to this packet id. Newer lines follow older ones. The first line that is damaged or incomplete ends the
file. Saving appends changes. Once the appended part is larger than the rest, the file is rewritten.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from wireloom.journal.disk import CHANGE, LOCAL, READ, Disk, read_range, replace_file_by_parts, write_all
from wireloom.journal.state import StateDamaged, decode_state, encode_state
from wireloom.model import type_of_json

FILE = "last-values.jsonl"
_OVERHEAD = 400
"""Bytes of memory for a topic beside its text."""
_PER_LINE = 256
"""Topics in one line. Other threads can run between two lines."""
_GROWTH = 1024 * 1024
"""Minimum bytes to append before the file is rewritten."""


def memory_of(topic: str) -> int:
    """Bytes of memory for a topic in this index."""
    return sys.getsizeof(topic) + _OVERHEAD


class LatestTickets:
    """The ticket of the last value of each topic. If memory is short, the topics that were silent longest are
    forgotten.

    >>> latest = LatestTickets(3 * memory_of("a"))
    >>> for ticket, topic in enumerate("abcad"):
    ...     latest.note(topic, ticket)
    >>> dict(latest.tickets), latest.forgotten
    ({'c': 2, 'a': 3, 'd': 4}, 1)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """Maximum bytes of memory."""
        self.tickets: OrderedDict[str, int] = OrderedDict()
        """Tickets by topic. The topic that was published last is at the end."""
        self.memory = 0
        self.forgotten = 0
        """How many topics were forgotten."""
        self.unsaved: dict[str, int] = {}
        """What has changed since `take_unsaved`."""

    def note(self, topic: str, ticket: int) -> None:
        """Record a publish to a topic."""
        tickets = self.tickets
        if topic in tickets:
            tickets.move_to_end(topic)
        else:
            self.memory += memory_of(topic)
        tickets[topic] = self.unsaved[topic] = ticket
        while self.memory > self.most:
            gone, _ = tickets.popitem(last=False)
            self.unsaved.pop(gone, None)
            self.memory -= memory_of(gone)
            self.forgotten += 1

    def note_older(self, topic: str, ticket: int) -> bool:
        """Record a publish that is older than all known ones. Returns False if memory is full."""
        if topic not in self.tickets:
            if self.memory + memory_of(topic) > self.most:
                return False
            self.tickets[topic] = ticket
            self.tickets.move_to_end(topic, last=False)
            self.memory += memory_of(topic)
        return True

    def take_unsaved(self) -> dict[str, int]:
        """What has changed since this was last called."""
        unsaved, self.unsaved = self.unsaved, {}
        return unsaved

    def put_back(self, unsaved: Mapping[str, int]) -> None:
        """Add changes again that could not be saved."""
        for topic, ticket in unsaved.items():
            if self.tickets.get(topic) == ticket:
                self.unsaved[topic] = ticket


class LatestFile:
    """The file. Only one thread may use it at a time."""

    def __init__(self, path: Path, epoch: str, disk: Disk = LOCAL) -> None:
        self._path, self._epoch, self._disk = path, epoch, disk
        self._whole = 0
        """Size of the file when it was last rewritten; 0 if this process has not rewritten it."""
        self._end = 0

    @property
    def is_long(self) -> bool:
        """Whether to rewrite the file: much of it is outdated, or another process wrote it."""
        return not self._whole or self._end - self._whole > max(self._whole, _GROWTH)

    def append(self, topics: Iterable[tuple[str, int]], upto: int) -> None:
        """Append changes."""
        file = self._disk.open(self._path, CHANGE)
        try:
            end = self._end
            for line in self._lines(topics, upto):
                write_all(self._disk, file, [line], end)
                end += len(line)
            self._disk.sync(file)
            self._end = end
        except OSError:
            self._whole = 0
            raise
        finally:
            self._disk.close(file)

    def rewrite(self, topics: Iterable[tuple[str, int]], upto: int) -> None:
        """Write the whole file."""
        self._whole = self._end = replace_file_by_parts(self._path, self._lines(topics, upto), self._disk)

    def _lines(self, topics: Iterable[tuple[str, int]], upto: int) -> Iterator[bytes]:
        each = iter(topics)
        while some := list(islice(each, _PER_LINE)):
            part: dict[str, type_of_json] = dict(some)
            yield encode_state({"topics": part})
        yield encode_state({"upto": upto, "epoch": self._epoch})

    def load(self, on_damage: Callable[[StateDamaged], None]) -> tuple[int, dict[str, int]]:
        """Load the file up to the first damaged line.

        Returns the packet id up to which it is complete, and the topics.
        """
        upto, found = 0, dict[str, int]()
        try:
            for line in self._complete_lines():
                match decode_state(line, self._path):
                    case {"topics": dict(topics)}:
                        found |= {topic: number for topic, number in topics.items() if isinstance(number, int)}
                    case {"upto": int(said)}:
                        upto = said
                    case _:
                        raise StateDamaged(f"{self._path}: is damaged: it says nothing about topics")
        except StateDamaged as error:
            on_damage(error)
        return upto, found

    def _complete_lines(self) -> Iterator[bytes]:
        with contextlib.suppress(FileNotFoundError):
            file = self._disk.open(self._path, READ)
            try:
                rest, at = b"", 0
                while piece := read_range(self._disk, file, at, at + _GROWTH):
                    at += len(piece)
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from lines
            except OSError as error:
                raise StateDamaged(f"{self._path}: cannot be read: {error.strerror}") from None
            finally:
                self._disk.close(file)
