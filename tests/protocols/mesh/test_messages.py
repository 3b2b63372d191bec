"""What packets mean as messages, and messages as packets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.mesh.strategies import BOTH, NODE, TRUST, WITH_HMAC, datagrams
from wireloom.model import Authenticity, BodyError, Direction, Kind, LimitExceeded, Message, NotSupported
from wireloom.protocols.contract import Decoded, Rejected, decode_stream
from wireloom.protocols.mesh import MESH, frames
from wireloom.protocols.mesh.capabilities import make_capabilities
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type
from wireloom.protocols.mesh.messages import FIELDS, FIELDS_FORMAT, to_message
from wireloom.protocols.mesh.security import sign_packet
from wireloom.protocols.registry import protocol, scheme

STRING, JSON = Field(Type.STRING, b"a/b"), Field(Type.JSON, b'{"c":1}')
SETTINGS = MESH.settings()


def packet(*fields: Field, event_type: int = 3, flags: int = 0) -> Packet:
    return Packet(0x2A, event_type, 1_700_000_000, fields, flags)


def decoded(data: bytes, **values: object) -> list[Decoded | Rejected]:
    return list(decode_stream(MESH.decoder(Direction.DGRAM, MESH.settings(values)), data))


def test_mesh_is_registered_with_its_schemes_and_ports() -> None:
    assert protocol("mesh") is MESH
    assert (scheme("mesh")[1].transport, scheme("mesh")[1].port) == ("udp", 5041)
    assert (scheme("mesh+quic")[1].transport, scheme("mesh+quic")[1].secure) == ("quic", True)


@pytest.mark.parametrize(
    ("event_type", "fields", "kind"),
    [
        (1, (Field(4, b"caps"), Field(0x14, NODE)), Kind.OPEN),
        (2, (Field(0x14, NODE), Field(0x15, bytes(8))), Kind.PING),
        (3, (STRING,), Kind.EVENT),
        (0, (), Kind.OTHER),
        (200, (STRING,), Kind.OTHER),
    ],
)
def test_event_types_are_kinds(event_type: int, fields: tuple[Field, ...], kind: Kind) -> None:
    message = to_message(packet(*fields, event_type=event_type))
    assert (message.kind, message.protocol, message.direction) == (kind, "mesh", Direction.DGRAM)
    assert message.attributes.get("event_type") == (str(event_type) if kind is Kind.OTHER else None)


def test_the_first_string_of_an_event_is_its_topic() -> None:
    message = to_message(packet(Field(4, b"x"), STRING, Field(1, b"second")))
    assert (message.topic, message.id) == ("a/b", "0000002a")
    assert FIELDS_FORMAT.loads(message.body) == ["second", b"x"]


@pytest.mark.parametrize(
    ("field", "body", "content_type"),
    [
        (JSON, b'{"c":1}', "application/json"),
        (Field(1, b"text"), b"text", "text/plain"),
        (Field(4, b"\xff"), b"\xff", None),
        (Field(2, b"\0\0\0\7"), b"\x02\x04\0\0\0\7", FIELDS),
        (Field(3, b"\x3f\xc0\0\0"), b"\x03\x04\x3f\xc0\0\0", FIELDS),
    ],
)
def test_a_single_field_is_the_body(field: Field, body: bytes, content_type: str | None) -> None:
    message = to_message(packet(STRING, field))
    assert (message.body, message.content_type) == (body, content_type)


def test_several_fields_are_kept_and_read_as_a_list() -> None:
    fields = (STRING, Field(2, b"\xff\xff\xff\xff"), Field(3, b"\x3f\xc0\0\0"), Field(4, b"raw"), JSON)
    message = to_message(packet(*fields))
    assert message.content_type == FIELDS
    assert FIELDS_FORMAT.loads(message.body) == [-1, 1.5, b"raw", {"c": 1}]
    assert MESH.format_for(FIELDS) is FIELDS_FORMAT
    assert MESH.format_for("application/json") is None


@pytest.mark.parametrize("value", ["no list", [2**31], [object()], [float("1e39")]])
def test_values_that_no_field_holds_are_refused(value: object) -> None:
    with pytest.raises(BodyError):
        FIELDS_FORMAT.dumps(value)


def test_a_long_body_is_joined() -> None:
    message = to_message(packet(STRING, *frames.split(Type.BINARY, bytes(400))))
    assert message.body == bytes(400)


def test_attributes_carry_header_and_security_fields() -> None:
    data = frames.encode(
        sign_packet(packet(STRING, Field(0x15, (9).to_bytes(8)), Field(0x80, b"u"), Field(0x80, b"v"), flags=1), BOTH)
    )
    attributes = dict(to_message(frames.decode(data)).attributes)
    assert attributes.pop("hmac") and attributes.pop("signature")
    assert attributes == {
        "timestamp": "1700000000",
        "flags": "1",
        "urgent": "1",
        "node_id": NODE.hex(),
        "auth_key_id": b"key1".hex(),
        "signed_at": "9",
        "field-80": "75,76",
    }


# Authenticity without and with a trust file


def test_signed_packets_are_unchecked_without_a_trust_file() -> None:
    found = decoded(frames.encode(sign_packet(packet(STRING), WITH_HMAC)))[0]
    assert isinstance(found, Decoded)
    assert found.message.authenticity is Authenticity.UNCHECKED


def test_a_trust_file_tells_what_is_authentic(tmp_path: Path) -> None:
    TRUST.save(tmp_path / "trust.json")
    good = frames.encode(sign_packet(packet(STRING), WITH_HMAC))
    bad = bytearray(good)
    bad[-1] ^= 1
    found = decoded(good + bytes(bad) + frames.encode(packet(STRING)), trust=str(tmp_path / "trust.json"))
    assert [each.message.authenticity for each in found if isinstance(each, Decoded)] == ["verified", "failed", "none"]
    assert MESH.decode_options == {"trust": "trust"}


# The decoder


def test_a_bad_datagram_does_not_stop_the_next() -> None:
    decoder = MESH.decoder(Direction.DGRAM, SETTINGS)
    for data in (frames.encode(packet(STRING)), b"garbage", frames.encode(packet(STRING))):
        decoder.feed(data)
    found: list[object] = []
    while True:
        try:
            for each in decoder:
                found.append(each.offset)  # noqa: PERF401
            break
        except frames.ProtocolViolation as violation:
            found.append(violation.clause)
    assert found == [0, "mesh.header.short", 29]


def test_a_run_of_packets_decodes_like_single_datagrams() -> None:
    one = frames.encode(packet(STRING))
    wrong = frames.encode(packet(STRING)).replace(b"a/b", b"\xff\xff\xff")
    found = decoded(one + wrong + one)
    assert [type(each) for each in found] == [Decoded, Rejected, Decoded]
    assert [each.offset for each in found] == [0, len(one), 2 * len(one)]


# Encoding


@given(datagrams())
def test_decoding_and_encoding_gives_the_same_packet_or_an_equal_message(data: bytes) -> None:
    found = decoded(data)[0]
    assert isinstance(found, Decoded)
    again = MESH.encode(found.message, SETTINGS)
    if again != data:
        other = decoded(again)[0]
        assert isinstance(other, Decoded)
        assert other.message == found.message


def test_usual_packets_come_back_byte_by_byte() -> None:
    for identity in (BOTH, WITH_HMAC):
        for flags in (0, 1):
            data = frames.encode(sign_packet(packet(STRING, JSON, flags=flags), identity, with_public_key=True))
            found = decoded(data)[0]
            assert isinstance(found, Decoded)
            assert MESH.encode(found.message, SETTINGS) == data


def test_a_message_of_another_protocol_becomes_an_event() -> None:
    message = Message(Kind.EVENT, "a/b", b"[1]", "some-uuid", content_type="application/json", protocol="yamp")
    fields = frames.decode(MESH.encode(message, SETTINGS)).fields
    assert fields == (STRING, Field(Type.JSON, b"[1]"))


@pytest.mark.parametrize(
    ("content_type", "type_"),
    [
        ("text/html", 1),
        ("application/vnd.api+json", 5),
        ("application/cbor", 4),
        ("text/plain; charset=utf-8", 1),
        (None, 4),
    ],
)
def test_content_types_choose_the_field(content_type: str | None, type_: int) -> None:
    message = Message(Kind.EVENT, "a", b"x", content_type=content_type)
    assert frames.decode(MESH.encode(message, SETTINGS)).fields[1].type == type_


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.REQUEST, "a"),
        Message(Kind.RESPONSE, correlation_id="1"),
        Message(Kind.EVENT),
        Message(Kind.OTHER),
        Message(Kind.OPEN),
        Message(Kind.EVENT, "\ud800"),
        Message(Kind.EVENT, "a", b"\xff", content_type="text/plain"),
        Message(Kind.EVENT, "a", b"\xff", content_type=FIELDS),
        Message(Kind.EVENT, "a", b"\x14\x00", content_type=FIELDS),
        Message(Kind.EVENT, "a", b"\x02\x00", content_type=FIELDS),
        Message(Kind.EVENT, "a", attributes={"node_id": "zz"}),
        Message(Kind.EVENT, "a", attributes={"flags": "256"}),
        Message(Kind.EVENT, "a", attributes={"flags": "128"}),
        Message(Kind.EVENT, "a", attributes={"field-14": "00"}),
        Message(Kind.EVENT, "a", attributes={"hmac": "00" * 32}),
    ],
)
def test_what_mesh_cannot_say_is_refused(message: Message) -> None:
    with pytest.raises(NotSupported):
        MESH.encode(message, SETTINGS)


def test_a_body_that_does_not_fit_names_the_limit() -> None:
    with pytest.raises(LimitExceeded, match="531"):
        MESH.encode(Message(Kind.EVENT, "a", bytes(600)), SETTINGS)


def test_a_heartbeat_and_a_hello_can_be_encoded_for_a_node() -> None:
    settings = MESH.settings({"node_id": NODE.hex()})
    ping = frames.decode(MESH.encode(Message(Kind.PING, time=5_000_000_000), settings))
    assert (ping.event_type, ping.timestamp, ping.get(Type.TIMESTAMP)) == (EventType.HEARTBEAT, 5, (5).to_bytes(8))
    assert frames.decode(MESH.encode(Message(Kind.OPEN, body=b"caps"), settings)).get(Type.BINARY) == b"caps"


def test_a_key_file_signs_what_is_encoded(tmp_path: Path) -> None:
    BOTH.save(tmp_path / "key.json")
    data = MESH.encode(Message(Kind.EVENT, "a"), MESH.settings({"key": str(tmp_path / "key.json")}))
    TRUST.save(tmp_path / "trust.json")
    found = decoded(data, trust=str(tmp_path / "trust.json"))[0]
    assert isinstance(found, Decoded)
    assert found.message.authenticity is Authenticity.VERIFIED


def test_a_compressed_message_is_compressed_again() -> None:
    message = Message(Kind.EVENT, "a", json.dumps(["x"] * 100).encode(), content_type="application/json",
                      attributes={"flags": "4", "timestamp": "1"}, id="0000002a")  # fmt: skip
    data = MESH.encode(message, SETTINGS)
    assert len(data) < 100
    found = decoded(data)[0]
    assert isinstance(found, Decoded)
    assert (found.message.body, found.message.attributes["flags"]) == (message.body, "4")
    assert MESH.encode(found.message, SETTINGS) == data


@given(st.binary(max_size=60))
def test_recognise_never_fails(head: bytes) -> None:
    MESH.recognise(head, Direction.DGRAM)


def test_recognise_knows_packets_and_their_beginnings() -> None:
    data = frames.encode(packet(STRING, JSON))
    assert MESH.recognise(data, Direction.DGRAM)
    assert MESH.recognise(data[:20], Direction.DGRAM)
    assert not MESH.recognise(b"GET / HTTP/1.1\r\nHost: a\r\n", Direction.DGRAM)
    assert not MESH.recognise(data + b"x", Direction.DGRAM)


def test_the_example_of_the_hub_profile_is_what_we_read_and_write() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hub-profile.md").read_text()
    example = page[page.index("## mesh") : page.index("## yamp")].rpartition("```\n")[0].rpartition("```\n")[2]
    words = (word for line in example.splitlines() for word in line.split("      ")[0].split())
    data = bytes.fromhex("".join(word for word in words if len(word) % 2 == 0 and set(word) <= set("0123456789abcdef")))
    packet = frames.decode(data)
    assert packet.event_type == EventType.HELLO
    assert packet.get(Type.BINARY) == make_capabilities(["sensors/#"])
