"""Mesh packets parsed, and HMACs and signatures verified, per second on one core.

Parsing: `columns.py` against `frames.py`. Verifying: the auditor's `look`, as the pipeline calls it, from the
packets' bytes on, against the bare call of the package `cryptography` on canonical bytes that are there already.
Beside it, without a peer: reads of many datagrams through a session, as the hub has them, replay cache included.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hmac import HMAC

from benchmarks.harness import Result, compare
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.audit import Packets
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import Role
from wireloom.protocols.mesh import MESH, MeshSettings, frames, scan
from wireloom.protocols.mesh.audit import MeshAuditor
from wireloom.protocols.mesh.author import Author
from wireloom.protocols.mesh.canonical import canonical_packet
from wireloom.protocols.mesh.frames import Type
from wireloom.protocols.mesh.gate import Gate
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.session import MeshSession
from wireloom.protocols.mesh.trust import TrustStore

PARSED, TAGGED, SIGNED = 20_000, 20_000, 1_500
BATCH = 256
"""Datagrams a read."""
NOW = 1_700_000_000.0
BODY = b"x" * 64


def packets(identity: Identity, count: int, body: bytes = BODY) -> list[bytes]:
    author = Author(MeshSettings(), identity)
    event = Message(Kind.EVENT, "sensors/kitchen", body)
    return [author.write(event, NOW)[0] for _ in range(count)]


def per_second(work: Callable[[], int]) -> float:
    began = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - began)


def parsing() -> Result:
    data = b"".join(packets(Identity.generate(hmac=True, signature=False), PARSED))
    columns, settings = MESH.columns(), MeshSettings()
    columns.warm()

    def by_frames() -> int:
        decoder = MESH.decoder(Direction.DGRAM, settings)
        decoder.feed(data)
        return sum(1 for _ in decoder)

    def by_columns() -> int:
        return len(columns.decode(Spans.whole(data, Stream(Direction.DGRAM)), settings))

    return compare(
        "mesh packets decoded to columns",
        "its own `frames.py`, one packet at a time",
        lambda: per_second(by_columns),
        lambda: per_second(by_frames),
        goal=5,
        unit="packets/s",
    )


def verifying(name: str, identity: Identity, count: int, bare: Callable[[bytes, bytes], None]) -> Result:
    """Packets of one identity: in a batch, and by the bare call."""
    sent = packets(identity, count)
    trust = TrustStore([identity.trusted_key()])
    kind = Type.HMAC if identity.hmac_secret is not None else Type.SIGNATURE
    ready = [(frames.decode(data).get(kind) or b"", canonical_packet(frames.decode(data))) for data in sent]
    buffer = np.frombuffer(b"".join(sent), np.uint8)
    found = scan.scan_packets(buffer, np.zeros(1, np.int64), np.array([len(buffer)], np.int64), frames.DEFAULT_LIMITS)
    arrival = np.full(count, int(NOW * 1e6), np.int64)
    captured = Packets(buffer, found.offset, found.size, arrival, np.zeros(count, np.int32), ["192.0.2.1:5041"])
    ends = np.cumsum([len(data) for data in sent]).tolist()
    joined = b"".join(sent)

    def by_hub() -> int:
        settings = MeshSettings.parse({"require": "trusted", "verifications": 1e9, "replay_cap_per_node": 10**6})
        session = MeshSession(Role.SERVER, settings, Gate(settings, trust), Author(settings))
        session.epoch = NOW
        session.enable_columns()
        session.connected(0.0)
        done = 0
        for first in range(0, count, BATCH):
            some = ends[first : first + BATCH]
            start = ends[first - 1] if first else 0
            done += session.receive_datagrams(joined[start : some[-1]], [end - start for end in some], 0.0).count
        assert done == count
        return count

    def in_batch() -> int:
        assert not MeshAuditor(MeshSettings(), trust=trust).look(captured).findings
        return count

    def bare_calls() -> int:
        for proof, covered in ready:
            bare(proof, covered)
        return count

    print(f"    as the hub takes them: {max(per_second(by_hub) for _ in range(3)):,.0f} {name} packets/s")
    return compare(
        f"mesh packets with {name} verified in a batch",
        f"bare `cryptography` {name}",
        lambda: per_second(in_batch),
        lambda: per_second(bare_calls),
        goal=0.7,
        unit="packets/s",
    )


def run() -> list[Result]:
    secret = Identity.generate(hmac=True, signature=False)
    signing = Identity.generate()
    public = Ed25519PublicKey.from_public_bytes(signing.public_key or b"")

    def hmac_call(tag: bytes, covered: bytes) -> None:
        call = HMAC(secret.hmac_secret or b"", hashes.SHA256())
        call.update(covered)
        call.verify(tag)

    return [
        parsing(),
        verifying("HMAC-SHA256", secret, TAGGED, hmac_call),
        verifying("Ed25519", signing, SIGNED, lambda tag, covered: public.verify(tag, covered)),
    ]
