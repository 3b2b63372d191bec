"""Decodes a stream one frame at a time: the base class of decoders, and their results."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wireloom.model import Message, ProtocolViolation

CUT = "stream.cut"
"""The clause of a frame that is cut off by the end of its stream."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One message and where it stood in the stream; `frame` is the protocol's own value."""

    message: Message
    frame: object
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """Bytes that did not decode: from `offset` to the end of the unit that is lost with them.

    Pieces of one message are one reject, although other frames may lie between them.
    """

    clause: str
    detail: str
    offset: int
    data: bytes


class Decoder(abc.ABC):
    """Frames of one direction of one connection, one at a time: feed bytes, then iterate.

    Iteration stops when the buffer holds no complete frame; feed more and iterate again. The first
    violation raises `ProtocolViolation` with its offset. For `Framing.STREAM` it is final and raises
    again; for lines and datagrams the bad unit is gone and iteration goes on after it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._taken = 0
        """Bytes of the buffer already decoded; cut off in one go, not per frame."""
        self.offset = 0
        """Stream offset of the first byte not yet decoded."""
        self.violation: ProtocolViolation | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes in the order of the stream."""
        self._cut()
        self._buffer += data

    def _cut(self) -> None:
        """Free decoded bytes: a reader may keep thousands of decoders."""
        if self._taken:
            del self._buffer[: self._taken]
            self._taken = 0

    def unlock(self, secrets: Sequence[Mapping[str, str]]) -> None:
        """Keys that may open what is encrypted (see `Session.secrets`); ignored where nothing is."""

    def abandoned(self, *, final: bool) -> Sequence[Rejected]:
        """Fragments that will never be a message, each reported once; `final`: no more fragments will come."""
        return ()

    @property
    def buffered(self) -> bytes:
        """Bytes fed and not decoded yet: the beginning of a frame, or what follows a violation."""
        return bytes(self._buffer[self._taken :])

    @abc.abstractmethod
    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        """The frame at `start` and where it ends, or None when the buffer holds only a part of it.

        Must raise as soon as a length exceeds a limit, before those bytes have arrived.
        """

    @abc.abstractmethod
    def to_message(self, frame: object) -> Message | None:
        """What the frame means; None while it is a part of a larger message."""

    def __iter__(self) -> Iterator[Decoded]:
        return self

    def __next__(self) -> Decoded:
        if self.violation is not None:
            raise self.violation
        while True:
            try:
                found = self.decode_one(self._buffer, self._taken)
                if found is None:
                    self._cut()
                    raise StopIteration
                frame, end = found
                size = end - self._taken
                message = self.to_message(frame)
            except ProtocolViolation as violation:
                if violation.offset is None:
                    violation.offset = self.offset
                self._after_violation(violation)
                raise
            start = self.offset
            self._taken = end
            self.offset += size
            if message is not None:
                return Decoded(message, frame, start, size)

    def _after_violation(self, violation: ProtocolViolation) -> None:
        """Remember a final violation. Decoders of lines and datagrams skip the bad unit instead."""
        self.violation = violation


def decode_stream(decoder: Decoder, data: bytes, *, final: bool = True) -> Iterator[Decoded | Rejected]:
    """Everything a whole stream holds, messages and rejects in order; every byte is in exactly one of them.

    `decoder` is fresh. With `final` a frame that is cut off at the end is a reject, too.
    """
    decoder.feed(data)
    while True:
        start = decoder.offset
        try:
            for decoded in decoder:
                start = decoded.offset + decoded.size
                yield decoded
            break
        except ProtocolViolation as violation:
            if decoder.violation is None and violation.offset is not None:
                # Fragments of an incomplete message may precede the bad unit.
                start = violation.offset
            end = len(data) if decoder.violation is not None else decoder.offset
            yield Rejected(violation.clause, violation.detail, start, data[start:end])
            if decoder.violation is not None:
                return
    yield from decoder.abandoned(final=final)
    if final and decoder.offset < len(data):
        yield Rejected(CUT, "the stream ends inside a frame", decoder.offset, data[decoder.offset :])
