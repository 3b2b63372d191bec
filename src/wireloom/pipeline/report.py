"""A page about a warehouse: one HTML file that works offline, with plots of what the tables hold.

Everything is asked with DuckDB from one consistent look at the tables; whatever came from the wire is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from wireloom.escaping import visible_html
from wireloom.model import ConfigError, local_path
from wireloom.pipeline import plots, tables
from wireloom.pipeline.schemas import TABLES
from wireloom.pipeline.warehouse import Warehouse

Rows = list[tuple[object, ...]]
_LONG = 40
"""Characters from which on a cell may be broken anywhere, so that it leaves room for the others."""


class Report:
    """Asks a warehouse, once, for everything the page shows."""

    def __init__(self, warehouse: Path | str) -> None:
        import duckdb

        self._name = str(warehouse)
        self._warehouse = Warehouse.existing(warehouse)
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("set timezone = 'UTC'")
        for table in TABLES.values():
            tables.attach_duckdb(self._connection, self._warehouse.folder(table), table)

    def close(self) -> None:
        """Let go of the tables."""
        self._connection.close()

    def ask(self, query: str) -> Rows:
        """Rows of a query."""
        return self._connection.execute(query).fetchall()

    def html(self) -> str:
        """The page."""
        made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        style = (resources.files("wireloom.pipeline") / "report.css").read_text()
        body = "".join(self._sections())
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<title>Wireloom report</title><style>{style}</style></head><body><h1>Wireloom report</h1>"
            f'<p class="soft">Tables in {visible_html(self._name)}, as of {made}. All times are in UTC.</p>'
            f"{body}</body></html>\n"
        )

    def _sections(self) -> Iterator[str]:
        yield self._totals()
        yield _section("Traffic over time", self._traffic())
        yield _section("Topics", self._topics())
        yield _section("Latency", self._latency())
        yield _section("Outcomes of exchanges", self._outcomes())
        yield _section("Slowest exchanges", self._slowest())
        yield _section("Sessions over time", self._sessions())
        yield _section("Rejects by clause", self._rejects())
        yield _section("Findings", self._findings())
        yield _section("Mesh nodes", self._nodes())

    def _totals(self) -> str:
        counted = {
            "messages": "select count(*) from messages",
            "bytes": "select coalesce(sum(wire_size), 0) from messages",
            "connections": "select count(*) from sessions",
            "requests": "select count(*) from exchanges where verb = 'request'",
            "acknowledged publishes": "select count(*) from exchanges where verb = 'publish'",
            "rejects": "select count(*) from rejects",
            "findings": "select count(*) from findings",
        }
        cells = [
            f"<div><b>{plots.number(_float(self.ask(query)[0][0]))}</b>{name}</div>" for name, query in counted.items()
        ]
        return f'<div class="totals">{"".join(cells)}</div>'

    def _traffic(self) -> str:
        rows = self.ask("select protocol, epoch(minute), sum(messages)::bigint from traffic group by all order by all")
        return plots.lines(_series(rows), "messages a minute") + '<p class="soft">Messages a minute, by protocol.</p>'

    def _topics(self) -> str:
        rows = self.ask(
            "select coalesce(topic, '(none)'), sum(messages)::bigint n from traffic where kind in ('event', 'request') "
            "group by all order by n desc, 1 limit 15"
        )
        return plots.bars([(str(name), _float(count)) for name, count in rows], "messages by topic")

    def _latency(self) -> str:
        answered = "from exchanges where latency_us is not null"
        spread = self.ask(
            "select power(10, floor(log10(greatest(latency_us, 1)) * 3) / 3), count(*) "
            f"{answered} group by 1 order by 1"
        )
        by_topic = self.ask(
            "select coalesce(topic, '(none)'), count(*), quantile_cont(latency_us, 0.5), "
            "quantile_cont(latency_us, 0.9), quantile_cont(latency_us, 0.99), max(latency_us) "
            f"{answered} group by 1 order by 2 desc, 1 limit 20"
        )
        lines = [
            (topic, plots.number(_float(n)), *(plots.microseconds(_float(each)) for each in values))
            for topic, n, *values in by_topic
        ]
        return plots.histogram([(_float(low), int(_float(n))) for low, n in spread], "latency") + _table(
            ("topic", "answered", "p50", "p90", "p99", "longest"), lines, 1, 2, 3, 4, 5
        )

    def _outcomes(self) -> str:
        rows = self.ask(
            "select protocol || ' ' || verb || ' ' || outcome, count(*) n from exchanges group by 1 order by 2 desc, 1"
        )
        ((passed_on,),) = self.ask("select count(*) from messages where kind = 'request' and direction = 's2c'")
        note = (
            f"Of the requests, {plots.number(_float(passed_on))} went from a server to its client, as those do that a "
            "hub passes on: such a request is two exchanges, one with who asked and one with who answers."
        )
        shown = plots.bars([(str(name), _float(count)) for name, count in rows], "outcomes")
        return shown + (f'<p class="soft">{note}</p>' if passed_on else "")

    def _slowest(self) -> str:
        rows = self.ask(
            "with slowest as (from exchanges where latency_us is not null order by latency_us desc limit 10) "
            "select strftime(requested_at, '%Y-%m-%d %H:%M:%S'), protocol, "
            "(select if(any_value(direction) = 's2c', 'server', 'client') from messages "
            "where messages.connection = slowest.connection and message_id = request_id and time = requested_at), "
            "verb, coalesce(topic, '(none)'), request_id, outcome, connection, latency_us from slowest "
            "order by latency_us desc"
        )
        lines = [(*row[:-1], plots.microseconds(_float(row[-1]))) for row in rows]
        head = ("asked", "protocol", "by", "verb", "topic", "request", "outcome", "connection", "latency")
        return _table(head, lines, 8)

    def _sessions(self) -> str:
        rows = self.ask(
            "select protocol, epoch(time_bucket(interval 1 minute, opened_at)), count(*) from sessions "
            "group by all order by all"
        )
        closed = self.ask(
            "select protocol || ' ' || close_reason, count(*) n from sessions group by 1 order by 2 desc, 1"
        )
        shown = plots.bars([(str(name), _float(count)) for name, count in closed], "how sessions ended")
        return (
            f'{plots.lines(_series(rows), "sessions opened a minute")}<p class="soft">Sessions opened a minute.</p>'
            f"<h3>How they ended</h3>{shown}"
        )

    def _rejects(self) -> str:
        rows = self.ask(
            "select clause, count(*), sum(size)::bigint, any_value(detail), any_value(parse_filename(file)), "
            'any_value("offset") '
            "from rejects group by 1 order by 2 desc, 1 limit 30"
        )
        return _table(("clause", "how often", "bytes", "for example", "file", "offset"), rows, 1, 2, 5)

    def _findings(self) -> str:
        rows = self.ask(
            "select severity, rule, count(*), strftime(max(time), '%Y-%m-%d %H:%M:%S'), any_value(detail), "
            "any_value(connection), any_value(parse_filename(file)), "
            'any_value("offset") from findings group by severity, rule '
            "order by list_position(['critical', 'warning', 'info'], severity), 3 desc limit 50"
        )
        head = ("severity", "rule", "how often", "last", "for example", "connection", "file", "offset")
        return _table(head, rows, 2, 7)

    def _nodes(self) -> str:
        rows = self.ask(
            "select node_id, strftime(first_seen, '%Y-%m-%d %H:%M:%S'), strftime(last_seen, '%Y-%m-%d %H:%M:%S'), "
            "heartbeats, round(longest_gap_s, 1), events, capabilities from nodes "
            "order by longest_gap_s desc nulls last, node_id limit 100"
        )
        head = ("node", "first seen", "last seen", "heartbeats", "longest gap (s)", "events", "capabilities")
        return _table(head, rows, 3, 4, 5)


def write_report(warehouse: Path | str, out: Path | str) -> Path:
    """Write the page about a warehouse to a file."""
    path = local_path(out, "a report")
    report = Report(warehouse)
    try:
        page = report.html()
    finally:
        report.close()
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {path}: {error.strerror}") from None
    return path


def _section(title: str, content: str) -> str:
    return f"<section><h2>{visible_html(title)}</h2>{content}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], *numbers: int) -> str:
    """A table; the columns in `numbers` stand to the right."""
    if not rows:
        return '<p class="none">None.</p>'
    kinds = [' class="n"' if column in numbers else "" for column in range(len(head))]
    top = "".join(f"<th{kind}>{visible_html(name)}</th>" for name, kind in zip(head, kinds, strict=True))
    lines = []
    for row in rows:
        cells = "".join(f"<td{kind}>{_cell(value)}</td>" for value, kind in zip(row, kinds, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text):
        return f"<time>{text}</time>"
    if len(text) > _LONG:
        return f'<div class="long">{visible_html(text)}</div>'
    return f'<span class="{text}">{text}</span>' if text in ("critical", "warning") else visible_html(text)


def _series(rows: Rows) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for name, at, value in rows:
        found.setdefault(str(name), []).append((_float(at), _float(value)))
    return found


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float(str(value))
