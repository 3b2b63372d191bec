"""A journal under load on a simulated disk, cut off behind any of its file operations, recovered, and held to its word.

`Replay` runs a workload with one seed: appends of many sizes on several connections, commits, rotation, records, refused
bytes, state files, retention, restarts, kills, failing syncs and writes, a clock that steps back. Behind file operations
picked at random it takes states in which a power cut may leave the disk. Each of them is examined: perhaps a reader comes
first, then the journal is opened, which recovers it, then everything that its lineage knows must hold, then the
journal goes on. Recovery itself is cut off, too, behind operations picked at random.

All of it depends on the seed alone. A failure names it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from tests.ledger import Ledger, Line, Sent
from tests.powerloss.lineage import FAULT, FOLDER, STATE, STUCK, Lineage, fail
from wireloom.journal import Journal, Keep, Tail, prune, segment_file
from wireloom.journal.context import Context, Principal
from wireloom.journal.disk import Buffer, make_folders
from wireloom.journal.keys import Keys
from wireloom.journal.state import save_state
from wireloom.model import Direction, JournalError
from wireloom.protocols.hsp import frames
from wireloom.testing.simulated_disk import DiskCall, SimulatedDisk

SEGMENT = 3 * 1024
QUOTA = 16 * 1024
HOUR = 3600 * 10**9
BEGIN = 1_700_000_000 * 10**9
TOPICS = ({7: "sensors/kitchen", 8: "alerts"}, {7: "other/topic"}, {7: "a", 9: "b", 10: "c" * 300})
CONTEXTS = tuple(Context(each) for each in TOPICS)


Result = TypeVar("Result")


class WatchedDisk(SimulatedDisk):
    """Tells a lineage every block that is written to a segment."""

    lineage: Lineage | None = None

    def pwritev(self, file: int, buffers: Sequence[Buffer], at: int, flags: int = 0) -> int:
        path = self._path_of(file)
        if self.lineage is not None and path.name.endswith(".pcapng"):
            self.lineage.note_written(path, b"".join(buffers), at)
        return super().pwritev(file, buffers, at, flags)


class AtOnce(Executor):
    """Does what it is given before it returns, so that a replay is the same each time."""

    def submit(self, task: Callable[..., Result], /, *args: object, **kwargs: object) -> Future[Result]:
        future = Future[Result]()
        try:
            future.set_result(task(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass(slots=True)
class Report:
    """What a replay did."""

    seed: int
    states: int = 0
    inside_recovery: int = 0
    operations: int = 0
    acknowledged: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.operations} operations, {self.states} states, {self.inside_recovery} of them after a "
            f"cut inside recovery, {self.acknowledged} messages acknowledged, {self.failures.total()} injected failures"
        )


class Clock:
    """Steps ahead with each look, and now and then far back or ahead."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now = BEGIN

    def __call__(self) -> int:
        self._now += self._random.randrange(1, 10**7)
        if self._random.random() < 0.005:
            self._now += self._random.choice((-1, -1, 1)) * self._random.randrange(HOUR * 30)
        return self._now


class Replay:
    """One workload with one seed."""

    def __init__(self, seed: int, *, sync: bool = True, disk: Callable[[], WatchedDisk] = WatchedDisk) -> None:
        self.random = Random(seed)
        self.report = Report(seed)
        self.sync = sync
        self.disk = disk()
        self.lineage = Lineage(Ledger(self.disk), sync=sync)
        self.disk.lineage = self.lineage
        self.rate = 0.0
        self._resting = False
        self._clock = Clock(self.random)
        self._connections = 0
        self._journal: Journal | None = None
        self._tail: Tail | None = None
        self._lines: dict[int, Line] = {}
        self._waiting: list[tuple[int, Sent]] = []
        """Tickets of what is not acknowledged yet."""
        self._ids: dict[int, int] = {}
        self._principals: dict[int, Principal] = {}
        self._keys: dict[int, Keys] = {}
        self._where = ""

    def run(self, steps: int, rate: float) -> Report:
        """So many steps; behind each file operation so many states, on average."""
        self.rate = rate
        self.disk.after = self._behind
        padding = segment_file._FEW, segment_file._PAGES_AHEAD
        # Small journals have the same states as large ones, and are read faster: so padding begins early, too.
        segment_file._FEW, segment_file._PAGES_AHEAD = 3, 2
        try:
            make_folders(self.disk, FOLDER.parent)
            self._open()
            for _ in range(steps):
                self._step()
            self._close()
        except Exception as error:
            error.add_note(f"{self.report}; {self._where}")
            raise
        finally:
            segment_file._FEW, segment_file._PAGES_AHEAD = padding
            self._let_tail_go()
        return self.report

    # The workload

    def _open(self) -> None:
        for _ in range(20):
            try:
                self._journal = open_journal(self.disk, self.sync, self._clock, self.random)
                break
            except JournalError:
                # An injected failure: they do not last.
                continue
        else:
            fail(STUCK, "the journal does not open, 20 times")
        self._ids.clear()
        self._principals.clear()
        self._keys.clear()
        self._waiting.clear()

    def _close(self) -> None:
        assert self._journal is not None
        try:
            self._journal.close()
        except (JournalError, OSError):
            self._note_durable()
            self._kill()
        else:
            self._note_durable()

    def _kill(self) -> None:
        self._let_tail_go()
        self.disk.kill()

    def _step(self) -> None:
        random = self.random
        match random.choices(*_STEPS)[0]:
            case "append":
                for _ in range(random.choice((1, 1, 2, 5, 20))):
                    self._append()
            case "turn":
                self._turn()
            case "commit":
                self._commit()
            case "small commits":
                # So many that padding is written ahead of them.
                for _ in range(12):
                    self._append(small=True)
                    self._commit()
            case "record":
                self._record()
            case "refuse":
                self._refuse()
            case "save":
                self._save()
            case "read":
                self._read()
            case "prune":
                self._prune()
            case "restart":
                self._close()
                self._open()
            case "kill":
                self._kill()
                self._note_durable()
                self._open()
            case "fail":
                self._fail()

    def _connection(self) -> int:
        """A connection by its number in this replay."""
        random = self.random
        if not self._ids or random.random() < 0.05:
            assert self._journal is not None
            self._connections += 1
            number = self._connections
            self._lines[number] = self._line(self.lineage)
            connection = self._ids[number] = self._journal.new_connection_id()
            if random.random() < 0.5:
                self._principals[number] = Principal(connection, f"token:{number}")
            if random.random() < 0.5:
                self._keys[number] = Keys("wolpertinger", connection, {"aes_key": f"{number:04x}"})
        return random.choice(list(self._ids))

    def _line(self, lineage: Lineage) -> Line:
        """What the ledger knows of a new connection."""
        return lineage.ledger.line(str(self._connections), "hsp", "after/the/cut")

    def _append(self, *, small: bool = False) -> None:
        assert self._journal is not None
        random, connection = self.random, self._connection()
        line, topics = self._lines[connection], random.choice(TOPICS)
        first = len(line.sent)
        ticket = self._journal.append(
            "hsp",
            self._ids[connection],
            Direction.C2S,
            first,
            self._run(connection, topics, small=small),
            topics=topics,
            keys=self._keys.get(connection),
            principal=self._principals.get(connection),
        )
        self._waiting += [(ticket, message) for message in line.sent[first:]]
        if random.random() < 0.1:
            answer = frames.encode(frames.Ack(random.randrange(1 << 30)))
            self._journal.append("hsp", self._ids[connection], Direction.S2C, 0, answer, inbound=False)

    def _run(self, connection: int, topics: Mapping[int, str], *, small: bool) -> bytes:
        """What a connection sends: a few messages."""
        random = self.random
        sizes = random.choices(((0, 10, 100), (400, 1000, 3000), (20_000, 140_000, 300_000)), (80, 19, not small))[0]
        line, run = self._lines[connection], b""
        first = len(line.sent)
        for number in range(first, first + (1 if small else random.choice((1, 1, 3)))):
            kind = random.choice(list(topics))
            body = body_of(connection, number, random.choice(sizes))
            line.send(number, body, topics[kind])
            run += frames.encode(frames.Data(kind, body))
        return run

    def _turn(self) -> None:
        """Append runs of several connections in one call."""
        assert self._journal is not None
        topics, context = self.random.choice([*zip(TOPICS, CONTEXTS, strict=True)])
        connections = [each for each in (self._connection() for _ in range(8)) if each not in self._keys]
        firsts, runs, messages = [], [], []
        for number in connections:
            first = len(self._lines[number].sent)
            firsts.append(first)
            runs.append(self._run(number, topics, small=self.random.random() < 0.9))
            messages.append(self._lines[number].sent[first:])
        ends = list(itertools.accumulate(map(len, runs)))
        lines = {
            each: self._journal.line(self._ids[each], "hsp", Direction.C2S, None, None, inbound=True)
            for each in connections
        }
        for number, line in lines.items():
            self._journal.describe(line, context, self._principals.get(number))
        tickets = self._journal.append_runs(
            b"".join(runs), [0, *ends][: len(ends)], ends, [lines[each].slot for each in connections], firsts
        )
        for ticket, sent in zip(tickets.tolist(), messages, strict=True):
            self._waiting += [(ticket, message) for message in sent]
        for line in lines.values():
            self._journal.release(line)

    def _commit(self) -> None:
        assert self._journal is not None
        try:
            self._journal.commit()
        except JournalError:
            self.report.failures["commit"] += 1
        self._note_durable()

    def _note_durable(self) -> None:
        assert self._journal is not None
        durable = self._journal.durable
        while self._waiting and self._waiting[0][0] <= durable:
            message = self._waiting.pop(0)[1]
            message.line.acknowledge(message)
            self.report.acknowledged += 1

    def _record(self) -> None:
        assert self._journal is not None
        connection = self._connection()
        name = self.random.choice(("opened", "lost", "closed"))
        self._journal.record(name, {"peer": "192.0.2.7:50123"}, self._ids[connection])
        if name == "closed":
            del self._ids[connection]

    def _refuse(self) -> None:
        assert self._journal is not None
        connection = self._ids[self._connection()]
        data = b"\x09" * self.random.choice((1, 500, 5000))
        self._journal.refuse("hsp", connection, Direction.C2S, data, clause="hsp.command.unknown", detail="command 9")

    def _save(self) -> None:
        self.lineage.begun += 1
        with contextlib.suppress(OSError):
            save_state(STATE, {"n": self.lineage.begun, "why": "x" * self.random.choice((1, 600))}, self.disk)
            self.lineage.told = self.lineage.begun

    def _read(self) -> None:
        """Readers of the open journal: everything, or what came since the last time."""
        with self._rest():
            if self.random.random() < 0.3:
                self.lineage.observe()
                return
            if self._tail is None:
                self._tail = Tail(FOLDER, disk=self.disk)
            while piece := self._tail.read():
                self.lineage.ledger.note(FOLDER, piece)

    def _let_tail_go(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _prune(self) -> None:
        keep = Keep(size=self.random.choice((1, 2, 5)) * SEGMENT, days=self.random.choice((0, 0, 0.5)))
        now = self._clock()
        with self._rest():
            expired = prune(FOLDER, keep, now, dry_run=True, disk=self.disk)
            self.lineage.ledger.let_go(FOLDER, [each.path.name for each in expired if each.kept_for is None])
        with contextlib.suppress(JournalError):
            prune(FOLDER, keep, now, disk=self.disk)

    def _fail(self) -> None:
        """Let one of the next calls fail, or a few."""
        random = self.random
        operation, error, end = random.choice(_FAILURES)
        if not self.sync and end != _STATE_FILE:
            # Where commits are not synced, a failure and then a power cut may leave a hole: nothing else is promised.
            return
        self.report.failures[f"{operation} {errno.errorcode[error]}"] += 1
        self.disk.faults.clear()

        def is_meant(call: DiskCall) -> bool:
            return call.path.name.endswith(end) and (operation != "open" or bool(call.flags & os.O_CREAT))

        skip, times = random.choice((0, 0, 1, 5)), random.choice((1, 1, 2))
        if operation == "pwritev" and end == ".pcapng" and random.random() < 0.3:
            # A part is written; the rest, in the next call, fails.
            self.disk.fail(operation, 0, is_meant, skip=skip, short=random.randrange(600))
            skip = 0
        self.disk.fail(operation, error, is_meant, skip=skip, times=times)
        if self.sync and random.random() < 0.3:
            # The four faults that lost a message once: a sync, then an unlink.
            self.disk.fail("unlink", errno.EIO, times=random.choice((1, 2)))

    # Power cuts

    @contextlib.contextmanager
    def _rest(self) -> Iterator[None]:
        """What a reader or a check does to the disk is not cut off, and does not fail."""
        before, self._resting = self._resting, True
        faults, self.disk.faults = self.disk.faults, []
        try:
            yield
        finally:
            self._resting, self.disk.faults = before, faults

    def _behind(self, call: DiskCall) -> None:
        self.report.operations += 1
        if self._resting:
            return
        with self._rest():
            if self.random.random() < 0.02 and _is_there(self.disk):
                # A reader in another process comes at any time.
                self.lineage.observe()
            count = int(self.rate) + (self.random.random() < self.rate % 1)
            for _ in range(count):
                name, crashed = self._state(self.disk)
                self._where = f"cut behind {call}: {name}"
                self._examine(crashed, self.lineage.fork(crashed), everything=name in _ALL)

    def _state(self, disk: SimulatedDisk) -> tuple[str, SimulatedDisk]:
        """What may be left: of the disk after a power cut, or of all that the kernel has after a kill."""
        if self.random.random() < 0.15:
            killed = disk.copy()
            killed.kill()
            return "killed", killed
        return disk.any_state(self.random)

    def _examine(self, disk: SimulatedDisk, lineage: Lineage, *, everything: bool, depth: int = 0) -> None:
        """Open the journal on a disk after a power cut, and hold it to its word."""
        assert isinstance(disk, WatchedDisk)
        random = self.random
        self.report.states += 1
        self.report.inside_recovery += depth > 0
        lineage.check_state()
        disk.lineage = lineage
        inside = depth < 2 and random.random() < 0.25
        if random.random() < 0.25 and _is_there(disk):
            # A reader comes before the hub does.
            lineage.observe()
            if inside:
                self._cut_again(disk, lineage, "read", everything=False, depth=depth)

        def behind(call: DiskCall) -> None:
            if random.random() < 0.1:
                disk.after = None
                self._cut_again(disk, lineage, f"behind {call}", everything=everything, depth=depth)
                disk.after = behind

        disk.after = behind if inside else None
        try:
            journal = open_journal(disk, self.sync, self._clock, random)
        except JournalError as error:
            fail(STUCK, f"the journal does not open: {error}", error)
        disk.after = None
        found = lineage.check(random, everything=everything)
        self._go_on(journal, lineage)
        if random.random() < 0.3:
            journal.close()
            again = open_journal(disk, self.sync, self._clock, random)
            if again.recovery.cuts:
                fail(FAULT, f"recovery cut a journal that was closed: {again.recovery.cuts}")
        after = lineage.check(random) if random.random() < 0.3 else lineage.observe()
        if after <= found:
            fail(STUCK, "nothing was added to the journal")
        if inside and random.random() < 0.5:
            self._cut_again(disk, lineage, "went on", everything=everything, depth=depth)

    def _cut_again(self, disk: SimulatedDisk, lineage: Lineage, when: str, *, everything: bool, depth: int) -> None:
        name, crashed = self._state(disk)
        where, self._where = self._where, f"{self._where}; {when}, then {name}"
        self._examine(crashed, lineage.fork(crashed), everything=everything and name in _ALL, depth=depth + 1)
        self._where = where

    def _go_on(self, journal: Journal, lineage: Lineage) -> None:
        """The journal takes messages again."""
        random = self.random
        self._connections += 1
        number, connection = self._connections, journal.new_connection_id()
        line = self._line(lineage)
        for at in range(random.choice((1, 3, 12))):
            body = body_of(number, at, random.choice((10, 1000)))
            line.send(at, body)
            run = frames.encode(frames.Data(7, body))
            ticket = journal.append("hsp", connection, Direction.C2S, at, run, topics={7: line.topic})
        if journal.commit() < ticket:
            fail(STUCK, "a commit does not make everything durable")
        for message in line.sent:
            line.acknowledge(message)


_ALL = ("everything", "killed")
"""States in which nothing is lost."""
_STEPS = (
    (
        "append",
        "turn",
        "commit",
        "small commits",
        "record",
        "refuse",
        "save",
        "read",
        "prune",
        "restart",
        "kill",
        "fail",
    ),
    (20, 5, 25, 2, 5, 4, 6, 6, 8, 2, 2, 6),
)
_STATE_FILE = ".json.new"
_FAILURES = (
    ("sync", errno.EIO, ".pcapng"),
    ("sync", errno.EIO, _STATE_FILE),
    ("pwritev", errno.ENOSPC, _STATE_FILE),
    ("pwritev", errno.ENOSPC, ".pcapng"),
    ("pwritev", errno.EIO, ".pcapng"),
    ("pwritev", errno.EOPNOTSUPP, ".pcapng"),
    ("pwritev", errno.EIO, ".committed"),
    ("pwritev", errno.ENOSPC, ".committed"),
    ("unlink", errno.EIO, ""),
    ("open", errno.ENOSPC, ".pcapng"),
    ("open", errno.ENOSPC, ".committed"),
    ("truncate", errno.EIO, ".pcapng"),
    ("sync_folder", errno.EIO, ""),
    ("rename", errno.EIO, _STATE_FILE),
)


def open_journal(disk: SimulatedDisk, sync: bool, clock: Clock, random: Random) -> Journal:
    """The journal on a disk, recovered."""
    return Journal.open(
        FOLDER,
        segment_bytes=SEGMENT,
        sync=sync,
        refused_quota=QUOTA,
        hub="hub",
        disk=disk,
        now_ns=clock,
        random_bits=random.getrandbits,
        sealer=AtOnce,
    )


def body_of(connection: int, number: int, size: int) -> bytes:
    """A body that says which message it is."""
    return b"%d:%d:" % (connection, number) + b"x" * size


def _is_there(disk: SimulatedDisk) -> bool:
    try:
        return "lock" in disk.list(FOLDER)
    except FileNotFoundError:
        return False
