"""Random and mutated packets, with one stated property.

    python -m tests.protocols.mesh.fuzz COUNT [--seed N]

Whatever a packet is: `frames` and `columns` say the same about it, and only `ProtocolViolation` with a clause of the
protocol comes out of parsing, of the gate with its keys, of a session, of a bulk read (which says the same as one packet at
a time), of a node and of an auditor. Nothing but what was signed is ever called verified. The inputs follow from the seed alone.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tests.agreement import rows_of_columns
from tests.protocols.mesh import make_vectors
from wireloom.model import Authenticity, Direction, Message, ProtocolViolation
from wireloom.protocols.audit import AUTHENTICITIES, Packets
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import Publishes, Role
from wireloom.protocols.decoding import Rejected
from wireloom.protocols.mesh import MESH, MeshSettings, frames
from wireloom.protocols.mesh.audit import MeshAuditor
from wireloom.protocols.mesh.canonical import canonical_packet
from wireloom.protocols.mesh.frames import HEADER_SIZE, Field
from wireloom.protocols.mesh.gate import Gate
from wireloom.protocols.mesh.messages import to_message
from wireloom.protocols.mesh.node import MeshNode, Relay
from wireloom.protocols.mesh.security import check
from wireloom.protocols.mesh.settings import Require

BATCH = 1000
EDGES = (0, 1, 2, 3, 4, 8, 12, 16, 31, 32, 33, 64, 127, 128, 254, 255)
TYPES = (*range(0, 7), *range(0x10, 0x1A), 0x80, 0xFF)


def seeds() -> list[bytes]:
    """The golden vectors, good and bad."""
    return [bytes.fromhex(str(entry["hex"])) for entry in make_vectors.vectors()[1:]]


def mutate(draw: random.Random, data: bytearray, pool: list[bytes]) -> None:
    """One change in place."""
    where = draw.randrange(len(data) + 1)
    match draw.randrange(10):
        case 0 if data:
            data[where % len(data)] ^= 1 << draw.randrange(8)
        case 1 if data:
            data[where % len(data)] = draw.randrange(256)
        case 2:
            data[where:where] = draw.randbytes(draw.randint(1, 8))
        case 3:
            del data[where : where + draw.randint(1, 8)]
        case 4 if data:
            data[where % len(data)] = draw.choice(EDGES)
        case 5:
            type_, size = draw.choice(TYPES), draw.choice(EDGES)
            data += bytes((type_, size)) + draw.randbytes(size)
        case 6:
            data[where:where] = data[where : where + draw.randint(1, 40)]
        case 7:
            other = draw.choice(pool)
            data += other[HEADER_SIZE:]
        case 8 if len(data) > HEADER_SIZE:
            data[5] = draw.randrange(8)
            data[6] = draw.randrange(5)
        case _:
            try:
                fields = list(frames.decode_fields(bytes(data[HEADER_SIZE:]), 1000))
            except ProtocolViolation:
                return
            draw.shuffle(fields)
            if fields and draw.random() < 0.3:
                fields[0] = Field(draw.choice(TYPES), fields[0].value)
            data[HEADER_SIZE:] = frames.encode_fields(fields)


def packets(count: int, seed: int) -> Iterator[bytes]:
    """Some garbage, some valid, most of them valid once and then changed a little."""
    draw = random.Random(seed)
    pool = seeds()
    for _ in range(count):
        if draw.random() < 0.03:
            yield draw.randbytes(draw.randint(0, 100))
            continue
        data = bytearray(draw.choice(pool))
        for _ in range(draw.choice((0, 1, 1, 1, 2, 3, 5))):
            mutate(draw, data, pool)
        if len(data) >= HEADER_SIZE and draw.random() < 0.8:
            data[15:17] = min(len(data) - HEADER_SIZE, 0xFFFF).to_bytes(2)
        yield bytes(data)


def check_batch(batch: list[bytes], clauses: Counter[str]) -> None:
    """The property, for some packets."""
    ends = np.cumsum([len(data) for data in batch], dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    spans = Spans(
        np.frombuffer(b"".join(batch), np.uint8), starts, ends, np.zeros(len(batch), np.int32), [Stream(Direction.DGRAM)]
    )  # fmt: skip
    columns = MESH.columns().decode(spans, MeshSettings())
    rows, rejects = rows_of_columns(columns)
    by_span: dict[int, tuple[object, ...]] = {}
    for span, row in zip(columns.span.tolist(), rows, strict=True):
        by_span[span] = row[2:]
    refused = {reject.span: row[2:] for reject, row in zip(columns.rejects, rejects, strict=True)}
    now = float(make_vectors.NOW)
    node = MeshNode(MeshSettings(require=Require.ANY), trust=make_vectors.TRUST, relays=(Relay(),), copies=2)
    for index, data in enumerate(batch):
        if frames.packet_ends(data) != [len(data)]:
            continue  # by accident a run of several packets; those have tests of their own
        try:
            packet = frames.decode(data)
            m = to_message(packet)
        except ProtocolViolation as violation:
            assert violation.clause in MESH.clauses
            clauses[violation.clause] += 1
            if data:
                assert refused[index] == (violation.clause, violation.detail), data.hex()
        else:
            assert frames.encode(packet) == data
            assert by_span[index] == (
                m.kind, m.topic, m.id, None, None, m.content_type, m.body, dict(m.attributes), m.authenticity
            ), data.hex()  # fmt: skip
        if index % 20 == 0:
            gate = Gate(MeshSettings(require=Require.ANY), make_vectors.TRUST)  # who has seen nothing yet
        try:
            accepted = gate.check(frames.decode(data), "source", now)
        except ProtocolViolation as violation:
            assert violation.clause in MESH.clauses
            clauses[violation.clause] += 1
        else:
            if accepted.authenticity is Authenticity.VERIFIED:
                assert canonical_packet(accepted.packet) in GENUINE, data.hex()
            clauses[f"accepted, {accepted.authenticity}"] += 1
        for violation in node.receive(data, f"link {index % 7}", now).refused:
            assert violation.clause in MESH.clauses
    node.expire(now + 1)
    node.outgoing()
    examine(spans, columns.offset, columns.size, columns.span, now)
    outcomes: list[tuple[bytes, list[tuple[str, bytes]], list[Message]]] = []
    # Among packets with the same id, the usual ones of a read come first: with ids of their own all must fare the same.
    numbered = [
        data[:1] + number.to_bytes(4) + data[5:] if len(data) > 5 else data for number, data in enumerate(batch)
    ]
    for columns_enabled in (False, True):
        session = MESH.session(Role.SERVER, MeshSettings())
        session.epoch, session.peer = now, "source"
        session.connected(0.0)
        if columns_enabled:
            session.enable_columns()
        kept, refused, messages = b"", list[Rejected](), list[Message]()
        for each in session.receive_datagrams(b"".join(numbered), ends.tolist(), 0.0):
            kept += each.data
            refused += each.refused
            if isinstance(each, Publishes):
                events = each.events()
                assert session.frames_of(events.frames(session, 0.0) or b"") is not None
                messages += [message for plain in each.as_messages() for message in plain.messages]
            messages += each.messages
        assert {each.clause for each in refused} <= set(MESH.clauses)
        assert len(kept) + sum(len(each.data) for each in refused) == int(ends[-1])
        outcomes.append((kept, [(each.clause, each.data) for each in refused], messages))
    one_by_one, at_once = outcomes
    assert one_by_one == at_once


def examine(
    spans: Spans, offset: NDArray[np.int64], size: NDArray[np.int64], span: NDArray[np.int32], now: float
) -> None:
    """Whatever decodes can be audited, and the auditor calls verified what the readable code does."""
    arrival = np.full(len(offset), round(now * 1e6), np.int64)
    captured = Packets(spans.data, offset, size, arrival, span, [str(number) for number in range(len(spans.start))])
    found = MeshAuditor(MeshSettings(), trust=make_vectors.TRUST).examine(captured)
    assert {finding.rule for finding in found.findings} <= set(MESH.clauses)
    for at, length, code in zip(offset.tolist(), size.tolist(), found.authenticity.tolist(), strict=True):
        if AUTHENTICITIES[code] is Authenticity.VERIFIED:
            assert canonical_packet(frames.decode(spans.data[at : at + length].tobytes())) in GENUINE


def _genuine() -> set[bytes]:
    """The canonical bytes of every packet among the seeds that one of the keys signed."""
    found = set()
    for data in seeds():
        try:
            packet = frames.decode(data)
        except ProtocolViolation:
            continue
        if check(packet, make_vectors.TRUST).authenticity is Authenticity.VERIFIED:
            found.add(canonical_packet(packet))
    return found


GENUINE = _genuine()


def fuzz(count: int, seed: int = 0, *, progress: bool = False) -> Counter[str]:
    """Try so many packets; raises AssertionError at the first that breaks the property."""
    clauses: Counter[str] = Counter()
    source = packets(count, seed)
    done = 0
    while done < count:
        batch = [data for _, data in zip(range(min(BATCH, count - done)), source, strict=False)]
        check_batch(batch, clauses)
        done += len(batch)
        if progress and done % (20 * BATCH) == 0:
            print(f"{done:>9} packets, at most {peak_memory():.0f} MiB", file=sys.stderr, flush=True)
    return clauses


def peak_memory() -> float:
    """The most memory this process had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocols.mesh.fuzz", description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    begun = time.monotonic()
    clauses = fuzz(given.count, given.seed, progress=True)
    print(f"mesh: {given.count} packets, {time.monotonic() - begun:.0f} s, at most {peak_memory():.0f} MiB")
    for clause, times in sorted(clauses.items()):
        print(f"  {times:>9}  {clause}")


if __name__ == "__main__":
    main()
