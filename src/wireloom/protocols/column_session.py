"""Sessions of protocols with a kernel: the interface that batches in columns use.

The session of a protocol without a kernel is a plain `Session`. See `publish_columns.py` for how
reads become columns, and `call_columns.py` for requests and answers in them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from wireloom.model import Message
from wireloom.protocols.batch import Batch, Calls
from wireloom.protocols.session import Session, SessionState

if TYPE_CHECKING:
    from wireloom.protocols.pending_acks import Owed
    from wireloom.protocols.publish_columns import PublishColumns

KERNEL_FROM = 512
"""The kernel is used for at least this many bytes. Below, `frames.py` is faster than the call."""
BY_FRAME = 64
"""Frames that are decoded one by one into a batch. After that, the kernel is tried again, and the owner checks how long
it has used the event loop."""
LOOK_AHEAD = 4096, 1 << 20
"""Fewest and most bytes that the kernel scans in a call. It scans fewer where it stopped early the last time. Its rows
take up to fifteen times the memory of the scanned bytes."""


class ColumnSession(Session):
    """A session whose long reads are decoded by a kernel, once `enable_columns` was called."""

    def _decode(self, data: bytes, by_frame: Callable[[bytes, int, int], tuple[Batch | None, int]]) -> Iterator[Batch]:
        """Decode a read: long parts by the kernel, everything else frame by frame.

        `by_frame(data, at, most)` decodes frames from a position on, up to the first control message. It returns a
        batch and the position after it. That is the end of the data if nothing more can be decoded now.
        """
        at, end = 0, len(data)
        ahead = LOOK_AHEAD[1]
        """Bytes to scan next. It shrinks after a frame that the kernel could not take, and grows with success."""
        while at < end:
            if self.columns is not None and self.state is SessionState.OPEN and end - at >= self.kernel_from(data[at]):
                limit = min(at + ahead, at + self.look_ahead, end)
                taken = self.columns.take((self,), data, (at,), (limit,))
                got = taken.ends[0] - at
                at = taken.ends[0]
                ahead = min(max(2 * got, LOOK_AHEAD[0]), LOOK_AHEAD[1])
                if taken.batch is not None:
                    yield taken.batch
                if got and not taken.odd[0]:
                    continue  # the frame there was cut off by the limit, or the batch was full
            batch, at = by_frame(data, at, BY_FRAME)
            if batch is not None:
                yield batch

    def kernel_from(self, first: int) -> int:
        """The fewest bytes that the kernel is called for, if the first frame begins with this byte."""
        return KERNEL_FROM

    @abc.abstractmethod
    def batch_key(self, now: float) -> Hashable | None:
        """Sessions of one listener with equal keys may have their next reads decoded together.

        None where the next read must go to `receive`: a frame is incomplete, or the session is closing or in another
        unusual state. The caller has a read from the peer, so this also counts as a sign of life at `now`.
        """

    @abc.abstractmethod
    def keep(self, rest: bytes) -> None:
        """Buffer the incomplete frame at the end of a read."""

    @abc.abstractmethod
    def owe(self, owed: Owed) -> bool:
        """Register pending acknowledgements; returns False, and registers none, if that breaks a rule."""

    @abc.abstractmethod
    def owe_one(self, request: Message) -> None:
        """Register the pending answer to one request, which came in columns."""

    @abc.abstractmethod
    def settled(self, batch: PublishColumns, read: int) -> None:
        """The acknowledgements of a read are no longer pending, or they are pending one by one from now on."""


class CallSession(ColumnSession):
    """A session whose kernel also finds requests and answers, and that sends many of them together."""

    @abc.abstractmethod
    def take_calls(self, calls: Calls) -> bool:
        """Take requests, or answers to our requests; returns False, and takes none, if one may break a rule."""

    @abc.abstractmethod
    def ask_all(
        self, topic: str, content_type: str | None, bodies: Sequence[bytes], now: float
    ) -> Sequence[str] | None:
        """Queue requests that differ only in their bodies; returns their ids.

        Returns None, and queues none, if one may be invalid. The caller then calls `send` for each, which raises the
        error for the invalid one.
        """

    @abc.abstractmethod
    def answer_all(
        self, topic: str | None, content_type: str | None, ids: Sequence[str], bodies: Sequence[bytes], now: float
    ) -> bool:
        """Queue final responses to the peer's requests with these ids; returns False, and queues none, likewise."""
