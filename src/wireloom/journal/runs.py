"""Reads single runs of frames by packet id. It skips from block to block, and parses only the runs asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.keys import Keys, keys_in
from wireloom.journal.log import RECORD_TAGS
from wireloom.journal.reader import Decoding, Entry
from wireloom.journal.segment import OpenSegment, committed_length, first_packet_id, segments
from wireloom.model import JournalError
from wireloom.protocols.contract import Settings


def read_runs(
    folder: Path | str,
    packet_ids: Sequence[int],
    settings: Mapping[str, Settings] | None = None,
    disk: Disk = LOCAL,
    on_error: Callable[[JournalError], None] | None = None,
) -> Iterator[tuple[int, list[Entry]]]:
    """The messages of the runs that hold these blocks, by packet id in ascending order.

    A block that is not there any more is left out. So is one that cannot be read, which `on_error` is told.
    """
    known = segments(folder, disk)
    firsts = [first_packet_id(path) for path in known]
    wanted = [(bisect_right(firsts, number) - 1, number) for number in sorted(set(packet_ids))]
    for at, numbers in groupby(wanted, key=lambda each: each[0]):
        if at >= 0:
            try:
                yield from _read_segment(known[at], [number for _, number in numbers], settings, disk)
            except FileNotFoundError:
                # Retention took it meanwhile.
                continue
            except JournalError as error:
                if on_error is not None:
                    on_error(error)


def _read_segment(
    path: Path, packet_ids: list[int], settings: Mapping[str, Settings] | None, disk: Disk
) -> Iterator[tuple[int, list[Entry]]]:
    before: list[blocks.Block] = []
    """What is stated before."""
    keys: list[Keys] = []
    run: list[blocks.Block] = []
    wanted = iter(packet_ids)
    next_wanted = next(wanted)
    with OpenSegment(path, disk) as segment:
        end = min(committed_length(path, disk), segment.size)
        number = first_packet_id(path)
        for _, data in segment.pieces(segment.head().size, end):
            keys += keys_in(data, 0, len(data))
            at = 0
            while at < len(data):
                kind, size = blocks.block_at(data, at, len(data))
                if kind == blocks.ENHANCED_PACKET:
                    captured = blocks.captured_at(data, at)
                    is_stated = captured == len(RECORD_TAGS)
                    # Only a block that is full can go on in the next one.
                    if is_stated or number == next_wanted or run or captured == blocks.MAX_PACKET_DATA:
                        block = blocks.parse_packet(data, at, size)
                        if is_stated:
                            before.append(block)
                        run.append(block)
                        if number == next_wanted:
                            yield number, _decode(path.name, before, keys, run, settings)
                            following = next(wanted, None)
                            if following is None:
                                return
                            next_wanted = following
                        if not block.more:
                            run.clear()
                    number += 1
                at += size


def _decode(
    segment: str,
    before: list[blocks.Block],
    keys: list[Keys],
    run: list[blocks.Block],
    settings: Mapping[str, Settings] | None,
) -> list[Entry]:
    decoding = Decoding(settings)
    decoding.begin(segment)
    decoding.learn(keys)
    for record in before:
        decoding.skip(record)
    return [found for block in run for found in decoding.take(block) if isinstance(found, Entry)]
