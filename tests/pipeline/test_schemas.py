"""The tables have exactly the columns they promise."""

from __future__ import annotations

from wireloom.pipeline.schemas import MESSAGES, REJECTS, STATE, TABLES, TRAFFIC

PROMISED = {
    "messages": (
        "time timestamp, date date, protocol string, connection string, direction string, source string, "
        "destination string, sequence bigint, kind string, topic string, message_id string, "
        "correlation_id string, status string, content_type string, body binary, body_size int, "
        "wire_size int, attributes map<string,string>, authenticity string, file string, offset bigint"
    ),
    "rejects": (
        "time timestamp, date date, protocol string, connection string, direction string, clause string, "
        "detail string, bytes binary, size int, file string, offset bigint"
    ),
    "traffic": (
        "minute timestamp, protocol string, topic string, kind string, messages bigint, bytes bigint, "
        "date date, open boolean"
    ),
}


def test_columns_are_the_promised_ones_in_order() -> None:
    found = {name: ", ".join(f"{c.name} {c.type}" for c in table.columns) for name, table in TABLES.items()}
    assert found == PROMISED


def test_every_column_has_a_comment() -> None:
    for table in (MESSAGES, REJECTS, TRAFFIC, STATE):
        assert all(column.comment for column in table.columns)


def test_partitions_are_columns() -> None:
    for table in (MESSAGES, REJECTS, TRAFFIC):
        assert set(table.partition_by) < set(table.names)
