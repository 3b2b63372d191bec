"""What any ticker peer must do. There is no handshake, and both ends have the same duties."""

from __future__ import annotations

from wireloom.model import Kind
from wireloom.protocols.cases import Cases, Level, Probe, describe, require, single_bytes
from wireloom_ticker.frames import MAX_BODY, Frame, encode

CASES = Cases()
NOBODY = "wireloom/conformance/nobody"
"""A topic that no application has an answer for; FAIL is one, too."""


async def _alive(probe: Probe) -> None:
    await probe.send(encode(Frame("PING")))
    await probe.expect(Kind.PONG)


async def _answered(probe: Probe, number: int) -> None:
    found = await probe.expect(Kind.RESPONSE, Kind.ERROR)
    require(found.correlation_id == str(number), f"the peer sent {describe(found)}, not the answer to {number}")


@CASES.both("PING is answered with one PONG", "PING asks: are you there?")
async def _ping(probe: Probe) -> None:
    await _alive(probe)
    await probe.silent(Kind.PONG)


@CASES.both("ASK is answered with its id", "DONE or FAIL tells how it went")
async def _ask(probe: Probe) -> None:
    await probe.send(encode(Frame("ASK", 7, NOBODY)))
    await _answered(probe, 7)


@CASES.both("frames may come byte by byte", "A body ends where its size says, however it arrives")
async def _split(probe: Probe) -> None:
    await probe.send(*single_bytes(encode(Frame("ASK", 8, NOBODY, body=b"line\nline"))))
    await _answered(probe, 8)
    await _alive(probe)


@CASES.both("an event does no harm", "EVENT has no answer")
async def _event(probe: Probe) -> None:
    await probe.send(encode(Frame("EVENT", topic=NOBODY, body=b"hello")))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)
    await _alive(probe)


@CASES.both("answers are sent before the end", "Who says BYE still gets the answers it waits for")
async def _bye(probe: Probe) -> None:
    await probe.send(encode(Frame("ASK", 9, NOBODY)) + encode(Frame("BYE")))
    await _answered(probe, 9)
    await probe.closed()


@CASES.both("an unknown verb closes the connection", "A line begins with one of the verbs")
async def _verb(probe: Probe) -> None:
    await probe.send(b"SELL everything\n")
    await probe.closed()


@CASES.both("a body without its newline closes the connection", "A newline follows each body")
async def _newline(probe: Probe) -> None:
    await probe.send(encode(Frame("EVENT", topic=NOBODY, body=b"hello"))[:-1] + b"!")
    await probe.closed()


@CASES.both("a size beyond reason is refused before its bytes come", "A body is not too long", Level.SHOULD)
async def _size(probe: Probe) -> None:
    await probe.send(f"EVENT prices - {MAX_BODY}\n".encode())
    await probe.closed()
