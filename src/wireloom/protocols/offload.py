"""Messages that take time to write: another thread does it, and everything that is said after them waits.

So the order of what is sent stays, and the event loop need not wait. See `Session.work` and `Session.worked`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wireloom.model import Message, WireloomError, without_traces


@dataclass(frozen=True, slots=True)
class Later:
    """A message whose bytes are still to be made."""

    message: Message
    encode: Callable[[], bytes]


class WriteLater:
    """What is to be written, from the first message on that takes time. One of them is written at a time."""

    def __init__(self) -> None:
        self.is_allowed = False
        """Whether the owner asks for work; else nothing is ever put here."""
        self.behind: deque[bytes | Later] = deque()
        """A message that is being written, and everything to be sent after it."""
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
        """What need not wait any more."""
        ready: list[bytes] = []
        while self.behind and isinstance(self.behind[0], bytes):
            ready.append(self.behind.popleft())  # type: ignore[arg-type]
        return ready


def result_of(work: Callable[[], bytes]) -> bytes | WireloomError:
    """What came of it; errors go back to the session's own thread as values, without what they kept alive."""
    try:
        return work()
    except WireloomError as error:
        return without_traces(error)
