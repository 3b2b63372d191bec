"""A conversation recorded from an independent implementation, read, written again and replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.protocols.reading import messages_of
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.contract import Decoded, Role, SessionState, decode_stream
from wireloom.protocols.hsp import HSP, frames
from wireloom.protocols.hsp.session import HspSession

RECORDING = json.loads((Path(__file__).parents[2] / "vectors" / "hsp-netty.json").read_text())
FRAMES = [entry for entry in RECORDING if entry["hex"]]
IDS = [f"{index}-{entry['meaning'].split()[0]}" for index, entry in enumerate(FRAMES)]


def described(frame: frames.Frame) -> str:
    """A frame in the words of the recording."""
    words = [re.sub("(?<!^)(?=[A-Z])", "_", type(frame).__name__).upper()]
    for name, word in (("message_id", "id"), ("type", "type"), ("payload", "payload")):
        if hasattr(frame, name):
            words.append(f"{word}={getattr(frame, name)!r}")
    return " ".join(words)


def test_the_recording_holds_every_command() -> None:
    assert {entry["hex"][:2] for entry in FRAMES} == {f"{command.value:02x}" for command in frames.Command}


@pytest.mark.parametrize("entry", FRAMES, ids=IDS)
def test_recorded_frames_mean_what_the_recording_says(entry: dict[str, str]) -> None:
    data = bytes.fromhex(entry["hex"])
    found = frames.decode(data)
    assert found is not None
    assert (described(found[0]), found[1]) == (entry["meaning"], len(data))
    assert frames.encode(found[0]) == data


@pytest.mark.parametrize("profile", [True, False])
@pytest.mark.parametrize("direction", [Direction.C2S, Direction.S2C])
def test_recorded_streams_are_messages_that_encode_to_the_same_bytes(direction: Direction, profile: bool) -> None:
    options = HSP.settings({"profile": profile})
    stream = b"".join(bytes.fromhex(entry["hex"]) for entry in FRAMES if entry["direction"] == direction)
    decoded = list(decode_stream(HSP.decoder(direction, options), stream))
    assert all(isinstance(found, Decoded) for found in decoded)
    messages = [found.message for found in decoded if isinstance(found, Decoded)]
    assert b"".join(HSP.encode(message, options) for message in messages) == stream
    assert HSP.recognise(stream, direction)


def act_as_recorded(session: HspSession, message: Message) -> None:
    """The recorded server: echoes data, acknowledges or fails requests by what they say, pings when told to."""
    event = Message(Kind.EVENT, message.topic, message.body)
    match message.kind, message.body:
        case Kind.EVENT, b"ping-me":
            session.send(Message(Kind.PING), now=0)
        case Kind.EVENT, _:
            session.send(event, now=0)
        case Kind.REQUEST, b"please fail":
            status = message.attributes["type"]
            answer = Message(Kind.ERROR, correlation_id=message.id, status=status, body=message.body)
            session.send(answer, now=0)
        case Kind.REQUEST, b"fail undef":
            session.send(Message(Kind.ERROR, correlation_id=message.id), now=0)
        case Kind.REQUEST, _:
            session.send(Message(Kind.RESPONSE, correlation_id=message.id), now=0)
            session.send(event, now=0)


def test_a_session_answers_as_the_recorded_server_did() -> None:
    session = HSP.session(Role.SERVER, HSP.settings())
    session.connected(0)
    said = b""
    expected = b""
    for entry in RECORDING:
        match entry["direction"]:
            case "c2s":
                assert said == expected
                for message in messages_of(session.receive(bytes.fromhex(entry["hex"]), 0)):
                    act_as_recorded(session, message)
                said += session.outgoing()
            case "s2c":
                expected += bytes.fromhex(entry["hex"])
            case "end":
                session.end_of_input(0)
    assert said == expected
    assert (session.state, session.violation, session.counters) == (SessionState.CLOSED, None, {})


def test_a_session_understands_what_the_recorded_server_said() -> None:
    """The client's side: the same requests (with the recorded ids), and every answer finds its own."""
    session = HSP.session(Role.CLIENT, HSP.settings())
    session.connected(0)
    outcomes: list[tuple[str | None, Kind, str | None, bytes]] = []
    asked: dict[str, bytes] = {}
    for entry in FRAMES:
        data = bytes.fromhex(entry["hex"])
        if entry["direction"] == "s2c":
            outcomes += [
                (answer.correlation_id, answer.kind, answer.status, answer.body)
                for answer in messages_of(session.receive(data, 0))
                if answer.correlation_id is not None
            ]
            continue
        found = frames.decode(data)
        assert found is not None
        match found[0]:
            case frames.DataAck(message_id, type_, payload):
                session._next_id = message_id  # the recorded client drew its ids otherwise
                sent = session.send(Message(Kind.REQUEST, f"hsp/{type_}", payload), 0)
                asked[str(sent.id)] = payload
            case frames.Data(type_, payload):
                session.send(Message(Kind.EVENT, f"hsp/{type_}", payload), 0)
            case frames.Ping():
                session.send(Message(Kind.PING), 0)
        assert session.outgoing() == data
    assert asked == {"1": b"please ack", "4294967295": b"please fail", "2": b"fail undef"}
    assert outcomes == [
        ("1", Kind.RESPONSE, "done", b""),
        ("4294967295", Kind.ERROR, "65535", b"please fail"),
        ("2", Kind.ERROR, "undefined", b""),
    ]
    assert not session._waiting
    assert session.counters == {}
