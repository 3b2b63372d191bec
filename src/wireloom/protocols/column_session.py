"""Sessions of protocols with a kernel: what the batches in columns ask of them.

A protocol without a kernel has nothing to do with this: its session is a `Session`. See `publish_columns.py` for how
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
"""Bytes from which on the kernel is used: below, the call costs more than a few frames by `frames.py`."""
BY_FRAME = 64
"""Frames that are decoded one by one and make a batch. Behind it the kernel is tried again where there is one, and the
owner looks at the clock."""
LOOK_AHEAD = 4096, 1 << 20
"""Bytes that the kernel looks at, at least and at most: few where it did not get far the last time. Its rows take up to
fifteen times as much memory as it looks at."""


class ColumnSession(Session):
    """A session whose long reads are decoded by a kernel, once `enable_columns` was called."""

    def _decode(self, data: bytes, by_frame: Callable[[bytes, int, int], tuple[Batch | None, int]]) -> Iterator[Batch]:
        """All of one read: publishes by the kernel where it is long, everything else frame by frame.

        `by_frame` decodes some frames of the data from a place on, to the first control message. It returns a batch and
        where it ended: at the end of the data, if nothing more can be taken now.
        """
        at, end = 0, len(data)
        ahead = LOOK_AHEAD[1]
        """How far the kernel looks. What it finds behind an odd frame is found again, so then it looks less far."""
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
                    continue  # it stopped at a frame that goes on where it did not look, or had enough for a batch
            batch, at = by_frame(data, at, BY_FRAME)
            if batch is not None:
                yield batch

    def kernel_from(self, first: int) -> int:
        """How many bytes are worth a call of the kernel, where the first frame begins with this byte."""
        return KERNEL_FROM

    @abc.abstractmethod
    def batch_key(self, now: float) -> Hashable | None:
        """Sessions of one listener with equal keys may have their next reads decoded together.

        None where the next read must go to `receive`: something is incomplete, closing, or not usual. Whoever asks has
        a read at hand, which counts as a sign of life.
        """

    @abc.abstractmethod
    def keep(self, rest: bytes) -> None:
        """Keep the beginning of a frame that stood at the end of a read."""

    @abc.abstractmethod
    def owe(self, owed: Owed) -> bool:
        """The peer waits for the answers to these publishes; False, and nothing done, if that breaks a rule."""

    @abc.abstractmethod
    def owe_one(self, request: Message) -> None:
        """The peer waits for the answer to this request, which came in columns."""

    @abc.abstractmethod
    def settled(self, batch: PublishColumns, read: int) -> None:
        """The publishes of a read are answered, or answered one by one from now on."""


class CallSession(ColumnSession):
    """A session whose kernel finds requests and answers, too, and that sends many of them together."""

    @abc.abstractmethod
    def take_calls(self, calls: Calls) -> bool:
        """Requests came, or answers to ours; False, and nothing done, if that may break a rule."""

    @abc.abstractmethod
    def ask_all(
        self, topic: str, content_type: str | None, bodies: Sequence[bytes], now: float
    ) -> Sequence[str] | None:
        """Queue requests that differ in their bodies alone; their ids.

        None, and nothing done, where they have to be sent one by one: `send` then says what is wrong with which.
        """

    @abc.abstractmethod
    def answer_all(
        self, topic: str | None, content_type: str | None, ids: Sequence[str], bodies: Sequence[bytes], now: float
    ) -> bool:
        """Queue responses that are done, to the peer's requests with these ids; False, and nothing done, likewise."""
