"""The tables have exactly the columns they promise."""

from __future__ import annotations

from wireloom.pipeline.schemas import STATE, TABLES

PROMISED = {
    "messages": (
        "time timestamp, date date, hub string, protocol string, connection string, direction string, source string, "
        "destination string, sequence bigint, kind string, topic string, verb string, message_id string, "
        "correlation_id string, status string, content_type string, body binary, body_size int, "
        "wire_size int, attributes map<string,string>, authenticity string, principal string, "
        "file string, offset bigint"
    ),
    "rejects": (
        "time timestamp, date date, hub string, protocol string, connection string, direction string, clause string, "
        "detail string, bytes binary, size int, file string, offset bigint"
    ),
    "exchanges": (
        "protocol string, connection string, topic string, verb string, request_id string, requested_at timestamp, "
        "answered_at timestamp, latency_us bigint, outcome string, status string, progress_count int, "
        "request_size int, response_size int, date date, open boolean"
    ),
    "sessions": (
        "connection string, protocol string, source string, destination string, opened_at timestamp, "
        "closed_at timestamp, close_reason string, messages_c2s bigint, messages_s2c bigint, bytes_c2s bigint, "
        "bytes_s2c bigint, rejects bigint, date date, open boolean"
    ),
    "traffic": (
        "minute timestamp, protocol string, topic string, kind string, messages bigint, bytes bigint, "
        "date date, open boolean"
    ),
    "findings": (
        "time timestamp, date date, protocol string, connection string, rule string, severity string, "
        "detail string, message_id string, file string, offset bigint"
    ),
    "nodes": (
        "node_id string, first_seen timestamp, last_seen timestamp, heartbeats bigint, longest_gap_s double, "
        "events bigint, capabilities string"
    ),
}


def test_columns_are_the_promised_ones_in_order() -> None:
    found = {name: ", ".join(f"{c.name} {c.type}" for c in table.columns) for name, table in TABLES.items()}
    assert found == PROMISED


def test_every_column_has_a_comment() -> None:
    for table in (*TABLES.values(), STATE):
        assert all(column.comment for column in table.columns)


def test_partitions_are_columns() -> None:
    for table in TABLES.values():
        assert set(table.partition_by) < set(table.names)
