"""The probe that cases are given: one pipe of a transport, and the protocol's own decoder for what comes out of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from wireloom.model import Direction, Message, ProtocolViolation
from wireloom.protocols.cases import CaseFailed, CaseSkipped, Probe
from wireloom.protocols.contract import Framing, Protocol, Role, Settings
from wireloom.transports import Pipe

MOMENT = 0.3
"""Seconds after which a peer that said nothing is taken to be silent."""


Dial = Callable[["PipeProbe"], Awaitable[object]]


class PipeProbe(Probe):
    """Owns a pipe. `timeout` is how long the peer may take for anything; `role` is the end that the peer is.

    `dial` connects another probe to the same server.
    """

    def __init__(
        self, protocol: Protocol, role: Role, settings: Settings, timeout: float, dial: Dial | None = None
    ) -> None:
        self.role = role
        self._protocol = protocol
        self._dial = dial
        self._others: list[PipeProbe] = []
        self.settings = settings
        self.pipe: Pipe | None = None
        self._timeout = timeout
        self._moment = min(MOMENT, timeout)
        datagrams = protocol.framing is Framing.DATAGRAM
        self._lingers = datagrams and role is Role.CLIENT
        direction = Direction.DGRAM if datagrams else role.sends
        self._decoder = protocol.decoder(direction, settings)
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What was read; None at the end."""
        self._over = False
        self._up = asyncio.Event()
        self._gone = asyncio.Event()

    # The case's side

    async def another(self) -> PipeProbe:
        """One more connection to the same server."""
        if self._dial is None:
            raise CaseSkipped("a client connects when it wants to")
        other = PipeProbe(self._protocol, self.role, self.settings, self._timeout, self._dial)
        try:
            async with asyncio.timeout(self._timeout):
                await self._dial(other)
        except OSError as error:
            reason = str(error) or f"no answer in {self._timeout:g} seconds"
            raise CaseFailed(f"cannot connect any more: {reason}") from None
        self._others.append(other)
        return other

    async def send(self, *pieces: bytes) -> None:
        """Send each piece by a separate write; bytes after the peer has closed are lost."""
        for piece in pieces:
            if self.pipe is not None and not self._gone.is_set():
                self.pipe.write(piece)
            await asyncio.sleep(0)

    @property
    def is_over(self) -> bool:
        """Whether the end of what the peer sends was read."""
        return self._over

    def unlock(self, secrets: Mapping[str, str]) -> None:
        """Secrets that open what the peer says from now on."""
        self._decoder.unlock([secrets])

    async def next(self, *, quiet: bool = False) -> Message | None:
        """The next message; see `Probe.next`."""
        try:
            async with asyncio.timeout(self._moment if quiet else self._timeout):
                return await self._next()
        except TimeoutError:
            if quiet:
                return None
            raise CaseFailed(f"the peer did nothing for {self._timeout:g} seconds") from None

    async def _next(self) -> Message | None:
        while True:
            try:
                return next(self._decoder).message
            except StopIteration:
                pass
            except ProtocolViolation as violation:
                raise CaseFailed(f"the peer sent what is not valid: {violation}") from None
            chunk = None if self._over else await self._chunks.get()
            if chunk is None:
                self._over = True
                return None
            self._decoder.feed(chunk)

    async def is_open(self) -> bool:
        """Wait until the pipe is up; False if that does not come to pass."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._up.wait()
        except TimeoutError:
            return False
        return self.pipe is not None

    async def leave(self) -> None:
        """Close, and wait until the pipe is gone."""
        for other in self._others:
            await other.leave()
        if self.pipe is None or self._gone.is_set():
            return
        if self._lingers:
            await self._drain()
        self.pipe.close()
        try:
            async with asyncio.timeout(1):
                await self._gone.wait()
        except TimeoutError:
            self.pipe.abort()

    async def _drain(self) -> None:
        """Take what the peer still says, until it is silent; without connections that would look like another peer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while True:
                    async with asyncio.timeout(self._moment):
                        await self._chunks.get()

    # The transport's side

    def opened(self, pipe: Pipe) -> None:
        """The pipe is up."""
        self.pipe = pipe
        self.carries_messages = pipe.carries_messages
        self._up.set()

    def received(self, data: bytes) -> None:
        """Bytes, or one datagram."""
        self._chunks.put_nowait(bytes(data))

    def input_ended(self) -> None:
        """A peer that sends no more has closed, as far as a case can tell."""
        self._chunks.put_nowait(None)

    def ended(self, error: Exception | None) -> None:
        """However the pipe ended, it did."""
        self._chunks.put_nowait(None)
        self._up.set()
        self._gone.set()

    def writing_paused(self) -> None:
        """Do nothing: cases send too little to need back-pressure."""

    def writing_resumed(self) -> None:
        """Nothing waits."""
