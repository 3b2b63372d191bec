"""What an archive promises: each segment once, one writer, and readers who see local and archived segments as one."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from wireloom.journal import Journal, Offset
from wireloom.journal.archive import Archive, Conflict, FencedOff, not_archived
from wireloom.journal.archive_disk import ArchiveDisk, disk_for, remember_archive
from wireloom.journal.archive_format import SegmentId, archived_segments, load_index
from wireloom.journal.archive_keys import decrypt, new_key
from wireloom.journal.archive_pack import pack
from wireloom.journal.disk import LOCAL
from wireloom.journal.identity import Ancestor, JournalIdentity, load_identity
from wireloom.journal.keys import Keys
from wireloom.journal.reader import read_all
from wireloom.journal.retention import ARCHIVE, Keep, prune
from wireloom.journal.runs import read_runs
from wireloom.journal.segment import is_sealed, segments
from wireloom.journal.tail import Tail
from wireloom.journal.verify import verify
from wireloom.model import ConfigError, Direction, JournalError
from wireloom.protocols.hsp import frames
from wireloom.store import ObjectMissing, Store, StoreError, open_store


class Unreliable:
    """A store that fails when it is told to, before or after it has done what it was asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fails: Callable[[str, str, bool], bool] = lambda name, key, done: False

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        if name not in ("put_new", "put", "replace", "get", "get_range", "head", "list"):
            return found

        def call(key: str = "", *args: object) -> object:
            if self.fails(name, key, False):
                raise StoreError(f"{key}: away")
            result = found(key, *args)
            if self.fails(name, key, True):
                raise StoreError(f"{key}: away")
            return result

        return call


def write(folder: Path, count: int = 60, *, size: int = 100, keys: bool = False) -> None:
    """A journal of several segments, with refused bytes."""
    with Journal.open(folder, hub="kitchen", segment_bytes=4000, refused_quota=80_000) as journal:
        connection = journal.new_connection_id()
        secret = Keys("wolpertinger", connection, {"aes_key": "c0ffee"}) if keys else None
        for number in range(count):
            body = frames.encode(frames.Data(7, f"{number} ".encode() + b"x" * size))
            journal.append("hsp", connection, Direction.C2S, number, body, topics={7: "sensors"}, keys=secret)
            if number % 10 == 0:
                journal.refuse("hsp", connection, Direction.C2S, b"nonsense" * 500, clause="x.y", detail="d")
            journal.commit()


def opened(folder: Path, store: Store) -> Archive:
    identity = load_identity(folder)
    assert identity is not None
    return Archive(store, identity)


def archive_all(folder: Path, store: Store) -> Archive:
    archive = opened(folder, store)
    own = archive.claim()
    archive.refresh()
    for each in (folder, folder / "refused"):
        for path in not_archived(archive, segments(each)):
            archive.upload(path, own)
    return archive


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "archive")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "journal")
    return tmp_path / "journal"


def everything(folder: Path, disk: object = LOCAL) -> list[object]:
    return list(read_all(folder, disk=disk))  # type: ignore[arg-type]


def test_every_segment_is_archived_once_and_is_the_segment(folder: Path, store: Store) -> None:
    archive = archive_all(folder, store)
    local = [*segments(folder), *segments(folder / "refused")]
    assert len(local) > 5
    assert len(list(archived_segments(store))) == len(local)
    for path in local:
        segment = SegmentId.of_file("kitchen", path)
        assert segment is not None
        assert archive.open(segment).read(0, 1 << 30) == path.read_bytes()
        archive.verify(path)
    before = {info.key: info.etag for info in store.list() if "claim" not in info.key}
    archive_all(folder, store)
    assert {info.key: info.etag for info in store.list() if "claim" not in info.key} == before


def test_an_upload_that_ended_anywhere_is_made_again(folder: Path, store: Store) -> None:
    unreliable = Unreliable(store)
    choose = random.Random(3)
    unreliable.fails = lambda name, key, done: choose.random() < 0.15
    for _ in range(1000):
        try:
            archive_all(folder, unreliable)  # type: ignore[arg-type]
        except StoreError:
            continue
        break
    else:
        raise AssertionError("never done")
    unreliable.fails = lambda name, key, done: False
    local = [*segments(folder), *segments(folder / "refused")]
    keys = [info.key for info in store.list("kitchen") if "claim" not in info.key]
    assert len(keys) == 2 * len(local)
    archive = opened(folder, store)
    for path in local:
        archive.verify(path)


def test_other_bytes_under_the_same_name_are_a_conflict(folder: Path, store: Store, tmp_path: Path) -> None:
    path = segments(folder)[0]
    segment = SegmentId.of_file("kitchen", path)
    assert segment is not None
    write(tmp_path / "other", 30, size=150)
    other = segments(tmp_path / "other")[0]
    packed = pack(segment._replace(epoch=other.stem[21:]), other.read_bytes())
    for with_index in (False, True):
        store.put_new(segment.object_key, packed.stored)
        if with_index:
            store.put_new(segment.index_key, replace(packed.index, epoch=segment.epoch).encode())
        archive = opened(folder, store)
        with pytest.raises(Conflict, match=r"pcapng\.zst"):
            archive.upload(path, archive.claim())
        assert not archive.has(segment)
    with pytest.raises(Conflict):
        archive.verify(path)


def test_what_is_stored_half_is_a_conflict_and_no_index_is_made(folder: Path, store: Store) -> None:
    path = segments(folder)[0]
    segment = SegmentId.of_file("kitchen", path)
    assert segment is not None
    store.put_new(segment.object_key, pack(segment, path.read_bytes()).stored[:-7])
    archive = opened(folder, store)
    with pytest.raises(Conflict):
        archive.upload(path, archive.claim())
    with pytest.raises(ObjectMissing):
        load_index(store, segment)


def test_of_two_machines_with_one_hub_id_the_later_one_writes(folder: Path, store: Store) -> None:
    first, second = opened(folder, store), opened(folder, store)
    one, two = first.claim(), second.claim()
    assert (one.generation, two.generation) == (1, 2)
    with pytest.raises(FencedOff, match="generation 2"):
        first.upload(segments(folder)[0], one)
    assert list(archived_segments(store)) == []
    assert second.upload(segments(folder)[0], two).generation == 2


def test_claims_at_the_same_time_are_counted_one_after_the_other(folder: Path, store: Store) -> None:
    claims: list[int] = []
    threads = [
        threading.Thread(target=lambda: claims.append(opened(folder, store).claim().generation)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claims) == list(range(1, 9))


def test_nothing_goes_from_the_disk_that_the_archive_does_not_have(folder: Path, store: Store) -> None:
    archive = opened(folder, store)
    own = archive.claim()
    found = segments(folder)
    for path in found[:3]:
        archive.upload(path, own)

    def is_archived(path: Path) -> bool:
        try:
            archive.verify(path)
        except (StoreError, JournalError):
            return False
        return True

    gone = prune(folder, Keep(size=1, is_archived=is_archived), 0)
    assert [each.path for each in gone if each.kept_for is None] == found[:3]
    assert {each.kept_for for each in gone[3:]} == {ARCHIVE}
    assert segments(folder) == found[3:]


def test_an_archive_that_lost_its_object_lets_nothing_go(folder: Path, store: Store) -> None:
    archive = archive_all(folder, store)
    path = segments(folder)[0]
    segment = SegmentId.of_file("kitchen", path)
    assert segment is not None
    store.delete(segment.object_key)
    with pytest.raises((StoreError, JournalError)):
        archive.verify(path)


@pytest.mark.parametrize("gone", [0, 3, 100])
def test_readers_see_local_and_archived_segments_as_one(folder: Path, store: Store, gone: int) -> None:
    expected, faults = everything(folder), list(verify(folder))
    archive_all(folder, store)
    for path in [*segments(folder), *segments(folder / "refused")][:gone]:
        path.unlink()
    disk = ArchiveDisk(folder, opened(folder, store))
    assert everything(folder, disk) == expected
    assert list(verify(folder, disk=disk)) == faults == []
    refused = everything(folder / "refused", disk)
    assert len(refused) == 6
    places = [each.place for each in expected if hasattr(each, "place")]
    choose = random.Random(gone)
    for place in choose.sample(places, 10):
        tail = Tail(folder, place, disk=disk)
        found = [each.place for each in _all(tail) if hasattr(each, "place")]
        assert found == [each for each in places if each > place]
        assert tail.missed == 0
    times = [each.message.time for each in expected if hasattr(each, "message")]
    for since in choose.sample(times, 10):
        found = [each.message.time for each in _all(Tail(folder, since, disk=disk)) if hasattr(each, "message")]
        assert found == [each for each in times if each >= since]
    wanted = [place.packet_id for place in choose.sample(places, 8)]
    assert dict(read_runs(folder, wanted, disk=disk)).keys() == set(wanted)


def _all(tail: Tail) -> list[object]:
    found: list[object] = []
    while piece := tail.read(500):
        found += piece
    return found


def test_a_reader_goes_on_across_segments_that_go_while_it_reads(folder: Path, store: Store) -> None:
    expected = everything(folder)
    archive = archive_all(folder, store)
    disk = ArchiveDisk(folder, archive)
    tail = Tail(folder, disk=disk)
    found: list[object] = []
    choose = random.Random(9)
    while piece := tail.read(300):
        found += piece
        local = segments(folder)
        if len(local) > 1 and choose.random() < 0.5:
            local[0].unlink()
    assert found == expected
    assert tail.missed == 0


def test_an_archive_that_is_away_is_an_error_for_the_past_only(folder: Path, store: Store) -> None:
    archive_all(folder, store)
    found = segments(folder)
    for path in found[:3]:
        path.unlink()
    last = everything(found[-1])
    unreliable = Unreliable(store)
    unreliable.fails = lambda name, key, done: True
    disk = ArchiveDisk(folder, opened(folder, unreliable))  # type: ignore[arg-type]
    with pytest.raises(JournalError, match="the archive is away"):
        Tail(folder, 0, disk=disk).read()
    assert Tail(folder, Offset(int(found[-1].name[:20]) - 1, 1 << 20), disk=disk).read(1 << 20) == last
    # Once the archive was listed, it is known which segments it has.
    unreliable.fails = lambda name, key, done: False
    disk = ArchiveDisk(folder, opened(folder, unreliable))  # type: ignore[arg-type]
    assert Tail(folder, 0, disk=disk).read()
    unreliable.fails = lambda name, key, done: name == "get_range"
    with pytest.raises(JournalError, match="cannot be read from the archive"):
        Tail(folder, 0, disk=ArchiveDisk(folder, _listed(folder, unreliable))).read()


def _listed(folder: Path, unreliable: Unreliable) -> Archive:
    archive = opened(folder, unreliable)  # type: ignore[arg-type]
    archive.refresh()
    return archive


def test_a_fork_of_an_ancestor_is_not_read(folder: Path, store: Store) -> None:
    archive_all(folder, store)
    found = segments(folder)
    identity = load_identity(folder)
    assert identity is not None
    end = int(found[2].name[:20]) - 1
    chain = JournalIdentity("kitchen", "f" * 16, ancestors=(Ancestor(identity.epoch, end),))
    archive = Archive(store, chain)
    archive.refresh()
    assert archive.names() == [path.name for path in found[:2]]


def test_a_folder_tells_readers_where_its_archive_is(folder: Path, store: Store) -> None:
    expected = everything(folder)
    archive_all(folder, store)
    assert disk_for(folder) is LOCAL
    remember_archive(folder, store.url)
    for path in segments(folder)[:3]:
        path.unlink()
    assert everything(folder, disk_for(folder)) == expected


def test_a_quiet_segment_ends_when_it_is_time_and_only_if_it_holds_something(tmp_path: Path) -> None:
    now = [10**18]
    with Journal.open(tmp_path, hub="kitchen", now_ns=lambda: now[0]) as journal:
        assert not journal.end_older(60)
        journal.append("hsp", 1, Direction.C2S, 0, b"\x03")
        journal.commit()
        assert not journal.end_older(60)
        now[0] += 61 * 10**9
        assert journal.end_older(60)
        journal.commit()
        first, second = segments(tmp_path)
        assert is_sealed(first) and not is_sealed(second)
        for _ in range(5):
            now[0] += 61 * 10**9
            assert not journal.end_older(60)
        journal.refuse("hsp", 1, Direction.C2S, b"nonsense", clause="x.y", detail="d")
        journal.refuse("hsp", 1, Direction.C2S, b"nonsense", clause="x.y", detail="d")
        journal.commit()
        now[0] += 61 * 10**9
        assert journal.end_older(60)
        journal.commit()
        refused = segments(tmp_path / "refused")
        assert [is_sealed(path) for path in refused] == [True, False]
    assert list(verify(tmp_path)) == []


def test_keys_are_left_out_or_encrypted_for_a_recipient(tmp_path: Path, store: Store) -> None:
    write(tmp_path / "journal", 5, keys=True)
    secret, recipient = new_key()
    archive = opened(tmp_path / "journal", store)
    own = archive.claim()
    path = segments(tmp_path / "journal")[0]
    index = archive.upload(path, own)
    assert index.withheld == 1
    with pytest.raises(ObjectMissing):
        store.get(index.segment.keys_key)
    store.delete(index.segment.index_key)
    archive.upload(path, own, recipient=recipient)
    stored = store.get(index.segment.keys_key)
    ((at, block),) = decrypt(stored, secret, "x")
    assert path.read_bytes()[at : at + len(block)] == block
    assert b"c0ffee" in block
    assert all(b"c0ffee" not in store.get(info.key) for info in store.list())
    with pytest.raises(JournalError, match="another recipient"):
        decrypt(stored, new_key()[0], "x")
    with pytest.raises(JournalError, match="damaged"):
        decrypt(stored[:-20], secret, "x")
    for wrong in ("", "nonsense", secret, recipient[:-4]):
        with pytest.raises(ConfigError):
            archive.upload(path, own, recipient=wrong or "x")
