"""The identity of a journal: its hub, its epoch, and the packet ids that are in use.

The triple (hub, epoch, packet id) names one block for ever: it is never used for other bytes. The hub's id and the
epoch are stored in the file `journal.json` and in the head of every segment.

**Epochs.** An epoch is one unbroken history of packet ids. It is drawn at random when a folder becomes a journal. A new
epoch begins where the history may have gone on elsewhere: the folder was copied (its inode is another one), or
`journal.json` is damaged or gone. The new epoch remembers those before it and where each ended. Packet ids go on, so an
offset of an earlier epoch stays valid up to its end.

**Reserved ids.** A process assigns packet ids in memory before their blocks are on disk, and may be killed in between.
So it reserves them first. No packet id from `reserved` on was ever used. Before a block with such an id is written,
`reserved` is raised durably, in steps of `STEP`. After a kill, ids continue at `reserved`, which leaves a gap. A clean
stop sets `reserved` to the next id, so there is no gap then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.segment import OpenSegment, segments
from wireloom.journal.state import StateDamaged, load_state, save_state
from wireloom.model import ConfigError, JournalError, type_of_json

FILE = "journal.json"
STEP = 1 << 20
"""Packet ids that are reserved at a time."""
FORMAT_1 = "0" * 16
"""The epoch of blocks that were written before there were epochs."""
MOST_ANCESTORS = 1000

RandomBits = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An epoch that ended: offsets of it are valid up to `end`, its last packet id."""

    epoch: str
    end: int


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """What `journal.json` says."""

    hub: str
    epoch: str
    generation: int = 0
    """Which start of this hub, where several machines may run one hub id."""
    ancestors: tuple[Ancestor, ...] = ()
    """The epochs before, the latest first."""
    reserved: int = 1
    """No packet id from here on was ever taken."""
    refused_reserved: int = 1
    """The same for refused bytes, which have ids of their own."""
    folder: int = 0
    """The inode of the folder: a copy has another."""

    def end_of(self, epoch: str) -> int | None:
        """The last packet id that is valid of an epoch; None if that is the present one.

        Raises ConfigError for an epoch that this journal does not come from.
        """
        if epoch == self.epoch:
            return None
        for ancestor in self.ancestors:
            if ancestor.epoch == epoch:
                return ancestor.end
        raise ConfigError(
            f"epoch {epoch} is none of this journal: it is that of another hub, or of a copy that went on by itself"
        )


NO_EPOCHS = JournalIdentity("", FORMAT_1)
"""That of a journal of format 1."""


@dataclass(frozen=True, slots=True)
class LastIds:
    """The last packet ids on disk, of frames and of refused bytes; 0 where there are none."""

    frames: int
    refused: int


class IdentityFile:
    """`journal.json` of the one process that writes the journal."""

    def __init__(self, folder: Path, identity: JournalIdentity, disk: Disk) -> None:
        """Use `claim`."""
        self.identity = identity
        self.path = folder / FILE
        self._disk = disk

    def reserve(self, upto: int) -> int:
        """Make sure, durably, that ids below `upto` may be taken; returns the new limit."""
        if upto > self.identity.reserved:
            self._save(replace(self.identity, reserved=upto + STEP))
        return self.identity.reserved

    def reserve_refused(self, upto: int) -> int:
        """The same for refused bytes."""
        if upto > self.identity.refused_reserved:
            self._save(replace(self.identity, refused_reserved=upto + STEP))
        return self.identity.refused_reserved

    def release(self, following: int, refused_following: int) -> None:
        """At a clean stop: these ids come next, nothing was taken after them."""
        self._save(replace(self.identity, reserved=following, refused_reserved=refused_following))

    def _save(self, identity: JournalIdentity) -> None:
        ancestors: list[type_of_json] = [{"end": each.end, "epoch": each.epoch} for each in identity.ancestors]
        value: dict[str, type_of_json] = {
            "ancestors": ancestors,
            "epoch": identity.epoch,
            "folder": identity.folder,
            "generation": identity.generation,
            "hub": identity.hub,
            "refused_reserved": identity.refused_reserved,
            "reserved": identity.reserved,
        }
        save_state(self.path, value, self._disk)
        self.identity = identity


def claim(
    folder: Path, last: LastIds, random_bits: RandomBits, hub: str | None = None, disk: Disk = LOCAL
) -> tuple[IdentityFile, str]:
    """The identity of a recovered journal, saved, with ids reserved from the next one on.

    Returns what was wrong with it, too, or nothing: then a new epoch has begun. `hub` is the id that the configuration
    gives the hub; a journal of another hub is refused.
    """
    inode = disk.look(folder.resolve() if disk is LOCAL else folder).inode
    try:
        known = load_identity(folder, disk)
        why = "" if known is None or known.folder == inode else "the folder is a copy"
    except StateDamaged as damage:
        known, why = None, str(damage)
    if known is None:
        known = _from_segments(folder, disk)
        if known is not None and known.epoch != FORMAT_1 and not why:
            why = f"{folder / FILE} is gone"
    if known is not None and hub is not None and known.hub not in ("", hub):
        raise ConfigError(
            f"{folder} holds the journal of hub {known.hub!r}, and the configuration says {hub!r}: "
            "name its own folder for each hub, or give the hub its id back"
        )
    epoch = f"{random_bits(64) | 1:016x}"
    name = hub or (known.hub if known is not None else "") or f"{random_bits(64):016x}"
    if known is None:
        identity = JournalIdentity(name, epoch)
    elif why or known.epoch == FORMAT_1:
        ended = (Ancestor(known.epoch, last.frames), *known.ancestors)[:MOST_ANCESTORS]
        identity = replace(known, hub=name, epoch=epoch, ancestors=ended)
    else:
        identity = replace(known, hub=name)
    following, refused = max(identity.reserved, last.frames + 1), max(identity.refused_reserved, last.refused + 1)
    file = IdentityFile(folder, replace(identity, folder=inode, reserved=following, refused_reserved=refused), disk)
    return file, why


def load_identity(folder: Path, disk: Disk = LOCAL) -> JournalIdentity | None:
    """What `journal.json` says; None if there is none. Raises StateDamaged."""
    value = load_state(folder / FILE, disk)
    if value is None:
        return None
    try:
        found = cast("list[dict[str, type_of_json]]", value["ancestors"])
        return JournalIdentity(
            str(value["hub"]),
            str(value["epoch"]),
            int(cast(int, value["generation"])),
            tuple(Ancestor(str(each["epoch"]), int(cast(int, each["end"]))) for each in found),
            int(cast(int, value["reserved"])),
            int(cast(int, value["refused_reserved"])),
            int(cast(int, value["folder"])),
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        raise StateDamaged(f"{folder / FILE}: is damaged: something is missing in it") from None


def _from_segments(folder: Path, disk: Disk) -> JournalIdentity | None:
    """What the newest readable segment says of the journal; None where there is no segment."""
    found = segments(folder, disk)
    for path in reversed(found):
        try:
            with OpenSegment(path, disk) as opened:
                head = opened.head()
        except (OSError, JournalError):
            continue
        return JournalIdentity(head.hub, head.epoch or FORMAT_1, head.generation)
    return NO_EPOCHS if found else None
