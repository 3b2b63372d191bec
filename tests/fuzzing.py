"""Random and mutated input for any protocol, with one stated property.

    python -m tests.fuzzing PROTOCOL|all COUNT [--seed N] [--memory MIB]

For every input: only `ProtocolViolation` with a clause of the protocol comes out of the decoder, however the stream is
cut the same messages come out, the columns agree with the decoder row by row and reject by reject, and no exception
leaves a session at all. Memory stays below a limit. The inputs follow from the seed alone.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.agreement import Row, rows_of_columns, rows_of_decoder
from tests.protocols.reading import data_of
from wireloom.model import Direction, Kind, Message, ProtocolViolation, WireloomError
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import CUT, Decoder, Framing, Protocol, Role, Session, Settings
from wireloom.protocols.registry import protocol as find
from wireloom.protocols.registry import protocols

BATCH = 500
"""Inputs decoded by one call of the columns, each a stream of its own."""
LONGEST = 4096
TOPICS: Mapping[int, str] = {7: "sensors/kitchen", 300: "alerts"}
EDGES = (0, 1, 3, 4, 5, 7, 8, 12, 127, 128, 255, 256, 0x7FFF, 0xFFFF, 0x10000, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
VECTORS = Path(__file__).parent / "vectors"


SETTINGS: Mapping[str, Mapping[str, object]] = {"emp": {"size_mode": "inclusive"}}
"""What may not be guessed: where a stream that begins with no `hello` is cut decides what emp takes its sizes for."""


def settings_of(protocol: Protocol) -> Settings:
    """The settings under which input is read."""
    return protocol.settings(SETTINGS.get(protocol.name, {}))


@dataclass(slots=True)
class Report:
    inputs: int = 0
    messages: int = 0
    rejects: int = 0
    seconds: float = 0.0
    peak_mib: int = 0
    clauses: dict[str, int] | None = None


def seeds(protocol: Protocol) -> list[bytes]:
    """Valid input to begin with: what was recorded, and every kind of message the protocol can say."""
    found: list[bytes] = []
    for path in sorted(VECTORS.glob(f"{protocol.name}-*.json")):
        recorded = [entry for entry in json.loads(path.read_text()) if entry.get("hex")]
        found += [bytes.fromhex(entry["hex"]) for entry in recorded]
        for direction in ("c2s", "s2c"):
            found.append(b"".join(bytes.fromhex(e["hex"]) for e in recorded if e["direction"] == direction))
    settings = settings_of(protocol)
    for kind in Kind:
        for topic in (None, "sensors/kitchen", "größe/ü"):
            for body, content_type in ((b"", None), (b'{"c":21.5}', "application/json"), (b"text" * 20, "text/plain")):
                for status, attributes in ((None, {}), ("404", {"type": "200", "compression": "gzip"})):
                    message = Message(kind, topic, body, "7", "7", status, content_type, attributes)
                    for said in (message, message.with_(id=None), message.with_(correlation_id=None)):
                        try:
                            found.append(protocol.encode(said, settings, TOPICS))
                        except WireloomError:
                            continue
    return sorted({seed[:LONGEST] for seed in found if seed})


def mutate(draw: random.Random, data: bytearray, pool: list[bytes]) -> None:
    """One change in place."""
    where = draw.randrange(len(data) + 1)
    match draw.randrange(9):
        case 0 if data:
            data[where % len(data)] ^= 1 << draw.randrange(8)
        case 1 if data:
            data[where % len(data)] = draw.randrange(256)
        case 2:
            data[where:where] = draw.randbytes(draw.randint(1, 8))
        case 3:
            del data[where : where + draw.randint(1, 8)]
        case 4:
            del data[where:]
        case 5:
            width = draw.choice((1, 2, 4))
            data[where : where + width] = (draw.choice(EDGES) & ((1 << 8 * width) - 1)).to_bytes(width)
        case 6:
            data[where:where] = data[where : where + draw.randint(1, 32)]
        case 7:
            data += draw.choice(pool)
        case _:
            data[where:] = draw.choice(pool)[-draw.randint(1, 64) :]


def inputs(protocol: Protocol, count: int, seed: int) -> Iterator[bytes]:
    """`count` inputs: some garbage, some valid, most of them valid once and then changed a little."""
    draw = random.Random(seed)
    pool = seeds(protocol)
    for _ in range(count):
        if draw.random() < 0.05:
            yield draw.randbytes(draw.randint(0, 200))
            continue
        data = bytearray().join(draw.choices(pool, k=draw.randint(1, 4)))
        for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 6))):
            mutate(draw, data, pool)
        yield bytes(data[:LONGEST])


def decode_in_pieces(protocol: Protocol, data: bytes, draw: random.Random) -> tuple[list[object], str | None]:
    """Messages and the clause that ended them, when the input comes in pieces."""
    decoder = protocol.decoder(Direction.C2S, settings_of(protocol), TOPICS)
    messages: list[object] = []
    position = 0
    while position < len(data):
        step = draw.choice((1, 2, 3, 7, 50, 1000))
        decoder.feed(data[position : position + step])
        position += step
        clause = drain(decoder, messages)
        if clause is not None:
            return messages, clause
    return messages, None


def decode_whole(protocol: Protocol, data: bytes) -> tuple[list[object], str | None]:
    decoder = protocol.decoder(Direction.C2S, settings_of(protocol), TOPICS)
    decoder.feed(data)
    messages: list[object] = []
    return messages, drain(decoder, messages)


def drain(decoder: Decoder, messages: list[object]) -> str | None:
    """Take what the decoder has; the clause of the violation that ended it, if one did."""
    try:
        for found in decoder:
            place = (found.offset, found.size)
            messages.append((place, found.message))
    except ProtocolViolation as violation:
        return violation.clause
    return None


def greeted(protocol: Protocol, role: Role) -> Session:
    """A session that has shaken hands with another of its kind, where the protocol does that."""
    session = protocol.session(role, settings_of(protocol), topics=TOPICS)
    other_role = Role.SERVER if role is Role.CLIENT else Role.CLIENT
    peer = protocol.session(other_role, settings_of(protocol), topics=TOPICS)
    session.connected(0.0)
    peer.connected(0.0)
    for _ in range(4):
        peer.receive(session.outgoing(), 0.5)
        session.receive(peer.outgoing(), 0.5)
    return session


def talk(protocol: Protocol, data: bytes, draw: random.Random) -> None:
    """Give the input to a session at both ends; nothing may escape, and what is refused is accounted for."""
    for role in Role:
        if draw.random() < 0.8:
            session = greeted(protocol, role)
        else:
            session = protocol.session(role, settings_of(protocol), topics=TOPICS)
            session.connected(0.0)
        session.outgoing()
        taken = 0
        cut = draw.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            taken += len(data_of(session.receive(piece, 1.0)))
            session.outgoing()
        session.end_of_input(2.0)
        assert taken + len(session.refused) <= len(data)
        if session.violation is not None:
            assert session.violation.clause in protocol.clauses, session.violation


def columns_of(protocol: Protocol, batch: list[bytes]) -> list[tuple[list[Row], list[Row], int]]:
    """Rows, rejects and consumed bytes of every input, by one call of the columns."""
    ends = np.cumsum([len(data) for data in batch], dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    stream = Stream(Direction.C2S, TOPICS)
    own_stream = np.arange(len(batch), dtype=np.int32)
    spans = Spans(np.frombuffer(b"".join(batch), np.uint8), starts, ends, own_stream, [stream] * len(batch))
    columns = protocol.columns().decode(spans, settings_of(protocol))
    rows, rejects = rows_of_columns(columns)
    result: list[tuple[list[Row], list[Row], int]] = [
        ([], [], int(columns.consumed[index] - starts[index])) for index in range(len(batch))
    ]
    for span, row in zip(columns.span.tolist(), rows, strict=True):
        result[span][0].append((int(str(row[0])) - int(starts[span]), *row[1:]))
    for reject, row in zip(columns.rejects, rejects, strict=True):
        result[reject.span][1].append((int(str(row[0])) - int(starts[reject.span]), *row[1:]))
    return result


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def fuzz(name: str, count: int, seed: int = 0, memory_mib: int = 2048, progress: bool = False) -> Report:
    """Try `count` inputs; raises AssertionError, with the input in its notes, at the first that breaks the property."""
    protocol = find(name)
    draw = random.Random(seed + 1)
    report = Report(clauses={})
    assert report.clauses is not None
    begun = time.monotonic()
    source = inputs(protocol, count, seed)
    while report.inputs < count:
        batch = [data for _, data in zip(range(min(BATCH, count - report.inputs)), source, strict=False)]
        from_columns = columns_of(protocol, batch)
        for data, found in zip(batch, from_columns, strict=True):
            try:
                expected = rows_of_decoder(protocol, data, Direction.C2S, TOPICS, SETTINGS.get(protocol.name, {}))
                assert found == expected
                for reject in expected[1]:
                    clause = str(reject[2])
                    assert clause in protocol.clauses or clause == CUT, clause
                    report.clauses[clause] = report.clauses.get(clause, 0) + 1
                if protocol.framing is Framing.STREAM:
                    assert decode_in_pieces(protocol, data, draw) == decode_whole(protocol, data)
                talk(protocol, data, draw)
            except BaseException as problem:
                problem.add_note(f"{name}, seed {seed}, input {data.hex()}")
                raise
            report.messages += len(expected[0])
            report.rejects += len(expected[1])
        report.inputs += len(batch)
        report.peak_mib = peak_mib()
        assert report.peak_mib < memory_mib, f"{report.peak_mib} MiB in use"
        if progress and report.inputs % (20 * BATCH) == 0:
            print(f"{report.inputs:>9} inputs, {report.messages} messages, {report.rejects} rejects", file=sys.stderr)
    report.seconds = time.monotonic() - begun
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("protocol", help="the name of a protocol, or `all`")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB")
    given = parser.parse_args()
    for name in sorted(protocols()) if given.protocol == "all" else [given.protocol]:
        report = fuzz(name, given.count, given.seed, given.memory, progress=True)
        print(
            f"{name}: {report.inputs} inputs, {report.messages} messages, {report.rejects} rejects, "
            f"{report.seconds:.0f} s, peak {report.peak_mib} MiB"
        )
        for clause, times in sorted((report.clauses or {}).items()):
            print(f"  {times:>9}  {clause}")


if __name__ == "__main__":
    main()
