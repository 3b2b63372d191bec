"""What any emp peer must do. Both ends say hello at once and have the same duties."""

from __future__ import annotations

from typing import cast

from wireloom.model import Kind
from wireloom.protocols.cases import Cases, Level, Probe, describe, require, single_bytes
from wireloom.protocols.emp.extensions import (
    CompressionScheme,
    RequestResponse,
    encode_compression,
    encode_request_response,
    gzip,
)
from wireloom.protocols.emp.frames import (
    VERSION,
    Error,
    ErrorCode,
    Extension,
    ExtensionBlock,
    Frame,
    Hello,
    Type,
    encode,
    encode_error,
    encode_hello,
)
from wireloom.protocols.emp.settings import EmpSettings

CASES = Cases()
HELLO = Frame(Type.HELLO, encode_hello(Hello()))
PING = Frame(Type.PING)
HELLOS = "hello comes at once"
PONGS = "a ping is answered with a pong"
ANSWERS = "a request is answered with its identifier"
UNKNOWN = ExtensionBlock(250, b"?")
"""A block of an extension that nobody knows."""


def _request(number: int, *blocks: ExtensionBlock, body: bytes = b"{}") -> Frame:
    block = ExtensionBlock(Extension.REQUEST_RESPONSE, encode_request_response(RequestResponse(True, number)))
    return Frame(Type.DATA, body, (block, *blocks))


def _bytes(probe: Probe, *frames: Frame) -> bytes:
    """Frames with sizes as the peer understands them."""
    mode = cast(EmpSettings, probe.settings).size_mode
    return b"".join(encode(frame, mode) for frame in frames)


async def _say(probe: Probe, *frames: Frame) -> None:
    """Send frames by one write."""
    await probe.send(_bytes(probe, *frames))


async def _open(probe: Probe) -> None:
    """Exchange hellos."""
    await _say(probe, HELLO)
    found = await probe.expect(Kind.OPEN, unasked=())
    version = found.attributes["version"]
    require(version == str(VERSION), f"the hello of the peer names version {version}, not {VERSION}")


@CASES.lives
async def alive(probe: Probe) -> None:
    """The peer says hello."""
    await _open(probe)


async def _pong(probe: Probe) -> None:
    await _say(probe, PING)
    await probe.expect(Kind.PONG)


async def _refused(probe: Probe, *codes: ErrorCode) -> None:
    """The peer closes; if it says why, with one of these codes."""
    for found in await probe.closed():
        if found.kind is Kind.ERROR and found.correlation_id is None and codes:
            wanted = " or ".join(str(int(code)) for code in codes)
            require(found.status in {str(int(code)) for code in codes}, f"error {found.status}, not {wanted}")
        require(found.kind not in (Kind.PONG, Kind.RESPONSE), f"the peer went on: it sent {describe(found)}")


@CASES.both(HELLOS, "Each peer sends hello when the connection is established (Handshake)")
async def _hello(probe: Probe) -> None:
    found = await probe.expect(Kind.OPEN, unasked=())
    version = found.attributes["version"]
    require(version == str(VERSION), f"the hello of the peer names version {version}, not {VERSION}")


@CASES.both("another version is refused", "Close if the version of a hello is not supported (Handshake)", needs=HELLOS)
async def _version(probe: Probe) -> None:
    await _say(probe, Frame(Type.HELLO, encode_hello(Hello(2))))
    await _refused(probe, ErrorCode.PROTOCOL)


@CASES.both("data before hello is refused", "Exchanges must not begin during the handshake (Handshake)", needs=HELLOS)
async def _data_first(probe: Probe) -> None:
    await _say(probe, Frame(Type.DATA, b"{}"))
    await _refused(probe, ErrorCode.PROTOCOL)


@CASES.both("bye instead of hello closes", "Close on a bye or an error during the handshake (Handshake)", needs=HELLOS)
async def _bye_first(probe: Probe) -> None:
    await _say(probe, Frame(Type.BYE))
    await _refused(probe)


@CASES.both("a second hello is refused", "hello is sent once (decision)", Level.DECISION, needs=HELLOS)
async def _second_hello(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, HELLO)
    await _refused(probe, ErrorCode.PROTOCOL)


@CASES.both(PONGS, "A pong is sent when a ping is received (Pong)", needs=HELLOS)
async def _ping(probe: Probe) -> None:
    await _open(probe)
    await _pong(probe)
    await probe.silent(Kind.PONG)


@CASES.both(
    "messages may come byte by byte", "A message ends where its size says, however it arrives (Envelope)", needs=PONGS
)
async def _split(probe: Probe) -> None:
    await probe.send(*single_bytes(_bytes(probe, HELLO, PING)))
    await probe.expect(Kind.OPEN, unasked=())
    await probe.expect(Kind.PONG)


@CASES.both("unused bits mean nothing", "Unused bits are ignored on receipt (decision)", Level.DECISION, needs=PONGS)
async def _unused_bits(probe: Probe) -> None:
    await _open(probe)
    await probe.send(_bytes(probe, PING)[:5] + b"\x7f\xff\xff")
    await probe.expect(Kind.PONG)


@CASES.both("bye closes", "After a bye the connection is closed (Termination)", needs=HELLOS)
async def _bye(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, Frame(Type.BYE))
    await _refused(probe)


@CASES.both("error closes", "Who receives an error closes the connection (Error)", needs=HELLOS)
async def _error(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, Frame(Type.ERROR, encode_error(Error(ErrorCode.UNSPECIFIED, "enough"))))
    await _refused(probe)


@CASES.both(ANSWERS, "A response has the identifier of its request (Request-response)", needs=HELLOS)
async def _request_answered(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, _request(7))
    found = await probe.expect(Kind.RESPONSE, Kind.ERROR)
    require(found.correlation_id == "7", f"the peer sent {describe(found)}, not the response to 7")


@CASES.both(
    "several requests in one write are all answered", "Each request gets a response (Request-response)", needs=ANSWERS
)
async def _requests(probe: Probe) -> None:
    await _open(probe)
    numbers = (1, 2, 2**64 - 1)
    await _say(probe, *map(_request, numbers))
    found = [(await probe.expect(Kind.RESPONSE, Kind.ERROR)).correlation_id for _ in numbers]
    require(sorted(map(str, found)) == sorted(map(str, numbers)), f"the responses were to {found}, not to {numbers}")


@CASES.both("request identifier 0 is refused", "The zero identifier must not be used (Request-response)", needs=HELLOS)
async def _zero(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, _request(0))
    await _refused(probe, ErrorCode.PROTOCOL, ErrorCode.EXTENSION)


@CASES.both(
    "a response to no request is refused",
    "A response without a pending request is an error (Request-response)",
    needs=HELLOS,
)
async def _unknown_response(probe: Probe) -> None:
    await _open(probe)
    block = ExtensionBlock(Extension.REQUEST_RESPONSE, encode_request_response(RequestResponse(False, 2**63)))
    await _say(probe, Frame(Type.DATA, b"", (block,)))
    await _refused(probe, ErrorCode.PROTOCOL)


@CASES.both("reserved types are refused", "Types 6 to 127 are reserved (Message types)", needs=HELLOS)
async def _reserved_type(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, Frame(6))
    await _refused(probe, ErrorCode.PROTOCOL)


@CASES.both("a size too small for its header is refused", "The size covers the whole message (Envelope)", needs=HELLOS)
async def _small_size(probe: Probe) -> None:
    await _open(probe)
    ping = _bytes(probe, PING)
    await probe.send((int.from_bytes(ping[:4]) - 1).to_bytes(4) + ping[4:])
    await _refused(probe, ErrorCode.PROTOCOL)


@CASES.both("the E bit without a block is refused", "E: at least one block follows the header (Header)", needs=HELLOS)
async def _no_block(probe: Probe) -> None:
    await _open(probe)
    await probe.send(_bytes(probe, PING)[:5] + b"\x80\x00\x00")
    await _refused(probe, ErrorCode.PROTOCOL, ErrorCode.EXTENSION)


@CASES.both(
    "a block larger than its message is refused",
    "The size covers the block, inside its message (Extensions)",
    needs=HELLOS,
)
async def _large_block(probe: Probe) -> None:
    await _open(probe)
    data = bytearray(_bytes(probe, Frame(Type.DATA, b"", (UNKNOWN,))))
    data[8:12] = b"\x00\x00\x01\x00"
    await probe.send(bytes(data))
    await _refused(probe, ErrorCode.PROTOCOL, ErrorCode.EXTENSION)


@CASES.both(
    "an unknown extension is ignored",
    "A block of an unknown extension is ignored (decision)",
    Level.DECISION,
    needs=ANSWERS,
)
async def _unknown_extension(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, _request(1, UNKNOWN))
    found = await probe.expect(Kind.RESPONSE, Kind.ERROR)
    require(found.correlation_id == "1", f"the peer sent {describe(found)}, not the response to 1")


@CASES.both("a compressed request is answered", "A body of scheme 1 is GZIP data (Compression)", needs=ANSWERS)
async def _compressed(probe: Probe) -> None:
    await _open(probe)
    block = ExtensionBlock(Extension.COMPRESSION, encode_compression(CompressionScheme.GZIP))
    await _say(probe, _request(3, block, body=gzip(b'{"hello": "world"}')))
    found = await probe.expect(Kind.RESPONSE, Kind.ERROR)
    require(found.correlation_id == "3", f"the peer sent {describe(found)}, not the response to 3")


@CASES.both(
    "bad GZIP data is refused",
    "A body of scheme 1 is GZIP data; else error 4 (Compression, decision)",
    Level.DECISION,
    needs=HELLOS,
)
async def _bad_gzip(probe: Probe) -> None:
    await _open(probe)
    block = ExtensionBlock(Extension.COMPRESSION, encode_compression(CompressionScheme.GZIP))
    await _say(probe, _request(4, block, body=b"this is not GZIP data"))
    await _refused(probe, ErrorCode.EXTENSION)


@CASES.both(
    "an unknown compression scheme is refused",
    "The scheme is 0 or 1; else error 4 (Compression, decision)",
    Level.DECISION,
    needs=HELLOS,
)
async def _scheme(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, _request(5, ExtensionBlock(Extension.COMPRESSION, b"\x09\x00\x00\x00")))
    await _refused(probe, ErrorCode.EXTENSION)


@CASES.both(
    "who refuses says why", "Closing without bye or error is the last resort (Termination)", Level.SHOULD, needs=HELLOS
)
async def _says_why(probe: Probe) -> None:
    await _open(probe)
    await _say(probe, Frame(6))
    said = await probe.closed()
    require(any(found.kind is Kind.ERROR for found in said), "the peer closed without an error message")
