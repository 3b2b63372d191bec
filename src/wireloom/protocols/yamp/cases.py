"""What any yamp peer must do: servers echo the handshake that clients begin with; the rest goes for both.

The specification mostly says "should", also of the echo and of pongs. What to do with frames that are wrong, and with
requests that nobody handles, it leaves open: those cases are decisions.
"""

from __future__ import annotations

import secrets
from typing import cast
from uuid import UUID

from wireloom.formats import body_formats
from wireloom.model import Kind
from wireloom.protocols.cases import CaseFailed, Cases, Level, Probe, describe, require, single_bytes
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
ECHOED = "the handshake is echoed"
PONGS = "a ping's payload comes back"
ANSWERED = "a request that nobody handles is answered"
GREETED = "a client begins with a handshake of version 1"
CALLED = "a client answers requests"


def _uid() -> bytes:
    """A unique message identifier: a UUID of version 4."""
    return UUID(bytes=secrets.token_bytes(16), version=4).bytes


def _named(probe: Probe) -> str:
    """The one to talk in."""
    return cast(YampSettings, probe.settings).serializer


def _body(serializer: str) -> bytes:
    """An empty object, where the serializer has one."""
    if serializer not in body_formats.CONVERTIBLE:
        return b""
    return body_formats.body_format(serializer).dumps({})


async def _greet(probe: Probe) -> None:
    """The handshake of a client, echoed by the server that is looked at."""
    ours = (str(VERSION), _named(probe))
    await probe.send(encode(Handshake(VERSION, ours[1])))
    found = await probe.expect(Kind.OPEN, unasked=())
    named = (found.attributes["version"], found.attributes["serializer"])
    require(named == ours, f"the echo names {named}, not {ours}")


async def _greeted(probe: Probe) -> str:
    """The handshake of the client that is looked at, echoed; returns its serializer."""
    found = await probe.expect(Kind.OPEN, unasked=())
    version, serializer = found.attributes["version"], found.attributes["serializer"]
    require(version == str(VERSION), f"the handshake of the client names version {version}, not {VERSION}")
    await probe.send(encode(Handshake(VERSION, serializer)))
    return serializer or body_formats.DEFAULT


async def _says_why(probe: Probe) -> None:
    """The peer answers a handshake that it does not support with a close, or a redirect."""
    await probe.expect(Kind.CLOSE, Kind.REDIRECT, unasked=())


@CASES.lives
async def alive(probe: Probe) -> None:
    """The server echoes a handshake."""
    await _greet(probe)


async def _ask(probe: Probe, serializer: str) -> None:
    """A request that nobody handles is answered, by whatever response."""
    uid = _uid()
    await probe.send(encode(Request(uid, URI, False, _body(serializer))))
    found = await probe.expect(Kind.ERROR, Kind.RESPONSE)
    require(found.correlation_id == str(UUID(bytes=uid)), f"the peer sent {describe(found)}, not to {UUID(bytes=uid)}")


@CASES.server(ECHOED, "A server that supports the client should echo its handshake (system.handshake)", Level.SHOULD)
async def _handshake(probe: Probe) -> None:
    await _greet(probe)


@CASES.server(
    "the handshake may come byte by byte", "A frame is what its bytes say, however they arrive (Frame)", needs=ECHOED
)
async def _split_handshake(probe: Probe) -> None:
    await probe.send(*single_bytes(encode(Handshake(VERSION, _named(probe)))))
    await probe.expect(Kind.OPEN, unasked=())


@CASES.server(
    "another version is closed with a reason",
    "The server should answer by an echo or a close (system.handshake)",
    Level.SHOULD,
)
async def _version(probe: Probe) -> None:
    await probe.send(encode(Handshake(VERSION + 1, _named(probe))))
    await _says_why(probe)


@CASES.server(
    "an unknown serializer is closed with a reason",
    "The server should answer by an echo or a close (system.handshake)",
    Level.SHOULD,
)
async def _serializer(probe: Probe) -> None:
    await probe.send(encode(Handshake(VERSION, "no-such-serializer")))
    await _says_why(probe)


@CASES.server(
    "a frame before the handshake closes the connection",
    "The handshake should be the client's first frame; else it is refused (decision)",
    Level.DECISION,
)
async def _not_first(probe: Probe) -> None:
    await probe.send(encode(Ping(b"too early")))
    for found in await probe.closed():
        require(found.kind is not Kind.PONG, "the server answers a ping before the handshake")


@CASES.server(PONGS, "A pong with the payload of its ping should follow it (system.ping)", Level.SHOULD, needs=ECHOED)
async def _ping(probe: Probe) -> None:
    await _greet(probe)
    for payload in (b"", b"wireloom", b"x" * 255):
        await probe.send(encode(Ping(payload)))
        found = await probe.expect(Kind.PONG)
        require(found.body == payload, f"the pong carries {found.body!r}, not {payload!r}")


@CASES.server(ANSWERED, "A request for a uri that nobody handles is answered (decision)", Level.DECISION, needs=ECHOED)
async def _unhandled(probe: Probe) -> None:
    await _greet(probe)
    await _ask(probe, _named(probe))


@CASES.server("the answer is of type error", "Such a response is an error (decision)", Level.DECISION, needs=ANSWERED)
async def _error(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Request(_uid(), URI, False, _body(_named(probe)))))
    await probe.expect(Kind.ERROR)


@CASES.server(
    "a response repeats the uri of its request",
    "The uri of a response is its request's (decision)",
    Level.DECISION,
    needs=ANSWERED,
)
async def _uri(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Request(_uid(), URI, False, _body(_named(probe)))))
    found = await probe.expect(Kind.ERROR, Kind.RESPONSE)
    require(found.topic == URI, f"the response is for {found.topic!r}, not {URI!r}")


@CASES.server(
    "several requests in one write are all answered",
    "A response names the uid of its request (response)",
    needs=ANSWERED,
)
async def _requests(probe: Probe) -> None:
    await _greet(probe)
    uids = [_uid() for _ in range(4)]
    await probe.send(b"".join(encode(Request(uid, URI, False, _body(_named(probe)))) for uid in uids))
    answered = {(await probe.expect(Kind.ERROR, Kind.RESPONSE)).correlation_id for _ in uids}
    require(answered == {str(UUID(bytes=uid)) for uid in uids}, "the responses are not for the four requests")


@CASES.server("an event is not answered", "An event expects nothing in return (event)", needs=ECHOED)
async def _event(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Event(_uid(), URI, _body(_named(probe)))))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)


@CASES.server(
    "a cancel of an unknown request is ignored", "Such a cancel is ignored (decision)", Level.DECISION, needs=ECHOED
)
async def _cancel(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Cancel(_uid(), URI, _uid(), False)))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)


@CASES.server(
    "a response that nobody waits for is ignored",
    "We correlate on request_uid alone (decision)",
    Level.DECISION,
    needs=ECHOED,
)
async def _unknown_response(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Response(_uid(), URI, _uid(), ResponseType.DONE, _body(_named(probe)))))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)


@CASES.server("a pong that nobody asked for is ignored", "A pong only answers (decision)", Level.DECISION, needs=ECHOED)
async def _unasked_pong(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Pong(b"unasked")))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)


@CASES.server(
    "progressive other than 0 or 1 closes the connection",
    "progressive is a bool; else the request is invalid (decision)",
    Level.DECISION,
    needs=ECHOED,
)
async def _progressive(probe: Probe) -> None:
    await _greet(probe)
    data = bytearray(encode(Request(_uid(), URI, True, _body(_named(probe)))))
    data[1 + 16 + 1 + len(URI)] = 2
    await probe.send(bytes(data))
    await probe.closed()


@CASES.server(
    "an unknown frame type closes the connection",
    "The type of a frame is 0x00 to 0x08; else nobody knows where it ends (decision)",
    Level.DECISION,
    needs=ECHOED,
)
async def _type(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(b"\x09")
    await probe.closed()


@CASES.server(
    "close closes", "The connection should be dropped after system.close (system.close)", Level.SHOULD, needs=ECHOED
)
async def _close(probe: Probe) -> None:
    await _greet(probe)
    await probe.send(encode(Close("enough")))
    await probe.closed()


@CASES.client(GREETED, "The handshake should be the client's first frame (system.handshake)", Level.SHOULD)
async def _client_handshake(probe: Probe) -> None:
    await _greeted(probe)


@CASES.client(
    "a client answers a ping with its payload",
    "A pong with the payload of its ping should follow it (system.ping)",
    Level.SHOULD,
    needs=GREETED,
)
async def _client_ping(probe: Probe) -> None:
    await _greeted(probe)
    await probe.send(encode(Ping(b"wireloom")))
    found = await probe.expect(Kind.PONG)
    require(found.body == b"wireloom", f"the pong carries {found.body!r}, not b'wireloom'")


@CASES.client(CALLED, "A request for a uri that nobody handles is answered (decision)", Level.DECISION, needs=GREETED)
async def _client_request(probe: Probe) -> None:
    await _ask(probe, await _greeted(probe))


@CASES.client(
    "a client reads frames byte by byte", "A frame is what its bytes say, however they arrive (Frame)", needs=CALLED
)
async def _client_split(probe: Probe) -> None:
    found = await probe.expect(Kind.OPEN, unasked=())
    serializer = found.attributes["serializer"]
    request = Request(_uid(), URI, False, _body(serializer or body_formats.DEFAULT))
    await probe.send(*single_bytes(encode(Handshake(VERSION, serializer)) + encode(request)))
    await probe.expect(Kind.ERROR, Kind.RESPONSE)


@CASES.client("an event is not answered", "An event expects nothing in return (event)", needs=GREETED)
async def _client_event(probe: Probe) -> None:
    serializer = await _greeted(probe)
    await probe.send(encode(Event(_uid(), URI, _body(serializer))))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)


@CASES.client(
    "a client leaves after system.close",
    "The connection should be dropped after system.close (system.close)",
    Level.SHOULD,
    needs=GREETED,
)
async def _client_close(probe: Probe) -> None:
    await _greeted(probe)
    await probe.send(encode(Close("enough")))
    await probe.closed()


@CASES.client(
    "a client refuses an unknown frame type",
    "The type of a frame is 0x00 to 0x08; else nobody knows where it ends (decision)",
    Level.DECISION,
    needs=GREETED,
)
async def _client_type(probe: Probe) -> None:
    await _greeted(probe)
    await probe.send(b"\x09")
    await probe.closed()


@CASES.client(
    "a client refuses an echo of another version",
    "The answer should be the same handshake (system.handshake)",
    Level.SHOULD,
    needs=GREETED,
)
async def _client_echo(probe: Probe) -> None:
    found = await probe.expect(Kind.OPEN, unasked=())
    await probe.send(encode(Handshake(VERSION + 1, found.attributes["serializer"])))
    for other in await probe.closed():
        if other.kind is Kind.REQUEST:
            raise CaseFailed("the client went on with a version that it did not ask for")
