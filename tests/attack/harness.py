"""Attacks on a real hub: what an attack is, and what is looked at while it runs.

How to add one
--------------
Write a function in any module of this folder (except `test_*.py`) and register it:

    @attack("a topic of wildcards", limits={"topic_levels": "wireloom_refused_total"}, small=True)
    async def wildcards(target: Target) -> None:
        reader, writer = await target.open("yamp")
        ...

`run` starts a hub in a process of its own, with a listener of every protocol on a free port. A well-behaved client, in
another process, publishes every 50 ms (see `client.py`). Then the function attacks, and fails by itself if the hub does
not answer as promised. Afterwards `run` stops the hub, and returns a `Report`. `Report.check` asserts what holds for
every attack:

- the well-behaved client waited less than a second for each acknowledgement; less than 250 ms if the attack is `small`
  (sends less than 100 KB). Time in which the machine was busy with other processes does not count;
- memory grew by at most 128 MB beyond `budget`, the bytes that the configuration allows to what is attacked;
- every metric that `limits` names has grown: the limit was reached, and an operator sees it;
- the hub lives, and ends in order;
- the journal verifies, and holds exactly what was delivered: to the client, and to what `Target.watch` subscribed to.

`test_attacks.py` runs every registered attack. `limits` names the settings of `[limits]` that the attack runs against,
each with the metric that shows it, with or without labels. `test_limits.py` fails for a setting that no attack names.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import pkgutil
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import wireloom
from tests.attack.client import EVERY, TOPIC
from tests.hub.process import HubProcess, verify
from tests.hub.running import get, open_to
from wireloom.journal.exclusions import DENIED, TAKEN, Exclusions
from wireloom.journal.reader import Entry, read_all
from wireloom.model import Message
from wireloom.protocols.publish_rules import published
from wireloom.topics import matches

MB = 1_000_000
SOON, AT_ONCE = 1.0, 0.25
"""Seconds the well-behaved client may have to wait: during any attack, and during a small one."""
ROOM = 128 * MB
"""Bytes that the hub may grow by beyond its budgets."""
LISTENERS = """
[[listener]]
url = "emp://127.0.0.1:0"
[[listener]]
url = "yamp://127.0.0.1:0"
[[listener]]
url = "yamp+ws://127.0.0.1:0"
[[listener]]
url = "wolpertinger://127.0.0.1:0"
profile = true
[[listener]]
url = "mesh://127.0.0.1:0"
settings = { require = "any" }
"""
"""Beside hsp (where type 7 stands for the topic `load`) and http."""
_NO_DATA: Callable[[Path], None] = lambda folder: None  # noqa: E731


@dataclass(frozen=True)
class Attack:
    """What one peer, or many, do to the hub."""

    name: str
    run: Callable[[Target], Awaitable[None]]
    limits: Mapping[str, str] = field(default_factory=dict)
    """Settings of `[limits]` that end it, each with the metric that must have grown: its name, or with labels."""
    config: str = ""
    """Added to the configuration. The well-behaved client must be allowed to publish and to subscribe."""
    small: bool = False
    """Whether it sends less than 100 KB."""
    quick: bool = False
    """Whether `make test` runs it, too, although it sends more."""
    budget: int = 0
    """Bytes that the configuration allows to what is attacked."""
    prepare: Callable[[Path], None] = _NO_DATA
    """Called with the data folder before the hub starts: for tokens, keys, an old journal."""
    token: str = ""
    """What the well-behaved client shows, if anything."""


ATTACKS: dict[str, Attack] = {}
"""By name. Complete after `load`."""


def attack(
    name: str,
    *,
    limits: Mapping[str, str] | None = None,
    config: str = "",
    small: bool = False,
    quick: bool = False,
    budget: int = 0,
    prepare: Callable[[Path], None] = _NO_DATA,
    token: str = "",
) -> Callable[[Callable[[Target], Awaitable[None]]], Callable[[Target], Awaitable[None]]]:
    """Register a function as an attack; see `Attack`. `{data}` in the configuration stands for the data folder."""

    def register(function: Callable[[Target], Awaitable[None]]) -> Callable[[Target], Awaitable[None]]:
        assert name not in ATTACKS, f"there are two attacks named {name!r}"
        ATTACKS[name] = Attack(name, function, limits or {}, config, small, quick, budget, prepare, token)
        return function

    return register


def load() -> dict[str, Attack]:
    """All attacks of this folder."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.name.startswith("test_"):
            importlib.import_module(f"tests.attack.{module.name}")
    return ATTACKS


class Target:
    """The hub as an attacker sees it; and a few ways to look inside."""

    def __init__(self, hub: HubProcess) -> None:
        self._hub = hub
        self._watching: list[tuple[str, asyncio.Task[None], list[tuple[str, bytes]]]] = []
        self._stack = contextlib.AsyncExitStack()

    @property
    def urls(self) -> dict[str, str]:
        """By scheme: hsp, emp, yamp, yamp+ws, wolpertinger, mesh, http."""
        return self._hub.urls

    @property
    def pid(self) -> int:
        return self._hub.process.pid

    @property
    def data(self) -> Path:
        """The hub's data folder."""
        return self._hub.folder

    def address(self, scheme: str) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.urls[scheme].rpartition("://")[2].rpartition(":")
        return host, int(port)

    async def open(self, scheme: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A plain socket; closed at the end of the attack."""
        reader, writer = await open_to(self.urls[scheme])
        self.close_later(writer)
        return reader, writer

    def close_later(self, writer: asyncio.StreamWriter) -> None:
        """Close a socket at the end of the attack."""
        self._stack.callback(writer.close)

    async def connect(self, scheme: str, **options: object) -> wireloom.Client:
        """A client of the library, which does not reconnect; gone at the end of the attack."""
        options = {"reconnect": False} | options
        return await self._stack.enter_async_context(_leaving(self.urls[scheme], options))

    async def watch(self, pattern: str, scheme: str = "emp") -> list[tuple[str, bytes]]:
        """Subscribe, and collect topic and body of every event, until the attack is over.

        `run` compares it with the journal. Do not watch more than the hub can deliver: dropped events are a difference.
        """
        found: list[tuple[str, bytes]] = []
        peer = await self.connect(scheme)
        events = await self._stack.enter_async_context(peer.subscribe(pattern))

        async def collect() -> None:
            async for event in events:
                found.append((event.topic or "", event.body))  # noqa: PERF401

        self._watching.append((pattern, asyncio.create_task(collect()), found))
        return found

    async def metrics(self) -> dict[str, float]:
        """What /metrics says, by name and labels as they stand there: `wireloom_replays`, `…_total{protocol="hsp"}`."""
        status, text = await get(self.urls["http"] + "/metrics")
        assert status == 200, text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def settle(self, condition: Callable[[], bool], seconds: float = 10.0) -> bool:
        """Wait until a condition holds; whether it did."""
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        return condition()

    def memory(self) -> int:
        """Bytes of memory that the hub's process has now."""
        return int(psutil.Process(self.pid).memory_info().rss)

    async def finish(self) -> None:
        """Give what is under way time to arrive, then leave."""
        seen = -1
        # The well-behaved client goes on meanwhile.
        while seen != (seen := sum(topic != TOPIC for _, _, found in self._watching for topic, _ in found)):
            await asyncio.sleep(0.3)
        for _, task, _ in self._watching:
            task.cancel()
        await asyncio.gather(*(task for _, task, _ in self._watching), return_exceptions=True)
        await self._stack.aclose()

    def delivered(self) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
        """Patterns that were watched, and what came."""
        return ((pattern, found) for pattern, _, found in self._watching)


@contextlib.asynccontextmanager
async def _leaving(url: str, options: dict[str, object]) -> AsyncIterator[wireloom.Client]:
    async with wireloom.connect(url, **options) as peer:  # type: ignore[arg-type]
        try:
            yield peer
        finally:
            peer.abort()


@dataclass
class Report:
    """What was seen during an attack."""

    attack: Attack
    felt: list[float]
    """Seconds until each acknowledgement, from when it was due. A stall counts for every publish that it delayed."""
    own: list[float]
    """The same without the time in which the machine was busy with other processes."""
    grown: int
    """Bytes of memory at the peak, beyond those before the attack."""
    seconds: float
    """How long the attack took."""
    exit_code: int
    said: str
    """The hub's log."""
    differences: list[str] = field(default_factory=list)
    """Where journal and deliveries differ."""
    unreached: list[str] = field(default_factory=list)
    """Metrics that should have grown."""

    def percentile(self, part: float) -> float:
        """Of what was felt: 0.5 for the median, 1 for the worst."""
        ordered = sorted(self.felt)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]

    def row(self) -> str:
        """One line for a person."""
        p50, p99, worst = (1000 * self.percentile(part) for part in (0.5, 0.99, 1.0))
        felt = f"p50 {p50:.1f} ms, p99 {p99:.0f} ms, worst {worst:.0f} ms ({1000 * max(self.own):.0f} own)"
        return f"{self.attack.name}: {felt}, {self.grown / MB:+.0f} MB, {self.seconds:.1f} s"

    def check(self) -> None:
        """Assert what holds for every attack."""
        most = AT_ONCE if self.attack.small else SOON
        assert self.exit_code == 0, self.said[-3000:]
        assert "Traceback" not in self.said, self.said[-3000:]
        assert not self.differences, self.differences
        assert not self.unreached, f"these have not grown: {self.unreached}"
        assert max(self.own) < most, self.row()
        assert self.grown <= self.attack.budget + ROOM, self.row()


async def run(what: Attack, folder: Path) -> Report:
    """Run an attack against a hub with its data in a folder."""
    data = folder / "data"
    data.mkdir()
    what.prepare(data)
    hub = HubProcess(data, LISTENERS + what.config.replace("{data}", str(data)))
    try:
        target = Target(hub)
        async with _well_behaved(target, what.token) as felt:
            await asyncio.sleep(0.5)
            counted = await target.metrics()
            before, began = _reset_peak(hub.process), time.monotonic()
            try:
                await what.run(target)
                seconds = time.monotonic() - began
                # What the attack has set off and is still under way counts, too.
                await asyncio.sleep(0.5)
                grown = _peak(hub.process) - before
                counts = await target.metrics()
            finally:
                await target.finish()
        assert hub.process.poll() is None, "the hub is gone"
    except BaseException:
        print(hub.kill()[-5000:])
        raise
    code, said = hub.stop()
    verify(data / "journal")
    samples = [each for each in felt.samples if each[0] + each[1] >= began]
    report = Report(
        what,
        [late for _, wait, _ in samples for late in _delayed(wait)],
        [wait - busy for _, wait, busy in samples],
        grown,
        seconds,
        code,
        said,
    )
    report.differences = list(_differences(data, [(TOPIC, felt.delivered), *target.delivered()]))
    shown = what.limits.values()
    report.unreached = [each for each in shown if _total(counts, each) <= _total(counted, each)]
    print(report.row())
    return report


def _total(counts: Mapping[str, float], metric: str) -> float:
    """A metric with these labels, or with any."""
    return sum(value for name, value in counts.items() if metric in (name, name.partition("{")[0]))


@dataclass
class _Felt:
    samples: list[tuple[float, float, float]] = field(default_factory=list)
    delivered: list[tuple[str, bytes]] = field(default_factory=list)


@contextlib.asynccontextmanager
async def _well_behaved(target: Target, token: str) -> AsyncIterator[_Felt]:
    """The client in its process; what it felt is there when it has ended."""
    felt = _Felt()
    host, port = target.address("yamp")
    command = [sys.executable, "-m", "tests.attack.client", host, str(port), str(target.pid), token]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], limit=1 << 26
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ready\n", "the well-behaved client has failed"
        yield felt
        process.stdin.close()
        async with asyncio.timeout(90):
            line = await process.stdout.readline()
        assert line, "the hub did not answer the well-behaved client"
        said = json.loads(line)
        felt.samples = [tuple(each) for each in said["samples"]]
        felt.delivered = [(TOPIC, str(number).encode()) for number in said["delivered"]]
        if len(felt.delivered) != len(felt.samples):
            raise AssertionError(f"{len(felt.samples)} were acknowledged and {len(felt.delivered)} delivered")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        await process.wait()


def _delayed(wait: float) -> Iterator[float]:
    """What a wait meant for the publish itself, and for those that would have been due meanwhile."""
    while wait > 0:
        yield wait
        wait -= EVERY


def _differences(data: Path, delivered: list[tuple[str, list[tuple[str, bytes]]]]) -> Iterator[str]:
    """Where what the journal holds is not what was delivered."""
    kept = Counter((event.topic or "", event.body) for event in _published(data))
    for pattern, collected in delivered:
        # What the client published before somebody else began to watch is not for them.
        wanted = Counter(
            {
                each: count
                for each, count in kept.items()
                if matches(pattern, each[0]) and (each[0] == TOPIC) is (pattern == TOPIC)
            }
        )
        found = [each for each in collected if (each[0] == TOPIC) is (pattern == TOPIC)]
        for what, each in (("not delivered", wanted - Counter(found)), ("not kept", Counter(found) - wanted)):
            if each:
                topic, body = next(iter(each))
                yield f"{pattern}: {each.total()} {what}, such as {topic[:100]!r} {body[:60]!r}"


def _published(data: Path) -> Iterator[Message]:
    """The events that the journal holds; requests that were refused, or went to a provider, are none."""
    exclusions = Exclusions(DENIED, TAKEN)
    for each in read_all(data / "journal"):
        if not isinstance(each, Entry):
            exclusions.note(each.block)
        elif each.inbound and each not in exclusions and (event := published(each.message)) is not None:
            yield event


def _reset_peak(process: subprocess.Popen[str]) -> int:
    """Let the kernel forget the highest memory so far; returns what it is now."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    return _status(process, "VmRSS")


def _peak(process: subprocess.Popen[str]) -> int:
    return _status(process, "VmHWM")


def _status(process: subprocess.Popen[str], name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
