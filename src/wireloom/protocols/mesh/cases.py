"""What any mesh node must do: it drops packets that are not valid, one by one, and goes on.

Whether a node heard a packet can be told from outside only by its answer to Hello, which the specification calls the
initial handshake. A node that answers no Hello, perhaps because it asks for signed packets, is skipped.
"""

from __future__ import annotations

import secrets
import time

from wireloom.model import Kind
from wireloom.protocols.cases import CaseFailed, Cases, CaseSkipped, Level, Probe, require
from wireloom.protocols.contract import Role
from wireloom.protocols.mesh.frames import (
    MAX_PACKET_SIZE,
    MAX_TLV_COUNT,
    RESERVED_FLAGS,
    EventType,
    Field,
    Limits,
    Packet,
    Type,
    encode,
)

CASES = Cases()
ANY_SIZE = Limits(max_payload=0xFFFF, max_fields=0xFFFF)
CAPABILITIES = Field(Type.BINARY, b"conformance")


def _hello(*more: Field, flags: int = 0, before: tuple[Field, ...] = ()) -> bytes:
    """The Hello of a node that was never heard of."""
    node = Field(Type.NODE_ID, secrets.token_bytes(16))
    fields = (*before, CAPABILITIES, node, *more)
    return encode(Packet(secrets.randbits(32), EventType.HELLO, int(time.time()), fields, flags), ANY_SIZE)


async def alive(probe: Probe) -> None:
    """The node still answers a Hello."""
    await probe.send(_hello())
    await probe.expect(Kind.OPEN)


async def _meet(probe: Probe) -> None:
    """Get to know a node that answers; others are skipped."""
    try:
        if probe.role is Role.CLIENT:
            await probe.expect(Kind.OPEN)
        await alive(probe)
    except CaseFailed:
        raise CaseSkipped("the node does not answer Hello, so that nobody can tell what it heard") from None


async def _dropped(probe: Probe, *packets: bytes) -> None:
    """None of these packets is answered, and the node goes on."""
    await _meet(probe)
    for packet in packets:
        await probe.send(packet)
        await probe.silent(Kind.OPEN)
    await alive(probe)


@CASES.server("Hello is answered with Hello", "Hello is for discovery and the initial handshake (3.1)", Level.SHOULD)
async def _answered(probe: Probe) -> None:
    await alive(probe)


@CASES.client("a node says Hello first", "Hello is for discovery and the initial handshake (3.1)", Level.SHOULD)
async def _greets(probe: Probe) -> None:
    await probe.expect(Kind.OPEN)
    await probe.send(_hello())


@CASES.both("Hello names the node and its capabilities", "Hello has NODE ID and Capabilities (3.1)")
async def _fields(probe: Probe) -> None:
    await _meet(probe)
    await probe.send(_hello())
    found = await probe.expect(Kind.OPEN)
    require(len(found.attributes.get("node_id", "")) == 32, "the Hello of the node has no NODE ID of 16 bytes")


@CASES.both("something that is no packet is dropped", "A packet has a header of 17 bytes (2.1)")
async def _garbage(probe: Probe) -> None:
    await _dropped(probe, b"\x01", b"hello, mesh", secrets.token_bytes(16))


@CASES.both("another version is dropped", "The only valid version is 1 (2.2)")
async def _version(probe: Probe) -> None:
    await _dropped(probe, b"\x02" + _hello()[1:])


@CASES.both("reserved flags are refused", "Reject a packet with a reserved flag set (6.3)")
async def _flags(probe: Probe) -> None:
    await _dropped(probe, _hello(flags=0x08), _hello(flags=RESERVED_FLAGS))


@CASES.both(
    "a Payload Length that is wrong is refused", "Reject a packet whose payload does not match its length (6.3)"
)
async def _length(probe: Probe) -> None:
    packet = _hello()
    await _dropped(probe, packet[:-1], packet + b"\x00")


@CASES.both("a packet that is too large is refused", "Reject a packet longer than MAX_PAYLOAD_SIZE (6.3)")
async def _large(probe: Probe) -> None:
    filling = (Field(Type.BINARY, bytes(250)), Field(Type.STRING, bytes(250)), Field(Type.JSON, b"1" * 100))
    packet = _hello(before=filling)
    require(len(packet) > MAX_PACKET_SIZE, "this case sends too little")
    await _dropped(probe, packet)


@CASES.both(
    "a field beyond the end of its packet is refused", "Reject a packet in which a TLV overruns the payload (6.3)"
)
async def _overrun(probe: Probe) -> None:
    packet = bytearray(_hello())
    packet[-17] = 200  # The length of the last field, the NODE ID.
    await _dropped(probe, bytes(packet))


@CASES.both("a second NODE ID is refused", "Reject a packet that repeats a field from 0x10 to 0x18 (6.3)")
async def _duplicate(probe: Probe) -> None:
    await _dropped(probe, _hello(Field(Type.NODE_ID, bytes(16))))


@CASES.both("too many fields are refused", "Reject a packet with more than MAX_TLV_COUNT fields (6.3)")
async def _count(probe: Probe) -> None:
    await _dropped(probe, _hello(before=(Field(Type.BINARY, b"x"),) * (MAX_TLV_COUNT - 1)))


@CASES.both("a field after the Signature is refused", "Signature must be the last field (6.3)")
async def _signature_last(probe: Probe) -> None:
    signed = (Field(Type.SIGNATURE, bytes(64)), Field(Type.HMAC, bytes(32)))
    await _dropped(probe, _hello(*signed))


@CASES.both("a wrong HMAC is dropped", "A payload whose HMAC is not verified is discarded (5.1)")
async def _hmac(probe: Probe) -> None:
    await _dropped(probe, _hello(Field(Type.AUTH_KEY_ID, bytes(4)), Field(Type.HMAC, bytes(32))))


@CASES.both("a wrong Signature is dropped", "A payload whose Signature is not verified is discarded (5.3)")
async def _signature(probe: Probe) -> None:
    key = Field(Type.PUBLIC_KEY, secrets.token_bytes(32))
    await _dropped(probe, _hello(key, Field(Type.SIGNATURE, bytes(64))))


@CASES.both("a packet that comes again is dropped", "A Message ID seen before from a node is a replay (5.4)")
async def _replay(probe: Probe) -> None:
    await _meet(probe)
    packet = _hello()
    await probe.send(packet)
    await probe.expect(Kind.OPEN)
    await probe.send(packet)
    await probe.silent(Kind.OPEN)
    await alive(probe)


@CASES.both("an unknown field is ignored", "Unknown TLV types are skipped (6.3)")
async def _unknown_field(probe: Probe) -> None:
    await _meet(probe)
    await probe.send(_hello(Field(0x77, b"what is this")))
    await probe.expect(Kind.OPEN)


@CASES.both("an unknown event type does no harm", "Other event types are valid packets (decision)")
async def _unknown_type(probe: Probe) -> None:
    await _meet(probe)
    packet = bytearray(_hello())
    packet[6] = 0xEE
    await probe.send(bytes(packet))
    await alive(probe)
