"""Restores protocol state from the journal after a restart.

A mesh node refuses packets that it has seen in the last five minutes. It keeps their ids in memory. A restart would
lose them, and an attacker could replay a packet. But the journal contains every accepted packet. So a thread reads them
back while the hub already serves. Until it is done, packets from before the start are refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from wireloom.hub.logs import about
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.reader import read_blocks
from wireloom.journal.segment import segment_time, segments
from wireloom.model import JournalError
from wireloom.protocols.contract import Sessions

log = logging.getLogger("wireloom.hub")

_TOGETHER = 16
"""How many runs are read before they are handed to the loop."""


class Run(NamedTuple):
    """Consecutive frames of one connection that were accepted."""

    protocol: str
    frames: bytes
    source: str
    arrived: float


def begin(sessions: Sessions) -> None:
    """Make a listener refuse packets from before the start, if its protocol needs this."""
    if sessions.recalls:
        sessions.begin_recall(time.time())


async def recall(folder: Path, listeners: Sequence[Sessions], disk: Disk = LOCAL) -> None:
    """Tell the sessions of these listeners what they received before the restart."""
    wanting = {each.protocol.name: each for each in listeners if each.recalls}
    if not wanting:
        return
    since = time.time() - max(each.recalls for each in wanting.values())
    runs, loop = _runs(folder, frozenset(wanting), int(since * 1e9), disk), asyncio.get_running_loop()
    count = 0
    try:
        while found := await loop.run_in_executor(None, lambda: list(islice(runs, _TOGETHER))):
            for run in found:
                wanting[run.protocol].recall(run.frames, run.source, run.arrived)
                count += 1
                await asyncio.sleep(0)
    except JournalError as error:
        why = "packets from before the start stay refused, because the journal cannot be read: %s"
        log.error(why, error, extra=about("recall.failed"))
        return
    for each in listeners:
        each.recalled()
    log.info("what may not be taken twice is known again, from %d runs", count, extra=about("recall.done"))


def _runs(folder: Path, protocols: frozenset[str], since_ns: int, disk: Disk) -> Iterator[Run]:
    """What peers of these protocols sent since a time, as far as it is committed."""
    found = segments(folder, disk)
    first = max((at for at, each in enumerate(found) if segment_time(each, disk) <= since_ns), default=0)
    for segment in found[first:]:
        pieces: list[bytes] = []
        for block in read_blocks(segment, disk=disk):
            if block.protocol not in protocols or not block.inbound or block.record or block.time_ns < since_ns:
                continue
            pieces.append(block.payload)
            if not block.more:
                yield Run(block.protocol, b"".join(pieces), block.source or "", block.time_ns / 1e9)
                pieces = []
