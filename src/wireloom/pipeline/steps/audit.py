"""Audits signed packets: their authenticity, and findings about forged, stale and replayed ones.

This is for protocols whose column decoder has an auditor. Each task checks the packets that it has decoded. Whether a
packet is a replay may depend on a packet in another task, so the final join finds replays. They are found per receiver:
a packet that a node sends to two others is no replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wireloom.pipeline.dictionary_columns import unified
from wireloom.pipeline.name_hash import name_hash
from wireloom.pipeline.pair_kernel import Clock
from wireloom.pipeline.steps import findings
from wireloom.pipeline.steps.exchanges_partial import BUCKETS
from wireloom.pipeline.steps.message_arrays import WORDS, View, coded, codes, files_in_order, one_piece, order_of, typed
from wireloom.protocols.audit import AUTHENTICITIES, NAME_SIZE, Auditor, Examined, Finding, Packets, Window
from wireloom.protocols.pairing import PairingRule, Severity

_NAME = pa.binary(NAME_SIZE)
PACKETS = pa.schema(
    [
        ("bucket", pa.uint8()),
        ("name", _NAME),
        ("time", pa.int64()),
        ("until", pa.int64()),
        ("rule", WORDS),
        ("severity", WORDS),
        ("protocol", WORDS),
        ("connection", WORDS),
        ("message_id", pa.string()),
        ("file", WORDS),
        ("offset", pa.int64()),
        ("sequence", pa.int64()),
    ]
)
"""Packets that a receiver remembers; `rule` is what a second one breaks."""
SEEN = pa.schema([("bucket", pa.uint8()), ("name", _NAME), ("until", pa.int64())])
"""The names that receivers remember."""
REPLAYED = "it was seen before"


@dataclass(frozen=True, slots=True)
class Audited:
    """Messages with what is known of their authenticity, findings, and packets to be remembered."""

    messages: pa.Table
    findings: pa.Table
    packets: pa.Table


def examine(
    auditor: Auditor,
    data: NDArray[np.uint8],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    messages: pa.Table,
) -> Audited:
    """Check the packets in a buffer. `messages` are their rows, in the same order."""
    view = View(messages)
    source, names = view.codes("source")
    packets = Packets(data, offset, size, view.time_us, source.astype(np.int32), [name or "" for name in names])
    found = auditor.look(packets)
    words = [str(each) for each in AUTHENTICITIES]
    index = messages.schema.get_field_index("authenticity")
    checked = messages.set_column(index, "authenticity", coded(found.authenticity, [*words]))
    return Audited(checked, _findings(auditor, view, found.findings), _remembered(auditor, view, found))


def _findings(auditor: Auditor, view: View, found: list[Finding]) -> pa.Table:
    parts = []
    for rule in sorted({each.rule for each in found}):
        own = [each for each in found if each.rule == rule]
        rows = np.array([each.row for each in own], np.int64)
        broken = PairingRule(rule, Severity(auditor.severities[rule]), "")
        parts.append(findings.of_rows(view, rows, broken, [each.detail for each in own]))
    return findings.together(parts)


def _remembered(auditor: Auditor, view: View, found: Examined) -> pa.Table:
    rows = np.flatnonzero(found.remembered)
    taken = pa.array(rows)
    receiver, receivers = view.codes("destination")
    marks = np.array([list(name_hash(name or "").to_bytes(8, "little")) for name in receivers], np.uint8)
    name = np.frombuffer(found.name[rows].astype(f"S{NAME_SIZE}").tobytes(), np.uint8).reshape(-1, NAME_SIZE).copy()
    name[:, :8] ^= marks[receiver[rows]]
    count, rule = len(rows), auditor.replay_rule
    values = {
        "bucket": name[:, 0] % BUCKETS,
        "name": pa.FixedSizeBinaryArray.from_buffers(_NAME, count, [None, pa.py_buffer(name.tobytes())]),
        "time": view.time_us[rows],
        "until": found.until_us[rows],
        "rule": coded(np.zeros(count, np.int8), [rule]),
        "severity": coded(np.zeros(count, np.int8), [auditor.severities[rule]]),
        **{
            n: view.column(n).take(taken)
            for n in ("protocol", "connection", "message_id", "file", "offset", "sequence")
        },
    }
    return typed(values, PACKETS)


def join(packets: pa.Table, seen: pa.Table, clock: Clock) -> tuple[pa.Table, pa.Table]:
    """Findings about replays, and the names that are still remembered."""
    packets = unified(packets).combine_chunks()
    order = order_of(
        packets["time"].to_numpy(),
        files_in_order(one_piece(packets["file"])),
        packets["offset"].to_numpy(),
        codes(one_piece(packets["connection"]))[0],
        packets["sequence"].to_numpy(),
    )
    packets = packets.take(pa.array(order)).combine_chunks()
    window = Window(_bytes(seen["name"]) + seen["until"].to_numpy().astype("<i8").tobytes())
    names = np.frombuffer(_bytes(packets["name"]), f"S{NAME_SIZE}")
    again = window.repeats(names, packets["time"].to_numpy(), packets["until"].to_numpy())
    window.forget(clock.watermark_us - clock.lateness_us)
    repeats = packets.filter(pa.array(again))
    repeats = repeats.append_column("correlation_id", pa.nulls(repeats.num_rows, pa.string()))
    parts = []
    numbers, rules = codes(one_piece(repeats["rule"]))
    for number in np.unique(numbers).tolist():
        rule, own = str(rules[number]), repeats.filter(pa.array(numbers == number))
        severity = Severity(own["severity"][0].as_py())
        parts.append(findings.of_table(own, PairingRule(rule, severity, REPLAYED)))
    return findings.together(parts), _seen(window)


def _bytes(column: pa.ChunkedArray) -> bytes:
    return b"".join(column.to_pylist())


def _seen(window: Window) -> pa.Table:
    saved, count = window.save(), len(window)
    name = np.frombuffer(saved[: count * NAME_SIZE], np.uint8).reshape(-1, NAME_SIZE)
    return pa.table(
        {
            "bucket": name[:, 0] % np.uint8(BUCKETS),
            "name": pa.FixedSizeBinaryArray.from_buffers(_NAME, count, [None, pa.py_buffer(name.tobytes())]),
            "until": np.frombuffer(saved[count * NAME_SIZE :], "<i8").astype(np.int64),
        }
    ).cast(SEEN)
