"""The recorded conversation: every line decodes, encodes to the same, and is answered as it was."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from lxml import etree

from tests.protocols.reading import messages_of
from tests.protocols.wolpertinger.talk import documents, opened, results, said
from wireloom.model import Direction, Kind, Message
from wireloom.protocols.contract import Role
from wireloom.protocols.wolpertinger import WOLPERTINGER, WolpertingerSettings, frames, layer2, values
from wireloom.protocols.wolpertinger.layer2 import Error, RemoteMethodCall, Response

RECORDED = [
    (Direction(entry["direction"]), bytes.fromhex(entry["hex"]))
    for entry in json.loads((Path(__file__).parents[2] / "vectors" / "wolpertinger-csharp.json").read_text())
    if entry.get("hex")
]
LINES = [data for _, data in RECORDED]


def infoset(xml: bytes) -> object:
    """Everything an XML document says: names, attributes, text; not the white space that only indents."""

    def of(element: etree._Element) -> object:
        children = [of(child) for child in element]
        text = element.text or ""
        tails = [(child.tail or "").strip() for child in element]
        return element.tag, dict(element.attrib), text.strip() if children else text, children, tails

    return of(etree.fromstring(xml))


def payload(data: bytes) -> bytes:
    return base64.b64decode(data.rstrip(b"\n").rpartition(b";")[2])


@pytest.mark.parametrize("data", LINES)
def test_every_recorded_line_is_a_frame_that_encodes_to_the_same_bytes(data: bytes) -> None:
    found = frames.decode(data)
    assert found is not None
    assert found[1] == len(data)
    assert frames.encode(found[0]) == data


@pytest.mark.parametrize(("direction", "data"), RECORDED)
def test_every_recorded_message_encodes_to_the_same_infoset(direction: Direction, data: bytes) -> None:
    decoder = WOLPERTINGER.decoder(direction, WolpertingerSettings())
    decoder.feed(data)
    (decoded,) = list(decoder)
    # With nothing but bytes as its body, as of a message that was stored and read again.
    message = decoded.message.with_(body=bytes(decoded.message.body))
    again = WOLPERTINGER.encode(message, WolpertingerSettings())
    if decoded.message.kind is Kind.ACK:
        assert again == data
    else:
        assert infoset(payload(again)) == infoset(payload(data))
        assert again.partition(b";")[0] == data.partition(b";")[0]


def test_the_recorded_conversation_in_both_directions_at_once() -> None:
    for direction in (Direction.C2S, Direction.S2C):
        decoder = WOLPERTINGER.decoder(direction, WolpertingerSettings())
        decoder.feed(b"".join(data for which, data in RECORDED if which is direction))
        kinds = [each.message.kind for each in decoder]
        assert len(kinds) == sum(1 for which, _ in RECORDED if which is direction)
        assert set(kinds) <= {Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.ACK}


def answer(call: RemoteMethodCall) -> Message:
    """What the recorded peer's component did."""
    message = Message(Kind.RESPONSE, correlation_id=call.call_id, status="done")
    if call.component != "Test":
        return message.with_(kind=Kind.ERROR, status="304")
    match call.method:
        case "Echo":
            value = call.parameters[0]
        case "Add":
            number = sum(int(str(each.data)) for each in call.parameters)
            return message.with_(body=str(number).encode(), content_type="application/json")
        case "Types":
            found = next(
                parsed
                for _, data in RECORDED
                if isinstance(parsed := layer2.parse(payload(data)) if b"result" not in data else None, Response)
                and parsed.call_id == call.call_id
            )
            assert found.value is not None
            value = found.value
        case "Nothing":
            return message.with_(attributes={"response": "none"})
        case "Null":
            return message
        case "Fail":
            return message.with_(kind=Kind.ERROR, status=str(call.parameters[0].data))
        case "Secret":
            return message.with_(kind=Kind.ERROR, status="201")
        case _:
            return message.with_(kind=Kind.ERROR, status="303")
    body = values.dumps(values.to_json(value))
    return message.with_(body=body, content_type="application/json", attributes={"types": values.signature((value,))})


def test_a_session_answers_the_recorded_calls_as_the_recorded_peer_did() -> None:
    server = opened(Role.SERVER, unique=1)
    written = b""
    for direction, data in RECORDED:
        if direction is not Direction.C2S:
            continue
        for message in messages_of(server.receive(data, 1.0)):
            if message.kind is Kind.REQUEST:
                call = layer2.parse(payload(data))
                assert isinstance(call, RemoteMethodCall)
                server.send(answer(call), 1.0)
        written += server.outgoing()
    recorded = b"".join(data for direction, data in RECORDED if direction is Direction.S2C)
    assert results(written) == results(recorded)
    assert documents(written) == documents(recorded)
    assert [frame.message_id for frame in said(written)] == [frame.message_id for frame in said(recorded)]


def test_a_session_takes_the_recorded_answers_as_the_recorded_caller_did() -> None:
    client = opened(Role.CLIENT, unique=1)
    calls: dict[str, str] = {}
    heard: dict[str, Message] = {}
    written = b""
    for direction, data in RECORDED:
        if direction is Direction.C2S:
            if b"result" in data:
                continue
            call = layer2.parse(payload(data))
            assert isinstance(call, RemoteMethodCall)
            void = {"response": "none"} if call.method == "Nothing" else {}
            asked = client.send(Message(Kind.REQUEST, f"{call.component}.{call.method}", attributes=void), 1.0)
            calls[call.call_id] = asked.id or ""
            written += client.outgoing()
            continue
        if b"result" not in data:
            # The recorded answers name the recorded calls.
            document = layer2.parse(payload(data))
            assert isinstance(document, Response | Error)
            assert document.call_id is not None
            xml = payload(data).replace(document.call_id.encode(), calls[document.call_id].encode())
            data = data.partition(b";")[0] + b";" + base64.b64encode(xml) + b"\n"
        for message in messages_of(client.receive(data, 1.0)):
            heard[message.correlation_id or ""] = message
    assert not client._waiting
    assert not client.counters
    outcomes = [(heard[call_id].kind, heard[call_id].status) for call_id in calls.values()]
    done, error = Kind.RESPONSE, Kind.ERROR
    assert outcomes == [
        (done, "done"), (done, "done"), (done, "done"), (done, "done"), (Kind.ACK, "0"), (done, "done"),
        (error, "502"), (error, "201"), (error, "303"), (error, "304"),
    ]  # fmt: skip
    client.expire(2.0)
    assert results(written + client.outgoing()) == [(number, 0) for number in range(1, 10)]
