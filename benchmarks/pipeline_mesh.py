"""Signed mesh packets of a journal, checked and written to `messages` on two cores, against a bare loop on one.

The bare loop calls the package `cryptography` on canonical bytes that are there already, and does nothing else. Half
of the packets carry an Ed25519 signature, half an HMAC.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hmac import HMAC

from benchmarks.harness import Result, compare
from benchmarks.mesh_codec import NOW, packets, per_second
from benchmarks.pipeline import timed
from wireloom.journal import Journal
from wireloom.model import Direction
from wireloom.pipeline import Pipeline, start_session
from wireloom.pipeline.query import ask
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.canonical import canonical_packet
from wireloom.protocols.mesh.frames import Type
from wireloom.protocols.mesh.identity import Identity

EACH = 60_000
RUN = 100


def write_journal(folder: Path, sent: list[bytes]) -> Path:
    """Packets as a hub receives them, some in a read."""
    with Journal.open(folder / "journal", sync=False) as journal:
        connection = journal.new_connection_id()
        for first in range(0, len(sent), RUN):
            journal.append(
                "mesh", connection, Direction.DGRAM, first, b"".join(sent[first : first + RUN]),
                source="192.0.2.1:5041", destination="192.0.2.2:5041", time_ns=int(NOW * 1e9),
            )  # fmt: skip
    return folder / "journal"


def run() -> list[Result]:
    secret, signing = Identity.generate(hmac=True, signature=False), Identity.generate()
    public = Ed25519PublicKey.from_public_bytes(signing.public_key or b"")

    def check_tag(tag: bytes, covered: bytes) -> None:
        call = HMAC(secret.hmac_secret or b"", hashes.SHA256())
        call.update(covered)
        call.verify(tag)

    tagged, signed = packets(secret, EACH), packets(signing, EACH)
    # In turns, so that every piece of the journal has as much of each.
    sent = [packet for both in zip(tagged, signed, strict=True) for packet in both]
    ready: list[tuple[Callable[[bytes, bytes], None], bytes, bytes]] = []
    for packet in map(frames.decode, sent):
        tag = packet.get(Type.HMAC)
        check = check_tag if tag is not None else public.verify
        ready.append((check, tag or packet.get(Type.SIGNATURE) or b"", canonical_packet(packet)))

    def bare_calls() -> int:
        for check, proof, covered in ready:
            check(proof, covered)
        return len(ready)

    with tempfile.TemporaryDirectory(prefix="wireloom-bench-") as name:
        folder = Path(name)
        journal, out, trust = write_journal(folder, sent), folder / "warehouse", folder / "trust.json"
        trust.write_text(json.dumps([each.trusted_key().to_json() for each in (secret, signing)]))
        spark = start_session("local[2]", {}, "benchmark")

        def ours() -> float:
            def work() -> None:
                Pipeline([journal], out, spark=spark, options={"trust": str(trust)}, only_messages=True).run()

            rate = timed(work, out, len(sent))
            counted = ask(out, "select authenticity, count(*) from messages group by 1").rows
            assert counted == [("verified", len(sent))], counted
            return rate

        try:
            return [
                compare(
                    "mesh packets checked and in `messages`, two cores",
                    "bare `cryptography`, one core",
                    ours,
                    lambda: per_second(bare_calls),
                    goal=1.6,
                    unit="packets/s",
                    rounds=2,
                )
            ]
        finally:
            spark.stop()
