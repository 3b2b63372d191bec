"""`wireloom pipeline run`, `compact` and `upgrade`, `wireloom sql` and `wireloom tables`."""

from __future__ import annotations

import argparse
import csv
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from wireloom.cli.jsonlines import json_line
from wireloom.escaping import visible
from wireloom.model import ConfigError

if TYPE_CHECKING:
    from wireloom.pipeline.query import Answer


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of the pipeline to the command line."""
    pipeline = subparsers.add_parser("pipeline", help="read journals and captures into tables")
    actions = pipeline.add_subparsers(required=True, metavar="ACTION")
    run = actions.add_parser(
        "run",
        help="read journals and captures into the tables of a warehouse",
        epilog="example: wireloom pipeline run --input data/journal --warehouse data/warehouse --once",
    )
    run.add_argument(
        "--input",
        action="extend",
        nargs="+",
        required=True,
        metavar="PATH",
        help="a journal, or captures: files, folders, patterns; may be repeated",
    )
    run.add_argument("--warehouse", required=True, metavar="DIR", help="where the tables are, or will be")
    mode = run.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="read what is there, then end (default)")
    mode.add_argument("--continuous", action="store_true", help="go on until stopped by Ctrl-C or SIGTERM")
    where = run.add_mutually_exclusive_group()
    where.add_argument("--master", metavar="URL", help="the Spark to run on (default: all cores of this machine)")
    where.add_argument("--remote", metavar="URL", help="a Spark Connect server to run on, such as sc://host:15002")
    run.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's")
    run.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two batches (default 1)")
    run.add_argument("--max-bytes", default="512m", metavar="SIZE", help="read at most this much a batch")
    run.add_argument("--trust", metavar="FILE", help="a trust file: check signatures with the keys in it")
    run.add_argument("--keys", metavar="FILE", help="a key file: open encrypted connections with the keys in it")
    run.add_argument("--only-messages", action="store_true", help="write messages and rejects, and no other table")
    run.add_argument(
        "--table-format",
        choices=("delta", "parquet"),
        help="how the tables of a new warehouse are stored (default: delta)",
    )
    run.add_argument(
        "--ports", default="", metavar="LIST", help="captures: further ports, such as hsp=7000,yamp+ws=8080"
    )
    run.add_argument(
        "--no-auto", action="store_true", help="captures: go by ports only, look at no bytes to tell a protocol, or TLS"
    )
    run.add_argument(
        "--idle", default="600", metavar="SECONDS", help="captures: silence that ends a connection (default 600)"
    )
    run.add_argument(
        "--lateness",
        default="3",
        metavar="SECONDS",
        help="captures: with --continuous, take one when nothing earlier came for so long (default 3)",
    )
    run.add_argument(
        "--topics", metavar="FILE", help='captures: numbers that stand for topics, such as {"7": "sensors/kitchen"}'
    )
    run.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="captures: a setting of a protocol, such as hsp.profile=true where a hub was captured; may be repeated",
    )
    run.set_defaults(run=run_pipeline)
    compact = actions.add_parser(
        "compact",
        help="merge small files of a warehouse, delete those that no snapshot needs",
        epilog="example: wireloom pipeline compact --warehouse data/warehouse",
    )
    compact.add_argument("--warehouse", required=True, metavar="DIR", help="where the tables are")
    compact.add_argument(
        "--keep-hours", type=float, default=24.0, metavar="HOURS", help="keep what snapshots of so long ago need (24)"
    )
    compact.set_defaults(run=run_compact)

    upgrade = actions.add_parser(
        "upgrade",
        help="bring a warehouse of an earlier version up to date, in place",
        epilog="example: wireloom pipeline upgrade --warehouse data/warehouse",
    )
    upgrade.add_argument("--warehouse", required=True, metavar="DIR", help="where the tables are")
    upgrade.set_defaults(run=run_upgrade)

    report = subparsers.add_parser(
        "report",
        help="write a page about a warehouse, with plots",
        epilog="example: wireloom report --warehouse data/warehouse --out report.html",
    )
    report.add_argument("--warehouse", required=True, metavar="DIR", help="the warehouse")
    report.add_argument("--out", default="report.html", metavar="FILE", help="the page (default %(default)s)")
    report.set_defaults(run=run_report)

    sql = subparsers.add_parser(
        "sql",
        help="ask the tables a question",
        epilog='example: wireloom sql "select topic, count(*) from messages group by topic" --warehouse data/warehouse',
    )
    sql.add_argument("query", help="a query on the tables, in the SQL of DuckDB, or of Spark with --spark")
    sql.add_argument("--warehouse", required=True, metavar="DIR", help="where the tables are")
    sql.add_argument("--spark", action="store_true", help="ask Spark, for tables too big for one process")
    place = sql.add_mutually_exclusive_group()
    place.add_argument("--master", metavar="URL", help="with --spark: where it runs (default: this machine)")
    place.add_argument("--remote", metavar="URL", help="with --spark: a Spark Connect server to ask")
    form = sql.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON object a row")
    form.add_argument("--csv", action="store_true", help="print comma-separated values with a head line")
    sql.set_defaults(run=run_sql)

    tables = subparsers.add_parser(
        "tables", help="list the tables of a warehouse", epilog="example: wireloom tables --warehouse data/warehouse"
    )
    tables.add_argument("--warehouse", required=True, metavar="DIR", help="where the tables are")
    tables.add_argument("--json", action="store_true", help="print a JSON object a table")
    tables.set_defaults(run=run_tables)


def run_pipeline(arguments: argparse.Namespace) -> int:
    """Read journals into tables."""
    from wireloom.cli.progress import ProgressLine
    from wireloom.pipeline.query import describe
    from wireloom.pipeline.run import Pipeline

    progress = ProgressLine()
    options = {
        "maxBytesPerTrigger": arguments.max_bytes,
        "ports": arguments.ports,
        "auto": "false" if arguments.no_auto else "true",
        "idle": arguments.idle,
        "lateness": arguments.lateness,
        "topics": arguments.topics or "",
        "set": ",".join(arguments.settings),
        "trust": arguments.trust or "",
        "keys": arguments.keys or "",
    }
    pipeline = Pipeline(
        arguments.input,
        arguments.warehouse,
        master=arguments.master,
        remote=arguments.remote,
        conf=dict(_setting(text) for text in arguments.conf),
        options=options,
        report=progress.batch,
        note=progress.note,
        only_messages=arguments.only_messages,
        table_format=arguments.table_format,
    )

    def stop(*_: object) -> None:
        progress.note("stopping after this batch")
        pipeline.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    summary = pipeline.run(once=not arguments.continuous, interval=arguments.interval)
    progress.end(
        summary, {name: each.rows for name, each in describe(arguments.warehouse).items()}, arguments.warehouse
    )
    if summary.left_out:
        progress.note(f"{summary.left_out:,} packets of other traffic were left out")
    return 0


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise ConfigError(f"--conf {text!r} is no setting of Spark's; write it as spark.some.setting=value")
    return name, value


def run_compact(arguments: argparse.Namespace) -> int:
    """Merge small files, delete what nobody needs."""
    from wireloom.cli.progress import ProgressLine, size
    from wireloom.pipeline.compact import compact

    progress = ProgressLine()
    for name, done in compact(arguments.warehouse, keep_hours=arguments.keep_hours).items():
        progress.note(
            f"{name}: {done.before} files became {done.after}, {done.deleted} deleted; {size(done.bytes)} in the table"
        )
    return 0


def run_upgrade(arguments: argparse.Namespace) -> int:
    """Bring a warehouse up to date."""
    from wireloom.cli.progress import ProgressLine
    from wireloom.pipeline.upgrade import upgrade

    progress = ProgressLine()
    for name, count in upgrade(arguments.warehouse).items():
        progress.note(f"{name}: {count:,} rows were told anew")
    progress.note(f"{arguments.warehouse} is up to date")
    return 0


def run_report(arguments: argparse.Namespace) -> int:
    """Write the report, and say where it is."""
    from wireloom.pipeline.report import write_report

    print(write_report(arguments.warehouse, arguments.out).resolve().as_uri())
    return 0


def run_sql(arguments: argparse.Namespace) -> int:
    """Ask the tables a question."""
    answer = _answer(arguments)
    if arguments.json:
        for row in answer.rows:
            sys.stdout.write(json_line(dict(zip(answer.columns, row, strict=True)), _plain))
    elif arguments.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(answer.columns)
        writer.writerows([_text(value, "") for value in row] for row in answer.rows)
    else:
        print_table(answer.columns, [[_text(value, "-") for value in row] for row in answer.rows], sys.stdout)
        print(f"({len(answer.rows):,} {'row' if len(answer.rows) == 1 else 'rows'})")
    return 0


def _answer(arguments: argparse.Namespace) -> Answer:
    from wireloom.pipeline.query import ask, ask_spark

    if not arguments.spark:
        if arguments.master or arguments.remote:
            raise ConfigError("--master and --remote are for Spark: add --spark")
        return ask(arguments.warehouse, arguments.query)
    from wireloom.pipeline.spark_session import start_session

    spark = start_session(arguments.master, app="wireloom sql", remote=arguments.remote)
    try:
        return ask_spark(arguments.warehouse, arguments.query, spark)
    finally:
        spark.stop()


def run_tables(arguments: argparse.Namespace) -> int:
    """List the tables of a warehouse."""
    from wireloom.model import iso_time
    from wireloom.pipeline.query import describe

    head = ["table", "rows", "files", "bytes", "version", "last commit"]
    rows = [
        [name, own.rows, own.files, own.bytes, own.version, iso_time(own.committed_ns)[:19] + "Z"]
        for name, own in describe(arguments.warehouse).items()
    ]
    if arguments.json:
        for row in rows:
            print(json.dumps(dict(zip(head, row, strict=True))))
    else:
        print_table(head, [[f"{v:,}" if isinstance(v, int) else str(v) for v in row] for row in rows], sys.stdout)
    return 0


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], out: TextIO) -> None:
    """Rows as a table that people read; numbers to the right.

    >>> print_table(["topic", "n"], [["a", "1"], ["b", "20"]], sys.stdout)
    topic  n
    ----- --
    a      1
    b     20
    """
    lines = [list(row) for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in lines), 1) for i, name in enumerate(head)]
    number = [bool(lines) and all(_is_number(line[i]) for line in lines) for i in range(len(head))]

    def show(cells: Sequence[str]) -> str:
        parts = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, number, strict=True))
        return " ".join(parts).rstrip()

    print(show(head), file=out)
    print(" ".join("-" * width for width in widths), file=out)
    for line in lines:
        print(show(line), file=out)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "", 1).removeprefix("-").isdigit()


def _text(value: object, missing: str) -> str:
    """A value for a person: bytes as text where they are text, control characters made visible."""
    if value is None:
        return missing
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = value if isinstance(value, str) else json.dumps(value, default=_plain, ensure_ascii=False)
    text = text[1:-1] if not isinstance(value, str) and text.startswith('"') else text
    return visible(text)


def _plain(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
