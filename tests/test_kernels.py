"""Kernels compiled by several processes at once: each process later gets the code for its own arguments."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.typing.templates import Signature

MODULE = """
from wireloom.kernels import kernel

@kernel
def twice(value):
    return value + value
"""

# Two processes meet between reading the index and writing it, the moment at which they could take the same file.
PROCESS = """
import pathlib, sys, time
from numba.core.caching import IndexDataCacheFile
{plain}
here, argument, other = pathlib.Path(sys.argv[1]), eval(sys.argv[2]), sys.argv[3]
load = IndexDataCacheFile._load_index
waiting = False
def slowly(self):
    found = load(self)
    if waiting:
        (here / sys.argv[2]).touch()
        until = time.monotonic() + {patience}
        while not (here / other).exists() and time.monotonic() < until:
            time.sleep(0.01)
    return found
IndexDataCacheFile._load_index = slowly
import doubling
save = IndexDataCacheFile.save
def saving(self, key, data):
    global waiting
    waiting = True
    save(self, key, data)
    waiting = False
IndexDataCacheFile.save = saving
assert doubling.twice(argument) == argument + argument
"""
WITHOUT_LOCK = (
    "from numba.core.caching import FunctionCache; import wireloom.kernels as k; k._SharedCache = FunctionCache"
)


def compile_together(folder: Path, *, plain: str, patience: int) -> None:
    (folder / "doubling.py").write_text(MODULE)
    program = PROCESS.format(plain=plain, patience=patience)
    arguments = [("1", "2.5"), ("2.5", "1")]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, folder, *each], cwd=folder, env={"PYTHONPATH": ":".join(sys.path)}
        )
        for each in arguments
    ]
    assert [each.wait(120) for each in started] == [0, 0]


def wrong_entries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many signatures in the index name a file with code for other arguments."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "doubling", raising=False)
    wrong = 0
    for index in folder.glob("__pycache__/*.nbi"):
        with index.open("rb") as file:
            pickle.load(file)
            _, overloads = pickle.loads(file.read())
        for (arguments, *_), name in overloads.items():
            content = pickle.loads((index.parent / name).read_bytes())
            signature = next(each for each in content if isinstance(each, Signature))
            wrong += signature.args != arguments
        wrong += 2 - len(overloads)
    return wrong


def test_two_processes_compile_one_kernel_for_different_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_together(tmp_path, plain="", patience=2)
    assert wrong_entries(tmp_path, monkeypatch) == 0


def test_the_cache_of_numba_alone_mixes_them_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is a lock. When this fails, numba has learnt it and `_SharedCache` can go."""
    compile_together(tmp_path, plain=WITHOUT_LOCK, patience=30)
    assert wrong_entries(tmp_path, monkeypatch) > 0


@pytest.mark.parametrize("value", [1, 2.5, 1 + 2j])
def test_a_kernel_computes(tmp_path: Path, value: complex) -> None:
    (tmp_path / "doubling.py").write_text(MODULE)
    program = f"import doubling; assert doubling.twice({value!r}) == {value + value!r}"
    for _ in range(2):  # compiled, then loaded
        subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, check=True, env={"PYTHONPATH": ":".join(sys.path)}
        )


COUNTING = """
import numpy as np
from wireloom.kernels import allocating, inlined, kernel

@inlined
def frame(data, at):
    if data[at] > 9:
        return -1
    size = 1
    while data[at + size]:
        if size > 9:
            return 0
        size += 1
    return size

def last(data):
    at = 0
    while at < data.shape[0] and frame(data, at) > 0:
        at += frame(data, at)
    return at

for decorator in kernel, allocating:
    compiled = decorator(last)
    compiled(np.zeros(1, np.uint8))
    print(sum(assembly.count("NRT_incref") for assembly in compiled.inspect_asm().values()))
"""


def test_a_kernel_does_not_count_who_holds_its_arrays(tmp_path: Path) -> None:
    """In a loop over small frames that would take most of the time."""
    run = subprocess.run(
        [sys.executable, "-c", COUNTING], cwd=tmp_path, check=True, env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True,
    )  # fmt: skip
    by_kernel, by_allocating = map(int, run.stdout.split())
    assert by_kernel == 0 < by_allocating


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    called = "from wireloom.kernels import kernel, inlined\n\n@{}\ndef inner(value):\n    return value + {}\n"
    caller = "from inner import inner\nfrom wireloom.kernels import kernel\n\n@kernel\ndef outer(value):\n    return inner(value)\n"
    (tmp_path / "outer.py").write_text(caller)
    for decorator in ("inlined", "kernel"):
        for added in (1, 20, 300):
            (tmp_path / "inner.py").write_text(called.format(decorator, added))
            program = f"import outer; assert outer.outer(1) == {1 + added}, outer.outer(1)"
            subprocess.run(
                [sys.executable, "-c", program], cwd=tmp_path, check=True, env={"PYTHONPATH": ":".join(sys.path)}
            )
