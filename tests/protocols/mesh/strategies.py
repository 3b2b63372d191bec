"""Random mesh packets, signed and not, and ways to break them."""

from __future__ import annotations

from hypothesis import strategies as st

from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.frames import EventType, Field, Packet, Type, arrange, split
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.metadata import Algorithm, Metadata, encode_metadata
from wireloom.protocols.mesh.security import sign_packet
from wireloom.protocols.mesh.trust import TrustStore

NODE = bytes.fromhex("00112233445566778899aabbccddeeff")
BOTH = Identity(NODE, b"key1", b"s" * 32, bytes(range(32)))
WITH_HMAC = Identity(NODE, b"key2", hmac_secret=b"t" * 32)
WITH_SIGNATURE = Identity(NODE, b"key3", ed25519_private=bytes(range(1, 33)))
UNSIGNED = Identity(NODE)
TRUST = TrustStore([identity.trusted_key() for identity in (BOTH, WITH_HMAC, WITH_SIGNATURE)])

ids = st.integers(0, 2**32 - 1)
texts = st.text(max_size=12)


def data_fields() -> st.SearchStrategy[list[Field]]:
    one = st.one_of(
        texts.map(lambda text: split(Type.STRING, text.encode())),
        st.binary(min_size=4, max_size=4).map(lambda raw: [Field(Type.INTEGER, raw)]),
        st.binary(min_size=4, max_size=4).map(lambda raw: [Field(Type.FLOAT, raw)]),
        st.binary(max_size=20).map(lambda raw: split(Type.BINARY, raw)),
        st.just(split(Type.BINARY, b"x" * 300)),
        st.just(split(Type.JSON, b'{"c":21.5}')),
        st.tuples(st.sampled_from([0x06, 0x1F, 0x80, 0xFF]), st.binary(max_size=9)).map(
            lambda pair: split(pair[0], pair[1])
        ),
    )
    return st.lists(one, max_size=3).map(lambda groups: [field for group in groups for field in group])


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    event_type = draw(st.sampled_from([1, 2, 3, 3, 3, 3, 4, 255]))
    fields = draw(st.one_of(st.just([]), data_fields(), st.just([Field(Type.JSON, b"[1]")])))
    if event_type == EventType.EVENT:
        fields = [*split(Type.STRING, draw(texts).encode()), *fields]
    if event_type == EventType.HELLO:
        fields = [Field(Type.BINARY, draw(st.binary(max_size=9))), *fields]
    if event_type == EventType.HEARTBEAT or draw(st.booleans()):
        fields = [*fields, Field(Type.TIMESTAMP, draw(st.integers(0, 2**64 - 1)).to_bytes(8))]
    if draw(st.integers(0, 9)) == 0:
        metadata = Metadata(Algorithm.AES_256_GCM, iv=bytes(12), key_identifier=draw(st.none() | st.just(bytes(16))))
        fields = [*fields, Field(Type.ENCRYPTION_METADATA, encode_metadata(metadata))]
    packet = Packet(
        draw(ids), event_type, draw(st.integers(0, 2**64 - 1)), arrange(fields), draw(st.sampled_from([0, 0, 1]))
    )
    identity = draw(st.sampled_from([UNSIGNED, WITH_HMAC, WITH_SIGNATURE, BOTH]))
    if event_type in (EventType.HELLO, EventType.HEARTBEAT) or draw(st.booleans()):
        packet = sign_packet(packet, identity, with_public_key=draw(st.booleans()))
    return packet


def datagrams() -> st.SearchStrategy[bytes]:
    return packets().filter(lambda p: len(frames.encode_fields(p.fields)) <= 531).map(frames.encode)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(datagrams()))
    for _ in range(draw(st.integers(1, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at : at + draw(st.integers(1, 5))]
            case 2:
                data[at:at] = draw(st.binary(max_size=5))
            case _:
                data += draw(st.sampled_from([b"\x14\x10" + bytes(16), b"\x01\x01a", b"\x10\x20" + bytes(32)]))
        if draw(st.booleans()) and len(data) >= 17:
            data[15:17] = (len(data) - 17).to_bytes(2)
    return bytes(data)
