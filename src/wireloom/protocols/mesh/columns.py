"""mesh a buffer at a time: kernels parse the usual packets, the reference decoder the rest.

The result equals that of `frames.py` and `messages.py` for the same bytes; tests compare the two.
With a trust file, `audit.py` tells which packets are authentic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import inlined, kernel
from wireloom.model import Authenticity, Direction, Kind, Message, ProtocolViolation
from wireloom.protocols.audit import AUTHENTICITIES, AUTHENTICITY_CODES, Auditor, Packets, Window
from wireloom.protocols.columns import (
    KIND_CODES,
    ColumnDecoder,
    Columns,
    Reject,
    Spans,
    Stream,
    gather_with,
    number_words,
    with_words,
    words_column,
)
from wireloom.protocols.contract import URGENT, Settings
from wireloom.protocols.mesh import frames, scan, security
from wireloom.protocols.mesh.audit import MeshAuditor, judge
from wireloom.protocols.mesh.messages import JSON, TEXT, to_message
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.mesh.trust import TrustStore

if TYPE_CHECKING:
    import pyarrow as pa

_KIND_OF_TYPE = np.array([KIND_CODES[k] for k in (Kind.OTHER, Kind.OPEN, Kind.PING, Kind.EVENT)], np.uint8)
_CONTENT_TYPES = [TEXT, JSON]
_CONTENT = np.full(256, -1, np.int32)
"""By the type of a body's field, -1 for no body: which content type it has, or none."""
_CONTENT[frames.Type.STRING], _CONTENT[frames.Type.JSON] = 0, 1
_NAMES = (
    "timestamp", "flags", URGENT, "node_id", "auth_key_id", "public_key", "hmac", "signature", "signed_at",
)  # fmt: skip
_HEX = ((3, scan.NODE, 16), (4, scan.KEY_ID, 4), (5, scan.PUBLIC, 32), (6, scan.HMAC, 32), (7, scan.SIGNATURE, 64))
"""Attributes that are bytes: number of the name, line of the table, size."""
_SIGNED_AT = 8
_NONE, _UNCHECKED = AUTHENTICITY_CODES[Authenticity.NONE], AUTHENTICITY_CODES[Authenticity.UNCHECKED]


@kernel
def _digits(value: int) -> int:
    count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


@kernel
def _measure(table: NDArray[np.int64]) -> tuple[int, int]:
    """How many attributes there are in all, and how many bytes their values have."""
    entries, size = 0, 0
    for row in range(table.shape[1]):
        if not table[scan.PLAIN, row]:
            continue
        entries += 1
        size += _digits(table[scan.TIMESTAMP, row])
        if table[scan.FLAGS, row]:
            entries += 2
            size += 2
        for _, line, length in _HEX:
            if table[line, row] >= 0:
                entries += 1
                size += 2 * length
        if table[scan.STAMP, row] >= 0:
            entries += 1
            size += _digits(table[scan.SIGNED_AT, row])
    return entries, size


@kernel
def _write_number(value: int, out: NDArray[np.uint8], at: int) -> int:
    size: int = _digits(value)
    for index in range(size):
        out[at + size - 1 - index] = 48 + value % 10
        value //= 10
    return at + size


@inlined
def _write_hex(data: NDArray[np.uint8], place: int, size: int, out: NDArray[np.uint8], at: int) -> int:
    source, target = np.uint64(place), np.uint64(at)
    for index in range(np.uint64(size)):
        byte = data[source + index]
        high, low = byte >> np.uint8(4), byte & np.uint8(15)
        # Computed, not looked up: so that the loop takes many bytes at a time.
        out[target + np.uint64(2) * index] = high + np.uint8(48) + (np.uint8(39) if high > 9 else np.uint8(0))
        out[target + np.uint64(2) * index + np.uint64(1)] = (
            low + np.uint8(48) + (np.uint8(39) if low > 9 else np.uint8(0))
        )
    return at + 2 * size


@kernel
def _write_attributes(
    data: NDArray[np.uint8],
    table: NDArray[np.int64],
    rows: NDArray[np.int32],
    names: NDArray[np.int32],
    ends: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Attribute names (as codes), values, and where each row's attributes begin."""
    entry, at = 0, 0
    rows[0] = 0
    ends[0] = 0
    for row in range(table.shape[1]):
        if table[scan.PLAIN, row]:
            at = _write_number(table[scan.TIMESTAMP, row], out, at)
            names[entry] = 0
            entry += 1
            ends[entry] = at
            if table[scan.FLAGS, row]:
                # The kernel takes no flag but Urgent.
                for name in range(1, 3):
                    out[at] = 49
                    at += 1
                    names[entry] = name
                    entry += 1
                    ends[entry] = at
            for name, line, size in _HEX:
                place = table[line, row]
                if place >= 0:
                    at = _write_hex(data, place, size, out, at)
                    names[entry] = name
                    entry += 1
                    ends[entry] = at
            if table[scan.STAMP, row] >= 0:
                at = _write_number(table[scan.SIGNED_AT, row], out, at)
                names[entry] = _SIGNED_AT
                entry += 1
                ends[entry] = at
        rows[row + 1] = entry


@kernel
def _write_ids(data: NDArray[np.uint8], offset: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """The Message ID of each packet as 8 digits."""
    for row in range(offset.shape[0]):
        _write_hex(data, offset[row] + 1, 4, out, 8 * row)


class MeshColumns(ColumnDecoder):
    """The `messages` columns of mesh."""

    def warm(self) -> None:
        """Run each kernel once on a small input."""
        fields = (frames.Field(1, b"a"), frames.Field(5, b"1"), frames.Field(0x14, bytes(16)))
        packet = frames.encode(frames.Packet(1, frames.EventType.EVENT, 1, fields))
        self.decode(Spans.whole(packet, Stream(Direction.DGRAM)), MeshSettings())
        Window().repeats(np.array([b"a"]), np.zeros(1, np.int64), np.zeros(1, np.int64))

    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """All messages of all spans; with a trust file in the settings, checked against it."""
        own = cast(MeshSettings, settings)
        trust = own.trust_store() if own.trust else None
        found = scan.scan_packets(spans.data, spans.start, spans.end, own.limits)
        plain = found.table[scan.PLAIN] == 1
        slow: list[int] = []
        messages: list[Message] = []
        rejects: list[Reject] = []
        for row in np.flatnonzero(~plain).tolist():
            span, at, size = int(found.span[row]), int(found.offset[row]), int(found.size[row])
            direction = spans.streams[spans.stream[span]].direction
            try:
                messages.append(_slow(spans.data[at : at + size].tobytes(), own, trust, direction))
                slow.append(row)
            except ProtocolViolation as violation:
                rejects.append(Reject(span, at, size, violation.clause, violation.detail))
        others = np.array(slow, np.int64)
        if rejects:
            kept = plain.copy()
            kept[others] = True
            found = found.only(kept)
            others = (np.cumsum(kept) - 1)[others]
        return Columns(
            span=found.span,
            offset=found.offset,
            size=found.size,
            rejects=rejects,
            consumed=spans.end.copy(),
            state=[stream.state for stream in spans.streams],
            **_columns(spans.data, found, others, messages, trust, own),
        )

    def auditor(self, settings: Settings, state: bytes = b"") -> Auditor:
        """Forged, replayed and outdated packets are found."""
        return MeshAuditor(cast(MeshSettings, settings), state)


def _slow(data: bytes, settings: MeshSettings, trust: TrustStore | None, direction: Direction) -> Message:
    """Decode one packet by the reference decoder, as `MeshDecoder` does."""
    packet = frames.decode(data, settings.limits)
    if trust is None:
        return to_message(packet, direction, max_plain=settings.max_plain)
    verdict = security.check(packet, trust)
    return to_message(packet, direction, verdict.authenticity, keys=trust.encryption_keys, max_plain=settings.max_plain)


def _columns(
    data: NDArray[np.uint8],
    found: scan.Scan,
    others: NDArray[np.int64],
    messages: list[Message],
    trust: TrustStore | None,
    settings: MeshSettings,
) -> dict[str, Any]:
    """What packets say: those of the usual shape by the table, the others by their messages."""
    import pyarrow as pa

    table, count = found.table, len(found.offset)
    table[scan.NAME : scan.MESSAGE_ID, others] = -1
    table[scan.EVENT_TYPE, others] = 0
    kind = _KIND_OF_TYPE[table[scan.EVENT_TYPE]]
    kind[others] = [KIND_CODES[message.kind] for message in messages]
    names, words = number_words(data, table[scan.NAME], table[scan.NAME_SIZE])
    authenticity = _authenticity(data, found, others, trust, settings)
    authenticity[others] = [AUTHENTICITY_CODES[message.authenticity] for message in messages]
    ids = np.empty(8 * count, np.uint8)
    _write_ids(data, found.offset, ids)
    return {
        "kind": kind,
        "topic": with_words(names, [word.decode() for word in words], others, [m.topic for m in messages]),
        "message_id": pa.StringArray.from_buffers(
            count, pa.py_buffer(np.arange(0, 8 * count + 1, 8, dtype=np.int32)), pa.py_buffer(ids)
        ),
        "correlation_id": pa.nulls(count, pa.string()),
        "status": pa.nulls(count, pa.string()),
        "content_type": with_words(
            _CONTENT[table[scan.BODY_TYPE]], _CONTENT_TYPES, others, [m.content_type for m in messages]
        ),
        "body": gather_with(data, table[scan.BODY], table[scan.BODY_SIZE], others, [m.body for m in messages]),
        "attributes": _attributes(data, table, others, messages),
        "authenticity": words_column(authenticity.astype(np.int32), [str(each) for each in AUTHENTICITIES]),
    }


def _attributes(
    data: NDArray[np.uint8], table: NDArray[np.int64], others: NDArray[np.int64], messages: list[Message]
) -> pa.Array:
    import pyarrow as pa

    entries, size = _measure(table)
    if size > np.iinfo(np.int32).max:
        raise OverflowError("more than 2 GiB in one column: decode the input in smaller pieces")
    count = table.shape[1]
    rows, names = np.empty(count + 1, np.int32), np.empty(entries, np.int32)
    ends, out = np.empty(entries + 1, np.int32), np.empty(size, np.uint8)
    _write_attributes(data, table, rows, names, ends, out)
    text = pa.string()
    values = pa.StringArray.from_buffers(entries, pa.py_buffer(ends), pa.py_buffer(out))
    usual = pa.MapArray.from_arrays(pa.array(rows), pa.array(_NAMES, text).take(pa.array(names)), values)
    if not messages:
        return usual
    more = pa.array([list(message.attributes.items()) for message in messages], pa.map_(text, text))
    order = np.arange(count)
    order[others] = count + np.arange(len(messages))
    return pa.concat_arrays([usual, more]).take(pa.array(order))


def _authenticity(
    data: NDArray[np.uint8],
    found: scan.Scan,
    others: NDArray[np.int64],
    trust: TrustStore | None,
    settings: MeshSettings,
) -> NDArray[np.uint8]:
    """What is known about the senders of usual packets; where and when they came plays no part in it."""
    table = found.table
    if trust is None:
        signed = (table[scan.HMAC] >= 0) | (table[scan.SIGNATURE] >= 0)
        return np.where(signed, np.uint8(_UNCHECKED), np.uint8(_NONE))
    result = np.empty(len(found.offset), np.uint8)
    usual = np.ones(len(result), np.bool_)
    usual[others] = False
    own = found.only(usual)
    nowhere = np.zeros(len(own.offset), np.int32)
    packets = Packets(data, own.offset, own.size, own.offset, nowhere, ("",))
    result[usual] = judge(packets, own.table, trust, settings).authenticity
    return result
