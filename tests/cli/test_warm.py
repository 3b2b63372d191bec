"""Compiled kernels: `wireloom warm` makes all of them, and a hub opens its doors only when it has what it needs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import wireloom
from tests.cli.running import COMMAND, ROOT
from tests.hub.process import HubProcess
from wireloom.cli.talk import echo_handler

STREAMS = "".join(f'[[listener]]\nurl = "{each}://127.0.0.1:0"\n' for each in ("emp", "yamp"))


async def talk(urls: dict[str, str]) -> None:
    """Long and short reads, acknowledged and not, requests and answers, in every stream protocol."""
    async with wireloom.connect(urls["yamp"], handler=echo_handler) as provider:
        await provider.provide("asked/#")
        for name in ("hsp", "emp", "yamp"):
            async with wireloom.connect(urls[name]) as peer, peer.subscribe("told/#") as told:
                for _ in range(500):
                    await peer.publish(f"told/{name}", {"x": 1})
                await asyncio.gather(*(peer.publish(f"told/{name}", {"x": 2}, ack=True) for _ in range(200)))
                await asyncio.gather(*(peer.request(f"asked/{name}", {"x": 3}) for _ in range(200)))
                for _ in range(700):
                    await anext(told)


def talked(hub: HubProcess) -> str:
    """What a hub says whose peers talk to it."""
    try:
        asyncio.run(talk(hub.urls))
    finally:
        code, said = hub.stop()
    assert code == 0
    return said


def compiled(folder: Path) -> set[Path]:
    return {*folder.rglob("*.nbc")}


def test_a_cold_hub_compiles_first_then_listens_and_never_compiles_again(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    hub = HubProcess(tmp_path / "hub", STREAMS, env={**os.environ, "WIRELOOM_KERNELS": str(kernels)})
    before = compiled(kernels)
    said = talked(hub)
    assert len(before) > 5
    assert compiled(kernels) == before
    assert said.count("compiling kernels, once") == 1
    assert said.index("compiling kernels, once") < said.index("INFO    listening on")


def test_nothing_is_left_to_compile_after_warm(tmp_path: Path) -> None:
    """In the folder that the tests use anyway: there it takes long only the first time."""
    done = subprocess.run([*COMMAND, "warm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kernels of hub and pipeline are ready" in done.stdout
    assert "compiling" not in talked(HubProcess(tmp_path / "hub", STREAMS))


def test_a_hub_without_any_writable_folder_compiles_in_memory_and_says_so(tmp_path: Path) -> None:
    package = tmp_path / "src/wireloom"
    shutil.copytree(ROOT / "src/wireloom", package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {each.parent for each in package.rglob("*.py")}:
        (folder / "__pycache__").touch()  # a file: not even root can make a folder of that name
    env = {**os.environ, "PYTHONPATH": str(package.parent), "HOME": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("XDG_CACHE_HOME", "WIRELOOM_KERNELS"):
        env.pop(name, None)
    hub = HubProcess(tmp_path / "hub", env=env)
    code, said = hub.stop()
    assert code == 0
    assert said.count("compiling kernels in memory, at every start") == 1
    assert "WIRELOOM_KERNELS" in said


def test_kernels_that_somebody_else_compiled_are_used_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_text(
        "from wireloom.kernels import kernel\n\n@kernel\ndef twice(value):\n    return value + value\n"
    )
    env = {**os.environ, "HOME": "/dev/null", "PYTHONPATH": ":".join(sys.path)}
    env.pop("XDG_CACHE_HOME", None)
    refuse = "import os; os.access = lambda *_: False\n"
    for before in ("", refuse):
        program = before + "import doubling, logging; logging.basicConfig(level=20); print(doubling.twice(2))"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout == "4\n"
        assert ("compiling" in done.stderr) == (before == "")
