"""Conformance cases: what any implementation of a protocol must do, as conversations to lead a peer through.

A case is a coroutine over a `Probe`: it sends bytes, valid or not, and looks at what comes back. It knows no socket
and no loop; whoever runs it (`wireloom.conformance`) brings the probe. Each protocol has its cases in `cases.py`
and hands them out by `Protocol.cases`. They ask only for what the specification promises of everybody, so a peer
may send pings and events of its own at any time. Each asks for one thing, and what it sends beside that is as plain as
it can be.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from wireloom.model import Kind, Message, WireloomError
from wireloom.protocols.contract import Role, Settings


class CaseFailed(WireloomError):
    """The peer did something else than the case asks for."""


class CaseSkipped(WireloomError):
    """The case says nothing about this peer: what it would have to do first is not asked of everybody."""


class Level(StrEnum):
    """Who asks for what a case looks at: the specification in two words, or a decision where it says nothing.

    A peer fails only in what it must do. One that does otherwise than a decision differs, and that is all.
    """

    MUST = "must"
    SHOULD = "should"
    DECISION = "decision"


UNASKED = (Kind.PING, Kind.EVENT, Kind.REQUEST)
"""What a peer may send at any time, whatever it was asked."""


class Probe(abc.ABC):
    """One connection to the peer that is looked at. Every wait is bounded; what takes too long fails the case."""

    role: Role
    """The end that the peer is."""
    settings: Settings
    """The settings of our side; only those that `Protocol.case_settings` names can differ from the usual."""
    carries_messages: bool = False
    """Whether the transport hands each piece over as one message, instead of a stream of bytes."""

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
        """The next message but for those that may come at any time; it must be of one of these kinds."""
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
        """Wait for a moment, in which the peer stays and sends no message of these kinds; of any, if none is named."""
        while (found := await self.next(quiet=True)) is not None:
            if not kinds or found.kind in kinds:
                raise CaseFailed(f"the peer sent {describe(found)}, which nothing asked for")
        if self.is_over:
            raise CaseFailed("the peer closed the connection")


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is asked of a peer."""

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
    """What shows, on a connection of its own, that a server is still there. It is asked for after each case."""

    def lives(self, run: Run) -> Run:
        """Decorator: this is `life`. It asks for as little as possible."""
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
