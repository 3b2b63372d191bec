"""The contract between protocols and the rest of the house: settings, decoders, streams, batches, roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.hsp.strategies import mutated_stream, stream
from wireloom.model import ConfigError, Direction, Kind, Message, NotSupported, ProtocolViolation
from wireloom.protocols.columns import SlowColumns
from wireloom.protocols.contract import (
    CUT,
    NOTHING,
    Batch,
    Decoded,
    Decoder,
    EventList,
    Framing,
    Rejected,
    Role,
    Session,
    SessionState,
    Settings,
    decode_stream,
)
from wireloom.protocols.hsp import HSP, frames

# Settings


class Mode(StrEnum):
    FAST = "fast"
    SAFE = "safe"


class Level(Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Example(Settings):
    on: bool = False
    size: int = 1
    wait: float = 1.0
    name: str = "x"
    mode: Mode = Mode.FAST
    level: Level = Level.LOW
    limit: int | None = 5
    either: int | str = 0
    number: int | float = 0
    names: tuple[str, ...] = ()
    table: Mapping[str, str] | None = None


@pytest.mark.parametrize(
    ("name", "given_", "expected"),
    [
        ("on", True, True),
        ("on", False, False),
        ("on", "true", True),
        ("on", "False", False),
        ("on", "on", True),
        ("on", "OFF", False),
        ("on", "1", True),
        ("on", "0", False),
        ("size", 7, 7),
        ("size", "7", 7),
        ("size", "-7", -7),
        ("size", 7.0, 7),
        ("wait", 2, 2.0),
        ("wait", 2.5, 2.5),
        ("wait", "2.5", 2.5),
        ("name", "", ""),
        ("name", "7", "7"),
        ("mode", "safe", Mode.SAFE),
        ("mode", Mode.SAFE, Mode.SAFE),
        ("level", 2, Level.HIGH),
        ("limit", None, None),
        ("limit", "9", 9),
        ("either", 4, 4),
        ("either", "4", 4),
        ("either", "four", "four"),
        ("number", "1", 1),
        ("number", 1.5, 1.5),
        ("number", "1.5", 1.5),
        ("names", ["a", "b"], ("a", "b")),
        ("names", ("a",), ("a",)),
        ("table", {"a": "b"}, {"a": "b"}),
        ("table", None, None),
    ],
)
def test_plain_values_become_what_a_setting_asks_for(name: str, given_: object, expected: object) -> None:
    value = getattr(Example.parse({name: given_}), name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "given_", "wanted"),
    [
        ("on", 1, "bool"),
        ("on", "yes", "bool"),
        ("on", None, "bool"),
        ("size", True, "int"),
        ("size", "many", "int"),
        ("size", "7.5", "int"),
        ("size", 7.5, "int"),
        ("size", float("inf"), "int"),
        ("size", float("nan"), "int"),
        ("size", None, "int"),
        ("size", [1], "int"),
        ("wait", "soon", "float"),
        ("wait", False, "float"),
        ("wait", 10**400, "float"),
        ("name", 7, "str"),
        ("name", None, "str"),
        ("mode", "slow", "one of fast, safe"),
        ("mode", ["fast"], "one of fast, safe"),
        ("level", "1", "one of 1, 2"),
        ("limit", "none", "int or NoneType"),
        ("either", None, "int or str"),
        ("names", "ab", "tuple"),
        ("names", {"a": 1}, "tuple"),
        ("limit", False, "int or NoneType"),
        ("table", [], "Mapping or NoneType"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_setting(name: str, given_: object, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Example.parse({"size": 3, name: given_})
    kind = wanted if wanted.startswith("one of") else f"of type {wanted}"
    assert str(caught.value) == f"setting {name!r} is {given_!r}; it must be {kind}"


def test_each_of_many_values_is_checked() -> None:
    with pytest.raises(ConfigError, match="setting 'names' is 7; it must be of type str"):
        Example.parse({"names": ["a", 7]})


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        Example.parse({"sice": 3})
    known = "either, level, limit, mode, name, names, number, on, size, table, wait"
    assert str(caught.value) == f"unknown setting 'sice'; known: {known}"


def test_settings_that_are_not_given_keep_their_defaults() -> None:
    assert Example.parse({}) == Example()
    assert Example.parse({"size": "3"}) == Example(size=3)
    assert HSP.settings() == HSP.settings(None) == HSP.settings({})


names_ = st.sampled_from(["on", "size", "wait", "mode", "limit", "names"])


@given(st.dictionaries(names_, st.text() | st.integers() | st.floats() | st.lists(st.text() | st.none())))
def test_parsing_gives_settings_or_a_config_error_and_nothing_else(values: dict[str, object]) -> None:
    try:
        parsed = Example.parse(values)
    except ConfigError as error:
        assert "setting '" in str(error)
    else:
        assert isinstance(parsed.size, int)
        assert isinstance(parsed.wait, float)
        assert all(isinstance(name, str) for name in parsed.names)


# Roles, states, batches


def test_each_role_sends_in_its_direction() -> None:
    assert (Role.CLIENT.sends, Role.SERVER.sends) == (Direction.C2S, Direction.S2C)


class Silent(Session):
    """The least a session can be."""

    def receive(self, data: bytes, now: float) -> Sequence[Batch]:
        return [Batch(data, (), ignored=len(data))]

    def outgoing(self) -> bytes:
        return b""

    def send(self, message: Message, now: float) -> Message:
        raise NotSupported("nothing to say")

    def close(self, now: float, reason: str = "") -> None:
        self.state = SessionState.CLOSED


def test_what_a_session_does_unless_it_says_otherwise() -> None:
    session = Silent(Role.CLIENT)
    assert (session.state, session.violation, session.close_reason) == (SessionState.OPENING, None, None)
    assert (session.refused, session.counters, session.sent) == (b"", {}, 0)
    session.connected(0)
    assert session.state is SessionState.OPEN
    assert (session.deadline(), session.expire(1), session.enable_columns()) == (None, NOTHING, False)
    assert dict(session.topic_numbers()) == {}
    assert list(session.outgoing_frames()) == []
    with pytest.raises(NotImplementedError):
        session.send_frames(b"", 0)
    session.end_of_input(1)
    assert session.state is SessionState.CLOSED


def test_sessions_do_not_share_their_counters() -> None:
    one, other = Silent(Role.CLIENT), Silent(Role.SERVER)
    one.count("hsp.pong.unasked")
    one.count("hsp.pong.unasked")
    assert (one.counters, other.counters) == ({"hsp.pong.unasked": 2}, {})


def test_outgoing_frames_are_the_outgoing_bytes() -> None:
    session = HSP.session(Role.CLIENT, HSP.settings())
    session.send(Message(Kind.EVENT, "hsp/7", b""), 0)
    assert b"".join(session.outgoing_frames()) == frames.encode(frames.Data(7, b""))
    assert list(session.outgoing_frames()) == []


def test_a_batch_counts_what_its_data_holds() -> None:
    event = Message(Kind.EVENT)
    assert Batch().count == 0
    assert Batch(b"", [event, event], ignored=3).count == 5
    assert Batch(b"", [event, event], added=2).count == 0


def test_events_are_chosen_by_topic_in_order() -> None:
    events = EventList([Message(Kind.EVENT, topic, b"%d" % number) for number, topic in enumerate("abcab")])
    assert (list(events.topics), len(events)) == (["a", "b", "c"], 5)
    assert [event.body for event in events.of([0, 2]).messages()] == [b"0", b"2", b"3"]
    assert events.of([0, 1, 2]).messages() == events.messages()


def test_what_a_protocol_does_unless_it_says_otherwise() -> None:
    assert HSP.format_for("application/json") is None
    with pytest.raises(NotSupported, match="hsp has no redirects"):
        HSP.redirected("hsp://elsewhere", HSP.settings(), secure=False)
    with pytest.raises(StopIteration):
        HSP.scheme("http")


def test_a_protocol_without_kernels_has_slow_columns() -> None:
    from wireloom.protocols.contract import Protocol

    assert isinstance(Protocol.columns(HSP), SlowColumns)


# Decoders


class Lines(Decoder):
    """Words in lines: the smallest decoder whose bad units stand alone. A line `+x` is a part of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = b""

    def decode_one(self, buffer: bytearray, start: int) -> tuple[object, int] | None:
        end = buffer.find(b"\n", start)
        if end < 0:
            return None
        line = bytes(buffer[start:end])
        if line.startswith(b"!"):
            raise ProtocolViolation("lines.bad", line.decode(errors="replace"))
        return line, end + 1

    def to_message(self, frame: object) -> Message | None:
        assert isinstance(frame, bytes)
        if frame.startswith(b"+"):
            self.parts += frame[1:]
            return None
        body, self.parts = self.parts + frame, b""
        return Message(Kind.EVENT, body=body)

    def _after_violation(self, violation: ProtocolViolation) -> None:
        end = self._buffer.index(b"\n", self._taken) + 1
        self.offset += end - self._taken
        self._taken = end


def hsp_decoder() -> Decoder:
    return HSP.decoder(Direction.C2S, HSP.settings())


def test_a_decoder_waits_for_the_rest_of_a_frame() -> None:
    decoder = hsp_decoder()
    wire = frames.encode(frames.Data(7, b"hello"))
    decoder.feed(wire[:5])
    assert list(decoder) == []
    assert (decoder.offset, decoder.buffered) == (0, wire[:5])
    decoder.feed(memoryview(wire[5:]))
    (found,) = decoder
    assert (found.offset, found.size, found.frame) == (0, len(wire), frames.Data(7, b"hello"))
    assert (decoder.offset, decoder.buffered) == (len(wire), b"")


def test_offsets_count_from_the_beginning_of_the_stream() -> None:
    decoder = hsp_decoder()
    found: list[Decoded] = []
    for _ in range(3):
        decoder.feed(b"\x03" + frames.encode(frames.Ack(1)))
        found += decoder
    assert [(each.offset, each.size) for each in found] == [(0, 1), (1, 5), (6, 1), (7, 5), (12, 1), (13, 5)]


def test_a_decoder_keeps_no_bytes_it_has_decoded() -> None:
    decoder = hsp_decoder()
    for _ in range(1000):
        decoder.feed(frames.encode(frames.Data(7, bytes(1000))))
        list(decoder)
    assert len(decoder._buffer) <= 1007


def test_a_violation_in_a_stream_is_final() -> None:
    decoder = hsp_decoder()
    decoder.feed(b"\x03\x09\x03")
    assert next(decoder).message.kind is Kind.PING
    with pytest.raises(ProtocolViolation) as first:
        next(decoder)
    assert (first.value.clause, first.value.offset) == ("hsp.command.unknown", 1)
    decoder.feed(b"\x03")
    with pytest.raises(ProtocolViolation) as second:
        next(decoder)
    assert second.value is first.value is decoder.violation
    assert (decoder.offset, decoder.buffered) == (1, b"\x09\x03\x03")


def test_a_violation_in_a_line_is_over_with_the_line() -> None:
    decoder = Lines()
    decoder.feed(b"one\n!two\nthree\n")
    assert next(decoder).message.body == b"one"
    with pytest.raises(ProtocolViolation) as caught:
        next(decoder)
    assert (caught.value.offset, decoder.violation) == (4, None)
    assert [(each.message.body, each.offset) for each in decoder] == [(b"three", 9)]


def test_parts_of_a_message_are_no_message_yet() -> None:
    decoder = Lines()
    decoder.feed(b"+on\n+ce\n")
    assert list(decoder) == []
    assert decoder.offset == 8
    decoder.feed(b"!\n")
    with pytest.raises(ProtocolViolation):
        next(decoder)
    decoder.feed(b" more\n")
    assert [each.message.body for each in decoder] == [b"once more"]


@given(st.one_of(stream(), mutated_stream()), st.lists(st.integers(0, 2000), max_size=6))
def test_any_split_of_a_stream_decodes_to_the_same(data: bytes, cuts: list[int]) -> None:
    whole, split = hsp_decoder(), hsp_decoder()
    expected = [found for found in decode_stream(whole, data) if isinstance(found, Decoded)]
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found: list[Decoded] = []
    try:
        for low, high in pairwise(edges):
            split.feed(data[low:high])
            for each in split:
                found.append(each)  # noqa: PERF402 - what came before a violation counts
    except ProtocolViolation as violation:
        assert whole.violation is not None
        assert (violation.clause, violation.offset) == (whole.violation.clause, whole.violation.offset)
    assert found == expected
    assert split.offset == whole.offset


# Whole streams


def assert_covered(data: bytes, found: list[Decoded | Rejected]) -> None:
    position = 0
    for each in found:
        size = each.size if isinstance(each, Decoded) else len(each.data)
        assert (each.offset, size > 0) == (position, True)
        if isinstance(each, Rejected):
            assert each.data == data[position : position + size]
        position += size
    assert position == len(data)


@given(st.one_of(stream(), mutated_stream(), st.binary(max_size=100)))
def test_every_byte_of_a_stream_is_in_one_message_or_one_reject(data: bytes) -> None:
    found = list(decode_stream(hsp_decoder(), data))
    assert_covered(data, found)
    assert sum(isinstance(each, Rejected) for each in found) <= 1
    assert not found or not any(isinstance(each, Rejected) for each in found[:-1])


@given(
    st.lists(st.sampled_from([b"one\n", b"!bad\n", b"\n", b"!\n"]), max_size=12),
    st.sampled_from([b"", b"cut", b"!cut"]),
)
def test_every_byte_of_lines_is_in_one_message_or_one_reject(lines: list[bytes], tail: bytes) -> None:
    data = b"".join(lines) + tail
    found = list(decode_stream(Lines(), data))
    assert_covered(data, found)
    clauses = [each.clause for each in found if isinstance(each, Rejected)]
    assert clauses == ["lines.bad"] * sum(line.startswith(b"!") for line in lines) + [CUT] * bool(tail)


def test_a_frame_cut_off_at_the_end_is_a_reject_only_when_the_stream_is_over() -> None:
    data = b"\x03\x02\x00"
    assert list(decode_stream(hsp_decoder(), data))[1:] == [
        Rejected("stream.cut", "the stream ends inside a frame", 1, b"\x02\x00")
    ]
    assert len(list(decode_stream(hsp_decoder(), data, final=False))) == 1


def test_framings_are_the_three_of_the_contract() -> None:
    assert [str(each) for each in Framing] == ["stream", "lines", "datagram"]
