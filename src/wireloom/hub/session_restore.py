"""After a restart: what a protocol must remember of the past is read from the journal again.

A mesh node refuses packets that it has seen before, for five minutes. What it has seen is kept in memory, and so would
be lost with a restart; a packet could be replayed then. But the journal holds every packet that was accepted. It is
read by a thread while the hub serves already. Until that is done, packets from before the start are refused.
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
"""Runs that are read before the loop takes them."""


class Run(NamedTuple):
    """Frames of one connection, one after the other, that were accepted."""

    protocol: str
    frames: bytes
    source: str
    arrived: float


def begin(sessions: Sessions) -> None:
    """Let a listener refuse what it may have seen before, if it is such a one."""
    if sessions.recalls:
        sessions.begin_recall(time.time())


async def recall(folder: Path, listeners: Sequence[Sessions], disk: Disk = LOCAL) -> None:
    """Tell the sessions of some listeners what came before they were there."""
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
    """What peers sent by some protocols from a time on, as far as it is committed."""
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
