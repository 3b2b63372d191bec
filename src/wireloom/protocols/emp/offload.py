"""Large bodies are packed and unpacked by another thread. What follows them waits, so that the order stays.

One thing is done at a time: the frame that is being read goes before those that are to be written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wireloom.model import Message, ProtocolViolation, WireloomError
from wireloom.protocols.emp import extensions
from wireloom.protocols.emp.extensions import Scheme
from wireloom.protocols.emp.frames import Extension, Frame
from wireloom.protocols.emp.settings import EmpSettings

LARGE_PACKED = 2048
"""Bytes of GZIP data from which on unpacking is slow: they can become a thousand times as many."""
LARGE = 64 * 1024
"""Bytes of a body from which on packing is slow."""


def is_slow_to_read(frame: Frame) -> bool:
    """Whether unpacking a frame's body takes long."""
    return len(frame.body) > LARGE_PACKED and any(
        block.extension == Extension.COMPRESSION and block.content[:1] == bytes((Scheme.GZIP,))
        for block in frame.blocks
    )


def is_slow_to_write(message: Message, settings: EmpSettings) -> bool:
    """Whether a message's body is to be packed, and that takes long."""
    size = len(message.body)
    if size <= LARGE:
        return False
    asked = message.attributes.get("compression") if message.protocol in ("", "emp") else None
    if asked is not None:
        return asked == "gzip"
    return settings.compress_above is not None and settings.compress_above < size <= settings.max_decompressed


@dataclass(frozen=True, slots=True)
class Later:
    """A message whose bytes are still to be made."""

    message: Message
    encode: Callable[[], bytes]


class Offload:
    """What another thread does for a session, and what waits for that."""

    def __init__(self) -> None:
        self.is_allowed = False
        self.reading: Frame | None = None
        """The frame whose body is being unpacked; nothing after it is read until that is done."""
        self.unpacked: bytes | ProtocolViolation | None = None
        """What became of it, for the session to take."""
        self.behind: deque[bytes | Later] = deque()
        """A message that is being packed, and everything to be written after it."""
        self.input_ended = False
        """The end of the input came, behind the frame that is being read."""
        self._is_running = False

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return self.reading is not None or bool(self.behind)

    def work(self, max_decompressed: int) -> Callable[[], object] | None:
        """The next piece of work, if none is being done."""
        if self._is_running or not self.is_needed:
            return None
        self._is_running = True
        if self.reading is not None:
            body = self.reading.body
            return lambda: _result(lambda: extensions.gunzip(body, max_decompressed))
        first = self.behind[0]
        assert isinstance(first, Later)
        return lambda: _result(first.encode)

    def done(self) -> None:
        """The piece of work that was handed out is done."""
        self._is_running = False

    def ready(self) -> list[bytes]:
        """What need not wait any more."""
        ready: list[bytes] = []
        while self.behind and isinstance(self.behind[0], bytes):
            ready.append(self.behind.popleft())  # type: ignore[arg-type]
        return ready


def _result(work: Callable[[], bytes]) -> bytes | WireloomError:
    """What came of it; errors go back to the session's own thread as values."""
    try:
        return work()
    except WireloomError as error:
        return error
