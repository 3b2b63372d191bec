"""Runs the cases against a peer: a server at a URL, or the clients that connect to a listener of ours."""

from __future__ import annotations

import asyncio
import fnmatch
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from wireloom.conformance.probe import PipeProbe
from wireloom.model import ConfigError, PeerClosed
from wireloom.peers.client import why_unreachable
from wireloom.peers.endpoint import endpoint
from wireloom.protocols.cases import Case, CaseFailed, CaseSkipped, Level, Run
from wireloom.protocols.contract import Protocol, Role, Settings
from wireloom.transports import TLS, Options
from wireloom.transports.tls import client_context, server_context

TIMEOUT = 5.0
"""Seconds that a peer has for each action that a case waits for."""
WAIT = 60.0
"""Seconds that `check_clients` waits for the next client."""
NOBODY = "no client connected for it"
_AGAIN = 0.2
"""Seconds between two attempts to reach a server that is gone."""


class CaseVerdict(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    DIFFERS = "differs"
    """The peer differs from a decision of ours where the specification is silent. This is not a failure."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case, how it ended, and why if it was not passed."""

    case: Case
    verdict: CaseVerdict
    detail: str = ""
    seconds: float = 0.0
    is_barred: bool = False
    """Whether it was skipped because the peer failed a case that this one needs."""


Tell = Callable[[CaseResult], object]


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The results of all cases for a peer."""

    protocol: Protocol
    url: str
    role: Role
    """The end that was looked at."""
    results: Sequence[CaseResult]

    def count(self, verdict: CaseVerdict, level: Level | None = None) -> int:
        """How many cases ended like that."""
        return sum(1 for each in self.results if each.verdict is verdict and level in (None, each.case.level))

    @property
    def undone(self) -> int:
        """Mandatory cases that the peer failed, or that were skipped because of another failure."""
        return sum(
            1
            for each in self.results
            if each.case.level is Level.MUST and (each.verdict is CaseVerdict.FAILED or each.is_barred)
        )

    @property
    def conforms(self) -> bool:
        """Whether the peer passed all mandatory cases."""
        return not self.undone


def choose(protocol: Protocol, role: Role, only: str | None = None) -> list[Case]:
    """The cases for one end, or those of them whose names match a pattern.

    >>> from wireloom.protocols import registry
    >>> [case.name for case in choose(registry.protocol("hsp"), Role.SERVER, "*three*")]
    ['three PINGs in one write get three PONGs']
    """
    cases = [case for case in protocol.cases() if case.role is role]
    if not cases:
        raise ConfigError(f"{protocol.name} has no conformance cases for a {role}")
    chosen = [case for case in cases if only is None or fnmatch.fnmatchcase(case.name.lower(), only.lower())]
    if not chosen:
        raise ConfigError(f"no case of {protocol.name} for a {role} is called {only!r}; * stands for anything")
    return chosen


def settings_for(protocol: Protocol, values: Mapping[str, object] | None = None) -> Settings:
    """The settings of our side. Settings that the cases do not use are refused.

    >>> from wireloom.protocols import registry
    >>> settings_for(registry.protocol("emp"), {"size_mode": "exclusive"}).size_mode
    <SizeMode.EXCLUSIVE: 'exclusive'>
    """
    values = values or {}
    parsed = protocol.settings(values)
    for name in values:
        if name not in protocol.case_settings:
            known = ", ".join(protocol.case_settings) or "none"
            raise ConfigError(f"the cases of {protocol.name} make nothing of the setting {name!r}; they know: {known}")
    return replace(protocol.observing(), **{name: getattr(parsed, name) for name in values})


async def check_server(
    url: str,
    *,
    settings: Mapping[str, object] | None = None,
    tls: TLS | None = None,
    patience: float = TIMEOUT,
    only: str | None = None,
    tell: Tell | None = None,
) -> CaseOutcome:
    """Run the cases for servers against the one at a URL, each on a connection of its own.

    After each case, the server must still answer; a server that dies has failed the case. Cases that cannot run any
    more are skipped. `settings` are those of our side, see `settings_for`; `patience` is how many seconds the server
    may take. Raises PeerClosed if no server can be reached at all.
    """
    place = endpoint(url)
    cases = choose(place.protocol, Role.SERVER, only)
    own = settings_for(place.protocol, place.settings_with(settings))
    context = client_context(tls) if place.secure else None
    options = Options(tls=context, certificates=tls, server_hostname=tls.server_hostname if tls is not None else None)
    results: list[CaseResult] = []

    async def dial(probe: PipeProbe) -> None:
        await place.transport.connect(place.address, probe, options)

    async def reach() -> PipeProbe:
        probe = PipeProbe(place.protocol, Role.SERVER, own, patience, dial)
        try:
            async with asyncio.timeout(patience):
                await dial(probe)
        except OSError as error:
            reason = why_unreachable(error) if str(error) else f"no answer in {patience:g} seconds"
            raise PeerClosed(f"cannot reach {place.url}: {reason}") from error
        return probe

    life = getattr(place.protocol.cases(), "life", None)
    if await _death(reach, life, must_answer=False):
        life = None  # it never answered this, so a missing answer means nothing
    killed_by = ""
    for case in cases:
        if killed_by:
            result = CaseResult(case, CaseVerdict.SKIPPED, f"the server is gone since {killed_by!r}", is_barred=True)
        elif barred := _barred(case, results):
            result = barred
        else:
            result = await _run(case, await reach())
            death = await _death(reach, life)
            if death:
                verdict = CaseVerdict.DIFFERS if case.level is Level.DECISION else CaseVerdict.FAILED
                result = replace(result, verdict=verdict, detail=f"the server died of it: {death}")
                killed_by = case.name if await _death(reach, life, patience=patience) else ""
        results.append(result)
        if tell is not None:
            tell(result)
    return CaseOutcome(place.protocol, place.url, Role.SERVER, results)


async def _death(
    reach: Callable[[], Awaitable[PipeProbe]], life: Run | None, *, must_answer: bool = True, patience: float = 0.0
) -> str:
    """Why a server does not answer; empty if it does. It has some time to come back.

    Raises PeerClosed for one that cannot be reached, unless it `must_answer`.
    """
    until = time.monotonic() + patience
    while True:
        try:
            probe = await reach()
        except PeerClosed as error:
            if not must_answer:
                raise
            death = str(error)
        else:
            try:
                if life is not None:
                    await life(probe)
                return ""
            except (CaseFailed, CaseSkipped) as error:
                death = str(error)
            finally:
                await probe.leave()
        if time.monotonic() >= until:
            return death
        await asyncio.sleep(_AGAIN)


def _barred(case: Case, results: Iterable[CaseResult]) -> CaseResult | None:
    """The result of a case that must be skipped, because the peer did not pass a case that it needs."""
    for each in results:
        if each.case.name in case.needs and each.verdict is not CaseVerdict.PASSED:
            failed = each.verdict is CaseVerdict.FAILED or each.is_barred
            return CaseResult(case, CaseVerdict.SKIPPED, f"it needs {each.case.name!r}", is_barred=failed)
    return None


async def check_clients(
    url: str,
    *,
    settings: Mapping[str, object] | None = None,
    tls: TLS | None = None,
    patience: float = TIMEOUT,
    wait: float = WAIT,
    only: str | None = None,
    tell: Tell | None = None,
    listening: Callable[[str], object] | None = None,
) -> CaseOutcome:
    """Listen at a URL, and run the next case for clients with each client that connects.

    `listening` is called with the URL once clients can connect. Cases for which no client connected within
    `wait` seconds after the last one are skipped.
    """
    place = endpoint(url)
    cases = choose(place.protocol, Role.CLIENT, only)
    own = settings_for(place.protocol, place.settings_with(settings))
    door = _Door(place.protocol, cases, own, patience, tell)
    context = None
    if place.secure:
        context = client_context(tls) if place.transport.listens_as_client else server_context(tls)
    listener = await place.transport.listen(place.address, door.welcome, Options(tls=context, certificates=tls))
    place = place.at(listener.address)
    try:
        if listening is not None:
            listening(place.url)
        await door.served(wait)
    finally:
        listener.close()
    door.skip_rest()
    return CaseOutcome(place.protocol, place.url, Role.CLIENT, [door.results[case.name] for case in cases])


class _Door:
    """Assigns the next case to each new connection, and closes connections when no case is left."""

    def __init__(
        self, protocol: Protocol, cases: Sequence[Case], settings: Settings, timeout: float, tell: Tell | None
    ) -> None:
        self.results: dict[str, CaseResult] = {}
        self._protocol = protocol
        self._cases = cases
        self._left = list(cases)
        self._settings = settings
        self._timeout = timeout
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()

    def welcome(self) -> PipeProbe:
        """The owner of a new connection; its case runs once it is open."""
        probe = PipeProbe(self._protocol, Role.CLIENT, self._settings, self._timeout)
        task = asyncio.get_running_loop().create_task(self._serve(probe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return probe

    async def served(self, wait: float) -> None:
        """Return when every case has its result, or when there was no new result for `wait` seconds."""
        while len(self.results) < len(self._cases):
            self._settled.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._settled.wait()
            except TimeoutError:
                break
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def skip_rest(self) -> None:
        """Skip the cases for which no client connected. The last client may have crashed in its case."""
        last = next(reversed(self.results), "")
        why = f"{NOBODY} after {last!r}" if last else NOBODY
        for case in self._cases:
            if case.name not in self.results:
                self._settle(CaseResult(case, CaseVerdict.SKIPPED, why))

    async def _serve(self, probe: PipeProbe) -> None:
        if not await probe.is_open() or not self._left:
            await probe.leave()
            return
        while self._left:
            case = self._left.pop(0)
            barred = _barred(case, self.results.values())
            if barred is None:
                self._settle(await _run(case, probe))
                return
            self._settle(barred)
        await probe.leave()

    def _settle(self, result: CaseResult) -> None:
        self.results[result.case.name] = result
        self._settled.set()
        if self._tell is not None:
            self._tell(result)


async def _run(case: Case, probe: PipeProbe) -> CaseResult:
    """Run one case against the peer, then disconnect."""
    begun = time.monotonic()
    verdict, detail = CaseVerdict.PASSED, ""
    try:
        await case.run(probe)
    except CaseFailed as failed:
        verdict = CaseVerdict.DIFFERS if case.level is Level.DECISION else CaseVerdict.FAILED
        detail = str(failed)
    except CaseSkipped as skipped:
        verdict, detail = CaseVerdict.SKIPPED, str(skipped)
    finally:
        await probe.leave()
    return CaseResult(case, verdict, detail, round(time.monotonic() - begun, 3))
