"""hsp as a protocol of the house: what frames mean as messages and back, names, settings, recognition."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.hsp.strategies import any_frame, mutated_stream, stream
from wireloom.model import ConfigError, Direction, Kind, LimitExceeded, Message, NotSupported
from wireloom.protocols.contract import Decoded, Framing, Rejected, Role, Scheme, decode_stream
from wireloom.protocols.hsp import HSP, HspSettings, frames
from wireloom.protocols.hsp.frames import Ack, Data, DataAck, Error, ErrorUndef
from wireloom.protocols.hsp.profile import ENVELOPE, OPERATIONS, Names, make_envelope
from wireloom.protocols.hsp.protocol import to_frame, to_message

TOPICS = {7: "sensors/kitchen", 300: "alerts", 301: "alerts", 9: "hsp/10", ENVELOPE: "wrapped", 0xFD01: "mine"}
topic_maps = st.sampled_from([{}, {7: "sensors/kitchen", 300: "alerts"}, TOPICS])


def decoded(
    data: bytes, profile: bool = True, topics: Mapping[int, str] | None = None, **values: object
) -> list[Decoded | Rejected]:
    options = HSP.settings({"profile": profile, **values})
    return list(decode_stream(HSP.decoder(Direction.C2S, options, topics), data))


def meaning(frame: frames.Frame, profile: bool = True, topics: Mapping[int, str] | None = None) -> Message:
    return to_message(frame, Names(topics or {}, profile), Direction.C2S)


def framed(message: Message, profile: bool = True, topics: Mapping[int, str] | None = None) -> frames.Frame:
    return to_frame(message, Names(topics or {}, profile), HspSettings(profile=profile))


# The protocol object


def test_the_names_of_hsp() -> None:
    assert (HSP.name, HSP.framing) == ("hsp", Framing.STREAM)
    assert HSP.schemes == (Scheme("hsp", "tcp", 5042), Scheme("hsps", "tls", 5042, secure=True))


def test_the_default_port_is_5042_with_and_without_tls() -> None:
    assert {scheme.port for scheme in HSP.schemes} == {5042}
    assert HSP.scheme("hsps").secure
    assert not HSP.scheme("hsp").secure


def test_the_default_settings_are_those_of_the_decisions() -> None:
    assert HSP.settings() == HspSettings(max_payload=8192, ping_interval=30.0, pong_timeout=10.0, profile=True)


def test_lenient_settings_read_whatever_somebody_accepted() -> None:
    assert HSP.lenient() == HspSettings(max_payload=2**32 - 1)


def test_every_clause_a_violation_names_is_listed() -> None:
    assert set(HSP.clauses) == {"hsp.command.unknown", "hsp.payload.too-large", "hsp.message-id.reused"}
    assert all(HSP.clauses.values())


def test_the_limit_is_configurable_up_to_the_largest_length() -> None:
    assert HSP.settings({"max_payload": 2**32 - 1}) == HspSettings(max_payload=2**32 - 1)
    assert HSP.settings({"max_payload": 0}) == HspSettings(max_payload=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_payload", 2**32),
        ("max_payload", -1),
        ("ping_interval", -1.0),
        ("ping_interval", float("nan")),
        ("pong_timeout", float("inf")),
        ("pong_timeout", -0.5),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"setting '{name}' is {value}; it must be"):
        HSP.settings({name: value})


# What frames mean


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (Data(7, b"x"), Message(Kind.EVENT, "hsp/7", b"x", attributes={"type": "7"})),
        (DataAck(5, 7, b"x"), Message(Kind.REQUEST, "hsp/7", b"x", id="5", attributes={"type": "7"})),
        (Ack(5), Message(Kind.RESPONSE, correlation_id="5", status="done")),
        (Error(5, 404, b"x"), Message(Kind.ERROR, body=b"x", correlation_id="5", status="404")),
        (ErrorUndef(5), Message(Kind.ERROR, correlation_id="5", status="undefined")),
        (frames.PING, Message(Kind.PING)),
        (frames.PONG, Message(Kind.PONG)),
    ],
    ids=["DATA", "DATA_ACK", "ACK", "ERROR", "ERROR_UNDEF", "PING", "PONG"],
)
def test_each_command_has_its_kind(frame: frames.Frame, message: Message) -> None:
    assert meaning(frame) == message.with_(protocol="hsp", direction=Direction.C2S)
    assert framed(meaning(frame)) == frame


@pytest.mark.parametrize(("direction"), [Direction.C2S, Direction.S2C])
def test_messages_carry_the_direction_of_their_decoder(direction: Direction) -> None:
    decoder = HSP.decoder(direction, HSP.settings())
    decoder.feed(b"\x03")
    assert next(decoder).message.direction is direction


@given(any_frame(), st.booleans(), topic_maps)
def test_every_frame_has_a_meaning_that_gives_the_frame_back(
    frame: frames.Frame, profile: bool, topics: dict[int, str]
) -> None:
    assert framed(meaning(frame, profile, topics), profile, topics) == frame


@given(st.one_of(stream(), mutated_stream()), st.booleans(), topic_maps)
def test_decode_then_encode_gives_the_same_bytes(data: bytes, profile: bool, topics: dict[int, str]) -> None:
    options = HSP.settings({"profile": profile})
    again = b""
    for found in decoded(data, profile, topics):
        again += HSP.encode(found.message, options, topics) if isinstance(found, Decoded) else found.data
    assert again == data


@given(st.one_of(stream(), mutated_stream()), st.booleans())
def test_frames_of_a_stream_stand_side_by_side(data: bytes, profile: bool) -> None:
    position = 0
    for found in decoded(data, profile):
        assert found.offset == position
        position += found.size if isinstance(found, Decoded) else len(found.data)
    assert position == len(data)


ODD_ENVELOPES = [
    make_envelope("hsp/64768", b"x", None),
    make_envelope("wrapped", b"x", None),
    make_envelope("", b"", None),
    make_envelope("a", b"", "text/plain"),
    make_envelope("$hub/publish/a", b"x", None),
    make_envelope("hsp/7", b"x", None),
    make_envelope("sensors/kitchen", b"x", None),
    make_envelope("$hub/map", b"x", None),
    make_envelope("ä/€", b"x", "text/plain"),
]


@pytest.mark.parametrize("payload", ODD_ENVELOPES)
@pytest.mark.parametrize("topics", [{}, TOPICS], ids=["bare", "named"])
@pytest.mark.parametrize("profile", [True, False])
def test_odd_envelopes_give_the_same_bytes_again(payload: bytes, topics: dict[int, str], profile: bool) -> None:
    for frame in (Data(ENVELOPE, payload), DataAck(3, ENVELOPE, payload)):
        assert framed(meaning(frame, profile, topics), profile, topics) == frame


# What messages become


@given(
    topic=st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        st.sampled_from([*TOPICS.values(), *OPERATIONS.values(), "hsp/7", "hsp/07", "hsp/65536", "hsp/64769", "hsp/x"]),
    ),
    body=st.binary(max_size=20),
    kind=st.sampled_from([Kind.EVENT, Kind.REQUEST]),
    topics=topic_maps,
)
def test_a_message_keeps_its_topic_and_body_on_the_way(
    topic: str, body: bytes, kind: Kind, topics: dict[int, str]
) -> None:
    """With the profile every topic has a way; only `hsp/64768` itself and what is mapped to it has no envelope."""
    if ENVELOPE in topics and topic == topics[ENVELOPE]:
        return
    frame = framed(Message(kind, topic, body, id="1"), True, topics)
    if not (isinstance(frame, Data | DataAck) and frame.type == ENVELOPE and topic == "hsp/64768"):
        back = meaning(frame, True, topics)
        assert (back.kind, back.topic, back.body) == (kind, topic, body)


def test_a_topic_takes_its_number_if_it_has_one() -> None:
    event = Message(Kind.EVENT, "sensors/kitchen", b"x")
    assert framed(event, topics=TOPICS) == framed(event, profile=False, topics=TOPICS) == Data(7, b"x")


def test_an_unnamed_number_is_a_topic_of_its_own() -> None:
    assert framed(Message(Kind.EVENT, "hsp/65535", b"")) == Data(65535, b"")
    assert framed(Message(Kind.EVENT, "hsp/0", b""), profile=False) == Data(0, b"")


@pytest.mark.parametrize("topic", ["hsp/65536", "hsp/07", "hsp/", "hsp/-1", "hsp/x", "hsp/\u0667", "hsp/" + "9" * 5000])
def test_what_only_looks_like_a_number_travels_in_an_envelope(topic: str) -> None:
    assert framed(Message(Kind.EVENT, topic, b"x")) == Data(ENVELOPE, make_envelope(topic, b"x", None))
    with pytest.raises(NotSupported, match="has no type for topic"):
        framed(Message(Kind.EVENT, topic, b"x"), profile=False)


def test_a_number_that_means_another_topic_is_not_used() -> None:
    """`hsp/7` is not the topic of type 7 where type 7 has a name, nor `hsp/64769` where that is an operation."""
    event = Message(Kind.EVENT, "hsp/7", b"x")
    assert framed(event, topics=TOPICS) == Data(ENVELOPE, make_envelope("hsp/7", b"x", None))
    with pytest.raises(NotSupported):
        framed(event, profile=False, topics=TOPICS)
    assert framed(Message(Kind.EVENT, "hsp/64769", b"x")) == Data(ENVELOPE, make_envelope("hsp/64769", b"x", None))
    assert framed(Message(Kind.EVENT, "hsp/64769", b"x"), profile=False) == Data(0xFD01, b"x")


def test_a_topic_without_a_number_needs_the_profile() -> None:
    event = Message(Kind.EVENT, "a/b", b"x", content_type="text/plain")
    assert framed(event) == Data(ENVELOPE, b"\x00\x03a/b\x0atext/plainx")
    with pytest.raises(NotSupported) as caught:
        framed(event, profile=False)
    assert str(caught.value) == (
        "hsp has no type for topic 'a/b': name it in `topics`, or turn the hub profile on (`profile`)"
    )


def test_an_acknowledged_publish_is_a_data_ack_for_its_topic() -> None:
    publish = Message(Kind.REQUEST, "$hub/publish/sensors/kitchen", b"x", id="4")
    assert framed(publish, topics=TOPICS) == DataAck(4, 7, b"x")


def test_the_type_a_message_names_itself_comes_first() -> None:
    message = Message(Kind.EVENT, "sensors/kitchen", b"x", attributes={"type": "12"})
    assert framed(message, topics=TOPICS) == Data(12, b"x")
    assert framed(Message(Kind.EVENT, None, b"x", attributes={"type": "12"})) == Data(12, b"x")
    assert framed(Message(Kind.EVENT, None, b"x", attributes={"type": "64768"})) == Data(ENVELOPE, b"x")


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message(Kind.EVENT), "an hsp message needs a topic, or its number in attributes['type']"),
        (
            Message(Kind.EVENT, attributes={"type": "65536"}),
            "attributes['type'] of an hsp message is a decimal number below 2^16, not '65536'",
        ),
        (Message(Kind.REQUEST, "hsp/1"), "id of an hsp message is a decimal number below 2^32, not None"),
        (
            Message(Kind.REQUEST, "hsp/1", id="4294967296"),
            "id of an hsp message is a decimal number below 2^32, not '4294967296'",
        ),
        (Message(Kind.REQUEST, "hsp/1", id="-1"), "id of an hsp message is a decimal number below 2^32, not '-1'"),
        (Message(Kind.RESPONSE), "correlation_id of an hsp message is a decimal number below 2^32, not None"),
        (
            Message(Kind.RESPONSE, correlation_id="\u0667"),
            "correlation_id of an hsp message is a decimal number below 2^32, not '\u0667'",
        ),
        (
            Message(Kind.ERROR, correlation_id="1", status="65536"),
            "status of an hsp message is a decimal number below 2^16, not '65536'",
        ),
        (
            Message(Kind.EVENT, "t" * 65536),
            "a topic has at most 65535 bytes and a content type at most 255 in an hsp envelope",
        ),
        (
            Message(Kind.EVENT, "t", content_type="c" * 256),
            "a topic has at most 65535 bytes and a content type at most 255 in an hsp envelope",
        ),
    ],
)
def test_what_hsp_cannot_say_is_refused_with_its_reason(message: Message, complaint: str) -> None:
    with pytest.raises(NotSupported) as caught:
        framed(message)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    "kind", [Kind.OPEN, Kind.CLOSE, Kind.REDIRECT, Kind.PROGRESS, Kind.CANCEL, Kind.ACK, Kind.OTHER]
)
def test_kinds_without_a_frame_are_refused_by_name(kind: Kind) -> None:
    with pytest.raises(NotSupported) as caught:
        framed(Message(kind, "hsp/7", b"", id="1", correlation_id="1"))
    assert str(caught.value) == f"hsp has no frame for a message of kind {kind}"


@pytest.mark.parametrize(("topic", "kind"), [("\ud800", None), ("t", "text/plän")])
def test_texts_an_envelope_cannot_hold_are_refused(topic: str, kind: str | None) -> None:
    with pytest.raises(NotSupported, match="a topic in UTF-8 and a content type in ASCII"):
        framed(Message(Kind.EVENT, topic, b"", content_type=kind))


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.EVENT, "hsp/1", b"1234"),
        Message(Kind.REQUEST, "hsp/1", b"1234", id="1"),
        Message(Kind.ERROR, None, b"1234", correlation_id="1", status="1"),
        Message(Kind.EVENT, "a", b""),
    ],
    ids=["DATA", "DATA_ACK", "ERROR", "envelope"],
)
def test_a_payload_above_the_limit_is_refused_before_it_is_sent(message: Message) -> None:
    with pytest.raises(LimitExceeded) as caught:
        HSP.encode(message, HspSettings(max_payload=3))
    assert str(caught.value) == "payload of 4 bytes; max_payload is 3"
    assert HSP.encode(message, HspSettings(max_payload=4))


# Violations in a decoder


def test_a_violation_takes_the_rest_of_the_stream_with_it() -> None:
    good = frames.encode(Data(7, b"x"))
    event, reject = decoded(good + b"\x09" + good)
    assert isinstance(event, Decoded)
    assert isinstance(reject, Rejected)
    assert (reject.clause, reject.detail, reject.offset) == ("hsp.command.unknown", "command 9", len(good))
    assert reject.data == b"\x09" + good


def test_a_decoder_refuses_a_length_before_the_payload_is_there() -> None:
    (reject,) = decoded(b"\x00\x00\x07\x00\x00\x20\x01")
    assert isinstance(reject, Rejected)
    assert reject.clause == "hsp.payload.too-large"
    assert decoded(b"\x00\x00\x07\x00\x00\x20\x01", max_payload=8193)[0] == Rejected(
        "stream.cut", "the stream ends inside a frame", 0, b"\x00\x00\x07\x00\x00\x20\x01"
    )


# Recognition


@pytest.mark.parametrize(
    "head",
    [
        "0000070000000568656c6c6f",  # DATA
        "00000700000005",  # DATA, cut before its payload
        "0000070000000568",  # DATA, cut inside
        "0300000700000005",  # PING, then DATA
        "010000000100070000000a706c65",  # DATA_ACK, cut inside
        "0200000001",  # ACK
        "020000000102000000",  # ACK, cut inside the second
        "0600000002",  # ERROR_UNDEF
        "05ffffffffffff0000000b706c65",  # ERROR, cut inside
    ],
)
def test_a_stream_of_hsp_is_recognised(head: str) -> None:
    assert HSP.recognise(bytes.fromhex(head), Direction.C2S)
    assert HSP.recognise(bytes.fromhex(head), Direction.S2C)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x03",
        b"\x04\x03",
        b"\x00\x00",
        b"\x01\x00\x00\x00",
        b"\x02\x00",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x00\x00\x07\xff\xff\xff\xff",
        b"\x02\x00\x00\x00\x01\x63",
        bytes.fromhex("000001046a736f6e"),  # a handshake of yamp
        bytes.fromhex("0000000c0000000001000000"),  # a hello of emp
    ],
)
def test_other_streams_are_not(head: bytes) -> None:
    assert not HSP.recognise(head, Direction.C2S)


@given(st.lists(st.one_of(st.builds(Data, st.integers(0, 65535), st.binary(max_size=40))), min_size=1, max_size=5))
def test_every_stream_of_data_is_recognised_from_any_head(many: list[frames.Frame]) -> None:
    data = b"".join(map(frames.encode, many))
    assert all(HSP.recognise(data[:size], Direction.C2S) for size in range(7, len(data) + 1))


def test_the_session_of_the_protocol_has_its_settings_and_topics() -> None:
    session = HSP.session(Role.CLIENT, HSP.settings({"max_payload": 5}), unique=9, topics={7: "a"})
    assert (session.settings.max_payload, dict(session.topic_numbers())) == (5, {7: "a"})
    assert session.send(Message(Kind.REQUEST, "a", b""), 0).id == "9"
