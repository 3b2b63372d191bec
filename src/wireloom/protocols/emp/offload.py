"""Large bodies are packed and unpacked by another thread. What follows them waits, so that the order stays.

One thing is done at a time: the frame that is being read goes before those that are to be written.
"""

from __future__ import annotations

from collections.abc import Callable

from wireloom.model import Message, ProtocolViolation
from wireloom.protocols.emp import extensions
from wireloom.protocols.emp.extensions import CompressionScheme
from wireloom.protocols.emp.frames import Extension, Frame
from wireloom.protocols.emp.settings import EmpSettings
from wireloom.protocols.offload import WriteLater, result_of

LARGE_PACKED = 2048
"""Bytes of GZIP data from which on unpacking is slow: they can become a thousand times as many."""
LARGE = 64 * 1024
"""Bytes of a body from which on packing is slow."""


def is_slow_to_read(frame: Frame) -> bool:
    """Whether unpacking a frame's body takes long."""
    return len(frame.body) > LARGE_PACKED and any(
        block.extension == Extension.COMPRESSION and block.content[:1] == bytes((CompressionScheme.GZIP,))
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


class Offload(WriteLater):
    """What another thread does for a session, and what waits for that."""

    def __init__(self) -> None:
        super().__init__()
        self.reading: Frame | None = None
        """The frame whose body is being unpacked; nothing after it is read until that is done."""
        self.unpacked: bytes | ProtocolViolation | None = None
        """What became of it, for the session to take."""
        self.input_ended = False
        """The end of the input came, behind the frame that is being read."""
        self.max_decompressed = 0
        """Bytes that a body may become."""

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return self.reading is not None or bool(self.behind)

    def work(self) -> Callable[[], object] | None:
        """The next piece of work, if none is being done."""
        if self._is_running or self.reading is None:
            return super().work()
        self._is_running = True
        body, most = self.reading.body, self.max_decompressed
        return lambda: result_of(lambda: extensions.gunzip(body, most))
