"""`wireloom doctor`: whether this machine has what Wireloom needs, and how to mend what is missing."""

from __future__ import annotations

import argparse
import errno
import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from wireloom.escaping import visible
from wireloom.extras import MODULES
from wireloom.model import ConfigError
from wireloom.protocols.registry import protocols

OLDEST_PYTHON = (3, 11)
ENOUGH_FREE = 2 * 1024**3
SLOW_SYNC = 0.02
FEW_FILES = 4096
PAGES = {"the hub's pages": 5046, "the console": 5080}
_TRY_SPARK = """\
from wireloom.pipeline.spark_session import start_session
spark = start_session("local[1]", quick=True)
assert spark.range(1000).selectExpr("sum(id)").first()[0] == 499500
print(spark.version)
spark.stop()
"""


class Health(StrEnum):
    """How a check ended."""

    FINE = "fine"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at: how it is, and what to do if it is not as it should be."""

    what: str
    verdict: Health
    seen: str
    mend: str = ""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `doctor`."""
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine and say how to mend what is wrong",
        description="Check Python, packages, Java, Spark, ports, disk and limits. Exit code 1 if something is broken.",
        epilog="example: wireloom doctor --data /var/lib/wireloom",
    )
    parser.add_argument("--data", type=Path, default=Path(), metavar="DIR", help="where the hub would keep its data")
    parser.add_argument("--no-spark", action="store_true", help="do not start Spark, which takes some seconds")
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look at everything; what is broken gives exit code 1."""
    checks: list[Callable[[], Iterator[CheckResult]]] = [
        check_python,
        check_packages,
        check_java,
        *([] if arguments.no_spark else [check_spark]),
        check_ports,
        lambda: check_disk(arguments.data),
        check_files,
    ]
    found = []
    for check in checks:
        for finding in check():
            found.append(finding)
            if not arguments.json:
                _show(finding)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
        return int(any(finding.verdict is Health.BROKEN for finding in found))
    broken, warned = (sum(each.verdict is v for each in found) for v in (Health.BROKEN, Health.WARNING))
    if not broken and not warned:
        print("all is well")
    else:
        print(f"{broken} broken, {warned} to look at")
    return int(broken > 0)


def _show(finding: CheckResult) -> None:
    print(visible(f"{finding.verdict:8} {finding.what}: {finding.seen}"), flush=True)
    if finding.mend:
        print(visible(f"         → {finding.mend}"), flush=True)


def check_python() -> Iterator[CheckResult]:
    """The version of Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield CheckResult("Python", Health.BROKEN, version, f"Wireloom needs Python {oldest} or newer")
    else:
        yield CheckResult("Python", Health.FINE, version)


def check_packages() -> Iterator[CheckResult]:
    """The packages of each extra; the library itself needs none."""
    for extra, modules in MODULES.items():
        missing = [name for name in modules if not _is_there(name)]
        if missing:
            yield CheckResult(
                f"packages for {extra}",
                Health.WARNING,
                f"not installed: {', '.join(missing)}",
                f"pip install 'wireloom[{extra}]', if you want what it brings",
            )
        else:
            yield CheckResult(f"packages for {extra}", Health.FINE, ", ".join(map(_versioned, modules)))


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _versioned(module: str) -> str:
    name = {"bson": "pymongo", "google.protobuf": "protobuf"}.get(module, module)
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def check_java() -> Iterator[CheckResult]:
    """A Java that Spark runs on."""
    try:
        from wireloom.pipeline.java import find_java
    except ModuleNotFoundError:
        what = "not looked for: only the pipeline needs it, whose packages are missing"
        yield CheckResult("Java", Health.WARNING, what, "pip install 'wireloom[spark]' for the pipeline")
        return
    try:
        java = find_java()
    except ConfigError as error:
        seen, _, mend = str(error).partition(". ")
        yield CheckResult("Java", Health.BROKEN, seen, mend)
    else:
        yield CheckResult("Java", Health.FINE, f"{java.version} in {java.home}")


def check_spark() -> Iterator[CheckResult]:
    """Whether Spark starts and computes, in a process of its own."""
    if not _is_there("pyspark"):
        yield CheckResult("Spark", Health.WARNING, "not installed", "pip install 'wireloom[spark]' for the pipeline")
        return
    began = time.monotonic()
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY_SPARK], capture_output=True, text=True, timeout=180, check=False
        )
    except subprocess.TimeoutExpired:
        yield CheckResult("Spark", Health.BROKEN, "did not start within 3 minutes", "look at memory and load")
        return
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["no word why"])[-1]
        yield CheckResult("Spark", Health.BROKEN, f"does not start: {last}", "mend Java first, then try again")
    else:
        yield CheckResult("Spark", Health.FINE, f"{tried.stdout.strip()} starts in {time.monotonic() - began:.1f} s")


def check_ports() -> Iterator[CheckResult]:
    """The default ports: free, or taken by whom it may be."""
    wanted = {
        f"{scheme.name}://127.0.0.1:{scheme.port}": (scheme.port, scheme.transport == "udp")
        for protocol in protocols().values()
        for scheme in protocol.schemes
        if scheme.port and not scheme.secure and scheme.transport in ("tcp", "ws", "udp")
    } | {name: (port, False) for name, port in PAGES.items()}
    taken = [(name, port) for name, (port, datagrams) in wanted.items() if not _is_free(port, datagrams)]
    for name, port in taken:
        yield CheckResult(
            f"port {port}",
            Health.WARNING,
            f"in use; it is the default of {name}",
            "if that is no Wireloom of yours, name another port in the configuration",
        )
    if not taken:
        yield CheckResult("ports", Health.FINE, "the default ports are free")


def _is_free(port: int, datagrams: bool) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if datagrams else socket.SOCK_STREAM) as probe:
        if not datagrams:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def check_disk(folder: Path) -> Iterator[CheckResult]:
    """Free space, and how long the disk takes to sync a message."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    gigabytes = f"{free / 1024**3:.1f} GiB free in {place}"
    if free < ENOUGH_FREE:
        yield CheckResult("disk", Health.WARNING, gigabytes, "make room: on a full disk the hub acknowledges nothing")
    else:
        yield CheckResult("disk", Health.FINE, gigabytes)
    try:
        took = _sync_time(place)
    except OSError as error:
        mend = "choose a folder you may write to with --data, or mend its permissions"
        yield CheckResult("disk sync", Health.BROKEN, f"cannot write to {place}: {error.strerror}", mend)
        return
    seen = f"{took * 1000:.2f} ms a sync"
    if took > SLOW_SYNC:
        mend = "acknowledgements wait for it: use a faster disk, or `sync = false` if you can lose the last seconds"
        yield CheckResult("disk sync", Health.WARNING, seen, mend)
    else:
        yield CheckResult("disk sync", Health.FINE, seen)


def _sync_time(folder: Path) -> float:
    """The median time of a few small synced writes."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(21):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def check_files() -> Iterator[CheckResult]:
    """How many files, and so connections, one process may have open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FEW_FILES:
        mend = f"the hub needs one for each connection: `ulimit -n {min(hard, 65536)}`, or LimitNOFILE in its unit"
        yield CheckResult("open files", Health.WARNING, f"at most {soft}", mend)
    else:
        yield CheckResult("open files", Health.FINE, f"at most {soft}")
