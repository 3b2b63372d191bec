"""Serializes the state between two batches: unfinished connections, partial frames, early packets, IP fragments.

The format is MessagePack: it holds bytes, many tools can read it, and loading it never runs code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import msgpack
import numpy as np

from wireloom.model import Direction
from wireloom.pipeline.captures import tcp
from wireloom.pipeline.captures.connections import CapturedConnection, Half, Held, RejectedBytes
from wireloom.pipeline.captures.fragments import Fragments
from wireloom.pipeline.captures.provenance import Trace
from wireloom.pipeline.captures.websocket import Unwrapping

VERSION = 1
_NO_TRACE: list[list[int]] = [[], [], [], []]
_CONNECTION = ("id", "protocol", "wrapping", "client", "opened_told", "closed_told", "tries", "packets")
_HALF = ("mode", "carry", "overhead", "state", "count", "tried", "seen", "over")


def freeze(connections: Iterable[CapturedConnection], files: list[str], latest_us: int, fragments: Fragments) -> bytes:
    """Connections and fragments as bytes; `files` are the names behind the numbers of files in them."""
    known = list(connections)
    # Only captures that something unfinished stands in: their number does not grow with the stream.
    used = sorted({number for connection in known for half in connection.halves for number in _files(half)})
    for_file = {old: new for new, old in enumerate(used)}
    content = {
        "version": VERSION,
        "files": [files[number] for number in used],
        "latest": latest_us,
        "fragments": fragments.freeze(latest_us),
        "connections": [_from_connection(connection, for_file) for connection in known],
    }
    packed: bytes = msgpack.packb(content)
    return packed


def thaw(frozen: bytes, fragments: Fragments) -> tuple[list[CapturedConnection], list[str], int]:
    """The inverse of `freeze`."""
    found = msgpack.unpackb(frozen, use_list=False)
    fragments.thaw(found.get("fragments", ()))
    return [_to_connection(kept) for kept in found["connections"]], list(found["files"]), found["latest"]


def _files(half: Half) -> set[int]:
    """The captures that unfinished bytes stand in."""
    traces = [trace for trace in (half.trace, half.raw_trace, half.begun) if len(trace.at)]
    found = {number for trace in traces for number in trace.file.tolist()} | {held.file for held in half.held}
    return found if half.refused is None else found | {half.refused.file}


def _from_connection(connection: CapturedConnection, for_file: Mapping[int, int]) -> dict[str, Any]:
    return {
        "key": connection.key,
        "numbers": connection.numbers.tolist(),
        "sides": connection.sides.tolist(),
        "halves": [_from_half(half, for_file) for half in connection.halves],
        **{name: getattr(connection, name) for name in _CONNECTION},
    }


def _to_connection(kept: dict[str, Any]) -> CapturedConnection:
    return CapturedConnection(
        kept["key"],
        # What an earlier version left does not say when sides ended.
        np.array([*kept["numbers"], *[-1] * (len(tcp.new_connection()) - len(kept["numbers"]))], np.int64),
        np.array(kept["sides"], np.int64),
        halves=[_to_half(half) for half in kept["halves"]],
        **{name: kept[name] for name in _CONNECTION},
    )


def _from_half(half: Half, for_file: Mapping[int, int]) -> dict[str, Any]:
    unwrapping, refused = half.unwrapping, half.refused
    return {
        "direction": str(half.direction),
        "trace": _from_trace(half.trace, for_file),
        "raw_trace": _from_trace(half.raw_trace, for_file),
        "begun": _from_trace(half.begun, for_file),
        "unwrapping": None if unwrapping is None else _fields(unwrapping, Unwrapping),
        "refused": None if refused is None else _fields(replace(refused, file=for_file[refused.file]), RejectedBytes),
        "holes": half.holes,
        "end_told": half.end_told,
        "held": [_fields(replace(held, file=for_file[held.file]), Held) for held in half.held],
        **{name: getattr(half, name) for name in _HALF},
    }


def _to_half(kept: dict[str, Any]) -> Half:
    unwrapping, refused = kept["unwrapping"], kept["refused"]
    return Half(
        Direction(kept["direction"]),
        trace=_to_trace(kept["trace"]),
        raw_trace=_to_trace(kept["raw_trace"]),
        begun=_to_trace(kept["begun"]) if "begun" in kept else Trace.empty(),
        unwrapping=None if unwrapping is None else _to_unwrapping(*unwrapping),
        refused=None if refused is None else RejectedBytes(*refused),
        holes=kept.get("holes", []),
        end_told=kept.get("end_told", False),
        held=[Held(*held) for held in kept["held"]],
        **{name: kept[name] for name in _HALF},
    )


def _to_unwrapping(to_server: bool, raw: bytes, numbers: tuple[int, ...], window: bytes | None = None) -> Unwrapping:
    return Unwrapping(to_server, raw, list(numbers), window)


def _fields(value: object, kind: type) -> list[Any]:
    return [getattr(value, field.name) for field in fields(kind)]


def _from_trace(trace: Trace, for_file: Mapping[int, int]) -> list[list[int]]:
    if not len(trace.at):
        return _NO_TRACE
    files = [for_file[number] for number in trace.file.tolist()]
    return [trace.at.tolist(), trace.time_us.tolist(), files, trace.offset.tolist()]


def _to_trace(kept: list[list[int]]) -> Trace:
    if not kept[0]:
        return Trace.empty()
    return Trace(*(np.array(column, np.int64) for column in kept))
