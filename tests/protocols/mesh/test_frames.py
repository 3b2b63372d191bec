"""The EMM packet, from sections 2 to 4 and 6 of the specification."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mesh.strategies import NODE, datagrams, mutated, packets
from wireloom.model import LimitExceeded, NotSupported, ProtocolViolation
from wireloom.protocols.mesh import MESH, frames
from wireloom.protocols.mesh.frames import EventType, Field, Flag, Packet, PacketLimits, Type

NAME = Field(Type.STRING, b"a/b")
NODE_ID = Field(Type.NODE_ID, NODE)
HMAC = Field(Type.HMAC, bytes(32))
SIGNATURE = Field(Type.SIGNATURE, bytes(64))


def raw(*fields: Field, event_type: int = 3, flags: int = 0, version: int = 1, length: int | None = None) -> bytes:
    """A packet made by hand, so that it may be wrong."""
    payload = b"".join(bytes((f.type, len(f.value))) + f.value for f in fields)
    size = len(payload) if length is None else length
    return struct.pack(">BIBBQH", version, 7, flags, event_type, 1_700_000_000, size) + payload


def refused(data: bytes, limits: PacketLimits = frames.DEFAULT_LIMITS) -> str:
    with pytest.raises(ProtocolViolation) as caught:
        frames.decode(data, limits)
    assert caught.value.clause in MESH.clauses
    return caught.value.clause


# The header


def test_the_header_has_seventeen_bytes_in_network_order() -> None:
    packet = Packet(0x01020304, EventType.EVENT, 0x1112131415161718, (NAME,), Flag.URGENT)
    assert frames.encode(packet).hex() == "01010203040103111213141516171800050103612f62"


def test_every_header_field_is_read_back() -> None:
    packet = frames.decode(raw(NAME, flags=1))
    assert (packet.message_id, packet.flags, packet.event_type, packet.timestamp) == (7, 1, 3, 1_700_000_000)


def test_an_empty_datagram_and_half_a_header_are_refused() -> None:
    assert refused(b"") == refused(raw(NAME)[:16]) == "mesh.header.short"


@pytest.mark.parametrize("version", [0, 2, 255])
def test_only_version_1_is_valid(version: int) -> None:
    assert refused(raw(NAME, version=version)) == "mesh.header.version"


@pytest.mark.parametrize("bit", [0x08, 0x10, 0x20, 0x40, 0x80])
def test_a_reserved_flag_bit_rejects_the_packet(bit: int) -> None:
    assert refused(raw(NAME, flags=bit)) == "mesh.flags.reserved"


def test_reserved_flag_bits_are_ignored_by_option() -> None:
    assert frames.decode(raw(NAME, flags=0x81), PacketLimits(ignore_reserved_flags=True)).flags == 0x81


@pytest.mark.parametrize("value", [{"message_id": 2**32}, {"timestamp": 2**64}, {"flags": 256}, {"event_type": -1}])
def test_a_header_field_out_of_range_cannot_be_sent(value: dict[str, int]) -> None:
    fields = {"message_id": 1, "event_type": 3, "timestamp": 1, **value}
    with pytest.raises(NotSupported):
        frames.encode(Packet(**fields))


# Payload length and fields


def test_the_largest_packet_has_548_bytes() -> None:
    assert (frames.MAX_PACKET_SIZE, frames.MAX_PAYLOAD_SIZE, frames.MAX_TLV_COUNT) == (548, 531, 64)
    fields = (NAME, *frames.split(Type.BINARY, bytes(531 - 5 - 6)))
    data = frames.encode(Packet(1, 3, 1, fields))
    assert len(data) == 548
    assert frames.decode(data).fields == fields


def test_a_payload_above_531_bytes_is_rejected_and_not_sent() -> None:
    fields = (NAME, *frames.split(Type.BINARY, bytes(531 - 5 - 5)))
    assert refused(raw(*fields)) == "mesh.payload.too-large"
    assert refused(raw(NAME, length=532)) == "mesh.payload.too-large"
    with pytest.raises(LimitExceeded, match="531"):
        frames.encode(Packet(1, 3, 1, fields))


@pytest.mark.parametrize("length", [0, 4, 6, 531])
def test_a_payload_length_that_does_not_match_is_rejected(length: int) -> None:
    assert refused(raw(NAME, length=length)) == "mesh.payload.length"


def test_a_field_that_overruns_the_payload_is_rejected() -> None:
    assert refused(raw(NAME)[:-1].replace(b"\x00\x05\x01", b"\x00\x04\x01")) == "mesh.tlv.overrun"
    half = raw(NAME) + b"\x14"
    assert refused(half[:15] + b"\x00\x06" + half[17:]) == "mesh.tlv.overrun"


def test_sixty_four_fields_are_accepted_and_sixty_five_are_not() -> None:
    many = [NAME, *[Field(Type.BINARY, b"")] * 63]
    assert len(frames.decode(raw(*many)).fields) == 64
    assert refused(raw(*many, Field(Type.BINARY, b""))) == "mesh.tlv.count"
    with pytest.raises(LimitExceeded, match="64"):
        frames.encode(Packet(1, 3, 1, (*many, NAME)))


def test_sub_fields_count_as_fields() -> None:
    metadata = Field(Type.ENCRYPTION_METADATA, bytes.fromhex("010101030c" + "00" * 12))
    many = [*[Field(Type.BINARY, b"")] * 61, metadata]
    assert len(frames.decode(raw(*many, flags=2)).fields) == 62
    assert refused(raw(*many, Field(0x80, b""), flags=2)) == "mesh.tlv.count"


@pytest.mark.parametrize("type_", range(0x10, 0x19))
def test_a_duplicate_singleton_is_rejected(type_: int) -> None:
    size = frames.SIZES.get(Type(type_), 17)
    value = bytes.fromhex("010101030c" + "00" * 12) if type_ == 0x11 else bytes(size)
    assert refused(raw(NAME, NODE_ID, Field(type_, value), Field(type_, value))) == "mesh.tlv.duplicate"


def test_data_fields_may_repeat() -> None:
    fields = (NAME, NAME, Field(2, bytes(4)), Field(2, bytes(4)), Field(3, bytes(4)), Field(3, bytes(4)))
    fields += (Field(4, b""), Field(4, b""), Field(5, b"1"), Field(5, b"2"))
    assert frames.decode(raw(*fields)).fields == fields


@pytest.mark.parametrize(("type_", "size"), sorted(frames.SIZES.items()))
def test_fields_of_fixed_size_have_exactly_that_size(type_: Type, size: int) -> None:
    for wrong in (0, size - 1, size + 1, 255):
        assert refused(raw(NAME, Field(type_, bytes(wrong)))) == "mesh.field.length"


@pytest.mark.parametrize("type_", [Type.STRING, Type.JSON])
@pytest.mark.parametrize("value", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_string_and_json_that_are_no_utf8_are_rejected(type_: Type, value: bytes) -> None:
    assert refused(raw(NAME, Field(type_, value))) == "mesh.field.utf8"


def test_a_long_string_may_be_cut_inside_a_character() -> None:
    text = "x" + "ä" * 200
    fields = frames.split(Type.STRING, text.encode())
    assert len(fields[0].value) == 255
    assert frames.join(frames.decode(raw(*fields)).fields)[0].value.decode() == text


def test_unknown_fields_are_kept_and_do_no_harm() -> None:
    unknown = (Field(0x06, b"six"), Field(0xFF, b""))
    assert frames.decode(raw(NAME, *unknown)).fields == (NAME, *unknown)


# Order of the security fields


def test_signature_must_be_the_last_field() -> None:
    assert refused(raw(NAME, NODE_ID, SIGNATURE, Field(0x80, b""))) == "mesh.order.signature-last"
    assert refused(raw(NAME, NODE_ID, SIGNATURE, HMAC)) == "mesh.order.signature-last"


@pytest.mark.parametrize("later", [*range(1, 6), 0x13, 0x18])
def test_hmac_comes_after_data_fields_public_key_and_key_id(later: int) -> None:
    size = frames.SIZES.get(Type(later), 0)
    assert refused(raw(NAME, NODE_ID, HMAC, Field(later, bytes(size)))) == "mesh.order.hmac"


def test_hmac_comes_immediately_before_signature() -> None:
    assert refused(raw(NAME, HMAC, NODE_ID, SIGNATURE)) == "mesh.order.hmac"
    assert len(frames.decode(raw(NAME, NODE_ID, HMAC, SIGNATURE)).fields) == 4


def test_other_fields_in_any_order_are_accepted() -> None:
    fields = (NODE_ID, Field(Type.AUTH_KEY_ID, b"key1"), Field(Type.BINARY, b"x"), NAME, HMAC)
    assert frames.decode(raw(*fields)).fields == fields


@pytest.mark.parametrize("proof", [HMAC, SIGNATURE])
def test_hmac_or_signature_without_node_id_is_rejected(proof: Field) -> None:
    assert refused(raw(NAME, proof)) == "mesh.security.node-id"


def test_arrange_gives_the_order_to_send_in() -> None:
    types = [0x12, 0x10, 0x18, 0x13, 0x17, 0x80, 0x14, 0x11, 0x05, 0x01]
    arranged = [field.type for field in frames.arrange(Field(type_, b"") for type_ in types)]
    assert arranged == [0x01, 0x05, 0x11, 0x14, 0x17, 0x80, 0x13, 0x18, 0x10, 0x12]


# Event types


def test_hello_needs_node_id_and_capabilities() -> None:
    assert frames.decode(raw(NODE_ID, Field(Type.BINARY, b""), event_type=1)).event_type == EventType.HELLO
    assert refused(raw(NODE_ID, event_type=1)) == "mesh.hello.fields"
    assert refused(raw(Field(Type.BINARY, b""), event_type=1)) == "mesh.hello.fields"


def test_heartbeat_needs_node_id_and_timestamp() -> None:
    stamp = Field(Type.TIMESTAMP, bytes(8))
    assert frames.decode(raw(NODE_ID, stamp, event_type=2)).event_type == EventType.HEARTBEAT
    assert refused(raw(NODE_ID, event_type=2)) == "mesh.heartbeat.fields"
    assert refused(raw(stamp, event_type=2)) == "mesh.heartbeat.fields"


def test_event_needs_a_name() -> None:
    assert refused(raw(Field(Type.BINARY, b"x"))) == "mesh.event.name"


@pytest.mark.parametrize("event_type", [0, 4, 255])
def test_unknown_event_types_are_valid_packets(event_type: int) -> None:
    assert frames.decode(raw(event_type=event_type)).event_type == event_type


# Encryption Metadata


def metadata(*parts: str) -> str:
    return refused(
        raw(Field(Type.BINARY, b""), Field(Type.ENCRYPTION_METADATA, bytes.fromhex("".join(parts))), flags=2)
    )


ALGORITHM, CHACHA, OTHER = "010101", "010102", "0101ff"
IV, NONCE, KEY = "030c" + "00" * 12, "040c" + "00" * 12, "0510" + "00" * 16


def test_an_encrypted_packet_has_metadata() -> None:
    assert refused(raw(Field(Type.BINARY, b""), flags=2)) == "mesh.encryption.metadata-missing"


def test_sub_fields_must_not_overrun_the_field() -> None:
    assert metadata(ALGORITHM, "03") == metadata(ALGORITHM, "030d" + "00" * 12) == "mesh.metadata.overrun"


def test_metadata_has_an_algorithm_and_iv_or_nonce_but_not_both() -> None:
    assert metadata() == metadata(IV) == "mesh.metadata.algorithm"
    assert metadata(ALGORITHM) == metadata(OTHER, KEY) == "mesh.metadata.iv-missing"
    assert metadata(ALGORITHM, IV, NONCE) == "mesh.metadata.iv-and-nonce"


@pytest.mark.parametrize("length", ["02010b", "02010d", "02018c"])
def test_the_length_of_the_iv_must_match_and_its_top_bit_is_zero(length: str) -> None:
    assert metadata(ALGORITHM, length, IV) == "mesh.metadata.iv-length"
    frames.decode(raw(Field(4, b""), Field(0x11, bytes.fromhex(ALGORITHM + "02010c" + IV)), flags=2))


def test_each_algorithm_has_its_own_starting_value() -> None:
    assert metadata(ALGORITHM, NONCE) == metadata(ALGORITHM, "030100") == "mesh.metadata.wrong-iv"
    assert metadata(CHACHA, IV) == "mesh.metadata.wrong-iv"
    for good in (CHACHA + NONCE, OTHER + "030100", OTHER + NONCE):
        frames.decode(raw(Field(4, b""), Field(0x11, bytes.fromhex(good)), flags=2))


@pytest.mark.parametrize("part", ["0100", "01020101", "02020000", "040b" + "00" * 11, "050f" + "00" * 15])
def test_sub_fields_of_fixed_size_have_exactly_that_size(part: str) -> None:
    assert metadata(part, ALGORITHM, IV) == "mesh.metadata.field-length"


def test_fields_that_repeat_the_metadata_must_say_the_same() -> None:
    field = Field(Type.ENCRYPTION_METADATA, bytes.fromhex(ALGORITHM + IV + KEY))
    same = (Field(Type.NONCE, bytes(12)), Field(Type.KEY_IDENTIFIER, bytes(16)))
    frames.decode(raw(Field(4, b""), field, *same, flags=2))
    for other in (Field(Type.NONCE, b"x" * 12), Field(Type.KEY_IDENTIFIER, b"x" * 16)):
        assert refused(raw(Field(4, b""), field, other, flags=2)) == "mesh.metadata.conflict"


def test_unknown_sub_fields_are_ignored() -> None:
    frames.decode(raw(Field(4, b""), Field(0x11, bytes.fromhex(ALGORITHM + IV + "99020000")), flags=2))


# Long values


@pytest.mark.parametrize(
    ("size", "pieces"), [(0, [0]), (254, [254]), (255, [255, 0]), (256, [255, 1]), (510, [255, 255, 0])]
)
def test_long_values_are_split_and_the_last_piece_is_shorter(size: int, pieces: list[int]) -> None:
    fields = frames.split(Type.BINARY, bytes(size))
    assert [len(field.value) for field in fields] == pieces
    assert frames.join(fields) == [Field(Type.BINARY, bytes(size))]


def test_only_full_pieces_are_joined_to_the_next_of_the_same_type() -> None:
    full, short = Field(4, bytes(255)), Field(4, b"x")
    assert len(frames.join([full, short, short])) == 2
    assert len(frames.join([full, Field(5, b"1"), short])) == 3
    assert len(frames.join([full])) == 1


def test_a_singleton_cannot_be_split() -> None:
    with pytest.raises(LimitExceeded):
        frames.split(Type.ENCRYPTION_METADATA, bytes(255))


@given(st.lists(st.tuples(st.sampled_from([1, 4, 5, 0x80]), st.binary(max_size=600)), max_size=4))
def test_split_values_join_to_what_they_were(values: list[tuple[int, bytes]]) -> None:
    pieces = [piece for type_, value in values for piece in frames.split(type_, value)]
    assert [(field.type, field.value) for field in frames.join(pieces)] == values


# Properties


@given(packets())
def test_a_packet_is_the_same_after_encoding_and_decoding(packet: Packet) -> None:
    if len(frames.encode_fields(packet.fields)) > frames.MAX_PAYLOAD_SIZE:
        return
    assert frames.decode(frames.encode(packet)) == packet


@given(st.one_of(mutated(), st.binary(max_size=100)))
@settings(max_examples=300)
def test_any_bytes_decode_to_themselves_or_are_refused_by_a_clause(data: bytes) -> None:
    try:
        packet = frames.decode(data)
    except ProtocolViolation as violation:
        assert violation.clause in MESH.clauses
    else:
        assert frames.encode(packet) == data


@given(st.lists(datagrams(), min_size=1, max_size=5))
def test_a_run_of_packets_is_split_by_their_lengths(run: list[bytes]) -> None:
    data = b"".join(run)
    start, found = 0, []
    for end in frames.packet_ends(data):
        found.append(data[start:end])
        start = end
    assert found == run
    assert frames.packet_ends(data + b"\0") == [len(data) + 1]
