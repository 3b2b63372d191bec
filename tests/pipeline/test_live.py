"""A hub that is writing: whatever moment a batch ends at, the tables are those of one batch over the same input."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import hub_on, url_of
from tests.pipeline.batches import LocalWorkers, contents, new_warehouse, run_batches
from wireloom.hub import Hub
from wireloom.journal import segments
from wireloom.model import Message, RequestFailed
from wireloom.pipeline import planning
from wireloom.pipeline.batch import BatchCommit
from wireloom.pipeline.planning import Offsets

LISTENERS = "\n".join(
    f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true' for scheme in ("hsp", "emp", "yamp")
)
HUB = f'{LISTENERS}\n[journal]\nsegment_bytes = 6000\n[http]\nurl = "off"\n'
BATCHES = 3
ROOT = Path(__file__).resolve().parents[2]


async def answer(message: Message, peer: wireloom.Peer) -> object:
    if message.value() == 3:
        raise RequestFailed("418", b"short and stout")
    return {"got": message.value()}


async def speak(hub: Hub, rounds: asyncio.Semaphore) -> None:
    """Rounds of events and requests, some refused, on connections that come and go."""
    async with wireloom.connect(url_of(hub, "yamp"), handler=answer) as provider:
        await provider.provide("tea/#")
        while True:
            await rounds.acquire()
            for scheme in ("emp", "yamp", "hsp"):
                async with wireloom.connect(url_of(hub, scheme)) as client:
                    for number in range(5):
                        await client.publish("sensors/kitchen", {"n": number}, ack=number == 4)
                        if scheme != "hsp":
                            try:
                                await client.request("tea/green", number)
                            except RequestFailed:
                                continue


def commit_and_compare(folder: Path, number: int, start: Offsets, end: Offsets) -> None:
    """Do one more batch, and everything so far again in one batch elsewhere."""
    inputs = [str(folder / "journal")]
    many = new_warehouse(folder / "many")
    new = planning.plan(inputs, start, end)
    BatchCommit(many, number, LocalWorkers(many.store, [[part] for part in new], tasks=2)).commit()
    run_batches(folder / f"one-{number}", [[planning.plan(inputs, {}, end)]])
    assert contents(many.root) == contents(folder / f"one-{number}")


PROGRAM = """
import json, pathlib, sys
from tests.pipeline.test_live import commit_and_compare

folder, number, start, end = sys.argv[1:]
commit_and_compare(pathlib.Path(folder), int(number), json.loads(start), json.loads(end))
"""


async def compare(folder: Path, number: int, start: Offsets, end: Offsets) -> None:
    """The same in a process of its own, as in life: the hub goes on meanwhile."""
    words = [sys.executable, "-c", PROGRAM, str(folder), str(number), json.dumps(start), json.dumps(end)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    run = partial(subprocess.run, words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    done = await asyncio.to_thread(run)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
async def test_tables_of_a_hub_that_is_writing_are_at_every_commit_those_of_one_batch(tmp_path: Path) -> None:
    inputs = [str(tmp_path / "journal")]
    rounds, position = asyncio.Semaphore(0), {}
    async with hub_on(tmp_path, HUB) as hub:
        speaking = asyncio.create_task(speak(hub, rounds))
        try:
            for number in range(BATCHES):
                rounds.release()
                async with asyncio.timeout(60):
                    while planning.latest(inputs) == position:
                        await asyncio.sleep(0.05)
                end = planning.latest(inputs)
                rounds.release()
                await compare(tmp_path, number, position, end)
                position = end
        finally:
            speaking.cancel()
            await asyncio.wait([speaking], timeout=60)
    assert len(segments(tmp_path / "journal")) > 3
    await compare(tmp_path, BATCHES, position, planning.latest(inputs))
    rows = contents(tmp_path / "many")
    assert rows["exchanges"] and rows["sessions"] and not rows["rejects"]
