"""What any mesh node must do: it drops packets that are not valid, one by one, and goes on.

Whether a node heard a packet can be told from outside only by its answer to Hello, which the specification calls the
initial handshake. A node that answers none is skipped. One that asks for signed packets is talked to as a node that it
trusts: the setting `key` says whose packets these are, `trust` whose the answers must be.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import cast

from wireloom.model import Authenticity, Kind, Message
from wireloom.protocols.cases import CaseFailed, Cases, CaseSkipped, Level, Probe, require
from wireloom.protocols.contract import Role
from wireloom.protocols.mesh.capabilities import make_capabilities
from wireloom.protocols.mesh.frames import (
    MAX_PACKET_SIZE,
    MAX_TLV_COUNT,
    RESERVED_FLAGS,
    EventType,
    Field,
    Packet,
    PacketLimits,
    Type,
    encode,
)
from wireloom.protocols.mesh.identity import Identity
from wireloom.protocols.mesh.security import prove
from wireloom.protocols.mesh.settings import MeshSettings

CASES = Cases()
ANY_SIZE = PacketLimits(max_payload=0xFFFF, max_fields=0xFFFF)
CAPABILITIES = Field(Type.BINARY, b"conformance")
"""Under the hub profile a node that is known already is answered each time."""
HMAC_SIZE, SIGNATURE_SIZE = 32, 64


def _identity(probe: Probe) -> Identity:
    """The node of the key file, or one that was never heard of."""
    return cast(MeshSettings, probe.settings).identity()


def _hello(
    probe: Probe,
    *more: Field,
    event_type: int = EventType.HELLO,
    flags: int = 0,
    before: tuple[Field, ...] = (),
    after: tuple[Field, ...] = (),
    answers: Message | None = None,
) -> Packet:
    """A Hello, with a valid HMAC and Signature where there are keys for it."""
    identity = _identity(probe)
    said = None if answers is None else int(answers.id or "0", 16)
    capabilities = Field(Type.BINARY, make_capabilities(answers=said)) if identity.signs else CAPABILITIES
    fields = [*before, capabilities, Field(Type.NODE_ID, identity.node_id), *more]
    if identity.signs:
        fields.append(Field(Type.AUTH_KEY_ID, identity.auth_key_id))
    if identity.public_key is not None:
        fields.append(Field(Type.PUBLIC_KEY, identity.public_key))
    if identity.hmac_secret is not None:
        fields.append(Field(Type.HMAC, bytes(HMAC_SIZE)))
    if identity.ed25519_private is not None:
        fields.append(Field(Type.SIGNATURE, bytes(SIGNATURE_SIZE)))
    packet = Packet(secrets.randbits(32), event_type, int(time.time()), (*fields, *after), flags)
    return prove(packet, identity)


async def _say(probe: Probe, packet: Packet) -> None:
    await probe.send(encode(packet, ANY_SIZE))


async def _hear(probe: Probe) -> Message:
    """The Hello of the node; with a trust file, it must be of a node that is in there."""
    return _genuine(probe, await probe.expect(Kind.OPEN))


def _genuine(probe: Probe, hello: Message) -> Message:
    if cast(MeshSettings, probe.settings).trust:
        verified = hello.authenticity is Authenticity.VERIFIED
        require(verified, f"no key of the trust file verifies the Hello of the node ({hello.authenticity})")
    return hello


async def _fresh(probe: Probe) -> Probe:
    """Where a Hello is answered for sure: nobody need answer a node again that it knows at this address."""
    return await probe.another() if _identity(probe).signs and probe.role is Role.SERVER else probe


@CASES.lives
async def alive(probe: Probe) -> None:
    """The node still answers a Hello, or a second one: a datagram may get lost."""
    for is_last in (False, True):
        fresh = await _fresh(probe)
        await _say(fresh, _hello(fresh))
        try:
            await _hear(fresh)
            return
        except CaseFailed:
            if is_last:
                raise


async def _meet(probe: Probe) -> Message:
    """Get to know a node that answers; others are skipped."""
    try:
        if probe.role is Role.CLIENT:
            greeting = await probe.expect(Kind.OPEN)
            if _identity(probe).signs:
                # It would greet again, until it has an answer.
                await _say(probe, _hello(probe, answers=greeting))
        await _say(probe, _hello(probe))
        hello = await probe.expect(Kind.OPEN)
    except CaseFailed:
        raise CaseSkipped(
            "the node does not answer Hello, so that nobody can tell what it heard; if it takes signed packets only, "
            "name the key file of a node that it trusts: --set key=FILE"
        ) from None
    if probe.role is Role.CLIENT:
        # It may have greeted again before it heard us, so that the answer is still to come.
        while await probe.next(quiet=True) is not None:
            pass
    return hello


async def _dropped(probe: Probe, *packets: Packet | bytes) -> None:
    """None of these packets is answered, and the node goes on."""
    await _meet(probe)
    for packet in packets:
        fresh = await _fresh(probe)
        await fresh.send(packet if isinstance(packet, bytes) else encode(packet, ANY_SIZE))
        await fresh.silent(Kind.OPEN)
    await alive(probe)


@CASES.server("Hello is answered with Hello", "Hello is for discovery and the initial handshake (3.1)", Level.SHOULD)
async def _answered(probe: Probe) -> None:
    await alive(probe)


@CASES.client("a node says Hello first", "Hello is for discovery and the initial handshake (3.1)", Level.SHOULD)
async def _greets(probe: Probe) -> None:
    await _hear(probe)
    await _say(probe, _hello(probe))


@CASES.both("Hello names the node and its capabilities", "Hello has NODE ID and Capabilities (3.1)")
async def _fields(probe: Probe) -> None:
    found = _genuine(probe, await _meet(probe))
    require(len(found.attributes.get("node_id", "")) == 32, "the Hello of the node has no NODE ID of 16 bytes")


@CASES.both("something that is no packet is dropped", "A packet has a header of 17 bytes (2.1)")
async def _garbage(probe: Probe) -> None:
    await _dropped(probe, b"\x01", b"hello, mesh", secrets.token_bytes(16))


@CASES.both("another version is dropped", "The only valid version is 1 (2.2)")
async def _version(probe: Probe) -> None:
    await _dropped(probe, b"\x02" + encode(_hello(probe))[1:])


@CASES.both("reserved flags are refused", "Reject a packet with a reserved flag set (6.3)")
async def _flags(probe: Probe) -> None:
    await _dropped(probe, _hello(probe, flags=0x08), _hello(probe, flags=RESERVED_FLAGS))


@CASES.both(
    "a Payload Length that is wrong is refused", "Reject a packet whose payload does not match its length (6.3)"
)
async def _length(probe: Probe) -> None:
    packet = encode(_hello(probe))
    await _dropped(probe, packet[:-1], packet + b"\x00")


@CASES.both("a packet that is too large is refused", "Reject a packet longer than MAX_PAYLOAD_SIZE (6.3)")
async def _large(probe: Probe) -> None:
    filling = (Field(Type.BINARY, bytes(250)), Field(Type.STRING, bytes(250)), Field(Type.JSON, b"1" * 100))
    packet = _hello(probe, before=filling)
    require(len(encode(packet, ANY_SIZE)) > MAX_PACKET_SIZE, "this case sends too little")
    await _dropped(probe, packet)


@CASES.both(
    "a field beyond the end of its packet is refused", "Reject a packet in which a TLV overruns the payload (6.3)"
)
async def _overrun(probe: Probe) -> None:
    packet = _hello(probe)
    data = bytearray(encode(packet))
    data[-len(packet.fields[-1].value) - 1] = 200  # The length of the last field.
    await _dropped(probe, bytes(data))


@CASES.both("a second NODE ID is refused", "Reject a packet that repeats a field from 0x10 to 0x18 (6.3)")
async def _duplicate(probe: Probe) -> None:
    await _dropped(probe, _hello(probe, Field(Type.NODE_ID, bytes(16))))


@CASES.both("too many fields are refused", "Reject a packet with more than MAX_TLV_COUNT fields (6.3)")
async def _count(probe: Probe) -> None:
    await _dropped(probe, _hello(probe, before=(Field(Type.BINARY, b"x"),) * (MAX_TLV_COUNT - 1)))


@CASES.both("a field after the Signature is refused", "Signature must be the last field (6.3)")
async def _signature_last(probe: Probe) -> None:
    signed = () if _identity(probe).ed25519_private is not None else (Field(Type.SIGNATURE, bytes(SIGNATURE_SIZE)),)
    await _dropped(probe, _hello(probe, after=(*signed, Field(Type.STRING, b"late"))))


@CASES.both("a wrong HMAC is dropped", "A payload whose HMAC is not verified is discarded (5.1)")
async def _hmac(probe: Probe) -> None:
    await _dropped(probe, _spoilt(probe, Type.HMAC, HMAC_SIZE))


@CASES.both("a wrong Signature is dropped", "A payload whose Signature is not verified is discarded (5.3)")
async def _signature(probe: Probe) -> None:
    await _dropped(probe, _spoilt(probe, Type.SIGNATURE, SIGNATURE_SIZE))


def _spoilt(probe: Probe, proof: Type, size: int) -> Packet:
    """A Hello whose HMAC or Signature is wrong; where there is no key for it, it is made up."""
    identity = _identity(probe)
    node = Field(Type.NODE_ID, identity.node_id)
    key_id = Field(Type.AUTH_KEY_ID, identity.auth_key_id or bytes(4))
    key = Field(Type.PUBLIC_KEY, identity.public_key or secrets.token_bytes(32))
    shown = (key,) if proof is Type.SIGNATURE else ()
    packet = Packet(
        secrets.randbits(32),
        EventType.HELLO,
        int(time.time()),
        (CAPABILITIES, node, key_id, *shown, Field(proof, bytes(size))),
    )
    *fields, (_, value) = prove(packet, identity).fields
    return replace(packet, fields=(*fields, Field(proof, bytes((value[0] ^ 1,)) + value[1:])))


@CASES.both("a packet that comes again is dropped", "A Message ID seen before from a node is a replay (5.4)")
async def _replay(probe: Probe) -> None:
    await _meet(probe)
    packet, fresh = _hello(probe), await _fresh(probe)
    await _say(fresh, packet)
    await _hear(fresh)
    await _say(fresh, packet)
    await fresh.silent(Kind.OPEN)
    await alive(probe)


@CASES.both("an unknown field is ignored", "Unknown TLV types are skipped (6.3)")
async def _unknown_field(probe: Probe) -> None:
    await _meet(probe)
    fresh = await _fresh(probe)
    await _say(fresh, _hello(fresh, Field(0x77, b"what is this")))
    await _hear(fresh)


@CASES.both("an unknown event type does no harm", "Other event types are valid packets (decision)", Level.DECISION)
async def _unknown_type(probe: Probe) -> None:
    await _meet(probe)
    await _say(probe, _hello(probe, event_type=0xEE))
    await alive(probe)
