"""mesh a buffer at a time: kernels take the usual packets apart, the readable code the rest.

Gives exactly what `frames.py` and `messages.py` give for the same bytes; the tests hold the two against each other.
With a trust file, `audit.py` tells which are authentic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from wireloom.kernels import kernel
from wireloom.model import Authenticity, Direction, Kind, Message, ProtocolViolation
from wireloom.protocols.audit import AUTHENTICITIES, AUTHENTICITY_CODES, Auditor, Packets
from wireloom.protocols.columns import KIND_CODES, ColumnDecoder, Columns, Reject, Spans, Stream, gather
from wireloom.protocols.contract import URGENT, Settings
from wireloom.protocols.mesh import frames, scan, security
from wireloom.protocols.mesh.audit import MeshAuditor, judge
from wireloom.protocols.mesh.messages import JSON, TEXT, to_message
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.mesh.trust import TrustStore

if TYPE_CHECKING:
    import pyarrow as pa

_KIND_OF_TYPE = np.array([KIND_CODES[k] for k in (Kind.OTHER, Kind.OPEN, Kind.PING, Kind.EVENT)], np.uint8)
_CONTENT = np.full(256, -1, np.int32)
_CONTENT[1], _CONTENT[5] = 0, 1
_NAMES = (
    "timestamp", "flags", URGENT, "node_id", "auth_key_id", "public_key", "hmac", "signature", "signed_at",
)  # fmt: skip
_HEX = np.array(
    [[3, scan.NODE, 16], [4, scan.KEY_ID, 4], [5, scan.PUBLIC, 32], [6, scan.HMAC, 32], [7, scan.SIGNATURE, 64]]
)
_NONE, _UNCHECKED = AUTHENTICITY_CODES[Authenticity.NONE], AUTHENTICITY_CODES[Authenticity.UNCHECKED]
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


@kernel
def _digits(value: int) -> int:
    count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


@kernel
def _measure(table: NDArray[np.int64], hexes: NDArray[np.int64]) -> tuple[int, int]:
    """How many attributes there are in all, and how many bytes their values have."""
    entries, size = 0, 0
    for row in range(table.shape[0]):
        entries += 1
        size += _digits(table[row, scan.TIMESTAMP])
        if table[row, scan.FLAGS]:
            entries += 2
            size += 2
        for index in range(hexes.shape[0]):
            if table[row, hexes[index, 1]] >= 0:
                entries += 1
                size += 2 * hexes[index, 2]
        if table[row, scan.STAMP] >= 0:
            entries += 1
            size += _digits(table[row, scan.SIGNED_AT])
    return entries, size


@kernel
def _write_number(value: int, out: NDArray[np.uint8], at: int) -> int:
    size: int = _digits(value)
    for index in range(size):
        out[at + size - 1 - index] = 48 + value % 10
        value //= 10
    return at + size


@kernel
def _write_hex(
    data: NDArray[np.uint8], place: int, size: int, digits: NDArray[np.uint8], out: NDArray[np.uint8], at: int
) -> int:
    for index in range(size):
        byte = data[place + index]
        out[at + 2 * index] = digits[byte >> 4]
        out[at + 2 * index + 1] = digits[byte & 15]
    return at + 2 * size


@kernel
def _write_attributes(
    data: NDArray[np.uint8],
    table: NDArray[np.int64],
    hexes: NDArray[np.int64],
    digits: NDArray[np.uint8],
    rows: NDArray[np.int32],
    names: NDArray[np.int32],
    ends: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Attribute names (as codes), values, and where each row's attributes begin."""
    entry, at = 0, 0
    rows[0] = 0
    ends[0] = 0
    for row in range(table.shape[0]):
        at = _write_number(table[row, scan.TIMESTAMP], out, at)
        names[entry] = 0
        entry += 1
        ends[entry] = at
        if table[row, scan.FLAGS]:
            # The kernel takes no flag but Urgent.
            for name in range(1, 3):
                out[at] = 49
                at += 1
                names[entry] = name
                entry += 1
                ends[entry] = at
        for index in range(hexes.shape[0]):
            place = table[row, hexes[index, 1]]
            if place >= 0:
                at = _write_hex(data, place, hexes[index, 2], digits, out, at)
                names[entry] = hexes[index, 0]
                entry += 1
                ends[entry] = at
        if table[row, scan.STAMP] >= 0:
            at = _write_number(table[row, scan.SIGNED_AT], out, at)
            names[entry] = 8
            entry += 1
            ends[entry] = at
        rows[row + 1] = entry


@kernel
def _write_ids(table: NDArray[np.int64], digits: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    for row in range(table.shape[0]):
        value = table[row, scan.MESSAGE_ID]
        for index in range(8):
            out[8 * row + 7 - index] = digits[value & 15]
            value >>= 4


class MeshColumns(ColumnDecoder):
    """The `messages` columns of mesh."""

    def warm(self) -> None:
        """Run each kernel once on a small input."""
        fields = (frames.Field(1, b"a"), frames.Field(5, b"1"), frames.Field(0x14, bytes(16)))
        packet = frames.encode(frames.Packet(1, frames.EventType.EVENT, 1, fields))
        self.decode(Spans.whole(packet, Stream(Direction.DGRAM)), MeshSettings())

    def decode(self, spans: Spans, settings: Settings) -> Columns:
        """All messages of all spans; with a trust file in the settings, checked against it."""
        own = cast(MeshSettings, settings)
        trust = own.trust_store() if own.trust else None
        span, offset, size = scan.find_packets(spans.data, spans.start, spans.end)
        table = scan.read_packets(spans.data, offset, size, own.limits)
        usual = table[:, scan.PLAIN] == 1
        others: list[tuple[int, Message]] = []
        rejects: list[Reject] = []
        for row in np.flatnonzero(~usual).tolist():
            data = spans.data[offset[row] : offset[row] + size[row]].tobytes()
            try:
                others.append((row, _slow(data, own, trust, spans.streams[spans.stream[span[row]]].direction)))
            except ProtocolViolation as violation:
                rejects.append(
                    Reject(int(span[row]), int(offset[row]), int(size[row]), violation.clause, violation.detail)
                )
        fast = np.flatnonzero(usual)
        slow = np.array([row for row, _ in others], np.int64)
        rows = np.concatenate((fast, slow))
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        part = table if len(fast) == len(table) else np.ascontiguousarray(table[fast])
        columns = _usual_columns(
            spans.data, part, _authenticity(spans.data, offset[fast], size[fast], part, trust, own)
        )
        if others:
            kinds, arrays = columns
            more = _slow_columns([message for _, message in others])
            columns = (
                np.concatenate((kinds, more[0]))[order],
                {name: _merge(array, more[1][name], order) for name, array in arrays.items()},
            )
        kinds, arrays = columns
        return Columns(
            span=span[rows],
            offset=offset[rows],
            size=size[rows],
            kind=kinds,
            rejects=rejects,
            consumed=spans.end.copy(),
            state=[stream.state for stream in spans.streams],
            **arrays,
        )

    def auditor(self, settings: Settings, state: bytes = b"") -> Auditor:
        """Forged, replayed and outdated packets are found."""
        return MeshAuditor(cast(MeshSettings, settings), state)


def _slow(data: bytes, settings: MeshSettings, trust: TrustStore | None, direction: Direction) -> Message:
    """One packet by the readable code, as `MeshDecoder` does it."""
    packet = frames.decode(data, settings.limits)
    if trust is None:
        return to_message(packet, direction, max_plain=settings.max_plain)
    verdict = security.check(packet, trust)
    return to_message(packet, direction, verdict.authenticity, keys=trust.encryption_keys, max_plain=settings.max_plain)


def _merge(usual: pa.Array, others: pa.Array, order: NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays([usual, others]).take(pa.array(order))


def _slow_columns(messages: list[Message]) -> tuple[NDArray[np.uint8], dict[str, pa.Array]]:
    import pyarrow as pa

    text = pa.string()
    return np.array([KIND_CODES[m.kind] for m in messages], np.uint8), {
        "topic": pa.array([m.topic for m in messages], text),
        "message_id": pa.array([m.id for m in messages], text),
        "correlation_id": pa.nulls(len(messages), text),
        "status": pa.nulls(len(messages), text),
        "content_type": pa.array([m.content_type for m in messages], text),
        "body": pa.array([m.body for m in messages], pa.binary()),
        "attributes": pa.array([list(m.attributes.items()) for m in messages], pa.map_(text, text)),
        "authenticity": pa.array([str(m.authenticity) for m in messages], text),
    }


def _usual_columns(
    data: NDArray[np.uint8], table: NDArray[np.int64], authenticity: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], dict[str, pa.Array]]:
    import pyarrow as pa

    count = len(table)
    text = pa.string()
    named = table[:, scan.NAME] >= 0
    content = _CONTENT[np.maximum(table[:, scan.BODY_TYPE], 0)]
    ids = np.empty(8 * count, np.uint8)
    _write_ids(table, _DIGITS, ids)
    return _KIND_OF_TYPE[table[:, scan.EVENT_TYPE]], {
        "topic": _texts(
            data, np.where(named, table[:, scan.NAME], 0), np.where(named, table[:, scan.NAME_SIZE], 0), named
        ),
        "message_id": pa.StringArray.from_buffers(
            count, pa.py_buffer(np.arange(0, 8 * count + 1, 8, dtype=np.int32)), pa.py_buffer(ids)
        ),
        "correlation_id": pa.nulls(count, text),
        "status": pa.nulls(count, text),
        "content_type": pa.array([TEXT, JSON], text).take(pa.array(content, mask=content < 0)),
        "body": gather(data, np.maximum(table[:, scan.BODY], 0), np.maximum(table[:, scan.BODY_SIZE], 0)),
        "attributes": _attributes(data, table),
        "authenticity": pa.array(AUTHENTICITIES, text).take(pa.array(authenticity)),
    }


def _texts(
    data: NDArray[np.uint8], start: NDArray[np.int64], size: NDArray[np.int64], valid: NDArray[np.bool_]
) -> pa.Array:
    import pyarrow as pa

    raw = gather(data, start, size)
    _, offsets, content = raw.buffers()
    mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.StringArray.from_buffers(len(start), offsets, content, mask)


def _attributes(data: NDArray[np.uint8], table: NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    entries, size = _measure(table, _HEX)
    if size > np.iinfo(np.int32).max:
        raise OverflowError("more than 2 GiB in one column: decode the input in smaller pieces")
    rows, names = np.empty(len(table) + 1, np.int32), np.empty(entries, np.int32)
    ends, out = np.empty(entries + 1, np.int32), np.empty(size, np.uint8)
    _write_attributes(data, table, _HEX, _DIGITS, rows, names, ends, out)
    values = pa.StringArray.from_buffers(entries, pa.py_buffer(ends), pa.py_buffer(out))
    return pa.MapArray.from_arrays(pa.array(rows), pa.array(_NAMES, pa.string()).take(pa.array(names)), values)


def _authenticity(
    data: NDArray[np.uint8],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    table: NDArray[np.int64],
    trust: TrustStore | None,
    settings: MeshSettings,
) -> NDArray[np.uint8]:
    """What is known about the senders of usual packets; where and when they came plays no part in it."""
    if trust is None:
        signed = (table[:, scan.HMAC] >= 0) | (table[:, scan.SIGNATURE] >= 0)
        return np.where(signed, _UNCHECKED, _NONE).astype(np.uint8)
    nowhere = np.zeros(len(offset), np.int32)
    return judge(Packets(data, offset, size, offset, nowhere, ("",)), table, trust, settings).authenticity
