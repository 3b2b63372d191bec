"""The recorded conversation with an independent implementation: bytes in, the same bytes out, the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agreement import assert_columns_agree
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.emp import EMP, EmpSettings, frames
from wireloom.protocols.emp.frames import SizeMode

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "emp-erlang.json").read_text())
FRAMES = [entry for entry in RECORDED if entry["hex"]]
OPTIONS = EmpSettings()


def name(entry: dict[str, str]) -> str:
    return f"{entry['direction']}-{entry['meaning'].replace(' ', '-')}"


@pytest.mark.parametrize("entry", FRAMES, ids=name)
def test_a_recorded_frame_encodes_to_the_same_bytes(entry: dict[str, str]) -> None:
    data = bytes.fromhex(entry["hex"])
    found = frames.decode(data)
    assert found is not None
    frame, end = found
    assert end == len(data)
    assert frames.encode(frame) == data
    exclusive = frames.encode(frame, SizeMode.EXCLUSIVE)
    assert frames.decode(exclusive, 0, size_mode=SizeMode.EXCLUSIVE) == (frame, len(data))


@pytest.mark.parametrize("entry", FRAMES, ids=name)
def test_the_message_of_a_recorded_frame_encodes_to_an_equal_message(entry: dict[str, str]) -> None:
    data = bytes.fromhex(entry["hex"])
    message = read(data)
    again = EMP.encode(message, OPTIONS)
    assert read(again) == message
    if message.attributes.get("compression") != "gzip":  # the same content has many forms in GZIP
        assert again == data


def read(data: bytes) -> Message:
    decoder = EMP.decoder(Direction.C2S, OPTIONS)
    decoder.feed(data)
    return next(decoder).message


@pytest.mark.parametrize("direction", ["c2s", "s2c"])
def test_columns_agree_on_the_recorded_streams(direction: str) -> None:
    data = b"".join(bytes.fromhex(entry["hex"]) for entry in FRAMES if entry["direction"] == direction)
    assert_columns_agree(EMP, data)


def test_a_session_answers_as_the_recorded_server_did() -> None:
    """The recorded application echoes data and requests, and does what certain words ask it to do."""
    session = EMP.session(Role.SERVER, OPTIONS)
    session.connected(0.0)
    expected = [bytes.fromhex(entry["hex"]) for entry in FRAMES if entry["direction"] == "s2c"]
    said = [session.outgoing()]
    for entry in RECORDED:
        if entry["direction"] != "c2s":
            continue
        run = session.receive(bytes.fromhex(entry["hex"]), 1.0)
        assert session.violation is None
        for message in run.messages:
            answer = application(message)
            if answer is not None:
                session.send(answer, 1.0)
        said.append(session.outgoing())
    assert [data for data in said if data] == expected
    assert session.state is SessionState.CLOSED


def application(message: Message) -> Message | None:
    match message:
        case Message(kind=Kind.REQUEST):
            return Message(Kind.RESPONSE, body=message.body, correlation_id=message.id)
        case Message(kind=Kind.EVENT, body=b"ask"):
            return Message(Kind.REQUEST, body=b"question")
        case Message(kind=Kind.EVENT, body=b"error"):
            return Message(Kind.ERROR, status="1", body=b"asked for")
        case Message(kind=Kind.EVENT) if message.body.startswith(b"gzip "):
            return Message(Kind.EVENT, body=message.body[5:], attributes={"compression": "gzip"})
        case Message(kind=Kind.EVENT):
            return Message(Kind.EVENT, body=message.body)
    return None


def test_a_session_says_what_the_recorded_client_did() -> None:
    session = EMP.session(Role.CLIENT, OPTIONS)
    session.connected(0.0)
    recorded = {entry["meaning"]: bytes.fromhex(entry["hex"]) for entry in FRAMES if entry["direction"] == "c2s"}
    replies = [bytes.fromhex(entry["hex"]) for entry in FRAMES if entry["direction"] == "s2c"]
    assert session.outgoing() == recorded["hello v1"]
    session.receive(replies[0], 0.0)
    session.send(Message(Kind.PING), 1.0)
    assert session.outgoing() == recorded["ping"]
    session.receive(replies[1], 1.0)
    session.send(Message(Kind.EVENT, body=b"hello"), 1.0)
    assert session.outgoing() == recorded["data"]
    assert session.send(Message(Kind.REQUEST, body=b"what?"), 1.0).id == "1"
    assert session.outgoing() == recorded["request 1"]
    answer = session.receive(replies[3], 1.0).messages[0]
    assert (answer.kind, answer.correlation_id, answer.body) == (Kind.RESPONSE, "1", b"what?")
    session.send(Message(Kind.REQUEST, body=b"zzz"), 1.0)
    session.receive(replies[5], 1.0)
    session.outgoing()
    question = session.receive(replies[7], 1.0).messages[0]
    assert (question.kind, question.id) == (Kind.REQUEST, "1")
    session.send(Message(Kind.RESPONSE, body=b"ans", correlation_id=question.id), 1.0)
    assert session.outgoing() == recorded["response 1"]
    session.receive(replies[-1], 1.0)
    assert session.state is SessionState.CLOSED
    assert session.close_reason == "error"
    assert session.outgoing() == b""
