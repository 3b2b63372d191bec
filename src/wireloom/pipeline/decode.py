"""A byte range of a segment as Arrow tables: `messages`, and `rejects` for what does not decode.

All runs of one protocol go through its column decoder in one call; no Python object is made per message.
A run that breaks its protocol loses the rest of that run only: whoever wrote the journal accepted what
follows, and it must not matter which runs happen to be decoded together.
"""

from __future__ import annotations

import dataclasses
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.journal import blocks as journal_blocks
from wireloom.journal import index as journal_index
from wireloom.journal.index import NO_MAP, BlockIndex
from wireloom.journal.keys import Keys, keys_for
from wireloom.journal.segment import committed_length
from wireloom.model import ConfigError, JournalError
from wireloom.pipeline import blocks, ledger
from wireloom.pipeline.dictionaries import unified
from wireloom.pipeline.planning import Range
from wireloom.pipeline.rows import empty, message_rows, reject_rows
from wireloom.pipeline.schemas import KEPT_BYTES, MESSAGES
from wireloom.pipeline.steps import audit, findings, sessions
from wireloom.pipeline.steps.sessions import Event
from wireloom.pipeline.steps.view import DAY_US, DIRECTIONS, coded, constant
from wireloom.protocols.audit import Auditor
from wireloom.protocols.columns import BROKEN, ColumnDecoder, Columns, Spans, Stream
from wireloom.protocols.contract import CUT, Settings
from wireloom.protocols.conversation import Rule, Severity
from wireloom.protocols.registry import protocol, protocols

UNKNOWN_PROTOCOL = "protocol.unknown"


@dataclass(frozen=True, slots=True)
class DecodedRange:
    """The rows of one range. Columns whose values repeat are dictionary arrays; see `rows.plain`."""

    messages: pa.Table
    rejects: pa.Table
    events: Sequence[Event] = ()
    """What is known of connections beside their messages: opened, closed, refused bytes."""
    findings: pa.Table | None = None
    """What is wrong with single packets."""
    packets: pa.Table | None = None
    """Packets that a receiver remembers, see `steps/audit.py`."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of one protocol: a row a run; `start` and `end` are places in `data`.

    `piece_at` and `piece_offset` say which offset of the file a place in `data` stands for, from that
    place on.
    """

    protocol: str
    data: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    time_us: NDArray[np.int64]
    sequence: NDArray[np.int64]
    connection: NDArray[np.uint64]
    direction: NDArray[np.uint8]
    topic_map: NDArray[np.int64]
    tags_start: NDArray[np.int64]
    piece_at: NDArray[np.int64]
    piece_offset: NDArray[np.int64]

    def file_offset(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in the file the bytes at those places in `data` are."""
        if not len(self.piece_at):
            return place
        piece = np.searchsorted(self.piece_at, place, side="right") - 1
        return place - self.piece_at[piece] + self.piece_offset[piece]


def warm() -> None:
    """Compile or load every kernel, so that the first range does not pay for it."""
    journal_index.warm()
    blocks.warm()
    ledger.warm()
    sessions.warm()
    for name in protocols():
        _decoder(name)[0].warm()


@cache
def _decoder(name: str) -> tuple[ColumnDecoder, Settings]:
    found = protocol(name)
    return found.columns(), found.lenient()


@cache
def auditor(name: str, trust: str) -> Auditor | None:
    """Who looks at the packets of a protocol after the fact; `trust` is a trust file, or empty."""
    decoder, settings = _decoder(name)
    if trust and any(field.name == "trust" for field in dataclasses.fields(settings)):
        settings = dataclasses.replace(settings, **{"trust": trust})
    return decoder.auditor(settings)


def decode_range(part: Range, trust: str = "", keys: str = "") -> DecodedRange:
    """The messages and rejects of one range; `trust` is a trust file for those who sign, `keys` a key file."""
    path = Path(part.file)
    limit = committed_length(path)
    rejects = _Rejects(part.file)
    if limit == 0:
        return DecodedRange(empty(MESSAGES), rejects.table())
    audited = Audited(trust)
    with path.open("rb") as file:
        # Unmapped when the last array that looks at it is gone.
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    events: list[Event] = []
    messages = _decode(data, part, min(limit, len(data)), rejects, events, audited, keys)
    return DecodedRange(messages, rejects.table(), events, audited.findings(), audited.packets())


class Audited:
    """What auditors say of packets, collected."""

    def __init__(self, trust: str) -> None:
        self.trust = trust
        self._findings: list[pa.Table] = []
        self._packets: list[pa.Table] = []

    def examine(self, name: str, columns: Columns, data: NDArray[np.uint8], rows: pa.Table) -> pa.Table:
        """The same messages, with their authenticity."""
        looks = auditor(name, self.trust)
        if looks is None or not rows.num_rows:
            return rows
        found = audit.examine(looks, data, columns.offset, columns.size, rows)
        self._findings.append(found.findings)
        self._packets.append(found.packets)
        return found.messages

    def refused(self, rejects: pa.Table) -> None:
        """A packet that the hub refused although it was well-formed is a finding, by the rule it broke."""
        for name in pc.unique(rejects["protocol"].drop_null()).to_pylist():
            looks = auditor(name, self.trust) if name in protocols() else None
            for rule, severity in looks.severities.items() if looks is not None else ():
                own = pc.and_(pc.equal(rejects["protocol"], name), pc.equal(rejects["clause"], rule))
                chosen = rejects.filter(own)
                if chosen.num_rows:
                    unknown = pa.nulls(chosen.num_rows, pa.string())
                    named = chosen.append_column("message_id", unknown).append_column("correlation_id", unknown)
                    details = chosen["detail"].to_pylist()
                    self._findings.append(findings.of_table(named, Rule(rule, Severity(severity), ""), details))

    def findings(self) -> pa.Table | None:
        """All findings."""
        return pa.concat_tables(self._findings) if self._findings else None

    def packets(self) -> pa.Table | None:
        """All packets to remember."""
        return unified(pa.concat_tables(self._packets)) if self._packets else None


def _decode(
    data: NDArray[np.uint8],
    part: Range,
    limit: int,
    rejects: _Rejects,
    events: list[Event],
    audited: Audited,
    key_file: str,
) -> pa.Table:
    try:
        first = journal_blocks.check_head(data.data[:limit])
    except journal_blocks.BlockFault as fault:
        raise JournalError(f"{part.file}: no journal segment: {fault}; name the folder of a journal") from None
    found = blocks.find_runs(data, part, limit)
    for damage in found.damages:
        rejects.add_damage(data, damage, _block_time_us(data, first, limit))
    if part.refused:
        rejects.add_refused(data, found.index)
        audited.refused(rejects.table())
        return empty(MESSAGES)
    events += [_event(block) for block in journal_index.records(data, found.index) if block.record in _EVENTS]
    tables = []
    maps: dict[int, dict[int, str]] | None = None
    keys: dict[int, Keys] = {}
    frames = ~found.index.is_record
    for code, name in enumerate(found.index.protocols):
        rows = np.flatnonzero(frames & (found.index.protocol == code))
        if not len(rows):
            continue
        if maps is None:
            maps = journal_index.topic_maps_before(data, _end(found.index))
            keys = journal_index.keys_before(data, _end(found.index))
        runs, damaged = _gather_runs(data, name, found, rows)
        for run in np.flatnonzero(damaged).tolist():
            rejects.add(runs, run, int(runs.start[run]), int(runs.end[run]), blocks.DAMAGED, "wrong hash")
        runs = _select(runs, np.flatnonzero(~damaged)) if damaged.any() else runs
        if not len(runs.start):
            continue
        try:
            _decoder(name)
        except ConfigError:
            for run in range(len(runs.start)):
                detail = f"no protocol {name!r} is installed here"
                rejects.add(runs, run, int(runs.start[run]), int(runs.end[run]), UNKNOWN_PROTOCOL, detail)
            continue
        tables += _decode_runs(data, runs, maps, keys, part.file, rejects, audited, key_file)
    if not tables:
        return empty(MESSAGES)
    return tables[0] if len(tables) == 1 else unified(pa.concat_tables(tables))


_EVENTS = frozenset({"opened", "closed", "refused", "started"})


def _event(block: journal_blocks.Block) -> Event:
    """A record as what it says of its connection."""
    details = block.details
    reason, direction, size = details.get("reason"), details.get("direction"), details.get("size")
    peer, local = details.get("peer"), details.get("local")
    named = details.get("protocol") or (block.protocol if block.protocol in protocols() else None)
    return Event(
        str(block.record),
        block.time_ns // 1000,
        None if block.connection is None else f"{block.connection:016x}",
        None if named is None else str(named),
        str(peer) if peer else block.source,
        str(local) if local else block.destination,
        None if reason is None else str(reason),
        None if direction is None else str(direction),
        size if isinstance(size, int) else 0,
        block.offset,
    )


def _block_time_us(data: NDArray[np.uint8], at: int, limit: int) -> int:
    """The time in the packet block at `at`, whatever else of it is damaged; 0 where nothing is left of it.

    Always the same for one segment, however it is cut into ranges.
    """
    if limit - at < 20:
        return 0
    high, low = struct.unpack_from("<II", data.data, at + 12)
    return int(high << 32 | low) // 1000


def _end(index: BlockIndex) -> int:
    """Where the last block of an index ends."""
    return int(index.offset[-1] + index.size[-1])


def _gather_runs(
    data: NDArray[np.uint8], name: str, found: blocks.Found, rows: NDArray[np.int64]
) -> tuple[_Runs, NDArray[np.bool_]]:
    """The runs of one protocol and whether each is damaged; with continued blocks, payloads are copied together."""
    index = found.index
    run = found.run[rows]
    first = np.flatnonzero(np.diff(run, prepend=-1))
    heads = rows[first]
    start, end = index.payload_start[rows], index.payload_end[rows]
    damaged = np.logical_or.reduceat(found.bad[rows], first)
    no_pieces = np.zeros(0, np.int64)
    if len(first) == len(rows):
        source, at, stop, piece_at, piece_offset = data, start, end, no_pieces, no_pieces
    else:
        sizes = end - start
        piece_at = np.cumsum(sizes) - sizes
        joined = np.empty(int(sizes.sum()), np.uint8)
        for place, begin, finish in zip(piece_at.tolist(), start.tolist(), end.tolist(), strict=True):
            joined[place : place + finish - begin] = data[begin:finish]
        joined.flags.writeable = False
        source, piece_offset = joined, start
        at = piece_at[first]
        stop = np.append(at[1:], len(joined))
    runs = _Runs(
        name,
        source,
        at,
        stop,
        index.time_ns[heads] // 1000,
        index.sequence[heads],
        index.connection[heads],
        index.direction[heads],
        index.topic_map[heads],
        index.tags_start[heads],
        piece_at,
        piece_offset,
    )
    return runs, damaged


def _select(runs: _Runs, rows: NDArray[np.int64]) -> _Runs:
    return replace(
        runs,
        start=runs.start[rows],
        end=runs.end[rows],
        time_us=runs.time_us[rows],
        sequence=runs.sequence[rows],
        connection=runs.connection[rows],
        direction=runs.direction[rows],
        topic_map=runs.topic_map[rows],
        tags_start=runs.tags_start[rows],
    )


@dataclass(frozen=True, slots=True)
class _Streams:
    """Which stream each run belongs to, and what is said of streams: a row a stream."""

    number: NDArray[np.int32]
    streams: list[Stream]
    connection: list[str]
    direction: NDArray[np.int8]
    source: list[str | None]
    destination: list[str | None]


def _streams(
    segment: NDArray[np.uint8],
    runs: _Runs,
    maps: dict[int, dict[int, str]],
    opened_by: dict[int, Keys],
    given: Sequence[Mapping[str, str]],
) -> _Streams:
    connections, connection = np.unique(runs.connection, return_inverse=True)
    numbers, topic_map = np.unique(runs.topic_map, return_inverse=True)
    key = (connection * len(numbers) + topic_map) * len(DIRECTIONS) + runs.direction
    keys, first, number = np.unique(key, return_index=True, return_inverse=True)
    direction = (keys % len(DIRECTIONS)).astype(np.int8)
    rest = keys // len(DIRECTIONS)
    map_ids = numbers[rest % len(numbers)].tolist()
    ends = [journal_index.endpoints(segment, int(at)) for at in runs.tags_start[first]]
    ids = connections[rest // len(numbers)].tolist()
    return _Streams(
        number.astype(np.int32),
        [
            Stream(
                DIRECTIONS[code],
                {} if map_id == NO_MAP else maps.get(map_id, {}),
                secrets=(opened_by[each].values,) if each in opened_by else given,
            )
            for code, map_id, each in zip(direction.tolist(), map_ids, ids, strict=True)
        ],
        [f"{value:016x}" for value in ids],
        direction,
        [source for source, _ in ends],
        [destination for _, destination in ends],
    )


def _decode_runs(
    segment: NDArray[np.uint8],
    runs: _Runs,
    maps: dict[int, dict[int, str]],
    keys: dict[int, Keys],
    file: str,
    rejects: _Rejects,
    audited: Audited,
    key_file: str,
) -> list[pa.Table]:
    """All runs of one protocol as tables of messages: one, or two where a violation hid later runs."""
    decoder, settings = _decoder(runs.protocol)
    of = _streams(segment, runs, maps, keys, keys_for(file, runs.protocol, key_file))
    everything = np.arange(len(runs.start))
    number, streams = of.number, of.streams
    if decoder.has_pieces:
        # A run holds whole messages. Pieces alone, from whoever wrote them, must not wait for those of another run,
        # which may be decoded together with this one or not.
        number, streams = everything.astype(np.int32), [streams[each] for each in number.tolist()]
    columns = decoder.decode(Spans(runs.data, runs.start, runs.end, number, streams), settings)
    tables = [audited.examine(runs.protocol, columns, runs.data, _table(columns, runs, of, everything, file))]
    hidden = sorted({reject.span for reject in columns.rejects if reject.clause == BROKEN})
    _add_rejects(columns, runs, everything, rejects)
    if decoder.has_pieces:
        _add_unfinished(decoder, settings, columns, runs, rejects)
    if hidden:
        # Every run as a stream of its own: what another run did wrong does not count against it.
        again = np.array(hidden)
        alone = Spans(
            runs.data,
            runs.start[again],
            runs.end[again],
            np.arange(len(again), dtype=np.int32),
            [of.streams[of.number[run]] for run in hidden],
        )
        columns = decoder.decode(alone, settings)
        tables.append(audited.examine(runs.protocol, columns, runs.data, _table(columns, runs, of, again, file)))
        _add_rejects(columns, runs, again, rejects)
    return [table for table in tables if table.num_rows]


def _add_rejects(columns: Columns, runs: _Runs, rows: NDArray[np.int64], rejects: _Rejects) -> None:
    """What a decoder refused, and what it left over: a run holds complete frames only."""
    broken = set()
    for reject in columns.rejects:
        if reject.clause == BROKEN:
            broken.add(reject.span)
        else:
            content = reject.content(runs.data, KEPT_BYTES)
            rejects.add(
                runs, int(rows[reject.span]), reject.offset, reject.offset + reject.size, reject.clause, reject.detail,
                content,
            )  # fmt: skip
    for span in np.flatnonzero(columns.consumed < runs.end[rows]):
        if int(span) not in broken:
            run = int(rows[span])
            detail = "the run of frames ends inside a frame"
            rejects.add(runs, run, int(columns.consumed[span]), int(runs.end[run]), CUT, detail)


def _add_unfinished(
    decoder: ColumnDecoder, settings: Settings, columns: Columns, runs: _Runs, rejects: _Rejects
) -> None:
    """Pieces that their run did not complete; every run is a stream."""
    for run, state in enumerate(columns.state):
        for each in decoder.unfinished(state, settings) if state else ():
            start = columns.begun[run]
            rejects.add(
                runs, run, start, start + len(each.data), each.clause, each.detail, each.data[:KEPT_BYTES]
            )  # fmt: skip


def _table(columns: Columns, runs: _Runs, of: _Streams, rows: NDArray[np.int64], file: str) -> pa.Table:
    """Rows of `messages` from decoded columns; `rows` says which run each span is."""
    run = rows[columns.span]
    stream = of.number[run]
    count = len(columns)
    per_span = np.bincount(columns.span, minlength=len(rows))
    within = np.arange(count) - (np.cumsum(per_span) - per_span)[columns.span]
    return message_rows(
        runs.protocol,
        columns,
        time_us=runs.time_us[run],
        connection=coded(stream, of.connection),
        direction=of.direction[stream],
        source=coded(stream, of.source),
        destination=coded(stream, of.destination),
        sequence=runs.sequence[run] + within,
        file=constant(file, count),
        offset=runs.file_offset(columns.offset),
    )


class _Rejects:
    """Rows of `rejects`, collected one by one: there are few."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.rows: list[tuple[object, ...]] = []

    def add(
        self, runs: _Runs, run: int, start: int, end: int, clause: str, detail: str, content: bytes | None = None
    ) -> None:
        """Bytes of a run, by their place in its data; `content` if they do not stand together there."""
        self._row(
            int(runs.time_us[run]),
            runs.protocol,
            f"{int(runs.connection[run]):016x}",
            str(DIRECTIONS[runs.direction[run]]),
            clause,
            detail,
            runs.data[start : min(end, start + KEPT_BYTES)].tobytes() if content is None else content,
            end - start,
            int(runs.file_offset(np.array([start]))[0]),
        )

    def add_damage(self, data: NDArray[np.uint8], damage: blocks.Damage, segment_us: int) -> None:
        """A stretch of the segment; its own time is lost, so it gets that of the segment's first block."""
        kept = data[damage.offset : damage.offset + min(damage.size, KEPT_BYTES)].tobytes()
        self._row(segment_us, None, None, None, blocks.DAMAGED, damage.reason, kept, damage.size, damage.offset)

    def add_refused(self, data: NDArray[np.uint8], index: BlockIndex) -> None:
        """What the hub refused: the bytes and, beside them, why."""
        for block in journal_index.records(data, index):
            if block.record == "refused":
                size, direction = block.details.get("size"), block.details.get("direction")
                self._row(
                    block.time_ns // 1000,
                    block.protocol,
                    None if block.connection is None else f"{block.connection:016x}",
                    direction,
                    block.details.get("clause"),
                    block.details.get("detail"),
                    block.payload[:KEPT_BYTES],
                    size if isinstance(size, int) else len(block.payload),
                    block.payload_offset,
                )

    def _row(
        self,
        time_us: int,
        protocol_name: str | None,
        connection: str | None,
        direction: object,
        clause: object,
        detail: object,
        kept: bytes,
        size: int,
        offset: int,
    ) -> None:
        texts = [None if v is None else str(v) for v in (protocol_name, connection, direction, clause, detail)]
        self.rows.append((time_us, time_us // DAY_US, *texts, kept, size, self.file, offset))

    def table(self) -> pa.Table:
        """The rows so far."""
        return reject_rows(self.rows)
