"""yamp as the rest of the house sees it: schemes, settings, messages, redirects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given

from tests.protocols.yamp.strategies import any_frame
from wireloom.formats import body_formats
from wireloom.model import ConfigError, Direction, Kind, LimitExceeded, Message, NotSupported
from wireloom.protocols import registry
from wireloom.protocols.contract import Decoded, decode_stream
from wireloom.protocols.yamp import YAMP, YampSettings, frames
from wireloom.protocols.yamp.protocol import to_frame, to_message

UID = bytes(range(16))
ID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
OTHER = bytes(range(16, 32))
OTHER_ID = "10111213-1415-1617-1819-1a1b1c1d1e1f"


def decoded(data: bytes, direction: Direction = Direction.C2S, **values: object) -> list[Message]:
    found = list(decode_stream(YAMP.decoder(direction, YAMP.settings(values)), data))
    return [each.message for each in found if isinstance(each, Decoded)]


@pytest.mark.parametrize(
    ("scheme", "transport", "port", "secure"),
    [
        ("yamp", "tcp", 5043, False),
        ("yamps", "tls", 5043, True),
        ("yamp+ws", "ws", 5044, False),
        ("yamp+wss", "wss", 5044, True),
    ],
)
def test_schemes_transports_and_default_ports(scheme: str, transport: str, port: int, secure: bool) -> None:
    protocol, found = registry.scheme(scheme)
    assert protocol is YAMP
    assert (found.transport, found.port, found.secure) == (transport, port, secure)


def test_defaults_are_those_of_the_decisions() -> None:
    settings = YampSettings()
    assert (settings.serializer, settings.max_body) == ("json", 16 * 1024 * 1024)
    assert settings.serializers == ("json", "msgpack", "cbor", "bson", "xml", "protobuf", "flatbuffers", "raw")
    assert settings.allow_downgrade is False


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"serializer": "yaml"}, "yaml"),
        ({"serializer": ""}, "serializer"),
        ({"serializers": ["json", "yaml"]}, "yaml"),
        ({"max_body": 2**32}, "max_body"),
        ({"max_body": -1}, "max_body"),
        ({"redirect": "elsewhere"}, "redirect"),
        ({"max_bdy": 1}, "max_bdy"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        YAMP.settings(values)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            frames.Handshake(1, "json"),
            Message(Kind.OPEN, attributes={"version": "1", "serializer": "json"}),
        ),
        (frames.Ping(b"abc"), Message(Kind.PING, body=b"abc")),
        (frames.Pong(b"abc"), Message(Kind.PONG, body=b"abc")),
        (frames.Close(""), Message(Kind.CLOSE)),
        (frames.Close("bye"), Message(Kind.CLOSE, attributes={"reason": "bye"})),
        (frames.CloseRedirect("tcp://h:1"), Message(Kind.REDIRECT, attributes={"url": "tcp://h:1"})),
        (frames.Event(UID, "a/b", b"1"), Message(Kind.EVENT, "a/b", b"1", ID)),
        (frames.Request(UID, "a/b", False, b"1"), Message(Kind.REQUEST, "a/b", b"1", ID)),
        (
            frames.Request(UID, "a/b", True, b"1"),
            Message(Kind.REQUEST, "a/b", b"1", ID, attributes={"progressive": "true"}),
        ),
        (frames.Cancel(UID, "a/b", OTHER, False), Message(Kind.CANCEL, "a/b", b"", ID, OTHER_ID)),
        (
            frames.Cancel(UID, "a/b", OTHER, True),
            Message(Kind.CANCEL, "a/b", b"", ID, OTHER_ID, attributes={"kill": "true"}),
        ),
        (
            frames.Response(UID, "a/b", OTHER, frames.ResponseType.DONE, b"1"),
            Message(Kind.RESPONSE, "a/b", b"1", ID, OTHER_ID, "done"),
        ),
        (
            frames.Response(UID, "a/b", OTHER, frames.ResponseType.ERROR, b"1"),
            Message(Kind.ERROR, "a/b", b"1", ID, OTHER_ID, "error"),
        ),
        (
            frames.Response(UID, "a/b", OTHER, frames.ResponseType.PROGRESS, b"1"),
            Message(Kind.PROGRESS, "a/b", b"1", ID, OTHER_ID, "progress"),
        ),
        (
            frames.Response(UID, "a/b", OTHER, frames.ResponseType.CANCELLED, b"1"),
            Message(Kind.RESPONSE, "a/b", b"1", ID, OTHER_ID, "cancelled"),
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Message) else type(value).__name__,
)
def test_each_frame_is_the_message_of_the_design(frame: frames.Frame, message: Message) -> None:
    bodied = message.kind in (Kind.EVENT, Kind.REQUEST, Kind.PROGRESS, Kind.RESPONSE, Kind.ERROR)
    expected = message.with_(
        protocol="yamp", direction=Direction.S2C, content_type="application/json" if bodied else None
    )
    assert to_message(frame, Direction.S2C, "application/json") == expected
    assert YAMP.encode(message, YAMP.settings()) == frames.encode(frame)


@given(any_frame)
def test_every_message_encodes_to_the_bytes_it_came_from(frame: frames.Frame) -> None:
    message = to_message(frame, Direction.C2S, None)
    assert to_frame(message, YampSettings()) == frame


@pytest.mark.parametrize("serializer", body_formats.SERIALIZERS)
def test_the_handshake_says_what_bodies_after_it_are(serializer: str) -> None:
    event = frames.encode(frames.Event(UID, "a", b"1"))
    shaken = frames.encode(frames.Handshake(1, serializer)) + event
    assert decoded(shaken)[1].content_type == body_formats.CONTENT_TYPES[serializer]
    assert decoded(event, serializer=serializer)[0].content_type == body_formats.CONTENT_TYPES[serializer]


def test_the_format_option_of_decode_sets_the_serializer() -> None:
    assert YAMP.decode_options == {"format": "serializer"}
    values = {YAMP.decode_options["format"]: "cbor"}
    (message,) = decoded(frames.encode(frames.Event(UID, "a", b"\x01")), **values)
    body_format = YAMP.format_for(message.content_type)
    assert body_format is not None
    assert body_format.loads(message.body) == 1


def test_formats_are_found_by_content_type() -> None:
    assert {YAMP.format_for(t).content_type for t in body_formats.CONTENT_TYPES.values()} == set(  # type: ignore[union-attr]
        body_formats.CONTENT_TYPES.values()
    )
    assert YAMP.format_for("text/plain") is None
    assert YAMP.format_for(None) is None


@pytest.mark.parametrize("kind", [Kind.ACK, Kind.OTHER])
def test_kinds_without_a_frame_are_not_supported(kind: Kind) -> None:
    with pytest.raises(NotSupported, match=str(kind)):
        YAMP.encode(Message(kind), YAMP.settings())


@pytest.mark.parametrize("uid", [None, "", "7", ID[:-1], ID + "0", "x" * 36])
def test_an_id_that_is_no_uuid_is_not_supported(uid: str | None) -> None:
    with pytest.raises(NotSupported, match="UUID"):
        YAMP.encode(Message(Kind.EVENT, "a", id=uid), YAMP.settings())
    with pytest.raises(NotSupported, match="UUID"):
        YAMP.encode(Message(Kind.RESPONSE, "a", id=ID, correlation_id=uid), YAMP.settings())


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (Message(Kind.EVENT, "ü" * 128, id=ID), "topic"),
        (Message(Kind.EVENT, "a", bytes(16 * 2**20 + 1), ID), "max_body"),
        (Message(Kind.CLOSE, attributes={"reason": "r" * 65536}), "reason"),
        (Message(Kind.REDIRECT, attributes={"url": "r" * 65536}), "url"),
        (Message(Kind.OPEN, attributes={"serializer": "r" * 256}), "serializer"),
        (Message(Kind.PONG, body=bytes(256)), "255"),
    ],
)
def test_what_does_not_fit_its_size_field_or_limit_is_refused(message: Message, word: str) -> None:
    with pytest.raises(LimitExceeded, match=word):
        YAMP.encode(message, YAMP.settings())


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.EVENT, "\ud800", id=ID),
        Message(Kind.CLOSE, attributes={"reason": "\udfff"}),
        Message(Kind.OPEN, attributes={"version": "one"}),
        Message(Kind.OPEN, attributes={"version": "65536"}),
    ],
)
def test_what_has_no_bytes_is_not_supported(message: Message) -> None:
    with pytest.raises(NotSupported):
        YAMP.encode(message, YAMP.settings())


# Redirects


@pytest.mark.parametrize(
    ("url", "followed"),
    [
        ("tcp://192.168.0.42:5000", "yamp://192.168.0.42:5000"),
        ("tls://h:5000", "yamps://h:5000"),
        ("ws://hostname:8888/hello/world?msg=goodmorning", "yamp+ws://hostname:8888/hello/world?msg=goodmorning"),
        ("wss://h:1/x", "yamp+wss://h:1/x"),
        ("TCP://[::1]:5000", "yamp://[::1]:5000"),
        ("yamp://h:1", "yamp://h:1"),
        ("yamp+wss://h:1", "yamp+wss://h:1"),
    ],
)
def test_protocols_in_a_redirect_mean_our_schemes(url: str, followed: str) -> None:
    assert YAMP.redirected(url, YAMP.settings(), secure=False) == followed


@pytest.mark.parametrize("url", ["tcp://h:1", "ws://h:1", "yamp://h:1", "yamp+ws://h:1"])
def test_a_redirect_from_tls_to_plain_is_followed_only_where_the_option_allows_it(url: str) -> None:
    with pytest.raises(NotSupported, match="allow_downgrade"):
        YAMP.redirected(url, YAMP.settings(), secure=True)
    assert YAMP.redirected(url, YAMP.settings({"allow_downgrade": True}), secure=True)
    assert YAMP.redirected(url, YAMP.settings(), secure=False)


def test_a_redirect_from_tls_to_tls_is_followed() -> None:
    assert YAMP.redirected("tls://h:1", YAMP.settings(), secure=True) == "yamps://h:1"
    assert YAMP.redirected("wss://h:1", YAMP.settings(), secure=True) == "yamp+wss://h:1"


@pytest.mark.parametrize("url", ["http://h:1", "hsp://h:1", "tcp://h", ""])
def test_a_redirect_elsewhere_is_not_followed(url: str) -> None:
    with pytest.raises(NotSupported):
        YAMP.redirected(url, YAMP.settings(), secure=False)


# Recognition


@pytest.mark.parametrize("serializer", ["", *body_formats.SERIALIZERS])
def test_a_stream_is_recognised_by_its_handshake(serializer: str) -> None:
    shaken = frames.encode(frames.Handshake(1, serializer))
    event = frames.encode(frames.Event(UID, "a", b""))
    for direction in (Direction.C2S, Direction.S2C):
        assert YAMP.recognise(shaken, direction)
        assert YAMP.recognise(shaken + event, direction)
        assert YAMP.recognise(shaken[:-1], direction) == (len(shaken) > 4)


def test_a_refusal_is_recognised_from_the_server_only() -> None:
    for frame in (frames.Close("server is full"), frames.CloseRedirect("tcp://h:1")):
        assert YAMP.recognise(frames.encode(frame), Direction.S2C)
        assert not YAMP.recognise(frames.encode(frame), Direction.C2S)


@pytest.mark.parametrize(
    "head",
    ["", "000007000000056869", "0000010000000568656c6c6f", "03", "0303", "00000104796d6c20", "16030100", "474554"],
)
def test_other_streams_are_not_recognised(head: str) -> None:
    for direction in (Direction.C2S, Direction.S2C):
        assert not YAMP.recognise(bytes.fromhex(head), direction)


def test_every_clause_has_a_sentence() -> None:
    assert all(name.startswith("yamp.") and sentence for name, sentence in YAMP.clauses.items())


def test_lenient_settings_read_whatever_somebody_accepted_and_captures_keep_the_usual_limit() -> None:
    assert YAMP.lenient() == YampSettings(max_body=2**32 - 1)
    assert YAMP.observing() == YampSettings()


def test_the_example_of_the_hub_profile_is_a_subscription() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hub-profile.md").read_text()
    block = re.search(r"^## yamp$.*?^```\n(.*?)^```$", page, re.M | re.S)
    assert block is not None
    digits = "".join(re.findall(r"\b(?:[0-9a-f]{2})+\b", re.sub(r"  +[a-z$].*", "", block[1])))
    frame, size = frames.decode(bytes.fromhex(digits)) or (None, 0)
    assert isinstance(frame, frames.Request)
    assert (frame.uri, frame.body, size) == ("$hub/subscribe", b'{"topic":"sensors/#"}', len(digits) // 2)
