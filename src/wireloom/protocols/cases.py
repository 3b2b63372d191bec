"""Conformance cases: what any implementation of a protocol must do, as scripted conversations with a peer.

A case is a coroutine over a `Probe`: it sends bytes, valid or not, and checks the answer. It uses no socket and no
event loop; `wireloom.conformance` runs it and provides the probe. Each protocol has its cases in `cases.py`, and
`Protocol.cases` returns them. They require only what the specification requires of every peer, so a peer may send pings
and events of its own at any time. Each case tests one thing; everything else that it sends is as simple as possible.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from wireloom.model import Kind, Message, WireloomError
from wireloom.protocols.contract import Role, Settings


class CaseFailed(WireloomError):
    """The peer did not do what the case requires."""


class CaseSkipped(WireloomError):
    """The case does not apply: it depends on an optional feature that the peer lacks."""


class Level(StrEnum):
    """Where a requirement comes from: MUST or SHOULD of the specification, or a decision where it is silent.

    A peer fails only in what it must do. A peer that departs from a decision differs, which is not a failure.
    """

    MUST = "must"
    SHOULD = "should"
    DECISION = "decision"


UNASKED = (Kind.PING, Kind.EVENT, Kind.REQUEST)
"""Kinds that a peer may send at any time."""


class Probe(abc.ABC):
    """One connection to the tested peer. Every wait has a timeout, which fails the case."""

    role: Role
    """The end that the peer is."""
    settings: Settings
    """The settings of our side; only those in `Protocol.case_settings` can differ from the defaults."""
    carries_messages: bool = False
    """Whether the transport carries messages instead of a stream of bytes."""

    @abc.abstractmethod
    async def another(self) -> Probe:
        """One more connection to the same server; it ends with the case. Clients come by themselves."""

    @abc.abstractmethod
    async def send(self, *pieces: bytes) -> None:
        """Send bytes, each piece by a write of its own, whether the peer still listens or not."""

    @abc.abstractmethod
    async def next(self, *, quiet: bool = False) -> Message | None:
        """The next message of the peer; None when it has closed, or, if `quiet`, when it says nothing for a moment.

        Bytes that are no valid message fail the case.
        """

    @property
    @abc.abstractmethod
    def is_over(self) -> bool:
        """Whether the peer has closed, as far as was read."""

    @abc.abstractmethod
    def unlock(self, secrets: Mapping[str, str]) -> None:
        """Secrets, as `Decoder.unlock` takes them, that open what the peer says from now on."""

    async def message(self) -> Message:
        """The next message; a peer that closes instead fails the case."""
        found = await self.next()
        if found is None:
            raise CaseFailed("the peer closed instead of answering")
        return found

    async def expect(self, *kinds: Kind, unasked: Sequence[Kind] = UNASKED) -> Message:
        """The next message, except those that may come at any time; it must be of one of these kinds."""
        while (found := await self.message()).kind not in kinds:
            if found.kind not in unasked:
                raise CaseFailed(f"the peer sent {describe(found)}, not {' or '.join(kinds)}")
        return found

    async def closed(self) -> list[Message]:
        """Wait for the peer to close; returns what it said before."""
        said: list[Message] = []
        while (found := await self.next()) is not None:
            said.append(found)
        return said

    async def silent(self, *kinds: Kind) -> None:
        """Require that the peer stays connected for a moment and sends no message of these kinds (default: any)."""
        while (found := await self.next(quiet=True)) is not None:
            if not kinds or found.kind in kinds:
                raise CaseFailed(f"the peer sent {describe(found)}, which nothing asked for")
        if self.is_over:
            raise CaseFailed("the peer closed the connection")


@dataclass(frozen=True, slots=True)
class Case:
    """One requirement for a peer."""

    name: str
    clause: str
    """What the specification asks for, in a sentence."""
    role: Role
    """The end that is looked at."""
    run: Callable[[Probe], Awaitable[None]]
    level: Level = Level.MUST
    needs: tuple[str, ...] = ()
    """Names of other cases: a peer that does not pass them cannot be looked at in this one."""


class Cases(list[Case]):
    """The cases of one protocol, gathered from functions in the order they are written.

    >>> cases = Cases()
    >>> @cases.server("a word is answered", "Every word has an answer")
    ... async def _(probe: Probe) -> None:
    ...     await probe.send(b"?")
    >>> cases[0].name, str(cases[0].level)
    ('a word is answered', 'must')
    """

    life: Run | None = None
    """Checks, on a new connection, that a server still answers. It runs after each case."""

    def lives(self, run: Run) -> Run:
        """Decorator: sets `life`. It should require as little as possible."""
        self.life = run
        return run

    def server(self, name: str, clause: str, level: Level = Level.MUST, *, needs: Needs = ()) -> Callable[[Run], Run]:
        """A case for servers."""
        return self._add(name, clause, (Role.SERVER,), level, needs)

    def client(self, name: str, clause: str, level: Level = Level.MUST, *, needs: Needs = ()) -> Callable[[Run], Run]:
        """A case for clients."""
        return self._add(name, clause, (Role.CLIENT,), level, needs)

    def both(self, name: str, clause: str, level: Level = Level.MUST, *, needs: Needs = ()) -> Callable[[Run], Run]:
        """A case for servers and the same for clients."""
        return self._add(name, clause, (Role.SERVER, Role.CLIENT), level, needs)

    def _add(self, name: str, clause: str, roles: Sequence[Role], level: Level, needs: Needs) -> Callable[[Run], Run]:
        needed = (needs,) if isinstance(needs, str) else tuple(needs)

        def add(run: Run) -> Run:
            self.extend(Case(name, clause, role, run, level, needed) for role in roles)
            return run

        return add


Run = Callable[[Probe], Awaitable[None]]
Needs = str | Sequence[str]


def describe(message: Message) -> str:
    """A message in a few words, for whoever reads why a case failed.

    >>> describe(Message(Kind.RESPONSE, correlation_id="7", status="done"))
    'response to 7 (done)'
    """
    words = [str(message.kind)]
    if message.correlation_id is not None:
        words.append(f"to {message.correlation_id}")
    elif message.id is not None:
        words.append(message.id)
    if message.status is not None:
        words.append(f"({message.status})")
    return " ".join(words)


def require(condition: object, otherwise: str) -> None:
    """Fail the case unless something holds."""
    if not condition:
        raise CaseFailed(otherwise)


def single_bytes(data: bytes) -> list[bytes]:
    """The same bytes one by one.

    >>> single_bytes(b"ab")
    [b'a', b'b']
    """
    return [data[at : at + 1] for at in range(len(data))]
