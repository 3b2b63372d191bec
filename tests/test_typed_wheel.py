"""The wheel and the sdist say that they are typed, and a user's program is checked, and runs, against the installed wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).parent / "values" / "user_program.py"
OUTPUT = """\
21.50 C kitchen
Reading
a
b
seen/kitchen True
$.room: expected str, got int 7
$.kind: is missing
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    for target in ("wheel", "sdist"):
        build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """A folder with the wheel, and nothing else, in it."""
    (wheel,) = built.glob("*.whl")
    target = built / "site"
    install = ["install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    return target


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM.read_text())
    return tmp_path


def run(command: list[str], project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    return subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=170, check=False, env={**without, **environment}
    )


def mypy(project: Path, installed: Path) -> subprocess.CompletedProcess[str]:
    # A package on MYPYPATH would be checked itself; a user's is in site-packages, and only its types are taken.
    config = project / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\n[mypy-wireloom.*]\nfollow_imports = silent\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(project / "cache"),
        "program.py",
    ]
    return run(command, project, MYPYPATH=str(installed))


def pyright(project: Path, installed: Path) -> subprocess.CompletedProcess[str]:
    (project / "pyrightconfig.json").write_text(
        f'{{"include": ["program.py"], "typeCheckingMode": "strict", "extraPaths": ["{installed}"]}}'
    )
    return run([str(Path(sys.executable).parent / "basedpyright")], project)


def test_wheel_and_sdist_are_marked_as_typed(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert "wireloom/py.typed" in zipfile.ZipFile(wheel).namelist()
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("src/wireloom/py.typed") for name in archive.getnames())


def test_a_users_program_runs(project: Path, installed: Path) -> None:
    done = run([sys.executable, "program.py"], project, PYTHONPATH=str(installed))
    assert (done.returncode, done.stdout) == (0, OUTPUT), done.stderr


@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_users_program_is_checked_in_strict_mode(project: Path, installed: Path, check: object) -> None:
    done = check(project, installed)  # type: ignore[operator]
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_mistake_in_types_is_found(project: Path, installed: Path, check: object) -> None:
    program = project / "program.py"
    program.write_text(program.read_text().replace("found.value, found.unit", "found.valu, found.unit"))
    done = check(project, installed)  # type: ignore[operator]
    assert done.returncode == 1 and "valu" in done.stdout, done.stdout + done.stderr
