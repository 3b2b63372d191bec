"""The tables and their columns: names, order, types and meaning. Every other form is made from here.

The types are written as Spark writes them; `arrow_schema` and `spark_schema` give the schema in the form
that pyarrow and Spark want.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type and what it holds."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its columns in order and the columns its files are sorted into folders by."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns in order."""
        return tuple(column.name for column in self.columns)

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns that stand in the files; the others stand in the folders' names."""
        return tuple(column for column in self.columns if column.name not in self.partition_by)


_TIME = Column("time", "timestamp", "when the last byte arrived")
_DATE = Column("date", "date", "the day of `time`, in UTC")
_HUB = Column("hub", "string", "the id of the hub in whose journal it stands; null in captures and old journals")
_PROTOCOL = Column("protocol", "string", "the name of the protocol, such as hsp")
_CONNECTION = Column("connection", "string", "the connection, 16 hexadecimal digits, never reused")
_DIRECTION = Column("direction", "string", "c2s, s2c, or dgram for datagrams")
_FILE = Column("file", "string", "the segment or capture the bytes are in")
_OFFSET = Column("offset", "bigint", "where in the file the bytes begin")

MESSAGES = Table(
    "messages",
    "one decoded message a row, all protocols",
    (
        _TIME,
        _DATE,
        _HUB,
        _PROTOCOL,
        _CONNECTION,
        _DIRECTION,
        Column("source", "string", "the sender: host:port or JID"),
        Column("destination", "string", "the receiver: host:port or JID"),
        Column("sequence", "bigint", "order within the connection and direction, from 0"),
        Column("kind", "string", "open, close, redirect, ping, pong, event, request, progress, response, "
               "cancel, ack, error or other"),
        Column("topic", "string", "what the message is about; null for operations of the hub"),
        Column("verb", "string", "of a message that asks for an answer: publish or request"),
        Column("message_id", "string", "the id the sender gave it"),
        Column("correlation_id", "string", "the id of the message this one answers"),
        Column("status", "string", "of a response, progress or error"),
        Column("content_type", "string", "how to read the body"),
        Column("body", "binary", "the payload as it was sent"),
        Column("body_size", "int", "bytes of the body"),
        Column("wire_size", "int", "bytes of the whole message on the wire"),
        Column("attributes", "map<string,string>", "what the protocol says beyond the other columns"),
        Column("authenticity", "string", "none, verified, self-signed, failed or unchecked"),
        Column("principal", "string", "who the peer of the connection was proved to be, such as token:alice"),
        _FILE,
        _OFFSET,
    ),
    ("date",),
)  # fmt: skip

REJECTS = Table(
    "rejects",
    "bytes that did not decode, and where they are",
    (
        _TIME,
        _DATE,
        _HUB,
        _PROTOCOL,
        _CONNECTION,
        _DIRECTION,
        Column("clause", "string", "the rule that was broken, a stable name such as hsp.command.unknown"),
        Column("detail", "string", "what was wrong, for a person"),
        Column("bytes", "binary", "the first 4 KiB of the bytes"),
        Column("size", "int", "how many bytes there were"),
        _FILE,
        _OFFSET,
    ),
    ("date",),
)

TRAFFIC = Table(
    "traffic",
    "one minute of one topic a row",
    (
        Column("minute", "timestamp", "the beginning of the minute"),
        _PROTOCOL,
        Column("topic", "string", "what the messages are about"),
        Column("kind", "string", "the messages' kind"),
        Column("messages", "bigint", "how many messages"),
        Column("bytes", "bigint", "their bytes on the wire"),
        Column("date", "date", "the day of `minute`, in UTC"),
        Column("open", "boolean", "whether the row may still change: its minute is not over yet"),
    ),
    ("open", "date"),
)

_OPEN_COMMENT = "whether the row may still change"

EXCHANGES = Table(
    "exchanges",
    "one request, or acknowledged publish, and its outcome a row",
    (
        _PROTOCOL,
        _CONNECTION,
        Column("topic", "string", "what was asked for, or published to; null for operations of the hub"),
        Column("verb", "string", "publish or request"),
        Column("request_id", "string", "the id of the request"),
        Column("requested_at", "timestamp", "when the last byte of the request arrived"),
        Column("answered_at", "timestamp", "when the last byte of the final answer arrived"),
        Column("latency_us", "bigint", "microseconds from request to final answer"),
        Column("outcome", "string", "done, error, cancelled, killed, timeout or unanswered"),
        Column("status", "string", "what the final answer says: done, cancelled, or the code of an error"),
        Column("progress_count", "int", "how many progress messages came in between"),
        Column("request_size", "int", "bytes of the request's body"),
        Column("response_size", "int", "bytes of the final answer's body"),
        Column("date", "date", "the day of `requested_at`, in UTC"),
        Column("open", "boolean", f"{_OPEN_COMMENT}: an answer may come"),
    ),
    ("open", "date"),
)

SESSIONS = Table(
    "sessions",
    "one connection from open to close a row",
    (
        _CONNECTION,
        _PROTOCOL,
        Column("source", "string", "who opened it: host:port or JID"),
        Column("destination", "string", "who was called: host:port or JID"),
        Column("opened_at", "timestamp", "when it was opened, or first heard of"),
        Column("closed_at", "timestamp", "when it was closed"),
        Column("close_reason", "string", "close, error, redirect, reset, idle or limit; open at the end of the input"),
        Column("messages_c2s", "bigint", "messages from source to destination; all messages where these are datagrams"),
        Column("messages_s2c", "bigint", "messages from destination to source"),
        Column("bytes_c2s", "bigint", "bytes from source to destination, rejects included"),
        Column("bytes_s2c", "bigint", "bytes from destination to source, rejects included"),
        Column("rejects", "bigint", "how many stretches of its bytes did not decode"),
        Column("date", "date", "the day of `opened_at`, in UTC"),
        Column("open", "boolean", f"{_OPEN_COMMENT}: the connection is open"),
    ),
    ("open", "date"),
)

FINDINGS = Table(
    "findings",
    "one violation seen in valid bytes a row",
    (
        _TIME,
        _DATE,
        _PROTOCOL,
        _CONNECTION,
        Column("rule", "string", "the rule that was broken, a stable name such as mesh.replay"),
        Column("severity", "string", "info, warning or critical"),
        Column("detail", "string", "what was seen, for a person"),
        Column("message_id", "string", "the id of the message, or of the one it answers"),
        _FILE,
        _OFFSET,
    ),
    ("date",),
)

NODES = Table(
    "nodes",
    "one mesh node a row",
    (
        Column("node_id", "string", "the node's id, in hex"),
        Column("first_seen", "timestamp", "when the first packet from it arrived"),
        Column("last_seen", "timestamp", "when the latest packet from it arrived"),
        Column("heartbeats", "bigint", "how many Heartbeats from it arrived"),
        Column("longest_gap_s", "double", "the most seconds between two of its Heartbeats in a row"),
        Column("events", "bigint", "how many Events from it arrived, encrypted ones, copies and replays included"),
        Column("capabilities", "string", "what its latest Hello says it can do; hex where that is no text"),
    ),
    (),
)

STATE = Table(
    "_state",
    "how far the pipeline is, and what it carries to the next batch; its commit ends a batch",
    (
        Column("batch", "bigint", "the number of the last finished batch"),
        Column("query", "string", "the id of the warehouse, under which tables are committed"),
        Column("watermark", "timestamp", "the latest time of any message so far"),
        Column("finished", "timestamp", "when the batch was finished"),
        Column("step", "string", "whose rows are carried; null in the row that says how far the pipeline is"),
        Column("rows", "binary", "the carried rows, as an Arrow stream"),
        Column(
            "offsets", "string", "in the row that says how far the pipeline is: the position in each journal, as JSON"
        ),
    ),
    (),
)

TABLES = {table.name: table for table in (MESSAGES, REJECTS, EXCHANGES, SESSIONS, TRAFFIC, FINDINGS, NODES)}
"""The tables for users, by name."""

LEFT_OUT = "_left_out"
"""Reported in place of a table: packets, as rows, and bytes of connections in captures that are none of ours."""

KEPT_BYTES = 4096
"""So many bytes of a reject are kept in the table."""


def arrow_type(name: str) -> pa.DataType:
    """Spark's name of a type as a type of pyarrow."""
    import pyarrow as pa

    return {
        "timestamp": pa.timestamp("us", tz="UTC"),
        "date": pa.date32(),
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "double": pa.float64(),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }[name]


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Columns as a schema of pyarrow, with the comments where Delta and Spark look for them."""
    import pyarrow as pa

    return pa.schema([pa.field(c.name, arrow_type(c.type), metadata={"comment": c.comment}) for c in columns])


def spark_schema(columns: tuple[Column, ...]) -> StructType:
    """Columns as a schema of Spark."""
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        DataType,
        DateType,
        DoubleType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "timestamp": TimestampType(),
        "date": DateType(),
        "string": StringType(),
        "binary": BinaryType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "boolean": BooleanType(),
        "double": DoubleType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    return StructType([StructField(c.name, types[c.type], metadata={"comment": c.comment}) for c in columns])
