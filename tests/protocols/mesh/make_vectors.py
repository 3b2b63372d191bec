"""Makes `tests/vectors/mesh-golden.json`: packets with keys and verdicts that any implementation can be held against.

    python -m tests.protocols.mesh.make_vectors

The first entry holds the keys. Every other entry is one packet (`hex`), the time it arrives (`now`), the policy
(`require`), the packets accepted before it (`before`), and either what it means or the clause it is refused with.
Everything is fixed, so that the file is the same each time.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from wireloom.model import ProtocolViolation
from wireloom.protocols.mesh import frames
from wireloom.protocols.mesh.canonical import canonical_packet
from wireloom.protocols.mesh.encryption import Cipher, compress, encrypt
from wireloom.protocols.mesh.frames import EventType, Field, Flag, Packet, Type, arrange, split
from wireloom.protocols.mesh.gate import Gate
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.messages import to_message
from wireloom.protocols.mesh.metadata import Algorithm
from wireloom.protocols.mesh.security import sign_packet
from wireloom.protocols.mesh.settings import MeshSettings
from wireloom.protocols.mesh.trust import TrustStore

PATH = Path(__file__).parents[2] / "vectors" / "mesh-golden.json"
NOW = 1_700_000_000
NODE = bytes.fromhex("00112233445566778899aabbccddeeff")
HMAC = Identity(NODE, b"hmac", hmac_secret=bytes(range(32)))
SIGNING = Identity(NODE, b"sign", ed25519_private=bytes(range(32, 64)))
BOTH = Identity(NODE, b"both", bytes(range(64, 96)), bytes(range(96, 128)))
STRANGER = Identity(bytes.fromhex("ffeeddccbbaa99887766554433221100"), b"self", ed25519_private=b"\x77" * 32)
KEY_IDENTIFIER, KEY = bytes(range(128, 144)), bytes(range(160, 192))
TRUST = TrustStore((identity.trusted_key() for identity in (HMAC, SIGNING, BOTH)), {KEY_IDENTIFIER: KEY})

NAME = Field(Type.STRING, b"sensors/kitchen")
BODY = Field(Type.JSON, b'{"c":21.5}')
NODE_ID = Field(Type.NODE_ID, NODE)
EVENT = Packet(0xA1B2C3D4, EventType.EVENT, NOW, (NAME, BODY))
START = b"\x01\x23\x45\x67\x89\xab\xcd\xef\x10\x20\x30\x40"
AES = Cipher(KEY, KEY_IDENTIFIER)
CHACHA = Cipher(KEY, KEY_IDENTIFIER, Algorithm.CHACHA20_POLY1305)
IV, NONCE = b"\x03\x0c" + START, b"\x04\x0c" + START


def raw(*fields: Field, event_type: int = 3, flags: int = 0, version: int = 1, length: int | None = None) -> bytes:
    """A packet that need not be right."""
    payload = b"".join(bytes((f.type, len(f.value))) + f.value for f in fields)
    size = len(payload) if length is None else length
    return struct.pack(">BIBBQH", version, 0xA1B2C3D4, flags, event_type, NOW, size) + payload


def event(*fields: Field, **changes: int) -> Packet:
    return replace(EVENT, fields=arrange((NAME, *fields)), **changes)  # type: ignore[arg-type]


def good() -> Iterator[tuple[str, Packet]]:
    """Packets that are accepted by policy `any`."""
    yield "event with a name alone", event()
    yield "event with JSON", EVENT
    yield "event with a String", event(Field(Type.STRING, "größe".encode()))
    yield "event with an Integer", event(Field(Type.INTEGER, struct.pack(">i", -5)))
    yield "event with a Float", event(Field(Type.FLOAT, struct.pack(">f", 1.5)))
    yield "event with Binary", event(Field(Type.BINARY, bytes(range(16))))
    yield (
        "event with every data field",
        event(
            Field(Type.INTEGER, bytes(4)),
            Field(Type.FLOAT, bytes(4)),
            Field(Type.BINARY, b"b"),
            BODY,
            Field(Type.JSON, b"1"),
        ),
    )
    yield "event with an unknown field", event(Field(0x06, b"six"), Field(0x80, b""))
    yield "event with NODE ID", event(NODE_ID)
    yield "event with Timestamp", event(NODE_ID, Field(Type.TIMESTAMP, (NOW + 5).to_bytes(8)))
    yield "urgent event", event(NODE_ID, flags=Flag.URGENT)
    yield (
        "event of a node that created it earlier",
        event(NODE_ID, Field(Type.TIMESTAMP, NOW.to_bytes(8)), timestamp=NOW - 1000),
    )
    for size in (254, 255, 256):
        yield f"value of {size} bytes", event(*split(Type.BINARY, bytes(i % 251 for i in range(size))))
    yield "value of 510 bytes", replace(EVENT, fields=(Field(1, b"n"), *split(Type.BINARY, b"z" * 510)))
    yield "packet of 548 bytes", replace(EVENT, fields=(Field(1, b"n" * 13), *split(Type.BINARY, b"m" * 510)))
    yield "sixty-four fields", replace(EVENT, fields=(NAME, *[Field(Type.BINARY, b"")] * 63))
    yield "hello", Packet(0xA1B2C3D4, EventType.HELLO, NOW, (Field(Type.BINARY, b"caps"), NODE_ID))
    stamp = Field(Type.TIMESTAMP, NOW.to_bytes(8))
    yield "heartbeat", Packet(0xA1B2C3D4, EventType.HEARTBEAT, NOW, (NODE_ID, stamp))
    yield "unknown event type", Packet(0xA1B2C3D4, 77, NOW, (NODE_ID, BODY))
    yield "compressed", compress(event(BODY, NODE_ID))
    yield "compressed, name outside", compress(event(BODY, NODE_ID), keep_name=True)
    for cipher, title in ((AES, "AES-256-GCM"), (CHACHA, "ChaCha20-Poly1305")):
        yield f"encrypted with {title}", encrypt(event(BODY, NODE_ID), cipher, START)
        yield f"encrypted with {title}, name outside", encrypt(event(BODY, NODE_ID), cipher, START, keep_name=True)
        yield f"compressed and encrypted with {title}", encrypt(compress(event(BODY, NODE_ID)), cipher, START)
        yield f"encrypted with {title} and HMAC", sign_packet(encrypt(event(BODY), cipher, START), HMAC)
    other = Cipher(KEY, b"an unknown key!!")
    yield "encrypted with a key that is not there", encrypt(event(BODY, NODE_ID), other, START)
    metadata = Field(Type.ENCRYPTION_METADATA, b"\x01\x01\x63" + IV)
    yield (
        "encrypted with an unknown algorithm",
        replace(EVENT, fields=(Field(Type.BINARY, b"?"), metadata, NODE_ID), flags=Flag.ENCRYPTED),
    )
    sealed = encrypt(event(BODY, NODE_ID), AES, START)
    doubled = [Field(Type.NONCE, START), Field(Type.KEY_IDENTIFIER, KEY_IDENTIFIER)]
    yield "encrypted, Nonce and Key Identifier repeated", replace(sealed, fields=arrange((*sealed.fields, *doubled)))
    length = Field(Type.ENCRYPTION_METADATA, b"\x01\x01\x01\x02\x01\x0c" + IV + b"\x05\x10" + KEY_IDENTIFIER)
    yield (
        "encrypted, metadata with Length",
        replace(sealed, fields=tuple(length if f.type == length.type else f for f in sealed.fields)),
    )


def signed() -> Iterator[tuple[str, Packet]]:
    """Every combination of proofs, accepted by policy `trusted`."""
    yield "HMAC", sign_packet(EVENT, HMAC)
    yield "Signature, key by Auth Key ID", sign_packet(EVENT, SIGNING)
    yield "Signature, key in the packet and trusted", sign_packet(EVENT, SIGNING, with_public_key=True)
    yield "HMAC and Signature", sign_packet(EVENT, BOTH)
    yield "HMAC and Signature, key in the packet", sign_packet(EVENT, BOTH, with_public_key=True)
    yield "minimum interop profile", sign_packet(event(), HMAC)
    yield (
        "signed later than created",
        sign_packet(event(Field(Type.TIMESTAMP, NOW.to_bytes(8)), timestamp=NOW - 1000), SIGNING),
    )
    yield (
        "signed hello with the key",
        sign_packet(
            Packet(0xA1B2C3D4, EventType.HELLO, NOW, (Field(Type.BINARY, b"caps"),)), SIGNING, with_public_key=True
        ),
    )
    yield (
        "signed heartbeat",
        sign_packet(Packet(0xA1B2C3D4, EventType.HEARTBEAT, NOW, (Field(Type.TIMESTAMP, NOW.to_bytes(8)),)), HMAC),
    )
    yield "signed with unknown fields", sign_packet(event(Field(0x20, b"u"), Field(0x06, b"s"), BODY), HMAC)
    tagged = sign_packet(EVENT, HMAC)
    yield (
        "fields in another order on the wire",
        replace(tagged, fields=(tagged.fields[2], tagged.fields[1], tagged.fields[0], *tagged.fields[3:])),
    )
    turned = Field(Type.ENCRYPTION_METADATA, b"\x05\x10" + KEY_IDENTIFIER + IV + b"\x01\x01\x01")
    sealed = encrypt(event(BODY), AES, START)
    yield (
        "metadata in another order",
        sign_packet(replace(sealed, fields=tuple(turned if f.type == turned.type else f for f in sealed.fields)), HMAC),
    )


def broken() -> Iterator[tuple[str, bytes]]:
    """Packets that break the format."""
    tag, signature = Field(Type.HMAC, bytes(32)), Field(Type.SIGNATURE, bytes(64))
    yield "half a header", raw(NAME)[:16]
    yield "version 2", raw(NAME, version=2)
    for bit in range(3, 8):
        yield f"reserved flag bit {bit}", raw(NAME, flags=1 << bit)
    yield "payload of 532 bytes", raw(NAME, *split(Type.BINARY, bytes(511)))
    yield "payload shorter than announced", raw(NAME, length=30)
    yield "payload longer than announced", raw(NAME) + b"\x00"
    yield "field without a length", raw(NAME)[:15] + b"\x00\x01\x01"
    yield "field that overruns the payload", raw(NAME)[:15] + b"\x00\x03\x01\x02a"
    yield "sixty-five fields", raw(NAME, *[Field(Type.BINARY, b"")] * 64)
    for type_ in range(0x10, 0x19):
        value = b"\x01\x01\x01" + IV if type_ == 0x11 else bytes(frames.SIZES[Type(type_)])
        yield f"field 0x{type_:02x} twice", raw(NAME, NODE_ID, Field(type_, value), Field(type_, value))
    for type_, size in frames.SIZES.items():
        yield f"field 0x{type_:02x} of the wrong size", raw(NAME, Field(type_, bytes(size - 1)))
    yield "String that is no UTF-8", raw(NAME, Field(Type.STRING, b"\xff"))
    yield "JSON that is no UTF-8", raw(NAME, Field(Type.JSON, b"\xff"))
    yield "HMAC after Signature", raw(NAME, NODE_ID, signature, tag)
    yield "field after Signature", raw(NAME, NODE_ID, signature, Field(0x80, b""))
    for type_ in (Type.BINARY, Type.PUBLIC_KEY, Type.AUTH_KEY_ID):
        yield (
            f"field 0x{type_:02x} after HMAC",
            raw(NAME, NODE_ID, tag, Field(type_, bytes(frames.SIZES.get(type_, 0)))),
        )
    yield "HMAC not immediately before Signature", raw(NAME, tag, NODE_ID, signature)
    yield "HMAC without NODE ID", raw(NAME, tag)
    yield "Signature without NODE ID", raw(NAME, signature)
    yield "hello without capabilities", raw(NODE_ID, event_type=1)
    yield "hello without NODE ID", raw(Field(Type.BINARY, b""), event_type=1)
    yield "heartbeat without Timestamp", raw(NODE_ID, event_type=2)
    yield "heartbeat without NODE ID", raw(Field(Type.TIMESTAMP, bytes(8)), event_type=2)
    yield "event without a name", raw(BODY)
    yield "encrypted without metadata", raw(Field(Type.BINARY, b""), flags=2)
    for title, value in (
        ("sub-field that overruns", b"\x01\x01\x01\x03\x0c"),
        ("no Algorithm", IV),
        ("Algorithm of two bytes", b"\x01\x02\x01\x01" + IV),
        ("neither IV nor Nonce", b"\x01\x01\x01"),
        ("both IV and Nonce", b"\x01\x01\x01" + IV + NONCE),
        ("Length that does not match", b"\x01\x01\x01\x02\x01\x0b" + IV),
        ("Length with its top bit set", b"\x01\x01\x01\x02\x01\x8c" + IV),
        ("AES-256-GCM with a Nonce", b"\x01\x01\x01" + NONCE),
        ("ChaCha20-Poly1305 with an IV", b"\x01\x01\x02" + IV),
        ("Nonce of eleven bytes", b"\x01\x01\x02\x04\x0b" + START[:11]),
        ("Key Identifier of fifteen bytes", b"\x01\x01\x01" + IV + b"\x05\x0f" + bytes(15)),
    ):
        yield f"metadata: {title}", raw(Field(Type.BINARY, b""), Field(Type.ENCRYPTION_METADATA, value), flags=2)
    right = Field(Type.ENCRYPTION_METADATA, b"\x01\x01\x01" + IV + b"\x05\x10" + KEY_IDENTIFIER)
    for repeated in (Field(Type.NONCE, bytes(12)), Field(Type.KEY_IDENTIFIER, bytes(16))):
        yield f"field 0x{repeated.type:02x} differs from the metadata", raw(Field(4, b""), right, repeated, flags=2)
    many = [*[Field(Type.BINARY, b"")] * 61, right, Field(0x80, b"")]
    yield "sixty-five fields with sub-fields", raw(*many, flags=2)
    for title, content in (
        ("no zlib stream", b"junk"),
        ("more than 64 KiB inside", zlib.compress(bytes(100_000))),
        ("a security field inside", zlib.compress(b"\x14\x10" + bytes(16))),
        ("no name inside", zlib.compress(b"\x04\x00")),
        ("a field that overruns inside", zlib.compress(b"\x01\x05a")),
    ):
        yield f"compressed: {title}", raw(*split(Type.BINARY, content), flags=4)


def refused() -> Iterator[tuple[str, str, bytes, int, list[bytes]]]:
    """Well-formed packets that are refused: title, policy, packet, time, packets before."""
    tagged = frames.encode(sign_packet(EVENT, HMAC))
    signature = frames.encode(sign_packet(EVENT, SIGNING))
    for title, packet in (("HMAC", tagged), ("Signature", signature)):
        yield f"forged: {title} with a changed bit", "any", packet[:-1] + bytes((packet[-1] ^ 1,)), NOW, []
        yield f"forged: header changed under {title}", "any", packet[:5] + b"\x01" + packet[6:], NOW, []
        yield f"forged: payload changed under {title}", "any", packet.replace(b"21.5", b"99.9"), NOW, []
        yield f"replay of a packet with {title}", "any", packet, NOW + 299, [packet]
    both = frames.encode(sign_packet(EVENT, BOTH))
    at = both.index(b"\x10\x20") + 2
    yield "forged: HMAC wrong, Signature right", "any", both[:at] + bytes(32) + both[at + 32 :], NOW, []
    yield "forged: HMAC right, Signature wrong", "any", both[:-64] + bytes(64), NOW, []
    yield "unknown Auth Key ID", "any", frames.encode(sign_packet(EVENT, replace(HMAC, auth_key_id=b"none"))), NOW, []
    yield "unknown NODE ID", "any", frames.encode(sign_packet(EVENT, replace(HMAC, node_id=bytes(16)))), NOW, []
    impostor = replace(STRANGER, node_id=NODE)
    mismatch = frames.encode(sign_packet(EVENT, impostor, with_public_key=True))
    yield "another public key for a trusted node", "any", mismatch, NOW, []
    own = frames.encode(sign_packet(EVENT, STRANGER, with_public_key=True))
    yield "self-signed and policy trusted", "trusted", own, NOW, []
    yield "unsigned and policy signed", "signed", frames.encode(event(NODE_ID)), NOW, []
    yield "without NODE ID and policy signed", "signed", frames.encode(event()), NOW, []
    yield "older than the window", "any", tagged, NOW + 301, []
    yield "further ahead than the skew", "any", tagged, NOW - 121, []
    ahead = frames.encode(sign_packet(replace(EVENT, timestamp=NOW + 120), HMAC))
    yield "dated ahead and replayed after the window", "any", ahead, NOW + 419, [ahead]
    sealed = frames.encode(encrypt(event(BODY, NODE_ID), Cipher(bytes(32), KEY_IDENTIFIER), START))
    yield "encrypted with another key of that identifier", "any", sealed, NOW, []


def clause_of(data: bytes, require: str, now: int, before: list[bytes]) -> str | None:
    """What the reference says."""
    gate = Gate(MeshSettings.parse({"require": require}), TRUST)
    for number, earlier in enumerate(before):
        gate.check(frames.decode(earlier), f"source {number}", float(NOW))
    try:
        gate.check(frames.decode(data), "source", float(now))
    except ProtocolViolation as violation:
        return violation.clause
    return None


def accepted(name: str, packet: Packet, require: str) -> dict[str, object]:
    data = frames.encode(packet)
    found = Gate(MeshSettings.parse({"require": require}), TRUST).check(frames.decode(data), "source", float(NOW))
    message = to_message(found.packet, None, found.authenticity, opened=found.opened)
    return {
        "name": name,
        "direction": "dgram",
        "require": require,
        "now": NOW,
        "hex": data.hex(),
        "canonical": canonical_packet(packet).hex(),
        "kind": str(message.kind),
        "topic": message.topic,
        "body": message.body.hex(),
        "content_type": message.content_type,
        "authenticity": str(message.authenticity),
    }


def vectors() -> list[dict[str, object]]:
    """All of them."""
    found: list[dict[str, object]] = [
        {
            "name": "keys",
            "trust": json.loads(TRUST.to_json()),
            "nodes": [json.loads(each.to_json()) for each in (HMAC, SIGNING, BOTH, STRANGER)],
        }
    ]
    found += [accepted(name, replace(packet, fields=arrange(packet.fields)), "any") for name, packet in good()]
    found += [accepted(name, packet, "trusted") for name, packet in signed()]
    found.append(accepted("self-signed", sign_packet(EVENT, STRANGER, with_public_key=True), "signed"))
    for name, data in broken():
        found.append(
            {
                "name": name, "direction": "dgram", "require": "any", "now": NOW, "hex": data.hex(),
                "clause": clause_of(data, "any", NOW, []),
            }
        )  # fmt: skip
    for name, require, data, now, before in refused():
        found.append(
            {
                "name": name, "direction": "dgram", "require": require, "now": now, "hex": data.hex(),
                "before": [each.hex() for each in before], "clause": clause_of(data, require, now, before),
            }
        )  # fmt: skip
    return found


if __name__ == "__main__":
    PATH.write_text("[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in vectors()) + "\n]\n")
