"""Reading a journal while it grows: what was committed since the last look, across segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from wireloom.journal.reader import Decoding, Entry, Record, Unreadable, read_blocks
from wireloom.journal.segment import committed_length, is_sealed, segments
from wireloom.model import JournalError
from wireloom.protocols.contract import Settings


class Follower:
    """A place in a journal that moves forward.

        follower = Follower("data/journal")
        for found in follower.read():
            ...

    `read` gives what is there and ends; called again, it goes on. It begins with the oldest segment, or, after
    `to_end`, with what is committed from then on.
    """

    def __init__(self, folder: Path | str, settings: Mapping[str, Settings] | None = None) -> None:
        self.folder = Path(folder)
        self._decoding = Decoding(settings)
        self._segment: Path | None = None
        self._offset = 0

    @property
    def position(self) -> tuple[str, int]:
        """The segment being read and the byte in it; the segment is empty before the first one."""
        return ("" if self._segment is None else self._segment.name, self._offset)

    def read(self) -> Iterator[Entry | Unreadable | Record]:
        """Everything committed since the last call."""
        while self._find_segment():
            assert self._segment is not None
            for block in read_blocks(self._segment, self._offset, committed_length(self._segment)):
                self._offset = block.offset + block.size
                yield from self._decoding.take(block)
            if not self._move_on():
                return

    def to_end(self, keep: int = 0) -> int:
        """Pass over all but about the last `keep` bytes; returns how many were passed over.

        Topic maps on the way are kept in mind, so that what follows is read rightly.
        """
        passed = 0
        while self._find_segment():
            assert self._segment is not None
            length = committed_length(self._segment)
            later = self._behind() - (length - self._offset)
            for block in read_blocks(self._segment, self._offset, length):
                if later + length - block.offset <= keep:
                    return passed
                self._offset = block.offset + block.size
                passed += block.size
                self._decoding.skip(block)
            if not self._move_on():
                return passed
        return passed

    def behind(self) -> int:
        """Committed bytes that were not read yet."""
        return self._behind() if self._find_segment() else 0

    def _behind(self) -> int:
        assert self._segment is not None
        total = committed_length(self._segment) - self._offset
        for segment in segments(self.folder):
            if segment.name > self._segment.name:
                total += committed_length(segment)
        return total

    def _find_segment(self) -> bool:
        """Make sure there is a segment to read; one that retention took away is left for the next that is there."""
        if self._segment is not None and self._segment.exists():
            return True
        passed = "" if self._segment is None else self._segment.name
        try:
            found = [segment for segment in segments(self.folder) if segment.name > passed]
        except JournalError:
            if self.folder.exists():
                raise
            return False
        if found:
            self._begin(found[0])
        return bool(found)

    def _move_on(self) -> bool:
        """Go to the next segment if this one is sealed and read to its end."""
        assert self._segment is not None
        if not is_sealed(self._segment) or self._offset < committed_length(self._segment):
            # Sealed between our look at its length and now: there may be more in it.
            return is_sealed(self._segment)
        later = [segment for segment in segments(self.folder) if segment.name > self._segment.name]
        if later:
            self._begin(later[0])
        return bool(later)

    def _begin(self, segment: Path) -> None:
        self._segment, self._offset = segment, 0
        self._decoding.begin(segment.name)
