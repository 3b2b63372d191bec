"""Single runs of frames, found by packet id: hops from block to block, so that what nobody asked for is not parsed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from wireloom.journal import blocks
from wireloom.journal.log import RECORD_TAGS
from wireloom.journal.reader import Decoding, Entry
from wireloom.journal.recovery import mapped
from wireloom.journal.segment import committed_length, first_packet_id, segments
from wireloom.model import JournalError
from wireloom.protocols.contract import Settings


def read_runs(
    folder: Path | str, packet_ids: Sequence[int], settings: Mapping[str, Settings] | None = None
) -> Iterator[tuple[int, list[Entry]]]:
    """The messages of the runs that hold these blocks, by packet id in ascending order.

    A block that is not there any more, or that cannot be read, is left out.
    """
    known = segments(folder)
    firsts = [first_packet_id(path) for path in known]
    wanted = [(bisect_right(firsts, number) - 1, number) for number in sorted(set(packet_ids))]
    for at, numbers in groupby(wanted, key=lambda each: each[0]):
        if at >= 0:
            try:
                yield from _read_segment(known[at], [number for _, number in numbers], settings)
            except (JournalError, OSError):
                continue


def _read_segment(
    path: Path, packet_ids: list[int], settings: Mapping[str, Settings] | None
) -> Iterator[tuple[int, list[Entry]]]:
    topics: list[blocks.Block] = []
    with mapped(path) as data:
        end = min(committed_length(path), len(data))
        if end == 0:
            return
        position, number, next_wanted = blocks.check_head(data[:end]), first_packet_id(path), 0
        run: list[tuple[int, int]] = []
        while position < end and next_wanted < len(packet_ids):
            kind, size = blocks.block_at(data, position, end)
            if kind == blocks.ENHANCED_PACKET:
                captured = int.from_bytes(data[position + 20 : position + 24], "little")
                if captured == len(RECORD_TAGS):
                    topics.append(blocks.parse_packet(data, position, size))
                run.append((position, size))
                if number == packet_ids[next_wanted]:
                    yield (
                        number,
                        _decode(path.name, topics, [blocks.parse_packet(data, *each) for each in run], settings),
                    )
                    next_wanted += 1
                # Only a block that is full can go on in the next one.
                if captured != blocks.MAX_PACKET_DATA or not blocks.parse_packet(data, position, size).more:
                    run.clear()
                number += 1
            position += size


def _decode(
    segment: str, topics: list[blocks.Block], run: list[blocks.Block], settings: Mapping[str, Settings] | None
) -> list[Entry]:
    decoding = Decoding(settings)
    decoding.begin(segment)
    for record in topics:
        decoding.skip(record)
    return [found for block in run for found in decoding.take(block) if isinstance(found, Entry)]
