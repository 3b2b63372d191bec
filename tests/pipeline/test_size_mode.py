"""emp connections of either size mode in one journal: it says which is which, and every reader follows."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.batches import ranges
from wireloom.journal import Entry, Journal, read_all
from wireloom.journal.context import Context
from wireloom.model import Direction, Kind, Message
from wireloom.pipeline.decode import decode_range
from wireloom.protocols.contract import Role
from wireloom.protocols.emp import EMP


def test_a_journal_says_how_sizes_are_to_be_read(tmp_path: Path) -> None:
    with Journal.open(tmp_path, sync=False) as journal:
        for mode in ("inclusive", "exclusive", "inclusive", "exclusive"):
            settings = EMP.settings({"size_mode": mode})
            session = EMP.session(Role.SERVER, settings)
            messages = [Message(Kind.OPEN), Message(Kind.REQUEST, body=mode.encode(), id="7"), Message(Kind.PING)]
            data = b"".join(EMP.encode(message, settings) for message in messages)
            context = Context(session.topic_numbers(), session.agreed())
            journal.append("emp", journal.new_connection_id(), Direction.C2S, 0, data, topics=context, time_ns=10**18)
    read = [entry.message for entry in read_all(tmp_path, {"emp": EMP.lenient()}) if isinstance(entry, Entry)]
    assert [m.kind for m in read] == [Kind.OPEN, Kind.REQUEST, Kind.PING] * 4
    (part,) = ranges(tmp_path)
    decoded = decode_range(part)
    assert decoded.rejects.num_rows == 0
    rows = decoded.messages.select(["kind", "body", "sequence"]).to_pylist()
    assert [(row["kind"], row["body"]) for row in rows] == [(str(m.kind), m.body) for m in read]
    assert [row["sequence"] for row in rows] == [0, 1, 2] * 4
