"""Small plain lines are read in a short way: whatever comes, it must give what the long way gives."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.wolpertinger import strategies
from wireloom.model import Kind, Message
from wireloom.peers.components import _request as call_request
from wireloom.protocols.contract import Role, Run
from wireloom.protocols.wolpertinger import WolpertingerSettings
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


def test_the_short_way_is_taken_for_a_small_call_and_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare the long way with itself."""
    long: list[str] = []
    monkeypatch.setattr(WolpertingerSession, "_take_piece", lambda *_: long.append("_take_piece"))
    client, server = session(Role.CLIENT, short=True), session(Role.SERVER, short=True)
    call_id = client.send(call_request("Test", "Echo", ("hello",), str), 0.0).id
    (request,) = server.receive(client.outgoing(), 0.0).messages
    server.send(Message(Kind.RESPONSE, None, typed_value(Value("string", "hello")), None, request.id, "done"), 0.0)
    (answer,) = client.receive(server.outgoing(), 0.0).messages
    assert (request.topic, request.body, request.id) == ("Test.Echo", b'["hello"]', call_id)
    assert (answer.kind, answer.body, answer.correlation_id) == (Kind.RESPONSE, b'"hello"', call_id)
    assert not long
