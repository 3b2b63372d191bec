"""What a session finds out by itself: how the peer means sizes, and whether it knows the hub's extension."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agreement import assert_columns_agree
from tests.protocols.emp.strategies import any_message
from tests.protocols.reading import joined, messages_of
from wireloom.model import ConfigError, Direction, Kind, Message, NotSupported, ProtocolViolation
from wireloom.protocols.columns import Spans, Stream
from wireloom.protocols.contract import Publishes, Role, SessionState, decode_stream
from wireloom.protocols.emp import EMP, EmpSettings, frames
from wireloom.protocols.emp.frames import Error, Extension, ExtensionBlock, Frame, SizeMode, Type
from wireloom.protocols.emp.publish_columns import warm
from wireloom.protocols.emp.session import SILENCE, EmpSession
from wireloom.protocols.emp.sizes import told_mode

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "emp-erlang-exclusive.json").read_text())
STREAMS = {
    direction: [bytes.fromhex(entry["hex"]) for entry in RECORDED if entry["direction"] == direction]
    for direction in ("c2s", "s2c")
}
INCLUSIVE, EXCLUSIVE = bytes.fromhex("0000000c0000000001000000"), bytes.fromhex("000000080000000001000000")
HELLOS = {SizeMode.INCLUSIVE: INCLUSIVE, SizeMode.EXCLUSIVE: EXCLUSIVE}
MODES = tuple(HELLOS)


def connected(role: Role, **values: object) -> EmpSession:
    session = EmpSession(role, EmpSettings.parse(values))
    session.connected(0.0)
    return session


def opened(role: Role, mode: SizeMode = SizeMode.INCLUSIVE, **values: object) -> EmpSession:
    values = {"size_mode": mode} if role is Role.CLIENT and mode is SizeMode.EXCLUSIVE else values
    session = connected(role, **values)
    session.receive(HELLOS[mode], 0.0)
    assert session.state is SessionState.OPEN
    session.outgoing()
    return session


def sent(session: EmpSession) -> list[Frame]:
    """The frames that a session has written."""
    data, at, found = session.outgoing(), 0, []
    while at < len(data):
        frame = frames.decode(data, at, size_mode=session.settings.size_mode)
        assert frame is not None
        found.append(frame[0])
        at = frame[1]
    return found


# Sizes


@pytest.mark.parametrize("mode", MODES)
def test_a_listener_answers_in_the_mode_of_the_first_frame(mode: SizeMode) -> None:
    session = connected(Role.SERVER)
    assert session.outgoing() == b""
    session.receive(HELLOS[mode], 0.1)
    assert session.outgoing() == HELLOS[mode]
    assert session.state is SessionState.OPEN
    session.receive(frames.encode(Frame(Type.PING), mode), 0.2)
    assert session.outgoing() == frames.encode(Frame(Type.PONG), mode)


@pytest.mark.parametrize("mode", MODES)
def test_the_first_frame_decides_however_it_is_cut(mode: SizeMode) -> None:
    session = connected(Role.SERVER)
    for byte in HELLOS[mode]:
        session.receive(bytes((byte,)), 0.1)
    assert session.outgoing() == HELLOS[mode]


def test_after_a_second_of_silence_a_listener_speaks_first() -> None:
    session = connected(Role.SERVER)
    assert session.deadline() == SILENCE == 1.0
    session.expire(1.0)
    assert session.outgoing() == INCLUSIVE
    assert session.deadline() == 5.0
    session.receive(INCLUSIVE, 2.0)
    assert session.state is SessionState.OPEN


def test_a_peer_that_answers_the_first_word_in_the_other_mode_is_told_the_setting() -> None:
    session = connected(Role.SERVER)
    session.expire(1.0)
    session.receive(EXCLUSIVE, 2.0)
    assert session.violation is not None
    assert 'size_mode = "exclusive"' in session.violation.detail


def test_what_is_sent_before_the_mode_is_known_goes_out_in_it() -> None:
    session = connected(Role.SERVER)
    session.send(Message(Kind.EVENT, "a", b"early"), 0.0)
    session.receive(EXCLUSIVE, 0.1)
    assert [frame.body for frame in sent(session)] == [INCLUSIVE[8:], b"early"]


def test_a_client_speaks_at_once_and_tries_again_in_the_mode_of_the_server() -> None:
    sessions = EMP.sessions(EMP.settings())
    first = sessions.new(Role.CLIENT, url="emp://127.0.0.1:1")
    first.connected(0.0)
    assert first.outgoing() == INCLUSIVE
    first.receive(EXCLUSIVE, 0.1)
    assert (first.state, first.outgoing(), first.is_misled) == (SessionState.CLOSED, b"", True)
    assert sessions.learn(first, "emp://127.0.0.1:1")
    # Another client of the same place knows it, too.
    second = EMP.sessions(EMP.settings()).new(Role.CLIENT, url="emp://127.0.0.1:1")
    second.connected(0.2)
    assert second.outgoing() == EXCLUSIVE
    second.receive(EXCLUSIVE, 0.3)
    assert (second.state, dict(second.agreed())) == (SessionState.OPEN, {"size_mode": "exclusive"})
    assert not sessions.learn(second, "emp://127.0.0.1:1")


def test_what_was_learnt_of_a_server_is_unlearnt_when_it_changes() -> None:
    sessions, url = EMP.sessions(EMP.settings()), "emp://127.0.0.1:2"
    for hello, spoken in ((EXCLUSIVE, INCLUSIVE), (INCLUSIVE, EXCLUSIVE)):
        session = sessions.new(Role.CLIENT, url=url)
        session.connected(0.0)
        assert session.outgoing() == spoken
        session.receive(hello, 0.1)
        assert sessions.learn(session, url)


def test_servers_that_are_remembered_are_limited_in_number() -> None:
    from wireloom.protocols.emp import protocol

    sessions = EMP.sessions(EMP.settings())
    for number in range(2 * protocol._MOST_REMEMBERED):
        session = EmpSession(Role.CLIENT, EmpSettings())
        session.other_mode = SizeMode.EXCLUSIVE
        sessions.learn(session, f"emp://127.0.0.1:{number}")
    assert len(protocol._MODES) == protocol._MOST_REMEMBERED


@pytest.mark.parametrize("own", MODES)
@pytest.mark.parametrize("role", Role)
def test_with_the_mode_set_a_hello_of_the_other_names_the_setting(role: Role, own: SizeMode) -> None:
    other = MODES[1 - MODES.index(own)]
    session = connected(role, size_mode=own)
    session.receive(HELLOS[other][:8], 0.1)  # at once: what is missing may never come
    assert session.violation is not None
    assert session.violation.clause == "emp.hello.body"
    assert f'size_mode = "{other}"' in session.violation.detail
    assert not session.is_misled


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "frame",
    [
        Frame(Type.DATA, b"", (ExtensionBlock(0, bytes.fromhex("800000000000000000000007")),)),
        Frame(
            Type.DATA,
            b"hello",
            (ExtensionBlock(0, bytes.fromhex("800000000000000000000007")), ExtensionBlock(1, bytes(4))),
        ),
        Frame(Type.ERROR, frames.encode_error(Error(3, "you are wrong"))),
    ],
)
def test_a_later_frame_of_the_other_mode_names_the_setting(frame: Frame, mode: SizeMode) -> None:
    other = MODES[1 - MODES.index(mode)]
    session = connected(Role.CLIENT, size_mode=mode)
    session.receive(HELLOS[mode], 0.1)
    session.receive(frames.encode(frame, other) + frames.encode(frame, other), 0.2)
    assert session.violation is not None
    assert f'size_mode = "{other}"' in session.violation.detail


def test_a_frame_that_is_wrong_in_both_modes_names_no_setting() -> None:
    for data in ("00000000", "7fffffff", "0000000806000000", "00000010058000000000000100000000"):
        with pytest.raises(ProtocolViolation) as caught:
            frames.decode(bytes.fromhex(data))
        assert "size_mode" not in caught.value.detail


@pytest.mark.parametrize("direction", ["c2s", "s2c"])
def test_the_recorded_stream_is_read_without_being_told_how(direction: str) -> None:
    data = b"".join(STREAMS[direction])
    found = list(decode_stream(EMP.decoder(Direction(direction), EMP.settings()), data))
    assert [each.size for each in found] == [len(frame) for frame in STREAMS[direction]]  # type: ignore[union-attr]
    first = found[0]
    assert first.message.attributes == {"version": "1", "size_mode": "exclusive"}  # type: ignore[union-attr]
    assert_columns_agree(EMP, data)


@pytest.mark.parametrize("entry", [entry for entry in RECORDED if entry["hex"]], ids=lambda entry: entry["meaning"])
def test_each_recorded_frame_shows_its_mode_by_itself(entry: dict[str, str]) -> None:
    data = bytes.fromhex(entry["hex"])
    assert told_mode(data) is SizeMode.EXCLUSIVE
    assert EMP.holds(data * 3, Direction.C2S, EMP.observing())


@pytest.mark.parametrize("direction", ["c2s", "s2c"])
def test_columns_take_the_mode_from_call_to_call(direction: str) -> None:
    frames_in, state, rows = STREAMS[direction], b"", 0
    for frame in frames_in:
        columns = EMP.columns().decode(Spans.whole(frame, Stream(Direction.C2S, state=state)), EMP.observing())
        assert not columns.rejects
        rows, (state,) = rows + len(columns), columns.state
    assert (rows, state) == (len(frames_in), b"exclusive")


def test_columns_wait_for_enough_to_tell_the_mode() -> None:
    columns = EMP.columns().decode(Spans.whole(EXCLUSIVE[:7], Stream(Direction.C2S)), EMP.observing())
    assert (len(columns), columns.consumed.tolist(), columns.state, columns.rejects) == (0, [0], [b""], [])


@given(messages=st.lists(any_message(), max_size=6), mode=st.sampled_from(MODES))
def test_a_stream_with_a_hello_reads_the_same_whether_its_mode_is_told_or_found(
    messages: list[Message], mode: SizeMode
) -> None:
    told = EmpSettings(size_mode=mode)
    data = HELLOS[mode] + b"".join(EMP.encode(message, told) for message in messages)
    expected = list(decode_stream(EMP.decoder(Direction.C2S, told), data))
    assert list(decode_stream(EMP.decoder(Direction.C2S, EmpSettings()), data)) == expected
    by_bytes = EMP.decoder(Direction.C2S, EmpSettings())
    found = []
    for start, end in pairwise(range(0, len(data) + 1)):
        by_bytes.feed(data[start:end])
        found += list(by_bytes)
    assert found == expected
    assert_columns_agree(EMP, data)


# The hub's extension


def event(topic: str, body: bytes = b"!") -> bytes:
    return EMP.encode(Message(Kind.EVENT, topic, body), EmpSettings())


def extensions_of(found: list[Frame]) -> list[list[int]]:
    return [[block.extension for block in frame.blocks] for frame in found]


TRACED = Message(Kind.EVENT, "a", b"!", content_type="text/plain", attributes={"tracestate": "a=1"})


def test_a_listener_sends_the_blocks_to_nobody_who_has_not_sent_one() -> None:
    session = opened(Role.SERVER)
    session.send(TRACED, 0.0)
    assert sent(session) == [Frame(Type.DATA, b"!")]
    session.receive(frames.encode(Frame(Type.DATA, b"?", (ExtensionBlock(200, b"other"),))), 0.0)
    session.send(TRACED, 0.0)
    assert sent(session) == [Frame(Type.DATA, b"!")]
    assert not session.sends_topics
    assert not session.hears_topics


@pytest.mark.parametrize("extension", [128, 129])
def test_a_peer_that_sends_a_block_gets_blocks(extension: int) -> None:
    session = opened(Role.SERVER)
    content = b"\1\0\1a" if extension == Extension.HUB else b"{}"
    session.receive(frames.encode(Frame(Type.DATA, b"?", (ExtensionBlock(extension, content),))), 0.0)
    session.send(TRACED, 0.0)
    assert extensions_of(sent(session)) == [[128, 129]]
    assert session.sends_topics
    assert session.hears_topics


def test_a_first_long_read_after_the_handshake_is_in_columns_and_counts() -> None:
    session = connected(Role.SERVER)
    session.enable_columns()
    session.receive(INCLUSIVE, 0.0)
    session.outgoing()
    assert session.batch_key(0.0) is None, "before the peer has sent a block its reads are looked at one by one"
    batches = session.receive(event("a") * 1000, 0.0)
    assert isinstance(batches[0], Publishes)
    assert session.batch_key(0.0) == "emp"
    session.send(TRACED, 0.0)
    assert extensions_of(sent(session)) == [[128, 129]]


def test_kernels_are_ready_before_the_mode_is_known() -> None:
    warm.cache_clear()
    session = connected(Role.SERVER)
    session.enable_columns()
    assert (warm.cache_info().currsize, session.columns) == (1, None)
    session.receive(INCLUSIVE, 0.0)
    assert session.columns is not None


def test_exclusive_sizes_are_never_read_in_columns() -> None:
    session = connected(Role.SERVER)
    session.enable_columns()
    session.receive(EXCLUSIVE, 0.0)
    one = EMP.encode(Message(Kind.EVENT, "a", b"!"), EmpSettings(size_mode=SizeMode.EXCLUSIVE))
    found = joined(session.receive(one * 1000, 0.0))
    assert session.violation is None
    assert session.columns is None
    assert [each.topic for each in found.messages] == ["a"] * 1000


@pytest.mark.parametrize(("mode", "blocks"), [(SizeMode.INCLUSIVE, [128, 129]), (SizeMode.EXCLUSIVE, [])])
def test_a_client_sends_the_blocks_first_but_not_to_a_server_with_exclusive_sizes(
    mode: SizeMode, blocks: list[int]
) -> None:
    session = opened(Role.CLIENT, mode)
    session.send(TRACED, 0.0)
    assert extensions_of(sent(session)) == [blocks]


@pytest.mark.parametrize("role", Role)
def test_profile_on_and_off_hold_whatever_the_peer_does(role: Role) -> None:
    for profile, blocks in (("on", [128, 129]), ("off", [])):
        session = opened(role, profile=profile)
        for _ in range(2):
            session.send(TRACED, 0.0)
            assert extensions_of(sent(session)) == [blocks]
            assert [each.topic for each in messages_of(session.receive(event("b"), 0.0))] == ["b"]


def test_true_and_false_are_on_and_off() -> None:
    assert EmpSettings.parse({"profile": True}) == EmpSettings.parse({"profile": "on"})
    assert EmpSettings.parse({"profile": False}) == EmpSettings.parse({"profile": "off"})
    with pytest.raises(ConfigError, match="one of auto, on, off"):
        EmpSettings.parse({"profile": "sometimes"})


def test_a_failure_that_cannot_be_told_is_not_owed_any_more() -> None:
    session = opened(Role.SERVER, max_requests=1)
    for number in ("1", "2"):
        asked = EMP.encode(Message(Kind.REQUEST, None, b"?", id=number), EmpSettings())
        session.receive(asked, 0.0)
        assert session.violation is None
        with pytest.raises(NotSupported, match="profile"):
            session.send(Message(Kind.ERROR, None, b"no", correlation_id=number, status="404"), 0.0)
    assert session.outgoing() == b""
    session.close(0.0)
    assert session.state is SessionState.CLOSED, "bye does not wait for what will never be said"


def test_operations_of_the_hub_and_tokens_are_never_sent_to_a_peer_without_the_extension() -> None:
    session = opened(Role.CLIENT, SizeMode.EXCLUSIVE)
    for topic in ("$hub/subscribe", "$hub/login", "$hub/provide"):
        with pytest.raises(NotSupported, match="profile"):
            session.send(Message(Kind.REQUEST, topic, b"secret"), 0.0)
    assert session.outgoing() == b""
    session.send(Message(Kind.REQUEST, "$hub/publish/a", b"body"), 0.0)
    assert [(extensions_of([each]), each.body) for each in sent(session)] == [([[0]], b"body")]


def test_sessions_that_write_alike_share_their_style_and_others_do_not() -> None:
    knows, alike = opened(Role.SERVER), opened(Role.SERVER)
    for session in (knows, alike):
        session.receive(event("a"), 0.0)
    plain, exclusive = opened(Role.SERVER), opened(Role.SERVER, SizeMode.EXCLUSIVE)
    assert knows.event_style == alike.event_style
    assert len({knows.event_style, plain.event_style, exclusive.event_style}) == 3
    for session in (knows, plain, exclusive):
        head = session.event_head("a", None)
        assert head is not None
        session.send(Message(Kind.EVENT, "a", b"body"), 0.0)
        assert head.with_size(4) + b"body" == session.outgoing()


@pytest.mark.parametrize("role", Role)
def test_the_last_words_of_a_peer_are_kept(role: Role) -> None:
    session = opened(role)
    session.receive(frames.encode(Frame(Type.ERROR, frames.encode_error(Error(3, "I do not like it")))), 0.0)
    assert session.close_detail == "the peer's error 3: I do not like it"


def test_an_error_about_the_hubs_extension_names_the_setting() -> None:
    session = opened(Role.CLIENT)
    session.receive(frames.encode(Frame(Type.ERROR, frames.encode_error(Error(4, "what?", 128, 1)))), 0.0)
    assert session.close_detail.startswith("the peer's error 4 about extension 128: what?")
    assert 'profile = "off"' in session.close_detail


def test_long_last_words_are_cut() -> None:
    session = opened(Role.CLIENT)
    session.receive(frames.encode(Frame(Type.ERROR, frames.encode_error(Error(0, "x" * 60_000)))), 0.0)
    assert len(session.close_detail) < 1000
