"""A journal of format 1, kept as data: the pipeline goes on to make the same rows of it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.journal.test_format1 import JOURNAL, listed, listing
from tests.pipeline.batches import ranges
from wireloom.pipeline.decode import decode_range
from wireloom.pipeline.planning import Range

LISTED = ("protocol", "kind", "topic", "message_id", "correlation_id", "status", "sequence")


def rows(parts: list[Range]) -> list[dict[str, object]]:
    """Messages and rejects, as `rows.jsonl` has them."""
    found: list[tuple[str, int, dict[str, object]]] = []
    for part in parts:
        decoded = decode_range(part)
        for row in decoded.messages.to_pylist():
            values = {name: row[name] for name in LISTED if row[name] is not None} | listed(bytes(row["body"]))
            found.append((Path(row["file"]).name, row["offset"], values))
        for row in decoded.rejects.to_pylist():
            values = {name: row[name] for name in ("clause", "size")}
            found.append((f"refused/{Path(row['file']).name}", row["offset"], values))
    return [values for _, _, values in sorted(found, key=lambda each: each[:2])]


def as_today(row: dict[str, object]) -> dict[str, object]:
    """A row as it is told now: acknowledged publishes are events, operations of the hub have no topic, errors a code.

    Format 1 does not say which requests of hsp a provider took: all of them count as publishes.
    """
    topic, kind = str(row.get("topic", "")), row.get("kind")
    if kind == "request" and (topic.startswith("$hub/publish/") or (row["protocol"] == "hsp" and topic[:5] != "$hub/")):
        row = row | {"kind": "event", "topic": topic.removeprefix("$hub/publish/")}
    elif kind != "event" and topic.startswith("$hub/publish/"):
        row = row | {"topic": topic.removeprefix("$hub/publish/")}
    elif kind != "event" and topic.startswith("$hub/"):
        row = {name: value for name, value in row.items() if name != "topic"}
    if row.get("protocol") == "yamp" and kind == "error":
        # json, msgpack and cbor all have the code as text in the body.
        body = base64.b64decode(str(row["body_base64"]))
        row = row | {"status": next(code for code in ("403", "418") if code.encode() in body)}
    return row


@pytest.mark.parametrize("size", [1 << 30, 20_000, 3_000])
def test_rows_are_what_they_were_then(size: int) -> None:
    parts = [
        Range(part.file, start, min(start + size, part.end), part.refused)
        for part in ranges(JOURNAL)
        for start in range(part.start, part.end, size)
    ]
    assert rows(parts) == [as_today(row) for row in listing("rows.jsonl")]
