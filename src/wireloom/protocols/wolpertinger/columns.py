"""wolpertinger a buffer at a time: a plain loop over lines, because XML leaves no choice.

Uses the decoder itself, so it gives exactly what that gives. A stream's state is what a decoder has in mind between
two lines: the pieces of messages that are not complete, and whether it is inside a line that is too long. Keys are no
part of it: it may be kept where they must not be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from wireloom.model import Direction, Message
from wireloom.protocols.columns import KIND_CODES, ColumnDecoder, Columns, Reject, Spans
from wireloom.protocols.contract import Decoded, Rejected, Settings, decode_stream
from wireloom.protocols.wolpertinger import frames
from wireloom.protocols.wolpertinger.protocol import WolpertingerDecoder
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings

BEFORE = -1
"""The place of what stands in an earlier buffer."""


class WolpertingerColumns(ColumnDecoder):
    """One Python object a message, and none of them kept."""

    has_pieces = True

    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """Decode span by span; spans of one stream share their decoder's state."""
        own = cast(WolpertingerSettings, settings)
        rows, rejects = _Rows(), []
        consumed = spans.end.copy()
        states = [stream.state for stream in spans.streams]
        begun = [-1] * len(states)
        for index in range(len(spans.start)):
            start, end, number = int(spans.start[index]), int(spans.end[index]), int(spans.stream[index])
            decoder = WolpertingerDecoder(spans.streams[number].direction, own)
            decoder.unlock(spans.streams[number].secrets)
            if states[number]:
                restore(decoder, states[number])
            for found in decode_stream(decoder, spans.data[start:end].tobytes(), final=False):
                at = start + found.offset
                if isinstance(found, Decoded):
                    rows.add(index, at, found.size, found.message)
                else:
                    rejects.append(Reject(index, at, len(found.data), found.clause, found.detail, found.data))
            consumed[index] = start + decoder.offset
            states[number] = freeze(decoder)
            before = begun[number]
            places = [start + each.place for each in decoder.assembly.open.values() if each.place >= 0]
            begun[number] = -1 if not decoder.assembly.open else before if before >= 0 else min(places, default=-1)
        return rows.columns(rejects, consumed, states, begun)

    def unfinished(self, state: bytes, settings: Settings) -> Sequence[Rejected]:
        """Pieces of messages that are not complete."""
        decoder = WolpertingerDecoder(Direction.DGRAM, cast(WolpertingerSettings, settings))
        if state:
            restore(decoder, state)
        return decoder.abandoned(final=True)


@dataclass(slots=True)
class _Rows:
    """The fields of messages, column by column."""

    span: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    wire: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    texts: list[tuple[str | None, ...]] = field(default_factory=list)
    """Topic, id, correlation id, status, content type, authenticity."""
    body: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    """Where the attributes of each row end among those of all."""
    keys: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def add(self, span: int, offset: int, size: int, message: Message) -> None:
        """One message."""
        self.span.append(span)
        self.offset.append(offset)
        self.size.append(size)
        self.wire.append(int(message.attributes.get("wire_size", size)))
        self.kind.append(KIND_CODES[message.kind])
        self.texts.append(
            (
                message.topic, message.id, message.correlation_id, message.status, message.content_type,
                message.authenticity.value,
            )
        )  # fmt: skip
        self.body.append(message.body)
        self.keys += message.attributes
        self.values += message.attributes.values()
        self.ends.append(len(self.keys))

    def columns(
        self, rejects: list[Reject], consumed: NDArray[np.int64], states: list[bytes], begun: list[int]
    ) -> Columns:
        """All of them as arrays."""
        import pyarrow as pa

        text = pa.string()
        names = [pa.array(column, text) for column in zip(*self.texts, strict=True)] or [pa.array([], text)] * 6
        return Columns(
            span=np.array(self.span, np.int32),
            offset=np.array(self.offset, np.int64),
            size=np.array(self.size, np.int64),
            kind=np.array(self.kind, np.uint8),
            topic=names[0],
            message_id=names[1],
            correlation_id=names[2],
            status=names[3],
            content_type=names[4],
            body=pa.array(self.body, pa.binary()),
            attributes=pa.MapArray.from_arrays(
                np.array(self.ends, np.int32), pa.array(self.keys, text), pa.array(self.values, text)
            ),
            authenticity=names[5],
            rejects=rejects,
            consumed=consumed,
            state=states,
            begun=begun,
            wire=np.array(self.wire, np.int64),
        )


def freeze(decoder: WolpertingerDecoder) -> bytes:
    """What a decoder has in mind between two lines; empty if nothing."""
    kept = [[line.decode("latin-1") for line in each.lines] for each in decoder.assembly.open.values()]
    state: dict[str, object] = {}
    if kept:
        state["open"] = kept
    if decoder.skipping:
        state["skipping"] = True
    return json.dumps(state).encode() if state else b""


def restore(decoder: WolpertingerDecoder, state: bytes) -> None:
    """Bring a decoder to where another one stopped."""
    kept = json.loads(state)
    decoder.skipping = bool(kept.get("skipping"))
    for lines in kept.get("open", ()):
        for text in lines:
            line = text.encode("latin-1")
            piece = cast(frames.Data, frames.parse(line[:-1]))
            decoder.assembly.add(piece, wire=len(line), line=line, place=BEFORE)
