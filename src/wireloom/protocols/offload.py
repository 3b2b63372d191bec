"""Encodes slow messages on another thread. Later messages are queued until that is done.

So messages keep their order, and the event loop is not blocked. See `Session.work` and `Session.worked`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wireloom.model import Message, WireloomError, without_traces


@dataclass(frozen=True, slots=True)
class Later:
    """A message that is not encoded yet."""

    message: Message
    encode: Callable[[], bytes]


class WriteLater:
    """A queue that begins with the first slow message. One message is encoded at a time."""

    def __init__(self) -> None:
        self.is_allowed = False
        """Whether the owner calls `work`; otherwise the queue stays empty."""
        self.behind: deque[bytes | Later] = deque()
        """The message that is being encoded, and everything to send after it."""
        self._is_running = False

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.behind)

    def work(self) -> Callable[[], object] | None:
        """The next piece of work, if none is being done."""
        if self._is_running or not self.behind:
            return None
        self._is_running = True
        first = self.behind[0]
        assert isinstance(first, Later)
        return lambda: result_of(first.encode)

    def done(self) -> None:
        """The piece of work that was handed out is done."""
        self._is_running = False

    def ready(self) -> list[bytes]:
        """Take the messages that no longer wait."""
        ready: list[bytes] = []
        while self.behind and isinstance(self.behind[0], bytes):
            ready.append(self.behind.popleft())  # type: ignore[arg-type]
        return ready


def result_of(work: Callable[[], bytes]) -> bytes | WireloomError:
    """The result of the work. An error is returned as a value, without traceback, to the session's thread."""
    try:
        return work()
    except WireloomError as error:
        return without_traces(error)
