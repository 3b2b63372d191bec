"""A byte range of a segment as Arrow tables: `messages`, and `rejects` for what does not decode.

All runs of one protocol go through its column decoder in one call; no Python object is made per message. A violation
of the protocol costs only the rest of its run. The hub accepted the runs after it, so they are decoded. And the result
must not depend on which runs are decoded together.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wireloom.journal import blocks as journal_blocks
from wireloom.journal import index as journal_index
from wireloom.journal.disk import LOCAL, Disk
from wireloom.journal.index import NO_CONTEXT
from wireloom.journal.keys import Keys, keys_for
from wireloom.model import ConfigError, Direction, JournalError
from wireloom.pipeline import name_hash, packet_ids, pair_kernel, record_columns, segment_runs
from wireloom.pipeline.dictionary_columns import unified
from wireloom.pipeline.filters import Wanted
from wireloom.pipeline.message_table import empty, message_rows
from wireloom.pipeline.planning import Range
from wireloom.pipeline.record_columns import RecordColumns, address_columns, details, find_records, hex_texts, parsed
from wireloom.pipeline.rejects import Rejects
from wireloom.pipeline.run_records import Said
from wireloom.pipeline.schemas import KEPT_BYTES, MESSAGES
from wireloom.pipeline.segment_bytes import PAGE, SegmentBytes, open_segment
from wireloom.pipeline.segment_runs import Indexed, Runs, Streams, gather_runs, select, streams_of
from wireloom.pipeline.steps import audit, findings, sessions
from wireloom.pipeline.steps.message_arrays import DIRECTIONS, coded, constant, spread, typed
from wireloom.protocols.audit import Auditor
from wireloom.protocols.columns import BROKEN, ColumnDecoder, Columns, Spans
from wireloom.protocols.contract import CUT, Settings, apply_agreed
from wireloom.protocols.pairing import PairingRule, Severity
from wireloom.protocols.publish_rules import requests_are_publishes
from wireloom.protocols.registry import protocol, protocols

UNKNOWN_PROTOCOL = "protocol.unknown"
UNKNOWN_SETTING = "protocol.setting"
"""The clause of runs whose connection negotiated a setting that this version does not know."""


@dataclass(frozen=True, slots=True)
class DecodedRange:
    """The rows of one range. Columns whose values repeat are dictionary arrays; see `rows.plain`."""

    messages: pa.Table
    rejects: pa.Table
    events: pa.Table = field(default_factory=sessions.EVENTS.empty_table)
    """What is known of connections beside their messages: opened, closed, refused bytes."""
    findings: pa.Table | None = None
    """What is wrong with single packets."""
    packets: pa.Table | None = None
    """Packets that a receiver remembers, see `steps/audit.py`."""


@dataclass(frozen=True, slots=True)
class About:
    """What is known of all runs of a range beside their bytes."""

    file: str
    """What rows call it."""
    path: str
    """Where it is."""
    hub: str | None
    said: Said


def warm() -> None:
    """Compile or load every kernel, so that the first range does not pay for it."""
    journal_index.warm()
    segment_runs.warm()
    record_columns.warm()
    name_hash.warm()
    packet_ids.warm()
    pair_kernel.warm()
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
    setting = protocol(name).trust_setting
    if trust and setting is not None:
        settings = dataclasses.replace(settings, **{setting: trust})
    return decoder.auditor(settings)


def decode_range(
    part: Range, trust: str = "", keys: str = "", disk: Disk = LOCAL, wanted: Wanted | None = None
) -> DecodedRange:
    """The messages and rejects of one range; `trust` is a trust file for those who sign, `keys` a key file.

    Blocks of which no row can be `wanted` are not decoded; other rows that are not wanted may be there all the same.
    Bytes that cannot be read are rejects, too, and the rest is decoded.
    """
    rejects = Rejects(part.name or part.file)
    audited = Audited(trust)
    events: list[pa.Table] = []
    with open_segment(part.file, disk) as segment:
        if segment.limit == 0:
            return DecodedRange(empty(MESSAGES), rejects.table())
        messages = _decode(segment, part, rejects, events, audited, keys, wanted)
    told = pa.concat_tables([sessions.EVENTS.empty_table(), *events])
    return DecodedRange(messages, rejects.table(), told, audited.findings(), audited.packets())


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
                    self._findings.append(findings.of_table(named, PairingRule(rule, Severity(severity), ""), details))

    def findings(self) -> pa.Table | None:
        """All findings."""
        return pa.concat_tables(self._findings) if self._findings else None

    def packets(self) -> pa.Table | None:
        """All packets to remember."""
        return unified(pa.concat_tables(self._packets)) if self._packets else None


def _decode(
    segment: SegmentBytes,
    part: Range,
    rejects: Rejects,
    events: list[pa.Table],
    audited: Audited,
    key_file: str,
    wanted: Wanted | None,
) -> pa.Table:
    head = _head(segment)
    first = None if head is None else head.size
    rejects.hub = hub = (head.hub or None) if head is not None else None
    skimmed = segment_runs.skim(segment, part.start)
    found = segment_runs.find_runs(segment, part, skimmed.before)
    damages = found.damages + segment.unreadable_between(part.start, part.end)
    for damage in sorted(damages, key=lambda each: each.offset):
        segment.fill(damage.offset + KEPT_BYTES)
        at = found.resumed if first is None else first
        rejects.add_damage(segment.data, damage, 0 if at is None else _block_time_us(segment.data, at, segment.limit))
    data = segment.data
    if part.refused:
        rejects.add_refused(data, found.index)
        audited.refused(rejects.table())
        return empty(MESSAGES)
    whole = Indexed(data, found.index)
    records = find_records(data, found.index)
    events.append(events_of(whole, records))
    tables = []
    contexts: dict[int, journal_blocks.Stated] | None = None
    keys: dict[int, Keys] = {}
    said = Said()
    kept: NDArray[np.bool_] | None = None
    frames = ~found.index.is_record
    for code, name in enumerate(found.index.protocols):
        rows = np.flatnonzero(frames & (found.index.protocol == code))
        if not len(rows):
            continue
        if contexts is None:
            before = segment_runs.before_range(data, part, skimmed, found)
            contexts = _contexts((*before, whole))
            keys = _keys(data, skimmed, found)
            said = Said.read(whole, records, before, skimmed, found)
            kept = None if wanted is None else _kept(wanted, found, said)
        if kept is not None and auditor(name, audited.trust) is None:
            rows = rows[kept[rows]]
            if not len(rows):
                continue
        runs, damaged = gather_runs(data, name, found, rows)
        runs = _sound(runs, damaged, contexts, rejects)
        if len(runs.start):
            about = About(part.name or part.file, part.file, hub, said)
            tables += _decode_runs(data, runs, contexts, keys, about, rejects, audited, key_file)
    if not tables:
        return empty(MESSAGES)
    return tables[0] if len(tables) == 1 else unified(pa.concat_tables(tables))


def _kept(wanted: Wanted, found: segment_runs.Found, said: Said) -> NDArray[np.bool_]:
    """Which blocks are decoded. A record `taken` is about the next run of its connection: none of those is left out."""
    with_calls = np.array([connection for connection, _, _ in said.taken], np.uint64)
    return wanted.of_runs(found.index, found.run) | np.isin(found.index.connection, with_calls)


_EVENT_NAMES = ("opened", "closed", "refused", "started")
_EVENT_DETAILS = pa.schema(
    [
        *((name, pa.string()) for name in ("protocol", "peer", "local", "reason", "direction")),
        ("size", pa.int64()),
    ]
)


def events_of(piece: Indexed, records: RecordColumns) -> pa.Table:
    """What records say of their connections: rows of `EVENTS`."""
    own = records.of(*_EVENT_NAMES)
    said = details(piece.data, own, _EVENT_DETAILS)
    if said is None:
        return sessions.event_rows([_event(block) for block in parsed(piece.data, piece.index, own)])
    rows = own.row
    source, destination = address_columns(piece.data, piece.index.tags_start[rows])
    connection = piece.index.connection[rows]
    tagged = [name if name in protocols() else None for name in piece.index.protocols]
    peer, local = (pc.if_else(pc.equal(said[name], ""), None, said[name]) for name in ("peer", "local"))
    protocol = pc.if_else(pc.equal(said["protocol"], ""), None, said["protocol"])
    values = {
        "what": coded(own.name, record_columns.NAMES),
        "time_us": piece.index.time_ns[rows] // 1000,
        # No connection has the number 0.
        "connection": pc.if_else(pa.array(connection == 0), None, hex_texts(connection)),
        "protocol": pc.coalesce(protocol, coded(piece.index.protocol[rows], tagged or [None]).cast(pa.string())),
        "source": pc.coalesce(peer, source),
        "destination": pc.coalesce(local, destination),
        "reason": said["reason"],
        "direction": said["direction"],
        "size": pc.fill_null(said["size"], 0),
        "offset": piece.index.offset[rows],
    }
    return typed(values, sessions.EVENTS)


def _event(block: journal_blocks.Block) -> sessions.Event:
    """A record as what it says of its connection."""
    details = block.details
    reason, direction, size = details.get("reason"), details.get("direction"), details.get("size")
    peer, local = details.get("peer"), details.get("local")
    named = details.get("protocol") or (block.protocol if block.protocol in protocols() else None)
    return sessions.Event(
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


def _sound(
    runs: Runs, damaged: NDArray[np.bool_], contexts: Mapping[int, journal_blocks.Stated], rejects: Rejects
) -> Runs:
    """The runs that can be decoded; the others become rejects."""
    faults = {each: _fault(runs.protocol, each, contexts) for each in np.unique(runs.context).tolist()}
    bad = damaged | np.isin(runs.context, [each for each, fault in faults.items() if fault is not None])
    for run in np.flatnonzero(bad).tolist():
        fault = None if damaged[run] else faults[int(runs.context[run])]
        clause, detail = (segment_runs.DAMAGED, "wrong hash") if fault is None else fault
        rejects.add(runs, run, int(runs.start[run]), int(runs.end[run]), clause, detail)
    return select(runs, np.flatnonzero(~bad)) if bad.any() else runs


def _fault(name: str, context: int, contexts: Mapping[int, journal_blocks.Stated]) -> tuple[str, str] | None:
    """Why runs of a protocol with a context cannot be decoded: clause and detail; None if they can."""
    try:
        _, settings = _decoder(name)
    except ConfigError:
        return UNKNOWN_PROTOCOL, f"no protocol {name!r} is installed here"
    if context == NO_CONTEXT:
        return None
    if context not in contexts:
        # Without it the bytes may mean anything.
        return segment_runs.DAMAGED, "its context is not stated in what is left of the segment"
    stated = contexts[context]
    try:
        protocol(name).decoder(Direction.C2S, apply_agreed(settings, stated.settings), stated.topics)
    except ConfigError as error:
        return UNKNOWN_SETTING, str(error)
    return None


def _head(segment: SegmentBytes) -> journal_blocks.Head | None:
    """What the segment says of itself; None if that cannot be read, JournalError if there is nothing."""
    segment.fill(PAGE)
    try:
        return journal_blocks.head_of(segment.data.data[: segment.filled])
    except journal_blocks.BlockFault as fault:
        if segment.unreadable and segment.unreadable[0].offset <= fault.offset:
            return None
        raise JournalError(f"{segment.path}: no journal segment: {fault}; name the folder of a journal") from None


def _contexts(pieces: Sequence[Indexed]) -> dict[int, journal_blocks.Stated]:
    """What is stated in some blocks; parts of a large context are united."""
    known: dict[int, journal_blocks.Stated] = {}
    for piece in pieces:
        records = find_records(piece.data, piece.index).of("context", "topics")
        for block in parsed(piece.data, piece.index, records):
            journal_blocks.add_context(known, block)
    return known


def _keys(data: NDArray[np.uint8], skimmed: segment_runs.Skimmed, found: segment_runs.Found) -> dict[int, Keys]:
    """The keys that a segment states up to there."""
    known: dict[int, Keys] = {}
    for piece in _pieces(data, skimmed, found):
        known |= journal_index.keys_before(piece, len(piece))
    return known


def _pieces(
    data: NDArray[np.uint8], skimmed: segment_runs.Skimmed, found: segment_runs.Found
) -> Iterator[NDArray[np.uint8]]:
    """The blocks in which that stands: before the range, in it, and after damage."""
    end = int(found.index.offset[-1] + found.index.size[-1])
    yield skimmed.stated
    yield data[skimmed.before : end]
    if found.resumed is not None and found.resumed < end:
        yield data[found.resumed : end]


def _decode_runs(
    segment: NDArray[np.uint8],
    runs: Runs,
    contexts: dict[int, journal_blocks.Stated],
    keys: dict[int, Keys],
    about: About,
    rejects: Rejects,
    audited: Audited,
    key_file: str,
) -> list[pa.Table]:
    """All runs of one protocol as tables of messages: one, or two where a violation hid later runs."""
    decoder, settings = _decoder(runs.protocol)
    of = streams_of(segment, runs, contexts, keys, keys_for(about.path, runs.protocol, key_file))
    everything = np.arange(len(runs.start))
    number, streams = of.number, of.streams
    if decoder.has_pieces:
        # A run holds whole messages. Pieces alone, from whoever wrote them, must not wait for those of another run,
        # which may be decoded together with this one or not.
        number, streams = everything.astype(np.int32), [streams[each] for each in number.tolist()]
    columns = decoder.decode(Spans(runs.data, runs.start, runs.end, number, streams), settings)
    tables = [audited.examine(runs.protocol, columns, runs.data, _table(columns, runs, of, everything, about))]
    hidden = sorted({reject.span for reject in columns.rejects if reject.clause == BROKEN})
    _add_rejects(columns, runs, everything, rejects)
    if decoder.has_pieces:
        _add_unfinished(decoder, settings, columns, runs, rejects)
    if hidden:
        # Decode again, with every run as a stream of its own: a violation in one run must not affect another.
        again = np.array(hidden)
        alone = Spans(
            runs.data,
            runs.start[again],
            runs.end[again],
            np.arange(len(again), dtype=np.int32),
            [of.streams[of.number[run]] for run in hidden],
        )
        columns = decoder.decode(alone, settings)
        tables.append(audited.examine(runs.protocol, columns, runs.data, _table(columns, runs, of, again, about)))
        _add_rejects(columns, runs, again, rejects)
    return [table for table in tables if table.num_rows]


def _add_rejects(columns: Columns, runs: Runs, rows: NDArray[np.int64], rejects: Rejects) -> None:
    """Add rejects for bytes that a decoder refused, and for incomplete frames: a run holds only complete ones."""
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


def _add_unfinished(decoder: ColumnDecoder, settings: Settings, columns: Columns, runs: Runs, rejects: Rejects) -> None:
    """Pieces that their run did not complete; every run is a stream."""
    for run, state in enumerate(columns.state):
        for each in decoder.unfinished(state, settings) if state else ():
            start = columns.begun[run]
            rejects.add(
                runs, run, start, start + len(each.data), each.clause, each.detail, each.data[:KEPT_BYTES]
            )  # fmt: skip


def _acknowledges(columns: Columns, runs: Runs, run: NDArray[np.int64], said: Said) -> NDArray[np.bool_] | None:
    """Which messages are acknowledged publishes if they are requests: those of clients that no provider took."""
    if not requests_are_publishes(runs.protocol):
        return None
    found: NDArray[np.bool_] = runs.direction[run] == DIRECTIONS.index(Direction.C2S)
    calls = said.calls_in(runs)
    rows = np.flatnonzero(np.isin(run, list(calls)))
    ids = columns.message_id.take(pa.array(rows)).to_pylist()
    for row, own, identifier in zip(rows.tolist(), run[rows].tolist(), ids, strict=True):
        found[row] = identifier not in calls[own]
    return found


def _table(columns: Columns, runs: Runs, of: Streams, rows: NDArray[np.int64], about: About) -> pa.Table:
    """Rows of `messages` from decoded columns; `rows` says which run each span is."""
    run = rows[columns.span]
    stream = of.number[run]
    count = len(columns)
    per_span = np.bincount(columns.span, minlength=len(rows))
    within = np.arange(count) - (np.cumsum(per_span) - per_span)[columns.span]
    principal, principals = about.said.principal_of(runs)
    return message_rows(
        runs.protocol,
        columns,
        time_us=runs.time_us[run],
        connection=spread(stream, of.connection),
        direction=of.direction[stream],
        source=spread(stream, of.source),
        destination=spread(stream, of.destination),
        sequence=runs.sequence[run] + within,
        file=constant(about.file, count),
        offset=runs.file_offset(columns.offset),
        acknowledges=_acknowledges(columns, runs, run, about.said),
        hub=about.hub,
        principal=coded(principal[run], principals),
    )
