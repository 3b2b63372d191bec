"""Planning of captures: which inputs are captures, which are new, and how tasks share them. Imports no Spark.

The offset of a capture is its size when it was read: {"capture": size}, by its path. Connections continue from one
capture to the next. So tasks save unfinished connections in files, which are named after the offsets they belong to.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.segment import LOCK, is_segment
from wireloom.model import ConfigError, JournalError
from wireloom.pipeline.captures.storage import changed_at, first_time_ns, has_capture_name, is_far, list_captures
from wireloom.store import ObjectMissing, Store, open_store

CAPTURE = "capture"
LATENESS_S = 3
"""A stream does not read a capture that was changed within this many seconds: it may still be written, or an earlier
capture may still come."""
MOST_GROUPS = 16
_LEAST_BYTES = 1 << 20
"""A group of flows for fewer bytes is not worth a task."""
_HEAD = 1 << 12
_GROUPS = "groups.json"

RIGHT = (
    "the folder of a journal, an archive of journals, a capture (pcap or pcapng, plain, gzip or zstd), a folder of "
    "captures, or a pattern such as 'captures/*.pcapng'"
)
"""What an input may be, for messages about wrong ones."""
Positions = Mapping[str, Mapping[str, str | int]]


def is_journal(given: str) -> bool:
    """Whether an input is a journal, or a segment of one, and not captures."""
    path = Path(given)
    if is_far(given) or not path.exists():
        return False
    if path.is_dir():
        found = list(path.iterdir())
        return any(each.name == LOCK or is_segment(each) for each in found)
    try:
        with path.open("rb") as file:
            blocks.check_head(file.read(_HEAD))
    except blocks.BlockFault:
        return False
    return True


_EPOCH = re.compile(r"[0-9a-f]{16}")


def may_be_archive(given: str) -> bool:
    """Whether segments of an archive may be in an input: in a bucket, or in a folder of hubs' folders of epochs."""
    if any(letter in given for letter in "*?[") or has_capture_name(given):
        return False
    if is_far(given):
        return True
    store = open_store(given)
    return any(_EPOCH.fullmatch(epoch) for hub in store.folders() for epoch in store.folders(hub))


def check_capture_input(given: str) -> str:
    """An input that is no journal, made absolute and sure to name captures; an empty folder may get some."""
    if is_far(given):
        list_captures(given)
        return given.rstrip("/")
    path = Path(given)
    if not (path.exists() or any(letter in given for letter in "*?[")):
        raise JournalError(f"{given} does not exist; name {RIGHT}")
    found = list_captures(given)
    empty = path.is_dir() and not any(path.iterdir())
    if not found and not empty and not (path.is_dir() and may_be_archive(given)):
        raise ConfigError(f"{given}: no journal and no captures here; name {RIGHT}")
    return str(Path(given).absolute())


def positions(inputs: Sequence[str]) -> dict[str, dict[str, str | int]]:
    """All captures that the inputs name now."""
    return {path: {CAPTURE: size} for given in inputs for path, size in list_captures(given).items()}


def settled(start: Positions, target: Positions, lateness_s: float) -> dict[str, dict[str, str | int]]:
    """The target without new captures that must wait: those that came, or were written to, less than `lateness_s` ago,
    and those that are later than one of these. A capture that has waited twice as long waits no more.
    """  # fmt: skip
    now, before = time.time(), of_captures(start)
    # An empty capture counts as new.
    new = [path for path, size in of_captures(target).items() if not size or size != before.get(path, 0)]
    age = {path: now - changed_at(path) for path in new}
    waiting = {path for path in age if age[path] < lateness_s}
    if waiting and len(waiting) < len(age):
        earliest = min(map(first_time_ns, waiting))
        waiting |= {path for path in age if age[path] < 2 * lateness_s and first_time_ns(path) > earliest}
    found = {path: start.get(path) if path in waiting else position for path, position in target.items()}
    return {path: dict(position) for path, position in found.items() if position is not None}


def of_captures(offsets: Positions) -> dict[str, int]:
    """The sizes of captures among positions."""
    return {path: int(position[CAPTURE]) for path, position in offsets.items() if CAPTURE in position}


def advance(start: Positions, target: Positions, most: int | None) -> dict[str, dict[str, str | int]]:
    """Positions with whole captures added in order of their packets' times: so many bytes, or at least one capture.

    The order of names may differ from that of times. Captures are opened for their times only if one batch cannot take
    all of them.
    """
    new = new_captures(start, target)
    taken = sum(size - known for _, known, size in new)
    if most is not None and taken > most:
        in_time = sorted(new, key=lambda each: (first_time_ns(each[0]), each[0]))
        sizes = list(itertools.accumulate(size - known for _, known, size in in_time))
        new = [each for each, so_far in zip(in_time, sizes, strict=True) if so_far <= most] or in_time[:1]
    return {path: {CAPTURE: size} for path, size in {**of_captures(start), **{p: s for p, _, s in new}}.items()}


def new_captures(start: Positions, end: Positions) -> list[tuple[str, int, int]]:
    """The captures between two positions: path, how much of it is known, how much there is."""
    before = of_captures(start)
    return [
        (path, before.get(path, 0), size)
        for path, size in sorted(of_captures(end).items())
        if size != before.get(path, 0)
    ]


def choose_groups(asked: int | None, total: int) -> int:
    """In how many groups flows are read: each group is a task that looks at all packets and keeps its own."""
    return asked or max(min(os.cpu_count() or 1, MOST_GROUPS, total // _LEAST_BYTES + 1), 1)


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Where unfinished connections are kept between the batches of a stream."""

    folder: str

    @property
    def _store(self) -> Store:
        return open_store(self.folder)

    def groups(self, asked: int | None) -> int:
        """The number of groups. The first batch decides it for all, because state is saved per group."""
        store = self._store
        try:
            said = store.get(_GROUPS)
        except ObjectMissing:
            chosen = choose_groups(asked, 1 << 62)
            if store.put_new(_GROUPS, json.dumps({"groups": chosen}).encode()):
                return chosen
            said = store.get(_GROUPS)
        known = int(json.loads(said)["groups"])
        if asked not in (None, known):
            raise ConfigError(
                f"option 'flowGroups' is {asked}, but this stream began with {known}: leave it at {known}"
            )
        return known

    def file(self, offsets: Positions, group: int) -> str | None:
        """The file of one group at a position; None where nothing was read yet."""
        known = of_captures(offsets)
        return f"{self.folder}/{_digest(known)}-{group}" if known else None

    def tidy(self, *kept: Positions) -> None:
        """Delete the saved state of all offsets except these."""
        known = tuple(_digest(of_captures(offsets)) for offsets in kept)
        store = self._store
        for each in list(store.list()):
            if "-" in each.key and not each.key.startswith(known):
                store.delete(each.key)


def _digest(known: Mapping[str, int]) -> str:
    return hashlib.blake2b(json.dumps(sorted(known.items())).encode(), digest_size=16).hexdigest()


def load_state(path: str) -> bytes:
    """Load the state that a task saved for the next batch."""
    folder, _, name = path.rpartition("/")
    try:
        return open_store(folder).get(name)
    except ObjectMissing:
        raise ConfigError(f"{path}: the connections of earlier captures are gone: read anew") from None


def save_state(path: str, frozen: bytes) -> None:
    """Save state for the next batch, atomically and durably."""
    folder, _, name = path.rpartition("/")
    open_store(folder).put(name, frozen)
