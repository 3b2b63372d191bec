"""Rows of `findings`: how they look, and the rules that one message can break by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.model import KINDS, Kind
from wireloom.pipeline.schemas import FINDINGS, arrow_schema
from wireloom.pipeline.steps.message_arrays import DIRECTIONS, View, constant, dates, timestamps
from wireloom.protocols.pairing import Conversation, PairingRule

SCHEMA = arrow_schema(FINDINGS.columns)


def of_rows(view: View, rows: NDArray[np.int64], rule: PairingRule, details: Sequence[str] | None = None) -> pa.Table:
    """A finding for each of some messages."""
    chosen = view.rows.select(["time", "protocol", "connection", "message_id", "correlation_id", "file", "offset"])
    return of_table(chosen.take(pa.array(rows)), rule, details)


def of_table(chosen: pa.Table, rule: PairingRule, details: Sequence[str] | None = None) -> pa.Table:
    """A finding for each row: `chosen` has time, protocol, connection, message_id, correlation_id, file, offset."""
    import pyarrow.compute as pc

    count = chosen.num_rows
    time_us = chosen["time"].cast(pa.int64()).to_numpy()
    plain = {name: chosen[name].cast(pa.string()) for name in ("protocol", "connection", "file")}
    values = {
        "time": timestamps(time_us),
        "date": dates(time_us),
        **plain,
        "rule": constant(rule.name, count).cast(pa.string()),
        "severity": constant(str(rule.severity), count).cast(pa.string()),
        "detail": pa.array(details, pa.string()) if details is not None else constant(rule.text, count),
        "message_id": pc.coalesce(chosen["message_id"], chosen["correlation_id"]),
        "offset": chosen["offset"],
    }
    return pa.table([values[name] for name in FINDINGS.names], names=list(FINDINGS.names)).cast(SCHEMA)


def together(parts: Sequence[pa.Table]) -> pa.Table:
    """Findings of several rules as one table."""
    return pa.concat_tables(parts) if parts else SCHEMA.empty_table()


def of_single_messages(
    view: View, rows: NDArray[np.int64], conversation: Conversation, midstream: Collection[str] = ()
) -> list[pa.Table]:
    """What single messages of one protocol break: how a direction begins, and who may say what.

    Where the beginning of a connection was not seen (`midstream`), nothing is said about beginnings.
    """
    found: list[pa.Table] = []
    kind, direction = view.kind[rows], view.direction[rows]
    greeting = conversation.greeting
    if greeting is not None:
        first = view.column("sequence").to_numpy()[rows] == 0
        connection, names = view.connection
        begun = np.array([name not in midstream for name in names], np.bool_)[connection[rows]]
        opens = kind == KINDS.index(Kind.OPEN)
        allowed = np.zeros((len(DIRECTIONS), len(KINDS)), np.bool_)
        for code, way in enumerate(DIRECTIONS):
            for kind_code, each in enumerate(KINDS):
                allowed[code, kind_code] = each in greeting.first.get(way, frozenset(KINDS))
        for rule, broken in (
            (greeting.missing, begun & first & ~allowed[direction, kind]),
            (greeting.repeated, begun & ~first & opens),
        ):
            if broken.any():
                found.append(of_rows(view, rows[broken], rule))
    for each, (way, rule) in conversation.one_way.items():
        broken = (kind == KINDS.index(each)) & (direction != DIRECTIONS.index(way))
        if broken.any():
            found.append(of_rows(view, rows[broken], rule))
    return found
