"""A journal folder made of an archive: after a machine was lost, or to look at the past elsewhere.

The folder is made beside its place and renamed when it is complete. Its `journal.json` names the archived epoch, and no
folder's inode: so the hub that opens it begins a new epoch of the chain, as for any other copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wireloom.journal.archive import Archive, load_claim
from wireloom.journal.archive_disk import remember_archive
from wireloom.journal.archive_format import ArchiveDamaged, SegmentId
from wireloom.journal.archive_keys import Secrets, decrypt
from wireloom.journal.disk import CREATE, LOCAL, Disk, make_folders, write_all
from wireloom.journal.identity import IdentityFile, JournalIdentity
from wireloom.journal.segment import REFUSED
from wireloom.model import ConfigError
from wireloom.store import ObjectMissing, Store, open_store


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored."""

    identity: JournalIdentity
    segments: int
    size: int
    last: int
    """The last packet id."""
    to_ns: int
    """The latest time."""
    without_keys: int
    """Blocks of keys that the archive does not have, or that could not be opened."""


def find_archive(url: str, hub: str = "") -> Archive:
    """The archive of a hub under a URL: that of the archive, or that of the hub's own folder in it.

    Without `hub` there must be one only. ConfigError names those there are.
    """
    store = open_store(url)
    found = list(_hubs(store))
    if not hub and not found:
        above, _, name = store.url.rpartition("/")
        if above and not above.endswith("/") and name in _hubs(open_store(above)):
            store, found = open_store(above), [name]
    if hub and hub not in found:
        raise ConfigError(f"{store.url}: no archive of hub {hub!r}; there are: {', '.join(found) or 'none'}")
    if not hub and len(found) != 1:
        what = f"archives of several hubs: name one of {', '.join(found)}" if found else "no archive of a hub here"
        raise ConfigError(f"{store.url}: {what}")
    claim = load_claim(store, hub or found[0])
    return Archive(store, JournalIdentity(claim.hub, claim.epoch, claim.generation, claim.ancestors))


def _hubs(store: Store) -> Iterator[str]:
    for name in store.folders():
        try:
            store.head(f"{name}/claim.json")
        except ObjectMissing:
            continue
        yield name


def restore(
    archive: Archive,
    folder: Path,
    *,
    newest: int | None = None,
    secret_key: str = "",
    tell: Callable[[SegmentId], None] | None = None,
    disk: Disk = LOCAL,
) -> Restored:
    """Make a journal folder of an archive; `newest` segments only, if given: older ones are read from the archive.

    ConfigError if the folder is there already.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: is there already; name another place, or remove it")
    archive.refresh()
    names = archive.names()
    if not names:
        raise ConfigError(f"{archive.store.url}: hub {archive.identity.hub!r} has no segment in the archive")
    made = folder.with_name(f"{folder.name}.restoring")
    if made.exists():
        raise ConfigError(f"{made}: is left of a restore that did not end; remove it")
    make_folders(disk, made / REFUSED)
    count = size = without = to_ns = 0
    for name, refused in (
        *((name, False) for name in names[-newest if newest else 0 :]),
        *((name, True) for name in archive.names(refused=True)),
    ):
        segment = archive.find(name, refused=refused)
        assert segment is not None
        index = archive.index(segment)
        data = archive.open(segment).read(0, index.length)
        if hashlib.sha256(data).hexdigest() != index.sha256:
            raise ArchiveDamaged(f"{archive.store.url}/{segment.object_key}: is not what its index says")
        secrets = _secrets(archive.store, segment, secret_key) if index.withheld else ()
        without += index.withheld - len(secrets)
        _write(made / REFUSED / name if refused else made / name, _with_keys(data, secrets), disk)
        count, size, to_ns = count + 1, size + len(data), max(to_ns, 0 if refused else index.to_ns)
        if tell is not None:
            tell(segment)
    ends = [_last(archive, names[-1:], refused=False), _last(archive, archive.names(refused=True)[-1:], refused=True)]
    identity = archive.identity
    IdentityFile(made, identity, disk).release(ends[0] + 1, ends[1] + 1)
    remember_archive(made, archive.store.url)
    for each in (made / REFUSED, made):
        disk.sync_folder(each)
    disk.rename(made, folder)
    disk.sync_folder(folder.parent)
    return Restored(identity, count, size, ends[0], to_ns, without)


def _last(archive: Archive, names: list[str], *, refused: bool) -> int:
    for name in names:
        segment = archive.find(name, refused=refused)
        assert segment is not None
        return archive.index(segment).last
    return 0


def _secrets(store: Store, segment: SegmentId, secret_key: str) -> Secrets:
    if not secret_key:
        return ()
    try:
        return decrypt(store.get(segment.keys_key), secret_key, f"{store.url}/{segment.keys_key}")
    except ObjectMissing:
        return ()


def _with_keys(data: bytes, secrets: Secrets) -> bytes:
    changed = bytearray(data)
    for at, block in secrets:
        changed[at : at + len(block)] = block
    return bytes(changed) if secrets else data


def _write(path: Path, data: bytes, disk: Disk) -> None:
    file = disk.open(path, CREATE)
    try:
        write_all(disk, file, [data], 0)
        disk.sync(file)
    finally:
        disk.close(file)
