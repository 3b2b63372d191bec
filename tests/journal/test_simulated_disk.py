"""The simulated disk: like the real one until something goes wrong, and every kind of loss when it does."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wireloom.journal.disk import CHANGE, CREATE, READ, WRITE_SYNCED, Disk, LocalDisk, make_folders
from wireloom.journal.state import load_state, save_state
from wireloom.testing.simulated_disk import SECTOR, SimulatedDisk
from wireloom.testing.simulated_files import Extreme

ROOT = Path("/data")
A, B = ROOT / "a", ROOT / "b"


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    make_folders(disk, ROOT)
    return disk


def states(disk: SimulatedDisk, path: Path, count: int = 300) -> set[bytes | None]:
    """What a file may hold after a power cut; None where it is gone."""
    return {crashed.files().get(str(path)) for _, crashed in disk.crash_states(Random(1), count)}


def durable(disk: SimulatedDisk, path: Path, data: bytes) -> int:
    disk.write_file(path, data)
    return disk.open(path, CHANGE)


def everything(disk: SimulatedDisk) -> SimulatedDisk:
    return disk.after_cut(Extreme(data=True, names=lambda _at, _count: True))


# Without a fault it is a disk like any other

_NAMES = st.sampled_from(["a", "b", "f", "f/a", "f/b", "f/g", "l", "l/a", "a/x", "none/a"])
_FLAGS = st.sampled_from(
    [READ, CHANGE, CREATE, os.O_CREAT | os.O_RDWR, os.O_CREAT | os.O_RDWR | os.O_TRUNC, os.O_WRONLY, os.O_RDONLY]
)
_FILE = st.integers(0, 4)
_AT = st.integers(0, 3000) | st.sampled_from([0, 511, 512, 513, 1024])
_OPERATIONS = st.one_of(
    st.tuples(st.just("open"), _NAMES, _FLAGS),
    st.tuples(st.just("open"), st.sampled_from(["a", "b", "f/a"]), st.just(os.O_CREAT | os.O_RDWR)),
    st.tuples(st.just("close"), _FILE),
    st.tuples(
        st.just("pwritev"),
        _FILE,
        st.lists(st.binary(max_size=700), max_size=3),
        _AT,
        st.sampled_from([0, WRITE_SYNCED]),
    ),
    st.tuples(st.just("pread"), _FILE, st.integers(0, 4000), _AT),
    st.tuples(st.just("sync"), _FILE),
    st.tuples(st.just("truncate"), _FILE, _AT),
    st.tuples(st.just("status"), _FILE),
    st.tuples(st.just("look"), _NAMES),
    st.tuples(st.just("unlink"), _NAMES),
    st.tuples(st.just("rename"), _NAMES, _NAMES),
    st.tuples(st.just("make_folder"), _NAMES),
    st.tuples(st.just("sync_folder"), _NAMES),
    st.tuples(st.just("list"), _NAMES),
    st.tuples(st.just("lock"), _NAMES, st.booleans()),
    st.tuples(st.just("symlink"), _NAMES, _NAMES),
)


class _User:
    """Does operations on a disk and notes what comes of them, in words that are the same for every disk."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self.disk = disk
        self.root = root
        self.open: list[int] = []
        self.inodes: dict[int, int] = {}

    def do(self, operation: str, *values: object) -> object:
        given = [self.root / each if isinstance(each, str) else each for each in values]
        if operation in {"close", "pwritev", "pread", "sync", "truncate", "status"}:
            if int(str(given[0])) >= len(self.open):
                return "no such file"
            given[0] = self.open[int(str(given[0]))]
        try:
            return self._result(operation, given)
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _result(self, operation: str, given: list) -> object:
        if operation == "symlink":
            if isinstance(self.disk, SimulatedDisk):
                self.disk.symlink(*given)
            else:
                given[0].symlink_to(given[1])
            return None
        if operation == "lock":
            result = self.disk.lock(given[0], shared=given[1])
        else:
            result = getattr(self.disk, operation)(*given)
        if operation in {"open", "lock"}:
            self.open.append(result)
            return len(self.open)
        if operation == "close":
            self.open.remove(given[0])
        if operation in {"status", "look"}:
            inode = self.inodes.setdefault(result.inode, len(self.inodes))
            if result.is_folder or result.is_link:
                return result.is_folder, result.is_link
            return result._replace(inode=inode)
        return sorted(result) if operation == "list" else result


@settings(max_examples=300, deadline=None)
@given(st.lists(_OPERATIONS, max_size=40))
def test_without_a_fault_it_does_what_the_local_disk_does(operations):
    with tempfile.TemporaryDirectory() as folder:
        simulated = SimulatedDisk()
        make_folders(simulated, ROOT)
        local_user, simulated_user = _User(LocalDisk(), Path(folder)), _User(simulated, ROOT)
        # Inode numbers of deleted files are given again by some file systems: compare without them.
        try:
            for operation in operations:
                expected, found = local_user.do(*operation), simulated_user.do(*operation)
                if operation[0] in {"status", "look"} and isinstance(expected, tuple) and len(expected) > 2:
                    expected, found = expected._replace(inode=0), found._replace(inode=0)
                assert found == expected, operation
                before = simulated.files()
                assert simulated.copy().files() == before
                assert everything(simulated).files() == before
        finally:
            for file in local_user.open:
                os.close(file)


def test_inodes_name_files(disk):
    file = durable(disk, A, b"1")
    assert disk.status(file).inode == disk.look(A).inode
    disk.rename(A, B)
    assert disk.look(B).inode == disk.status(file).inode
    assert disk.status(file).links == 1
    durable(disk, A, b"2")
    assert disk.look(A).inode != disk.look(B).inode
    disk.unlink(B)
    assert disk.status(file).links == 0
    assert disk.pread(file, 10, 0) == b"1"


def test_a_lock_is_held_until_it_is_closed(disk):
    first = disk.lock(A)
    with pytest.raises(BlockingIOError):
        disk.lock(A)
    with pytest.raises(BlockingIOError):
        disk.lock(A, shared=True)
    disk.close(first)
    readers = [disk.lock(A, shared=True), disk.lock(A, shared=True)]
    with pytest.raises(BlockingIOError):
        disk.lock(A)
    for each in readers:
        disk.close(each)
    disk.close(disk.lock(A))


def test_a_lock_does_not_outlive_a_power_cut_nor_its_process(disk):
    disk.lock(A)
    disk.sync_folder(ROOT)
    crashed = disk.crash(Random(1))
    crashed.close(crashed.lock(A))
    disk.kill()
    disk.close(disk.lock(A))


# Files after a power cut


def test_synced_bytes_stay(disk):
    file = durable(disk, A, b"1" * 700)
    disk.pwritev(file, [b"2" * 700], 700)
    disk.sync(file)
    assert states(disk, A) == {b"1" * 700 + b"2" * 700}


def test_a_write_that_was_not_synced_may_be_there_or_not(disk):
    file = durable(disk, A, b"old")
    disk.pwritev(file, [b"new"], 0)
    assert states(disk, A) == {b"old", b"new"}


def test_a_write_is_torn_at_any_sector_and_its_sectors_come_in_any_order(disk):
    file = durable(disk, A, b"1" * SECTOR * 3)
    disk.pwritev(file, [b"2" * SECTOR * 3], 0)
    found = {tuple(state[at] for at in range(0, len(state), SECTOR)) for state in states(disk, A) if state}
    assert found == {(a, b, c) for a in b"12" for b in b"12" for c in b"12"}


def test_a_sector_is_not_torn(disk):
    file = durable(disk, A, b"1" * SECTOR)
    disk.pwritev(file, [b"2" * SECTOR], 0)
    assert states(disk, A) == {b"1" * SECTOR, b"2" * SECTOR}


def test_a_later_write_may_be_there_without_an_earlier_one(disk):
    file = durable(disk, A, b"1" * SECTOR * 2)
    disk.pwritev(file, [b"2"], 0)
    disk.pwritev(file, [b"3"], SECTOR)
    found = {(state[0], state[SECTOR]) for state in states(disk, A) if state}
    assert found == {(a, b) for a in b"12" for b in b"13"}


def test_each_version_of_a_sector_is_possible(disk):
    file = durable(disk, A, b"0")
    for each in (b"1", b"2", b"3"):
        disk.pwritev(file, [each], 0)
    assert states(disk, A) == {b"0", b"1", b"2", b"3"}


def test_the_size_may_grow_without_the_data_and_zeros_or_garbage_are_read(disk):
    durable(disk, B, b"B" * SECTOR * 2)
    file = durable(disk, A, b"")
    disk.pwritev(file, [b"1" * SECTOR], 0)
    found = states(disk, A, 1000)
    assert {b"", b"1" * SECTOR, bytes(SECTOR), b"B" * SECTOR} <= found
    assert len(found) > 4, "noise"
    assert {len(state) for state in found if state is not None} == {0, SECTOR}


def test_a_cut_that_was_not_synced_may_be_undone(disk):
    file = durable(disk, A, b"1" * SECTOR * 4)
    disk.truncate(file, 10)
    found = states(disk, A)
    assert {b"1" * 10, b"1" * SECTOR * 4} <= found
    assert {len(state) for state in found if state is not None} == {10, SECTOR * 4}
    assert all(state is not None and state[SECTOR:] in (b"", b"1" * SECTOR * 3) for state in found)
    disk.sync(file)
    assert states(disk, A) == {b"1" * 10}


def test_what_was_written_behind_a_cut_needs_the_cut(disk):
    file = durable(disk, A, b"1" * SECTOR * 3)
    disk.truncate(file, SECTOR)
    disk.pwritev(file, [b"2" * SECTOR], SECTOR)
    for state in states(disk, A):
        assert state is not None
        assert len(state) in (SECTOR, SECTOR * 2, SECTOR * 3)
        if len(state) == SECTOR * 3:
            assert state == b"1" * SECTOR * 3


def test_a_synced_write_is_certain_and_nothing_before_it(disk):
    file = durable(disk, A, b"")
    disk.pwritev(file, [b"1" * SECTOR], 0)
    assert disk.pwritev(file, [b"2" * SECTOR], SECTOR, WRITE_SYNCED) == SECTOR
    found = states(disk, A)
    assert all(state is not None and state[SECTOR:] == b"2" * SECTOR for state in found)
    assert {b"1" * SECTOR, bytes(SECTOR)} <= {state[:SECTOR] for state in found if state}


def test_a_sync_is_for_one_file(disk):
    first, second = durable(disk, A, b"1"), durable(disk, B, b"1")
    disk.pwritev(first, [b"2"], 0)
    disk.pwritev(second, [b"2"], 0)
    disk.sync(first)
    assert states(disk, A) == {b"2"}
    assert states(disk, B) == {b"1", b"2"}


# Names after a power cut


def test_a_synced_file_may_lose_its_name(disk):
    file = disk.open(A, CREATE)
    disk.pwritev(file, [b"1"], 0)
    disk.sync(file)
    assert states(disk, A) == {None, b"1"}
    disk.sync_folder(ROOT)
    assert states(disk, A) == {b"1"}


def test_a_synced_name_may_have_no_content(disk):
    file = disk.open(A, CREATE)
    disk.pwritev(file, [b"1"], 0)
    disk.sync_folder(ROOT)
    assert {b"", b"1"} <= states(disk, A)
    assert None not in states(disk, A)


def test_a_deleted_file_may_come_back(disk):
    durable(disk, A, b"1")
    disk.unlink(A)
    assert states(disk, A) == {None, b"1"}
    disk.sync_folder(ROOT)
    assert states(disk, A) == {None}


def test_names_persist_in_any_order(disk):
    for path in (A, B):
        disk.open(path, CREATE)
    found = {tuple(sorted(crashed.files())) for _, crashed in disk.crash_states(Random(1), 100)}
    assert found == {(), (str(A),), (str(B),), (str(A), str(B))}


def test_changes_of_one_name_keep_their_order(disk):
    durable(disk, A, b"1")
    disk.unlink(A)
    file = disk.open(A, CREATE)
    disk.pwritev(file, [b"2"], 0)
    disk.sync(file)
    disk.unlink(A)
    file = disk.open(A, CREATE)
    disk.pwritev(file, [b"3"], 0)
    disk.sync(file)
    assert states(disk, A) == {b"1", None, b"2", b"3"}
    disk.sync_folder(ROOT)
    assert states(disk, A) == {b"3"}


def test_a_rename_happens_wholly_or_not_at_all(disk):
    for path, text in ((A, b"old"), (B, b"new")):
        durable(disk, path, text)
    disk.rename(B, A)
    found = {tuple(crashed.files().items()) for _, crashed in disk.crash_states(Random(1), 100)}
    assert found == {((str(A), b"old"), (str(B), b"new")), ((str(A), b"new"),)}


def test_a_renamed_file_that_was_not_synced_may_be_empty(disk):
    durable(disk, A, b"old")
    file = disk.open(B, CREATE)
    disk.pwritev(file, [b"new"], 0)
    disk.rename(B, A)
    assert {b"old", b"new", b""} <= states(disk, A)


def test_a_state_file_is_the_old_or_the_new_one_at_any_step(disk):
    save_state(A, {"n": 1}, disk)
    recording = disk.record()
    save_state(A, {"n": 2}, disk)
    for at in range(len(recording.steps)):
        found = [load_state(A, crashed) for _, crashed in recording.states_after(at, Random(1), 100)]
        assert all(each in ({"n": 1}, {"n": 2}) for each in found)
    assert all(each == {"n": 2} for each in found)
    assert [call.operation for call, _ in recording.steps] == ["open", "pwritev", "sync", "rename", "sync_folder"]


def test_a_new_folder_may_be_gone_with_all_that_is_in_it(disk):
    disk.make_folder(ROOT / "f")
    disk.write_file(ROOT / "f" / "a", b"1")
    assert states(disk, ROOT / "f" / "a") == {None, b"1"}
    disk.sync_folder(ROOT)
    assert states(disk, ROOT / "f" / "a") == {b"1"}


def test_a_sync_of_a_folder_is_for_that_folder(disk):
    disk.make_folder(ROOT / "f")
    disk.sync_folder(ROOT)
    disk.open(ROOT / "f" / "a", CREATE)
    disk.open(A, CREATE)
    disk.sync_folder(ROOT)
    assert states(disk, A) == {b""}
    assert states(disk, ROOT / "f" / "a") == {None, b""}


# Faults on demand


def test_the_nth_call_fails(disk):
    file = durable(disk, A, b"")
    fault = disk.fail("pwritev", errno.ENOSPC, skip=1)
    disk.pwritev(file, [b"1"], 0)
    with pytest.raises(OSError, match="No space"):
        disk.pwritev(file, [b"2"], 0)
    disk.pwritev(file, [b"3"], 1)
    assert (disk.read_file(A), fault.hits) == (b"13", 1)


def test_all_calls_that_match_fail(disk):
    disk.fail("unlink", errno.EIO, lambda call: call.path == A, times=None)
    for path in (A, B):
        disk.write_file(path, b"")
    disk.unlink(B)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            disk.unlink(A)
    assert disk.list(ROOT) == ["a"]


@pytest.mark.parametrize("operation", ["open", "sync", "truncate", "unlink", "rename", "make_folder", "sync_folder"])
def test_any_operation_fails(disk, operation):
    file = durable(disk, A, b"1")
    disk.fail(operation, errno.EIO, times=None)
    given = {"open": (A, READ), "rename": (A, B), "sync": (file,), "truncate": (file, 0)}.get(operation, (A,))
    with pytest.raises(OSError, match="Input/output"):
        getattr(disk, operation)(*given)
    assert disk.files() == {str(A): b"1"}


def test_a_synced_write_is_not_supported(disk):
    file = durable(disk, A, b"")
    disk.fail("pwritev", errno.EOPNOTSUPP, lambda call: bool(call.flags))
    with pytest.raises(OSError, match="not supported"):
        disk.pwritev(file, [b"1"], 0, WRITE_SYNCED)
    assert disk.read_file(A) == b""


def test_a_short_write(disk):
    file = durable(disk, A, b"")
    disk.fail("pwritev", 0, short=2)
    assert disk.pwritev(file, [b"123"], 0) == 2
    assert disk.read_file(A) == b"12"


def test_after_a_failed_sync_a_later_one_does_not_help(disk):
    file = durable(disk, A, b"1" * SECTOR * 2)
    disk.pwritev(file, [b"2" * SECTOR], 0)
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(file)
    assert disk.pread(file, 1, 0) == b"2", "it is still read"
    disk.pwritev(file, [b"3" * SECTOR], SECTOR)
    disk.sync(file)
    assert states(disk, A) == {b"1" * SECTOR + b"3" * SECTOR, b"2" * SECTOR + b"3" * SECTOR}


def test_after_a_failed_sync_what_is_written_again_is_synced_again(disk):
    file = durable(disk, A, b"1" * SECTOR)
    disk.pwritev(file, [b"2" * SECTOR], 0)
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(file)
    disk.pwritev(file, [b"2" * SECTOR], 0)
    disk.sync(file)
    assert states(disk, A) == {b"2" * SECTOR}


def test_a_synced_write_that_fails_is_in_doubt(disk):
    file = durable(disk, A, b"1" * SECTOR)
    disk.fail("pwritev", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.pwritev(file, [b"2" * SECTOR], 0, WRITE_SYNCED)
    disk.sync(file)
    assert states(disk, A) == {b"1" * SECTOR, b"2" * SECTOR}


def test_a_hook_sees_each_call_before_it_happens(disk):
    seen = []
    disk.before = lambda call: seen.append((call.operation, call.path, str(A) in disk.files()))
    disk.open(A, CREATE)
    disk.unlink(A)
    assert seen == [("open", A, False), ("unlink", A, True)]


def test_damaged_bytes_cannot_be_read_ever_again(disk):
    file = durable(disk, A, b"1" * 2000)
    disk.damage(A, 1000, 1001)
    assert disk.pread(file, 2000, 0) == b"1" * 1000
    for each in (disk, disk.crash(Random(1))):
        file = each.open(A, READ)
        assert each.pread(file, 1000, 0) == b"1" * 1000
        with pytest.raises(OSError, match="Input/output"):
            each.pread(file, 2000, 1000)
        assert each.pread(file, 2000, 1001) == b"1" * 999


# Copies


def test_a_copy_and_its_original_go_on_apart(disk):
    file = durable(disk, A, b"1")
    disk.pwritev(file, [b"2"], 0)
    copy = disk.copy()
    disk.pwritev(file, [b"3"], 0)
    disk.sync(file)
    copy.pwritev(file, [b"4"], 1)
    assert (disk.read_file(A), copy.read_file(A)) == (b"3", b"24")
    assert states(disk, A) == {b"3"}
    assert {b"1", b"2", b"24"} <= states(copy, A)


def test_a_crashed_disk_and_its_original_go_on_apart(disk):
    file = durable(disk, A, b"1")
    crashed = disk.crash(Random(1))
    other = crashed.open(A, CHANGE)
    crashed.pwritev(other, [b"2"], 0)
    disk.pwritev(file, [b"3"], 1)
    assert (disk.read_file(A), crashed.read_file(A)) == (b"13", b"2")


def test_the_same_random_numbers_give_the_same_state(disk):
    for path in (A, B):
        file = disk.open(path, CREATE)
        disk.pwritev(file, [b"1" * SECTOR * 9], 0)
    first = [crashed.files() for _, crashed in disk.crash_states(Random(5), 50)]
    assert first == [crashed.files() for _, crashed in disk.crash_states(Random(5), 50)]


def test_ten_thousand_states_cost_little(disk):
    for at in range(20):
        durable(disk, ROOT / str(at), bytes(50_000))
    file = durable(disk, A, bytes(50_000))
    recording = disk.record()
    for at in range(1000):
        disk.pwritev(file, [b"1"], at)
    shared = {id(each) for _, disk in recording.steps for each in disk._inodes.values()}
    assert len(shared) < 1100
