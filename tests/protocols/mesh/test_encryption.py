"""Compressed and encrypted payloads; ciphertext computed a second time by the bare primitives."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.mesh.strategies import NODE
from wireloom.model import Kind, NotSupported, ProtocolViolation
from wireloom.protocols.mesh import MESH, frames
from wireloom.protocols.mesh.encryption import Cipher, compress, encrypt, open_packet
from wireloom.protocols.mesh.frames import EventType, Field, Flag, Packet, Type
from wireloom.protocols.mesh.messages import to_message
from wireloom.protocols.mesh.metadata import Algorithm, Metadata, encode_metadata

KEY, IDENTIFIER, START = bytes(range(32)), b"encryption-key-1", b"123456789012"
KEYS = {IDENTIFIER: KEY}
DATA = (Field(Type.STRING, b"a/b"), Field(Type.JSON, b'{"c":21.5}'))
EVENT = Packet(7, EventType.EVENT, 1_700_000_000, (*DATA, Field(Type.NODE_ID, NODE)), Flag.URGENT)
AES, CHACHA = Cipher(KEY, IDENTIFIER), Cipher(KEY, IDENTIFIER, Algorithm.CHACHA20_POLY1305)


def sent(packet: Packet) -> Packet:
    return frames.decode(frames.encode(replace(packet, fields=frames.arrange(packet.fields))))


@pytest.mark.parametrize(("cipher", "primitive"), [(AES, AESGCM), (CHACHA, ChaCha20Poly1305)])
def test_the_ciphertext_is_what_the_bare_primitive_makes(cipher: Cipher, primitive: type[AESGCM]) -> None:
    packet = sent(encrypt(EVENT, cipher, START))
    header = frames.encode(packet)[:15] + b"\0\0"
    plain = b"\x01\x03a/b" + b'\x05\x0a{"c":21.5}'
    sealed = primitive(KEY).encrypt(START, plain, header)
    assert packet.get(Type.BINARY) == sealed
    assert packet.flags == Flag.URGENT | Flag.ENCRYPTED
    assert [field.type for field in packet.fields] == [Type.BINARY, Type.ENCRYPTION_METADATA, Type.NODE_ID]


def test_metadata_has_the_iv_for_aes_and_the_nonce_for_chacha() -> None:
    aes, chacha = encrypt(EVENT, AES, START).metadata, encrypt(EVENT, CHACHA, START).metadata
    assert aes is not None and chacha is not None
    assert (aes.algorithm, aes.iv, aes.nonce, aes.key_identifier) == (1, START, None, IDENTIFIER)
    assert (chacha.algorithm, chacha.iv, chacha.nonce) == (2, None, START)


@pytest.mark.parametrize("cipher", [AES, CHACHA])
@pytest.mark.parametrize("keep_name", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_what_was_encrypted_is_opened_again(cipher: Cipher, keep_name: bool, compressed: bool) -> None:
    packet = compress(EVENT, keep_name=keep_name) if compressed else EVENT
    packet = sent(encrypt(packet, cipher, START, keep_name=keep_name))
    assert (packet.fields[0] == DATA[0]) is keep_name
    opened = open_packet(packet, KEYS)
    assert (opened.data, opened.locked) == (DATA, False)


def test_without_the_key_a_packet_stays_closed_and_is_other() -> None:
    packet = sent(encrypt(EVENT, AES, START, keep_name=True))
    assert open_packet(packet).locked
    message = to_message(packet)
    assert (message.kind, message.topic, message.attributes["event_type"]) == (Kind.OTHER, "a/b", "3")
    assert MESH.encode(message, MESH.settings()) == frames.encode(packet)


def test_with_another_key_or_another_header_the_tag_is_wrong() -> None:
    packet = sent(encrypt(EVENT, AES, START))
    assert open_packet(packet, {IDENTIFIER: bytes(32)}).forged
    assert open_packet(replace(packet, timestamp=1), KEYS).forged
    assert open_packet(replace(packet, message_id=8), KEYS).forged
    assert open_packet(replace(packet, flags=packet.flags & ~Flag.URGENT), KEYS).forged


def test_the_node_id_is_the_key_identifier_when_none_is_given() -> None:
    metadata = Field(Type.ENCRYPTION_METADATA, encode_metadata(Metadata(Algorithm.AES_256_GCM, iv=START)))
    packet = sent(encrypt(EVENT, AES, START))
    bare = replace(packet, fields=tuple(metadata if f.type == metadata.type else f for f in packet.fields))
    assert open_packet(bare, {NODE: KEY}).data == DATA
    named = replace(bare, fields=(*bare.fields, Field(Type.KEY_IDENTIFIER, IDENTIFIER)))
    assert open_packet(named, KEYS).data == DATA


def test_metadata_without_the_flag_means_encrypted_all_the_same() -> None:
    metadata = Field(Type.ENCRYPTION_METADATA, encode_metadata(Metadata(Algorithm.AES_256_GCM, iv=START)))
    assert to_message(sent(replace(EVENT, fields=(*EVENT.fields, metadata)))).kind is Kind.OTHER


def test_an_algorithm_nobody_knows_stays_closed() -> None:
    metadata = Field(Type.ENCRYPTION_METADATA, encode_metadata(Metadata(99, iv=START, key_identifier=IDENTIFIER)))
    packet = sent(Packet(7, 3, 1, (Field(Type.BINARY, b"?"), metadata), Flag.ENCRYPTED))
    assert open_packet(packet, KEYS).locked


def test_a_starting_value_has_twelve_bytes() -> None:
    with pytest.raises(NotSupported):
        encrypt(EVENT, AES, b"short")


# Compression


def test_compressed_data_fields_are_a_zlib_stream_in_binary_fields() -> None:
    packet = sent(compress(EVENT))
    assert zlib.decompress(packet.get(Type.BINARY) or b"") == b'\x01\x03a/b\x05\x0a{"c":21.5}'
    assert packet.flags == Flag.URGENT | Flag.COMPRESSED
    assert open_packet(packet).data == DATA


def test_the_event_name_may_stay_outside_in_front() -> None:
    packet = sent(compress(EVENT, keep_name=True))
    assert packet.fields[0] == DATA[0]
    assert open_packet(packet).data == DATA


def test_a_long_name_stays_outside_whole() -> None:
    name = "x" * 300
    packet = Packet(7, 3, 1, (*frames.split(Type.STRING, name.encode()), *frames.split(Type.JSON, b"1" * 100)))
    assert to_message(sent(compress(packet, keep_name=True))).topic == name


def _compressed(content: bytes) -> str:
    packet = sent(Packet(7, 3, 1, tuple(frames.split(Type.BINARY, content)), Flag.COMPRESSED))
    with pytest.raises(ProtocolViolation) as caught:
        to_message(packet)
    assert caught.value.clause in MESH.clauses
    return caught.value.clause


def test_what_is_no_whole_zlib_stream_is_refused() -> None:
    stream = zlib.compress(b"\x01\x01a")
    for bad in (b"", b"junk", stream[:-1], stream + b"x"):
        assert _compressed(bad) == "mesh.compression.invalid"


def test_a_small_stream_that_becomes_large_is_refused() -> None:
    assert _compressed(zlib.compress(bytes(100_000))) == "mesh.compression.too-large"


def test_what_is_inside_must_be_data_fields() -> None:
    assert _compressed(zlib.compress(b"\x01\x05a")) == "mesh.tlv.overrun"
    assert _compressed(zlib.compress(b"\x14\x10" + bytes(16))) == "mesh.wrapped.field"
    assert _compressed(zlib.compress(b"\x02\x01a")) == "mesh.field.length"
    assert _compressed(zlib.compress(b"\x01\x01\xff")) == "mesh.field.utf8"
    assert _compressed(zlib.compress(b"\x04\x00")) == "mesh.event.name"
    assert _compressed(zlib.compress(b"\x04\x00" * 65)) == "mesh.tlv.count"


@given(st.binary(max_size=250), st.text(max_size=10), st.booleans(), st.booleans())
def test_any_event_survives_wrapping(body: bytes, topic: str, keep_name: bool, encrypted: bool) -> None:
    fields = (*frames.split(Type.STRING, topic.encode()), *frames.split(Type.BINARY, body))
    packet = compress(Packet(7, 3, 1, fields), keep_name=keep_name)
    if encrypted:
        packet = encrypt(packet, AES, START, keep_name=keep_name)
    message = to_message(sent(packet), keys=KEYS)
    assert (message.kind, message.topic, message.body) == (Kind.EVENT, topic, body)


def test_a_decrypted_message_is_not_written_with_the_same_nonce() -> None:
    message = to_message(sent(encrypt(EVENT, AES, START)), keys=KEYS)
    with pytest.raises(NotSupported, match="anew"):
        MESH.encode(message, MESH.settings())
