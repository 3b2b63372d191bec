"""The same bytes must give the same answer from `frames.py` and from `columns.py`, in any protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wireloom.model import KINDS, Direction
from wireloom.protocols.columns import Columns, Spans, Stream
from wireloom.protocols.contract import Decoded, Protocol, Rejected, decode_stream

Row = tuple[object, ...]


def rows_of_decoder(
    protocol: Protocol,
    data: bytes,
    direction: Direction,
    topics: Mapping[int, str],
    values: Mapping[str, object],
) -> tuple[list[Row], list[Row], int]:
    """Messages, rejects, and how many bytes were decoded or rejected."""
    decoder = protocol.decoder(direction, protocol.settings(values), topics)
    rows: list[Row] = []
    rejects: list[Row] = []
    for found in decode_stream(decoder, data, final=False):
        if isinstance(found, Rejected):
            rejects.append((found.offset, len(found.data), found.clause, found.detail))
        else:
            assert isinstance(found, Decoded)
            m = found.message
            rows.append(
                (found.offset, found.size, str(m.kind), m.topic, m.id, m.correlation_id, m.status, m.content_type,
                 m.body, dict(m.attributes), str(m.authenticity))
            )  # fmt: skip
    consumed = len(data) if decoder.violation is not None else decoder.offset
    return rows, rejects, consumed


def rows_of_columns(columns: Columns, shift: int = 0) -> tuple[list[Row], list[Row]]:
    texts: Sequence[list[object]] = [
        column.to_pylist()
        for column in (columns.topic, columns.message_id, columns.correlation_id, columns.status, columns.content_type,
                       columns.body, columns.attributes, columns.authenticity)
    ]  # fmt: skip
    rows: list[Row] = []
    for index in range(len(columns)):
        topic, message_id, correlation, status, kind, body, attributes, authenticity = (t[index] for t in texts)
        rows.append(
            (int(columns.offset[index]) + shift, int(columns.size[index]), str(KINDS[columns.kind[index]]), topic,
             message_id, correlation, status, kind, body, dict(attributes), authenticity)  # type: ignore[call-overload]
        )  # fmt: skip
    return rows, [(r.offset + shift, r.size, r.clause, r.detail) for r in columns.rejects]


def assert_columns_agree(
    protocol: Protocol,
    data: bytes,
    *,
    direction: Direction = Direction.C2S,
    topics: Mapping[int, str] | None = None,
    values: Mapping[str, object] | None = None,
) -> None:
    names = topics or {}
    rows, rejects, consumed = rows_of_decoder(protocol, data, direction, names, values or {})
    columns = protocol.columns().decode(Spans.whole(data, Stream(direction, names)), protocol.settings(values or {}))
    assert rows_of_columns(columns) == (rows, rejects)
    assert columns.consumed.tolist() == [consumed]


def assert_split_columns_agree(
    protocol: Protocol,
    data: bytes,
    cuts: Sequence[int],
    *,
    direction: Direction = Direction.C2S,
    topics: Mapping[int, str] | None = None,
    values: Mapping[str, object] | None = None,
) -> None:
    """Feed the columns piece by piece, carrying over what is not consumed and the stream's state."""
    names = topics or {}
    options = protocol.settings(values or {})
    expected = rows_of_decoder(protocol, data, direction, names, values or {})[0]
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    rows: list[Row] = []
    taken, state = 0, b""
    for edge in edges[1:]:
        columns = protocol.columns().decode(Spans.whole(data[taken:edge], Stream(direction, names, state)), options)
        rows += rows_of_columns(columns, taken)[0]
        taken += int(columns.consumed[0])
        state = columns.state[0]
        if columns.rejects and protocol.framing.value == "stream":
            break
    assert rows == expected
