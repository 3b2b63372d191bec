"""The wheel without any extra: what is missing is said, with the extra that brings it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = "import sys; sys.path.insert(0, {!r}); from wireloom.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def run(wheel: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in an interpreter that has the wheel and nothing else."""
    command = [sys.executable, "-I", "-S", "-c", RUN.format(str(wheel)), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["hub", "--data", "d"], "hub"),
        (["warm"], "hub"),
        (["console"], "http"),
        (["pipeline", "run", "--input", "a", "--warehouse", "b", "--once"], "spark"),
        (["report", "--warehouse", "b"], "spark"),
        (["sql", "select 1", "--warehouse", "b"], "spark"),
        (["tables", "--warehouse", "b"], "spark"),
        (["req", "wolpertinger://127.0.0.1:1", "A.b", "1"], "wolpertinger"),
        (["req", "wolpertinger+xmpp://a@127.0.0.1/x", "A.b", "1"], "wolpertinger"),
        (["pub", "mesh+quic://127.0.0.1:1", "a", "1"], "mesh"),
        (["req", "yamp+ws://127.0.0.1:1", "a", "1"], "websocket"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(wheel: Path, tmp_path: Path, words: list[str], extra: str) -> None:
    done = run(wheel, tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1 and f"pip install 'wireloom[{extra}]'" in done.stderr, done.stderr


def test_plain_protocols_need_nothing_else(wheel: Path, tmp_path: Path) -> None:
    for scheme in ("hsp", "emp", "yamp"):
        assert "nothing listens there" in run(wheel, tmp_path, "req", f"{scheme}://127.0.0.1:1", "a", "1").stderr
