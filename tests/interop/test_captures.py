"""Captures of two peers of each implementation: what was recorded becomes messages, and nothing is rejected."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.captures.conversations import Wire, exchange
from tests.captures.reading import read_packets

VECTORS = Path(__file__).parents[1] / "vectors"
KINDS = {
    "yamp-js": {
        "open": 2, "event": 5, "request": 7, "response": 5, "error": 1, "progress": 4, "cancel": 2, "ping": 1, "close": 1,
    },
    "yamp-go": {"open": 2, "event": 4, "request": 3, "response": 2, "error": 1},
    "hsp-netty": {"ping": 2, "pong": 2, "event": 6, "request": 3, "response": 1, "error": 2},
    "wolpertinger-csharp": {"request": 10, "response": 5, "error": 4, "ack": 19},
}  # fmt: skip
PORTS = {"yamp": 5043, "hsp": 5042, "wolpertinger": 5045}


@pytest.mark.parametrize("cuts", [0, 5])
@pytest.mark.parametrize("name", KINDS)
def test_every_byte_becomes_a_message(name: str, cuts: int, tmp_path: Path) -> None:
    recorded = json.loads((VECTORS / f"{name}.json").read_text())
    streams = tuple(
        b"".join(bytes.fromhex(entry["hex"]) for entry in recorded if entry["direction"] == side)
        for side in ("c2s", "s2c")
    )
    wire = Wire("10.0.0.1:4000", f"10.0.0.2:{PORTS[name.partition('-')[0]]}", isn=(7, 9)).open()
    packets = exchange(wire, (streams[0], streams[1]), random.Random(3), 300).close().packets
    found = read_packets(packets, tmp_path, cuts=cuts)
    assert found.rejects == []
    assert Counter(str(row["kind"]) for row in found.messages) == KINDS[name]
