"""Frames that begin like an earlier one: what is remembered of them is what the reference decoder says."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.protocols.talking import talking
from wireloom.model import Direction, Kind, Message, ProtocolViolation
from wireloom.protocols.contract import Role
from wireloom.protocols.emp import remembered_heads
from wireloom.protocols.emp.frames import decode
from wireloom.protocols.emp.messages import encode, to_message
from wireloom.protocols.emp.settings import EmpSettings

SETTINGS = EmpSettings(max_message=4000)
topics = st.sampled_from([None, "a", "math/double", "größe", "$hub/subscribe", "$hub/publish/a", "x" * 300])
calls = st.builds(
    lambda kind, topic, body, number, status, content_type: Message(
        kind,
        topic,
        body,
        str(number) if kind is Kind.REQUEST else None,
        None if kind is Kind.REQUEST else str(number),
        status if kind is Kind.RESPONSE else None,
        content_type,
    ),
    st.sampled_from([Kind.REQUEST, Kind.RESPONSE]),
    topics,
    st.binary(max_size=60),
    st.integers(1, 2**62),
    st.sampled_from(["done", "done", "cancelled"]),
    st.sampled_from([None, "text/plain"]),
)


def reference(data: bytes, at: int) -> tuple[Message, int] | None:
    found = decode(data, at, SETTINGS.max_message)
    return None if found is None else (to_message(found[0], SETTINGS, Direction.C2S), found[1])


@given(st.lists(calls, min_size=1, max_size=12), st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_remembered_is_what_the_reference_decoder_says(messages: list[Message], data: st.DataObject) -> None:
    """Also of bytes that were changed, or cut off, behind a beginning that is known."""
    encoded = [encode(message, SETTINGS) for message in messages]
    for each in encoded:
        found = decode(each, 0, SETTINGS.max_message)
        assert found is not None
        remembered_heads.remember(each, 0, found[0], to_message(found[0], SETTINGS, Direction.C2S))
    stream = bytearray(b"".join(encoded))
    for _ in range(data.draw(st.integers(0, 2))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    whole, at = bytes(stream[: data.draw(st.integers(0, len(stream)))]), 0
    while at < len(whole):
        quick = remembered_heads.read(whole, at, SETTINGS.max_message, Direction.C2S)
        try:
            expected = reference(whole, at)
        except ProtocolViolation:
            assert quick is None
            return
        assert quick is None or quick == expected
        if expected is None:
            return
        at = expected[1]


def test_the_second_call_that_begins_alike_is_read_from_what_is_remembered() -> None:
    client, server = talking("emp", Role.CLIENT), talking("emp")
    sent = [client.send(Message(Kind.REQUEST, "math/remembered", b"%d" % number), 0.0) for number in range(3)]
    data = client.outgoing()
    (batch,) = server.receive(data, 0.0)
    assert [(each.id, each.topic, each.body) for each in batch.messages] == [
        (each.id, each.topic, each.body) for each in sent
    ]
    assert remembered_heads.read(data, 0, 4000, Direction.C2S) == reference(data, 0)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6))
@example([1, 1])
@settings(max_examples=50, deadline=None)
def test_an_id_in_use_is_refused_also_where_the_beginning_is_known(ids: list[int]) -> None:
    server = talking("emp")
    messages = [Message(Kind.REQUEST, "math/double", b"1", str(number)) for number in ids]
    taken = [
        each
        for batch in server.receive(b"".join(encode(m, SETTINGS) for m in messages), 0.0)
        for each in batch.messages
    ]
    first = next((place for place, number in enumerate(ids) if number in ids[:place]), len(ids))
    assert [each.id for each in taken] == [str(number) for number in ids[:first]]
    assert (server.violation is None) == (first == len(ids))
    if server.violation is not None:
        assert server.violation.clause == "emp.request.reused-id"
