"""An owner that writes down what a pipe does."""

from __future__ import annotations

import asyncio

from wireloom.transports import Pipe


class Recorder:
    """Collects everything, and lets a test wait for it."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.data = bytearray()
        self.reads: list[bytes] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.writing = True
        self._pipe: Pipe | None = None
        self._changed = asyncio.Event()

    @property
    def pipe(self) -> Pipe:
        assert self._pipe is not None
        return self._pipe

    def _note(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    def opened(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._note("opened")

    def received(self, data: bytes) -> None:
        self.data += data
        self.reads.append(data)
        self._note("received")
        if self.echo:
            self.pipe.write(data)

    def input_ended(self) -> None:
        self._note("input_ended")

    def ended(self, error: Exception | None) -> None:
        self.error = error
        self._note("ended")

    def writing_paused(self) -> None:
        self.writing = False
        self._note("paused")

    def writing_resumed(self) -> None:
        self.writing = True
        self._note("resumed")

    async def until(self, event: str, count: int = 1) -> None:
        """Wait until something happened so many times."""
        while self.events.count(event) < count:
            self._changed.clear()
            await self._changed.wait()

    async def until_size(self, size: int) -> None:
        """Wait until so many bytes arrived."""
        while len(self.data) < size:
            self._changed.clear()
            await self._changed.wait()
