"""Small plain messages go a short way in sessions: whatever comes, it must give what the long way gives."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.wolpertinger import strategies
from wireloom.model import BodyError, Kind, LimitExceeded, Message, NotSupported
from wireloom.peers.components import _request as call_request
from wireloom.protocols.contract import Role, Run
from wireloom.protocols.wolpertinger import WolpertingerSettings
from wireloom.protocols.wolpertinger.frames import encode
from wireloom.protocols.wolpertinger.layer1 import pack
from wireloom.protocols.wolpertinger.layer2 import Call, Document, write
from wireloom.protocols.wolpertinger.messages import typed_value
from wireloom.protocols.wolpertinger.session import WolpertingerSession
from wireloom.protocols.wolpertinger.values import Value

GUID = "00000000-0000-4000-8000-00000000000a"
GUIDS = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def session(role: Role, *, short: bool, **values: object) -> WolpertingerSession:
    made = WolpertingerSession(role, WolpertingerSettings.parse(values), unique=1)
    made.connected(0.0)
    if not short:
        made._short = -1
    return made


def received(role: Role, reads: Sequence[bytes], *, short: bool, profile: bool) -> tuple[list[object], object, object]:
    """All that can be told of a session after some reads."""
    made = session(role, short=short, profile=profile)
    runs: list[Run] = [made.receive(read, 0.0) for read in reads]
    found: list[object] = [(bytes(run.data), list(run.messages), run.ignored, run.added, run.refused) for run in runs]
    # Ids of errors and answers that the session made itself are alike, as both began with the same number.
    return found, made.outgoing(), (made.state, made.counters, made.deadline())


@given(
    strategies.stream() | strategies.mutated_stream(), st.sampled_from(list(Role)), st.booleans(), st.integers(0, 5000)
)
def test_what_is_received_is_the_same_by_both_ways(data: bytes, role: Role, profile: bool, cut: int) -> None:
    reads = [data[:cut], data[cut:]]
    assert received(role, reads, short=True, profile=profile) == received(role, reads, short=False, profile=profile)


@pytest.mark.parametrize(
    "line",
    [
        b"message_id:;PGE+",
        b"message_id:7",
        b"message_id:7;",
        b"message_id:4294967296;PGE+",
        b"message_id:12345678901;PGE+",
        b"message_id:7;PGE",
        b"message_id:7;PG=+",
        b"message_id:7;PGE+;",
        b"message_id: 7;PGE+",
        b"message_id:7;gzip:3;PGE+",
    ],
)
def test_lines_that_look_like_plain_ones_are_left_to_the_long_way(line: bytes) -> None:
    ways = [received(Role.SERVER, [line + b"\n"], short=short, profile=True) for short in (True, False)]
    assert ways[0] == ways[1]


VALUES = st.text(max_size=20) | st.booleans() | st.integers(-(2**63), 2**63) | st.lists(st.integers(0, 9), max_size=3)
NAMES = st.sampled_from(["Test", "Hub", "Authentication", "$hub/a", "A.B", "a<b>&", GUID, "", "\x00", "Core"])


def asked(component_name: str, name: str, values: Sequence[object], *, short: bool, limit: int) -> object:
    made = session(Role.CLIENT, short=short, gzip_from=limit, max_message=limit * 4)
    try:
        identifier = made.ask(call_request(component_name, name, tuple(values), object), 0.0)
    except (NotSupported, BodyError, LimitExceeded) as error:
        return type(error), str(error)
    lines = made.outgoing().splitlines()
    # Whoever gives up the short way has drawn an id for nothing.
    texts = [
        GUIDS.sub(b"", base64.b64decode(each.rpartition(b";")[2])) if b"gzip" not in each else b"" for each in lines
    ]
    (waiting,) = made.outstanding()
    return texts, identifier == waiting.id, waiting.topic, made.deadline(), made.sent, len(made._unconfirmed.waiting)


@given(NAMES, NAMES, st.lists(VALUES, max_size=3), st.sampled_from([64, 300, 4000]))
def test_what_is_asked_is_the_same_by_both_ways(
    component_name: str, name: str, values: list[object], limit: int
) -> None:
    ways = [asked(component_name, name, values, short=short, limit=limit) for short in (True, False)]
    assert ways[0] == ways[1]


def answered(document: Document, value: Value, *, short: bool, limit: int) -> object:
    made = session(Role.SERVER, short=short, gzip_from=limit)
    made.receive(b"".join(map(encode, pack(write(document), 5, WolpertingerSettings()))), 0.0)
    made.send(Message(Kind.RESPONSE, None, typed_value(value), None, GUID, "done"), 0.0)
    return made.outgoing(), made.deadline(), made.sent, len(made._owed)


@given(
    st.sampled_from(["Test", "a<b>&", GUID, "Hub"]),
    VALUES.filter(lambda value: not isinstance(value, int) or abs(value) < 2**63),
    st.sampled_from([64, 300, 4000]),
)
def test_what_is_answered_is_the_same_by_both_ways(component_name: str, value: object, limit: int) -> None:
    try:
        typed = call_request("A", "B", (value,), object).body.values[0]  # type: ignore[attr-defined]
    except BodyError:
        return
    method_name = "Request" if component_name == "Hub" else "Echo"
    parameters = (Value("string", "a"), Value("string", ""), Value("string", "b"))
    document = Call(component_name, GUID, method_name, parameters if component_name == "Hub" else ())
    assert answered(document, typed, short=True, limit=limit) == answered(document, typed, short=False, limit=limit)


def test_the_short_way_is_gone_by_a_small_call_and_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare the long way with itself."""
    long: list[str] = []
    for name in ("_say", "_take_piece"):
        monkeypatch.setattr(WolpertingerSession, name, lambda self, *rest, name=name: long.append(name))
    client, server = session(Role.CLIENT, short=True), session(Role.SERVER, short=True)
    call_id = client.ask(call_request("Test", "Echo", ("hello",), str), 0.0)
    (request,) = server.receive(client.outgoing(), 0.0).messages
    server.send(Message(Kind.RESPONSE, None, typed_value(Value("string", "hello")), None, request.id, "done"), 0.0)
    (answer,) = client.receive(server.outgoing(), 0.0).messages
    assert (request.topic, request.body, request.id) == ("Test.Echo", b'["hello"]', call_id)
    assert (answer.kind, answer.body, answer.correlation_id) == (Kind.RESPONSE, b'"hello"', call_id)
    assert not long
