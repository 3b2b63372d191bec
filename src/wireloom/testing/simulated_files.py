"""Files and folders in memory, and what a power cut leaves of them: see `simulated_disk`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

SECTOR = 512
NOTHING = bytes(SECTOR)

Version = tuple[int, bytes | None]
"""A version of a sector: the number of the change that made it, and its bytes. None: not part of the file."""


class File:
    """A file. It is never changed in place while another disk shares it: see `SimulatedDisk._own`."""

    __slots__ = (
        "clean",
        "cuts",
        "durable",
        "history",
        "links",
        "now",
        "number",
        "owner",
        "sizes",
        "step",
        "unreadable",
    )

    def __init__(self, number: int, owner: object, durable: bytes = b"") -> None:
        self.number = number
        self.owner = owner
        self.links = 1
        self.durable = durable
        self.now: bytearray | None = None
        """What programs read. None: it is assembled on demand."""
        self.history: dict[int, tuple[Version, ...]] = {}
        """The versions of each sector that is not durable: first what the disk has, then each change."""
        self.clean: frozenset[int] = frozenset()
        """Those sectors that no later sync writes, after a failed sync."""
        self.sizes: tuple[tuple[int, int], ...] = ()
        self.cuts: tuple[tuple[int, int], ...] = ()
        self.step = 0
        self.unreadable: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> int:
        """The size that programs see."""
        return self.sizes[-1][1] if self.sizes else len(self.durable)

    @property
    def content(self) -> bytearray:
        """What programs read."""
        if self.now is None:
            now = bytearray(self.durable)
            resize(now, self.size)
            for sector, versions in self.history.items():
                start = sector * SECTOR
                if start < len(now):
                    now[start : start + SECTOR] = (versions[-1][1] or NOTHING)[: len(now) - start]
            self.now = now
        return self.now

    def clone(self, owner: object) -> File:
        """A copy for another disk."""
        other = File(self.number, owner, self.durable)
        other.links, other.step, other.unreadable = self.links, self.step, self.unreadable
        other.history, other.clean = dict(self.history), self.clean
        other.sizes, other.cuts = self.sizes, self.cuts
        # The copy that will change takes the content. The other assembles its own on demand.
        other.now, self.now = self.now, None
        return other

    def write(self, data: bytes, at: int) -> None:
        """Change bytes. Nothing is durable yet."""
        if not data:
            return
        content = self.content
        end = at + len(data)
        self.step += 1
        if end > len(content):
            resize(content, end)
            self.sizes += ((self.step, end),)
        content[at:end] = data
        self._note(at, end)

    def _note(self, start: int, end: int) -> None:
        content, history = self.content, self.history
        for sector in range(start // SECTOR, -(-end // SECTOR)):
            image = bytes(content[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")
            history[sector] = (*self._versions(sector), (self.step, image))
        if self.clean:
            self.clean -= set(range(start // SECTOR, -(-end // SECTOR)))

    def _versions(self, sector: int) -> tuple[Version, ...]:
        return self.history.get(sector) or ((0, self._durable_sector(sector)),)

    def _durable_sector(self, sector: int) -> bytes | None:
        start = sector * SECTOR
        return self.durable[start : start + SECTOR].ljust(SECTOR, b"\0") if start < len(self.durable) else None

    def truncate(self, length: int) -> None:
        """Truncate or extend the file."""
        content = self.content
        before = len(content)
        if length == before:
            return
        self.step += 1
        resize(content, length)
        self.sizes += ((self.step, length),)
        if length < before:
            self.cuts += ((self.step, length),)
            self._note(length, before)

    def sync(self) -> None:
        """Make the content durable."""
        durable = bytes(self.content)
        if self.clean:
            kept = {sector: self.history[sector] for sector in self.clean if sector * SECTOR < len(durable)}
            changed = bytearray(durable)
            for sector, versions in kept.items():
                start = sector * SECTOR
                changed[start : start + SECTOR] = (versions[0][1] or NOTHING)[: len(durable) - start]
            durable = bytes(changed)
            self.history, self.clean = kept, frozenset(kept)
        else:
            self.history = {}
        self.durable, self.sizes, self.cuts = durable, (), ()

    def fail_sync(self) -> None:
        """A sync failed: its sectors are in doubt from now on. The size is still to be written."""
        self.clean = frozenset(self.history)

    def sync_range(self, start: int, end: int) -> None:
        """Make sectors durable, and a size that includes them."""
        changed = bytearray(self.durable)
        if len(changed) < end:
            resize(changed, end)
        for sector in range(start // SECTOR, -(-end // SECTOR)):
            at = sector * SECTOR
            image = self.history.pop(sector)[-1][1] or NOTHING
            changed[at : at + SECTOR] = image[: len(changed) - at]
        self.durable = bytes(changed)
        self.sizes = tuple((step, max(size, end)) for step, size in self.sizes)
        if self.sizes and all(size == len(changed) for _, size in self.sizes):
            self.sizes = self.cuts = ()

    def after_cut(self, choose: Choices, owner: object) -> File:
        """This file after a power cut."""
        if not self.history and not self.sizes:
            return self
        pick = choose.of_file(self)
        size_step, size = pick.size()
        content = bytearray(self.durable)
        resize(content, size)
        for sector, versions in self.history.items():
            start = sector * SECTOR
            if start >= size:
                continue
            # Blocks after a truncation are free only once the truncation is durable.
            last = min((step for step, length in self.cuts if step > size_step and start >= length), default=None)
            left = versions
            if last is not None:
                left = tuple(each for each in versions if each[0] < last) or versions[:1]
            image = pick.sector(left)
            if image is None:
                image = choose.garbage(sector)
            content[start : start + SECTOR] = image[: size - start]
        result = File(self.number, owner, bytes(content))
        result.unreadable = self.unreadable
        return result


class Folder:
    """A folder: the names that programs see, and those that are durable."""

    __slots__ = ("durable", "names", "number", "owner")

    def __init__(self, number: int, owner: object, names: dict[str, int], durable: dict[str, int]) -> None:
        self.number = number
        self.owner = owner
        self.names = names
        self.durable = durable

    def clone(self, owner: object) -> Folder:
        """A copy for another disk."""
        return Folder(self.number, owner, dict(self.names), dict(self.durable))


class Link:
    """A symbolic link."""

    __slots__ = ("number", "owner", "target")

    def __init__(self, number: int, owner: object, target: Path) -> None:
        self.number = number
        self.owner = owner
        self.target = target

    def clone(self, owner: object) -> Link:
        """A copy for another disk."""
        return Link(self.number, owner, self.target)


Inode = File | Folder | Link


class FileChange(NamedTuple):
    """Names that change together: folder, name, and the new entry (None: removed)."""

    entries: tuple[tuple[int, str, int | None], ...]

    @property
    def names(self) -> set[tuple[int, str]]:
        """The names that change."""
        return {(folder, name) for folder, name, _ in self.entries}


class Pick:
    """What a power cut leaves of one file: the versions up to the change `until`, or random ones if `until` is None."""

    def __init__(
        self, file: File, until: int | None, random: Random | None = None, size_until: int | None = None
    ) -> None:
        self.file = file
        self.until = until
        self.random = random
        self.size_until = until if size_until is None else size_until

    def size(self) -> tuple[int, int]:
        """The number of the change, and the size after it."""
        sizes = ((0, len(self.file.durable)), *self.file.sizes)
        if self.size_until is None:
            assert self.random is not None
            return self.random.choice(sizes)
        return [each for each in sizes if each[0] <= self.size_until][-1]

    def sector(self, versions: tuple[Version, ...]) -> bytes | None:
        """One of the versions of a sector."""
        if self.until is None:
            assert self.random is not None
            return self.random.choice((versions[0], versions[-1], self.random.choice(versions)))[1]
        return next((image for step, image in reversed(versions) if step <= self.until), versions[0][1])


class Choices:
    """What a power cut leaves, chosen at random: each file, and the names, get one of several patterns of loss."""

    def __init__(self, random: Random, old_sector: Callable[[Random, int], bytes]) -> None:
        self.random = random
        self._old_sector = old_sector
        self._garbage = random.choice(("zeros", "zeros", "noise", "old"))

    def of_file(self, file: File) -> Pick:
        """What is left of a file."""
        random, last = self.random, file.step
        match random.choice(("nothing", "all", "prefix", "any", "any", "size only", "data only")):
            case "nothing":
                return Pick(file, 0)
            case "all":
                return Pick(file, last)
            case "prefix":
                return Pick(file, random.randint(0, last))
            case "size only":
                return Pick(file, 0, random, last)
            case "data only":
                return Pick(file, last, random, 0)
            case _:
                return Pick(file, None, random)

    def of_names(self, changes: Sequence[FileChange]) -> list[bool]:
        """Which name changes the disk has, before the order of changes of one name is applied."""
        random, count = self.random, len(changes)
        match random.choice(("nothing", "all", "prefix", "suffix", "any", "any", "all but one", "only one")):
            case "nothing":
                return [False] * count
            case "all":
                return [True] * count
            case "prefix":
                until = random.randint(0, count)
                return [at < until for at in range(count)]
            case "suffix":
                until = random.randint(0, count)
                return [at >= until for at in range(count)]
            case "all but one":
                one = random.randrange(count)
                return [at != one for at in range(count)]
            case "only one":
                one = random.randrange(count)
                return [at == one for at in range(count)]
            case _:
                return [random.random() < 0.5 for _ in changes]

    def garbage(self, sector: int) -> bytes:
        """The content of a sector that belongs to a file by its size and was never written."""
        if self._garbage == "noise":
            return self.random.randbytes(SECTOR)
        if self._garbage == "old":
            return self._old_sector(self.random, sector)
        return NOTHING


class Extreme(Choices):
    """A power cut that leaves all changes, or none."""

    def __init__(self, *, data: bool, names: Callable[[int, int], bool], size: bool | None = None) -> None:
        super().__init__(Random(0), lambda _random, _sector: NOTHING)
        self._garbage = "zeros"
        self._data, self._names, self._size = data, names, data if size is None else size

    def of_file(self, file: File) -> Pick:
        """What is left of a file."""
        return Pick(file, file.step if self._data else 0, None, file.step if self._size else 0)

    def of_names(self, changes: Sequence[FileChange]) -> list[bool]:
        """Which name changes are left."""
        return [self._names(at, len(changes)) for at in range(len(changes))]


def apply(change: FileChange, folders: dict[int, dict[str, int]]) -> None:
    """Apply a change of names."""
    for folder, name, number in change.entries:
        if number is None:
            folders[folder].pop(name, None)
        else:
            folders[folder][name] = number


def resize(content: bytearray, size: int) -> None:
    """Truncate content, or extend it with zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
