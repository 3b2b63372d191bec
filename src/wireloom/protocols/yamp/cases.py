"""What any yamp peer must do: servers echo the handshake that clients begin with; the rest goes for both."""

from __future__ import annotations

import secrets
from typing import cast
from uuid import UUID

from wireloom.model import Kind
from wireloom.protocols.cases import CaseFailed, Cases, Level, Probe, describe, require, single_bytes
from wireloom.protocols.yamp import formats
from wireloom.protocols.yamp.frames import (
    VERSION,
    Cancel,
    Close,
    Event,
    Handshake,
    Ping,
    Pong,
    Request,
    Response,
    ResponseType,
    encode,
)
from wireloom.protocols.yamp.protocol import YampSettings

CASES = Cases()
URI = "wireloom/conformance/nobody-handles-this"


def _uid() -> bytes:
    """A unique message identifier: a UUID of version 4."""
    return UUID(bytes=secrets.token_bytes(16), version=4).bytes


def _named(probe: Probe) -> str:
    """The one to talk in."""
    return cast(YampSettings, probe.settings).serializer


def _body(probe: Probe) -> bytes:
    """An empty object, where the serializer has one."""
    serializer = _named(probe)
    if serializer not in formats.CONVERTIBLE:
        return b""
    return formats.body_format(serializer).dumps({})


async def _greet(probe: Probe) -> None:
    """The handshake of a client, echoed by the server that is looked at."""
    ours = (str(VERSION), _named(probe))
    await probe.send(encode(Handshake(VERSION, ours[1])))
    found = await probe.expect(Kind.OPEN, unasked=())
    named = (found.attributes["version"], found.attributes["serializer"])
    require(named == ours, f"the echo names {named}, not {ours}")


async def _greeted(probe: Probe) -> None:
    """The handshake of the client that is looked at, echoed."""
    found = await probe.expect(Kind.OPEN, unasked=())
    version = found.attributes["version"]
    require(version == str(VERSION), f"the handshake of the client names version {version}, not {VERSION}")
    await probe.send(encode(Handshake(VERSION, found.attributes["serializer"])))


async def alive(probe: Probe) -> None:
    """The peer still answers a ping, with its payload."""
    payload = secrets.token_bytes(8)
    await probe.send(encode(Ping(payload)))
    found = await probe.expect(Kind.PONG)
    require(found.body == payload, f"the pong carries {found.body.hex() or 'nothing'}, not {payload.hex()}")


async def _says_why(probe: Probe) -> None:
    """The peer closes, and says why in a system.close."""
    said = await probe.closed()
    for found in said:
        kinds = (Kind.RESPONSE, Kind.PONG, Kind.OPEN)
        require(found.kind not in kinds, f"the peer went on: it sent {describe(found)}")
    last = [found for found in said if found.kind in (Kind.CLOSE, Kind.REDIRECT)]
    require(last, "the peer closed without system.close")


@CASES.server("the handshake is echoed", "A server that supports the client echoes its handshake (system.handshake)")
async def _handshake(probe: Probe) -> None:
    await _greet(probe)


@CASES.server("the handshake may come byte by byte", "A frame is what its bytes say, however they arrive (Frame)")
async def _split_handshake(probe: Probe) -> None:
    await probe.send(*single_bytes(encode(Handshake(VERSION, _named(probe))) + encode(Ping(b"split"))))
    await probe.expect(Kind.OPEN, unasked=())
    found = await probe.expect(Kind.PONG)
    require(found.body == b"split", "the pong does not carry the payload of the ping")


@CASES.server("another version is closed with a reason", "The server answers by an echo or a close (system.handshake)")
async def _version(probe: Probe) -> None:
    await probe.send(encode(Handshake(VERSION + 1, _named(probe))))
    await _says_why(probe)


@CASES.server(
    "an unknown serializer is closed with a reason", "The server answers by an echo or a close (system.handshake)"
)
async def _serializer(probe: Probe) -> None:
    await probe.send(encode(Handshake(VERSION, "no-such-serializer")))
    await _says_why(probe)


@CASES.server("the handshake comes first", "The handshake is the first frame (system.handshake)", Level.SHOULD)
async def _not_first(probe: Probe) -> None:
    await probe.send(encode(Ping(b"too early")))
    for found in await probe.closed():
        require(found.kind is not Kind.PONG, "the server answers a ping before the handshake")


@CASES.server("a ping's payload comes back", "A pong has the payload of its ping (system.ping)")
async def _ping(probe: Probe) -> None:
    await _greet(probe)
    for payload in (b"", b"wireloom", bytes(range(255))):
        await probe.send(encode(Ping(payload)))
        found = await probe.expect(Kind.PONG)
        require(found.body == payload, f"the pong carries {found.body.hex() or 'nothing'}, not {payload.hex()}")


@CASES.server("a request that nobody handles gets an error", "Such a response is of type error (decision)")
async def _unhandled(probe: Probe) -> None:
    await _greet(probe)
    uid = _uid()
    await probe.send(encode(Request(uid, URI, False, _body(probe))))
    found = await probe.expect(Kind.ERROR)
    require(found.correlation_id == str(UUID(bytes=uid)), f"the peer sent {describe(found)}, not to {UUID(bytes=uid)}")


@CASES.server(
    "a response repeats the uri of its request", "The uri of a response is its request's (decision)", Level.SHOULD
)
async def _uri(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Request(_uid(), URI, False, _body(probe))))
    found = await probe.expect(Kind.ERROR, Kind.RESPONSE)
    require(found.topic == URI, f"the response is for {found.topic!r}, not {URI!r}")


@CASES.server("several requests in one write are all answered", "A response names the uid of its request (response)")
async def _requests(probe: Probe) -> None:
    await _greet(probe)
    uids = [_uid() for _ in range(4)]
    await probe.send(b"".join(encode(Request(uid, URI, False, _body(probe))) for uid in uids))
    answered = {(await probe.expect(Kind.ERROR, Kind.RESPONSE)).correlation_id for _ in uids}
    require(answered == {str(UUID(bytes=uid)) for uid in uids}, "the responses are not for the four requests")


@CASES.server("an event is not answered", "An event expects nothing in return (event)")
async def _event(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Event(_uid(), URI, _body(probe))))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)
    await alive(probe)


@CASES.server("a cancel of an unknown request is ignored", "Such a cancel is ignored (decision)")
async def _cancel(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Cancel(_uid(), URI, _uid(), False)))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)
    await alive(probe)


@CASES.server(
    "a response that nobody waits for is ignored", "A response names the uid of a request (response)", Level.SHOULD
)
async def _unknown_response(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Response(_uid(), URI, _uid(), ResponseType.DONE, _body(probe))), encode(Pong(b"unasked")))
    await alive(probe)


@CASES.server("progressive is 0 or 1", "progressive is a bool (request)")
async def _progressive(probe: Probe) -> None:
    await _greet(probe)
    data = bytearray(encode(Request(_uid(), URI, True, _body(probe))))
    data[1 + 16 + 1 + len(URI)] = 2
    await probe.send(bytes(data))
    await probe.closed()


@CASES.server("an unknown frame type closes the connection", "The type of a frame is 0x00 to 0x08 (Frame)")
async def _type(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(b"\x09")
    await probe.closed()


@CASES.server("close closes", "The connection is dropped after system.close (system.close)")
async def _close(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Close("enough")))
    await probe.closed()


@CASES.client(
    "a client begins with a handshake of version 1", "The handshake is the client's first frame (system.handshake)"
)
async def _client_handshake(probe: Probe) -> None:
    await _greeted(probe)


@CASES.client("a client answers a ping with its payload", "A pong has the payload of its ping (system.ping)")
async def _client_ping(probe: Probe) -> None:
    await _greeted(probe)
    await alive(probe)


@CASES.client("a client reads frames byte by byte", "A frame is what its bytes say, however they arrive (Frame)")
async def _client_split(probe: Probe) -> None:
    found = await probe.expect(Kind.OPEN, unasked=())
    echo = encode(Handshake(VERSION, found.attributes["serializer"]))
    await probe.send(*single_bytes(echo + encode(Ping(b"split"))))
    await probe.expect(Kind.PONG)


@CASES.client("a client answers requests", "A request expects a response with its uid (request)")
async def _client_request(probe: Probe) -> None:
    await _greeted(probe)
    uid = _uid()
    await probe.send(encode(Request(uid, URI, False, _body(probe))))
    found = await probe.expect(Kind.ERROR, Kind.RESPONSE)
    require(found.correlation_id == str(UUID(bytes=uid)), f"the peer sent {describe(found)}, not to {UUID(bytes=uid)}")


@CASES.client("a client leaves after system.close", "The connection is dropped after system.close (system.close)")
async def _client_close(probe: Probe) -> None:
    await _greeted(probe)
    await probe.send(encode(Close("enough")))
    await probe.closed()


@CASES.client("a client refuses an unknown frame type", "The type of a frame is 0x00 to 0x08 (Frame)")
async def _client_type(probe: Probe) -> None:
    await _greeted(probe)
    await probe.send(b"\x09")
    await probe.closed()


@CASES.client("a client refuses an echo of another version", "The answer is the same handshake (system.handshake)")
async def _client_echo(probe: Probe) -> None:
    found = await probe.expect(Kind.OPEN, unasked=())
    await probe.send(encode(Handshake(VERSION + 1, found.attributes["serializer"])))
    for other in await probe.closed():
        if other.kind is Kind.REQUEST:
            raise CaseFailed("the client went on with a version that it did not ask for")
