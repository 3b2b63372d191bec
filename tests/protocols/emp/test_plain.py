"""The short way gives what the long way gives, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.emp.strategies import any_frame, any_message, mutated_stream
from wireloom.model import Direction, Kind, Message, ProtocolViolation
from wireloom.protocols.emp import EmpSettings, frames
from wireloom.protocols.emp.frames import Frame
from wireloom.protocols.emp.messages import to_frame, to_message
from wireloom.protocols.emp.plain import read_plain, write_plain

OPTIONS = EmpSettings()
ROWS = [
    Message(Kind.EVENT, body=b"x"),
    Message(Kind.EVENT, "a/b", b"x"),
    Message(Kind.EVENT, "größe", b"", content_type="text/plain"),
    Message(Kind.REQUEST, body=b"x", id="7"),
    Message(Kind.REQUEST, "a/b", b"x", "18446744073709551615", content_type="application/json"),
    Message(Kind.RESPONSE, body=b"x", correlation_id="7", status="done"),
    Message(Kind.RESPONSE, "a", b"x", correlation_id="7", status="done", content_type=""),
]


@pytest.mark.parametrize("message", ROWS, ids=lambda m: f"{m.kind}-{m.topic}")
def test_the_most_common_messages_go_the_short_way_in_both_directions(message: Message) -> None:
    data = write_plain(message, int(message.id or message.correlation_id or 0), OPTIONS)
    assert data == frames.encode(to_frame(message, OPTIONS))
    found = read_plain(b"??" + data + b"?", 2, OPTIONS, Direction.C2S)
    assert found == (message.with_(protocol="emp", direction=Direction.C2S), 2 + len(data))


def assert_same(data: bytes, options: EmpSettings) -> None:
    try:
        quick = read_plain(data, 0, options, Direction.C2S)
    except ProtocolViolation as violation:
        with pytest.raises(ProtocolViolation) as caught:
            found = frames.decode(data, 0, options.max_message)
            assert found is not None
            to_message(found[0], options)
        assert (violation.clause, violation.detail) == (caught.value.clause, caught.value.detail)
        return
    if quick is not None:
        found = frames.decode(data, 0, options.max_message)
        assert found is not None
        assert quick == (to_message(found[0], options, Direction.C2S), found[1])


@given(any_frame())
def test_what_is_read_the_short_way_is_what_is_read_the_long_way(frame: Frame) -> None:
    assert_same(frames.encode(frame), OPTIONS)


@given(mutated_stream())
@settings(max_examples=400)
def test_the_short_way_agrees_on_mutated_input(data: bytes) -> None:
    assert_same(data, OPTIONS)
    assert_same(data, EmpSettings(max_message=1024))


@given(st.sampled_from(ROWS), st.data())
@settings(max_examples=400)
def test_the_short_way_agrees_on_mutations_of_what_it_reads(message: Message, data: st.DataObject) -> None:
    encoded = bytearray(frames.encode(to_frame(message, OPTIONS)))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    assert_same(bytes(encoded), OPTIONS)
    assert_same(bytes(encoded[:at]), OPTIONS)


@given(any_message(), st.sampled_from([None, 0, 20]))
def test_what_is_written_the_short_way_is_what_is_written_the_long_way(message: Message, above: int | None) -> None:
    options = EmpSettings(compress_above=above)
    data = write_plain(message, int(message.id or message.correlation_id or 0), options)
    assert data is None or data == frames.encode(to_frame(message, options))


def test_nothing_too_large_is_written_the_short_way() -> None:
    options = EmpSettings(max_message=1024)
    assert write_plain(Message(Kind.EVENT, body=bytes(1017)), 0, options) is None
    assert write_plain(Message(Kind.EVENT, body=bytes(1016)), 0, options) is not None


def test_a_request_or_response_without_a_number_is_not_written_as_an_event() -> None:
    assert write_plain(Message(Kind.RESPONSE), 0, OPTIONS) is None
    assert write_plain(Message(Kind.REQUEST), 0, OPTIONS) is None


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.ERROR, "a/b", b"no", correlation_id="7", status="404"),
        Message(Kind.ERROR, correlation_id="7", status="error"),
        Message(Kind.RESPONSE, correlation_id="7", status="cancelled"),
        Message(Kind.EVENT, "a/b", status="late"),
    ],
    ids=lambda m: f"{m.kind}-{m.status}",
)
def test_a_status_or_an_error_is_left_to_the_long_way(message: Message) -> None:
    assert write_plain(message, int(message.correlation_id or 0), OPTIONS) is None
    assert read_plain(frames.encode(to_frame(message, OPTIONS)), 0, OPTIONS, Direction.C2S) is None
