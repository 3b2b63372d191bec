"""The journal's readers: segments, their blocks, and the messages in them. Needs no third-party package.

Implements the reading side of docs/reference/journal-format.md, one block at a time; `index.py` does it
for millions. Only committed bytes are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from wireloom.journal import blocks
from wireloom.journal.blocks import Block
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.keys import Keys, keys_in
from wireloom.journal.segment import OpenSegment, committed_length, is_sealed, segments
from wireloom.model import ConfigError, Direction, JournalError, Message, ProtocolViolation
from wireloom.protocols.contract import Decoder, Settings
from wireloom.protocols.registry import protocol as find_protocol
from wireloom.protocols.settings import apply_agreed


class Offset(NamedTuple):
    """The place of a message in the whole journal: the packet id of its run's first block, and its place in the run.

    >>> Offset.parse("1042.7"), str(Offset(1042, 7))
    (Offset(packet_id=1042, number=7), '1042.7')
    """

    packet_id: int
    number: int

    def __str__(self) -> str:
        return f"{self.packet_id}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`; ConfigError for any other text."""
        if re.fullmatch(r"[0-9]{1,19}\.[0-9]{1,9}", text, re.ASCII) is None:
            raise ConfigError(f"{text!r} is no offset in a journal; it looks like 1042.7")
        packet_id, _, number = text.partition(".")
        return cls(int(packet_id), int(number))


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in the journal: where its first byte stands, its size, its place in its connection and in all."""

    message: Message
    segment: str
    offset: int
    size: int
    sequence: int
    place: Offset
    last_packet_id: int
    """The id of the last block of its run."""
    inbound: bool
    """Whether the hub that wrote the journal received the message; else the hub sent it."""
    local: str | None = None
    """The hub's own address of the connection."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes in the journal that do not decode with the settings at hand."""

    clause: str
    detail: str
    segment: str
    offset: int
    size: int
    block: Block


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the journal: see `Block.record` and `Block.details`."""

    segment: str
    block: Block


def read_blocks(path: Path | str, start: int = 0, end: int | None = None, disk: Disk = LOCAL) -> Iterator[Block]:
    """The packet blocks of one segment from byte `start` (where a block begins) to `end`.

    `end` is the committed length unless told otherwise. A file that is no segment, and damage, raise
    JournalError.
    """
    for block, _ in _blocks_and_keys(Path(path), start, end, disk):
        if block is not None:
            yield block


def _blocks_and_keys(path: Path, start: int, end: int | None, disk: Disk) -> Iterator[tuple[Block | None, list[Keys]]]:
    """The packet blocks of a segment; before those of each piece, the keys that are stated in it."""
    try:
        with OpenSegment(path, disk) as segment:
            sealed = is_sealed(path, disk)
            limit = min(committed_length(path, disk) if end is None else end, segment.size)
            if limit == 0 and end is None and sealed:
                raise JournalError(f"{path}: no journal segment: the file is empty")
            if limit == 0:
                return
            for base, data in segment.pieces(max(check_segment(segment), start), limit):
                yield None, list(keys_in(data, 0, len(data)))
                for block in blocks_in(data, base):
                    yield block, []
    except blocks.BlockFault as fault:
        raise JournalError(f"{path}: {fault}; `wireloom journal verify {path.parent}` lists every fault") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalError(f"{path}: cannot read the segment: {error.strerror}") from None


def check_segment(segment: OpenSegment) -> int:
    """Where the first block of a segment stands; JournalError if it is none."""
    try:
        return segment.head().size
    except blocks.BlockFault as fault:
        raise JournalError(
            f"{segment.path}: no journal segment: {fault}; name a file or folder that `wireloom hub` wrote"
        ) from None


def blocks_in(data: bytes, base: int) -> Iterator[Block]:
    """The packet blocks in a piece of a segment that begins at `base`. BlockFault says where in the segment."""
    try:
        for block in blocks.blocks(data, 0, len(data)):
            yield replace(block, offset=base + block.offset, payload_offset=base + block.payload_offset)
    except blocks.BlockFault as fault:
        raise blocks.BlockFault(base + fault.offset, fault.reason) from None


def read_messages(
    folder: Path | str, settings: Mapping[str, Settings] | None = None, disk: Disk = LOCAL
) -> Iterator[Entry]:
    """Every message of a journal in order, with time, connection and direction set."""
    return (found for found in read_all(folder, settings, disk) if isinstance(found, Entry))


def read_all(
    folder: Path | str, settings: Mapping[str, Settings] | None = None, disk: Disk = LOCAL
) -> Iterator[Entry | Unreadable | Record]:
    """Everything in a journal in order: messages, records, and bytes that do not decode."""
    decoding = Decoding(settings)
    for segment in segments(folder, disk):
        decoding.begin(segment.name)
        try:
            for block, keys in _blocks_and_keys(segment, 0, None, disk):
                decoding.learn(keys)
                if block is not None:
                    yield from decoding.take(block)
        except FileNotFoundError:
            # Retention took it meanwhile.
            continue


_NOTHING_STATED = blocks.Stated({}, {})
_MAX_STREAMS = 4096
"""Limit of decoders in memory. It is needed, because a crashed hub leaves no records of closed connections."""


class Decoding:
    """Decodes blocks into messages. Keeps a decoder per open connection, because later runs use earlier agreements."""

    def __init__(self, settings: Mapping[str, Settings] | None = None) -> None:
        self._settings = dict(settings or {})
        self._streams: dict[tuple[str, int | None, Direction | None], tuple[Decoder, int | None]] = {}
        self._keys: dict[int | None, Keys] = {}
        self.begin("")

    def begin(self, segment: str) -> None:
        """The blocks that follow are of another segment."""
        self._segment = segment
        self._contexts: dict[int, blocks.Stated] = {}
        self._blocks: list[Block] = []

    def take(self, block: Block) -> Iterator[Entry | Unreadable | Record]:
        """What a block brings: a record, or the messages of the run that it ends."""
        if block.record is not None:
            self._note(block)
            yield Record(self._segment, block)
            return
        self._blocks.append(block)
        if not block.more:
            run, self._blocks = self._blocks, []
            yield from self._run(self._segment, run)

    def skip(self, block: Block) -> None:
        """Pass over a block whose messages nobody wants; what later blocks need of it is kept."""
        if block.record is not None:
            self._note(block)
            return
        self._blocks = []
        self._streams.pop((block.protocol, block.connection, block.direction), None)

    def _note(self, block: Block) -> None:
        blocks.add_context(self._contexts, block)
        if block.record == "closed":
            self._forget(block.connection)

    def learn(self, keys: Iterable[Keys]) -> None:
        """Take the keys stated in a part of a segment, before its blocks or instead of them."""
        for each in keys:
            self._keys.pop(each.connection, None)
            self._keys[each.connection] = each
            for key, (decoder, _) in self._streams.items():
                if key[1] == each.connection:
                    decoder.unlock((each.values,))
        while len(self._keys) > _MAX_STREAMS:
            del self._keys[next(iter(self._keys))]

    def _forget(self, connection: int | None) -> None:
        self._keys.pop(connection, None)
        for key in [key for key in self._streams if key[1] == connection]:
            del self._streams[key]

    def _run(self, segment: str, run: list[Block]) -> Iterator[Entry | Unreadable]:
        first = run[0]
        key = (first.protocol, first.connection, first.direction)
        decoder, context = self._streams.get(key, (None, None))
        if decoder is None or context != first.context:
            if len(self._streams) >= _MAX_STREAMS:
                del self._streams[next(iter(self._streams))]
            decoder = self._decoder(first)
            self._streams[key] = decoder, first.context
        base, index = decoder.offset, 0
        decoder.feed(b"".join(block.payload for block in run))
        while True:
            position = decoder.offset
            try:
                for found in decoder:
                    message = found.message.with_(
                        protocol=first.protocol,
                        time=run[-1].time_ns,
                        connection=None if first.connection is None else f"{first.connection:016x}",
                        direction=first.direction,
                    )
                    place = Offset(first.packet_id, index)
                    start = _byte(run, found.offset - base)
                    yield Entry(
                        message,
                        segment,
                        start,
                        found.size,
                        first.sequence + index,
                        place,
                        run[-1].packet_id,
                        first.inbound,
                        first.destination if first.inbound else first.source,
                    )
                    index += 1
                    position = found.offset + found.size
            except ProtocolViolation as violation:
                total = base + sum(len(block.payload) for block in run)
                ended = decoder.violation is not None
                size = (total if ended else decoder.offset) - position
                start = _byte(run, position - base)
                yield Unreadable(violation.clause, violation.detail, segment, start, size, first)
                if ended:
                    # The writer accepted what follows, so the next run is worth another try.
                    del self._streams[key]
                    return
                continue
            return

    def _decoder(self, block: Block) -> Decoder:
        protocol = find_protocol(block.protocol)
        topics, agreed = self._contexts.get(block.context or 0, _NOTHING_STATED)
        if block.protocol not in self._settings:
            self._settings[block.protocol] = protocol.lenient()
        settings = self._settings[block.protocol]
        if agreed:
            settings = apply_agreed(settings, agreed)
        decoder = protocol.decoder(block.direction or Direction.C2S, settings, topics)
        keys = self._keys.get(block.connection)
        if keys is not None:
            decoder.unlock((keys.values,))
        return decoder


def _byte(run: list[Block], position: int) -> int:
    """Where in the segment the byte at `position` of a joined run stands."""
    for block in run:
        if position < len(block.payload):
            return block.payload_offset + position
        position -= len(block.payload)
    return run[-1].payload_offset + len(run[-1].payload)
