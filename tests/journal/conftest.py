"""A journal with one of everything, made by the real writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wireloom.journal import Journal
from wireloom.model import Direction
from wireloom.protocols.hsp import frames

CLIENT, SERVER = "192.0.2.7:50123", "192.0.2.1:5042"
TOPICS = {7: "sensors/kitchen", 10: "alerts/küche"}


def data(text: str, number: int = 7) -> bytes:
    return frames.encode(frames.Data(number, text.encode()))


@pytest.fixture
def fill() -> Callable[[Journal], int]:
    """Writes a short conversation of six messages; returns its connection."""

    def conversation(journal: Journal) -> int:
        connection = journal.new_connection_id()
        journal.record("opened", {"protocol": "hsp", "peer": CLIENT, "local": SERVER}, connection)
        run = data("hello") + data("wörld", 10) + frames.encode(frames.DataAck(3, 7, b"\xff\x00"))
        journal.append("hsp", connection, Direction.C2S, 0, run, source=CLIENT, destination=SERVER, topics=TOPICS)
        journal.append(
            "hsp",
            connection,
            Direction.S2C,
            0,
            frames.encode(frames.Ack(3)),
            source=SERVER,
            destination=CLIENT,
            inbound=False,
            topics=TOPICS,
        )
        large = frames.encode(frames.Data(7, b"L" * 300_000))
        journal.append("hsp", connection, Direction.C2S, 3, large, source=CLIENT, destination=SERVER, topics=TOPICS)
        journal.append("hsp", connection, Direction.C2S, 4, b"\x03", source=CLIENT, destination=SERVER, topics=TOPICS)
        journal.refuse(
            *("hsp", connection, Direction.C2S, b"\x09" * 5000),
            clause="hsp.command.unknown",
            detail="command 9",
            source=CLIENT,
            destination=SERVER,
        )
        journal.record("closed", {"reason": "error", "detail": "hsp.command.unknown"}, connection)
        return connection

    return conversation


@pytest.fixture
def folder(tmp_path: Path, fill: Callable[[Journal], int]) -> Path:
    """A closed journal that holds the conversation."""
    path = tmp_path / "journal"
    with Journal.open(path) as journal:
        fill(journal)
    return path
