"""What the log of a table says of each file, so that readers need not open it: minima, maxima and how many are null.

The table property `delta.dataSkippingStatsColumns` names exactly the columns that have them: without it some readers
take a column that has none for one without values. A file of an earlier version has only its number of rows; it is
always opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from wireloom.pipeline.schemas import Table

TIMES = ("time", "requested_at", "opened_at", "minute")
"""The column of a table that its rows are ordered by: each has one of these."""
COLUMNS = (*TIMES, "protocol", "connection", "kind", "topic")
"""The columns that people ask by."""
LONGEST = 32
"""Letters of a word that stand in the log. The beginning of a word is not above it; a maximum is rounded up."""
_HIGHEST = chr(0x10FFFF)


def columns_of(table: Table) -> list[str]:
    """The columns of a table that have statistics."""
    stored = {column.name for column in table.stored}
    return [name for name in COLUMNS if name in stored]


def properties(table: Table) -> dict[str, str]:
    """The table's properties that tell readers which columns have statistics."""
    names = columns_of(table)
    return {"delta.dataSkippingStatsColumns": ",".join(names)} if names else {}


def stats_of(rows: pa.Table, table: Table) -> str:
    """The statistics of a file with these rows, as the log has them.

    >>> import pyarrow as pa
    >>> from wireloom.pipeline.schemas import TRAFFIC
    >>> stats_of(pa.table({"topic": ["b", None, "a" * 40]}), TRAFFIC)
    '{"numRecords":3,"minValues":{"topic":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},"maxValues":{"topic":"b"},"nullCount":{"topic":1}}'
    """
    least: dict[str, str] = {}
    most: dict[str, str] = {}
    missing: dict[str, int] = {}
    for name in columns_of(table):
        if name not in rows.column_names:
            continue
        missing[name] = rows[name].null_count
        if (bounds := _bounds(rows[name])) is not None:
            least[name], most[name] = bounds
    found = {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": missing}
    return json.dumps(found, separators=(",", ":"))


def combined(parts: Sequence[str]) -> str:
    """The statistics of a file with the rows of several parts, from those of the parts.

    >>> combined(['{"numRecords":1,"minValues":{"kind":"b"},"maxValues":{"kind":"b"},"nullCount":{"kind":0}}'] * 2)
    '{"numRecords":2,"minValues":{"kind":"b"},"maxValues":{"kind":"b"},"nullCount":{"kind":0}}'
    """
    known = [json.loads(part) for part in parts]
    found: dict[str, int | dict[str, str] | dict[str, int]] = {"numRecords": sum(part["numRecords"] for part in known)}
    for name, choose in (("minValues", min), ("maxValues", max), ("nullCount", sum)):
        columns = dict.fromkeys(column for part in known for column in part[name])
        found[name] = {
            column: choose([part[name][column] for part in known if column in part[name]]) for column in columns
        }
    return json.dumps(found, separators=(",", ":"))


def _bounds(column: pa.ChunkedArray) -> tuple[str, str] | None:
    """The smallest and the largest value as text; None where all are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        # Words that no row has any more may be among those of a dictionary.
        used = [chunk.dictionary.take(pc.unique(chunk.indices).drop_null()) for chunk in column.chunks]
        column = pa.chunked_array(used, column.type.value_type)
    if pa.types.is_timestamp(column.type):
        found = pc.min_max(column.cast(pa.timestamp("us", tz="UTC"))).as_py()
        if found["min"] is None:
            return None
        return tuple(f"{found[end]:%Y-%m-%dT%H:%M:%S.%f}Z" for end in ("min", "max"))  # type: ignore[return-value]
    found = pc.min_max(column).as_py()
    if found["min"] is None:
        return None
    least, most = found["min"], found["max"]
    return least[:LONGEST], most if len(most) <= LONGEST else most[:LONGEST] + _HIGHEST
