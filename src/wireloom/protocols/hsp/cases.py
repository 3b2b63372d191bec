"""What any hsp peer must do. hsp has no handshake, and both ends have the same duties."""

from __future__ import annotations

from wireloom.model import Kind
from wireloom.protocols.cases import Cases, Level, Probe, describe, require, single_bytes
from wireloom.protocols.hsp.frames import PING, PONG, Ack, Data, DataAck, Error, ErrorUndef, encode

CASES = Cases()
ANSWERS = "a DATA_ACK is answered with its MessageID"
TYPE = 1
"""Types belong to the application: whatever it makes of this one, it must answer."""
SMALL = b"wireloom"
PONGS = "a PING is answered with a PONG"


@CASES.lives
async def alive(probe: Probe) -> None:
    """The peer still answers a PING."""
    await probe.send(encode(PING))
    await probe.expect(Kind.PONG)


async def _answered(probe: Probe, *ids: int) -> None:
    """Each of these DATA_ACKs is answered, once, in any order."""
    waiting = {str(number) for number in ids}
    while waiting:
        found = await probe.expect(Kind.RESPONSE, Kind.ERROR)
        expected = ", ".join(sorted(waiting))
        require(found.correlation_id in waiting, f"the peer sent {describe(found)}; unanswered were {expected}")
        waiting.discard(str(found.correlation_id))


@CASES.both(PONGS, "A PONG is sent for each PING that is received (PING)")
async def _ping(probe: Probe) -> None:
    await alive(probe)


@CASES.both("one PONG for a PING, not more", "Exactly one PONG is sent for each PING (PING)", needs=PONGS)
async def _one_pong(probe: Probe) -> None:
    await probe.send(encode(PING))
    await probe.expect(Kind.PONG)
    await probe.silent(Kind.PONG)


@CASES.both("three PINGs in one write get three PONGs", "Exactly one PONG is sent for each PING (PING)", needs=PONGS)
async def _three_pings(probe: Probe) -> None:
    await probe.send(encode(PING) * 3)
    for _ in range(3):
        await probe.expect(Kind.PONG)
    await probe.silent(Kind.PONG)


@CASES.both(ANSWERS, "Each DATA_ACK gets an ACK, ERROR or ERROR_UNDEF (DATA_ACK)")
async def _data_ack(probe: Probe) -> None:
    await probe.send(encode(DataAck(7, TYPE, SMALL)))
    await _answered(probe, 7)


@CASES.both("a DATA_ACK is answered only once", "An answer is for one DATA_ACK (ACK)", needs=ANSWERS)
async def _answered_once(probe: Probe) -> None:
    await probe.send(encode(DataAck(8, TYPE, SMALL)))
    await _answered(probe, 8)
    await probe.silent(Kind.RESPONSE, Kind.ERROR)


@CASES.both(
    "several DATA_ACKs in one write are all answered",
    "The answers may come in another order (DATA_ACK)",
    needs=ANSWERS,
)
async def _several(probe: Probe) -> None:
    ids = (0, 1, 2**31, 2**32 - 1)
    await probe.send(b"".join(encode(DataAck(number, TYPE, SMALL)) for number in ids))
    await _answered(probe, *ids)


@CASES.both("a MessageID can be used again", "A MessageID may be reused once it was answered (DATA_ACK)", needs=ANSWERS)
async def _reused(probe: Probe) -> None:
    for _ in range(2):
        await probe.send(encode(DataAck(9, TYPE, SMALL)))
        await _answered(probe, 9)


@CASES.both(
    "a DATA_ACK without payload is answered", "A byte array may have any length, 0 included (ByteArray)", needs=ANSWERS
)
async def _empty(probe: Probe) -> None:
    await probe.send(encode(DataAck(10, TYPE, b"")))
    await _answered(probe, 10)


@CASES.both(
    "frames may come byte by byte", "A frame is what its bytes say, however they arrive (Commands)", needs=ANSWERS
)
async def _split(probe: Probe) -> None:
    await probe.send(*single_bytes(encode(DataAck(11, TYPE, SMALL)) + encode(DataAck(12, TYPE, SMALL))))
    await _answered(probe, 11, 12)


@CASES.both("DATA is not answered", "Whoever sends DATA expects no answer (DATA)", needs=PONGS)
async def _data(probe: Probe) -> None:
    await probe.send(encode(Data(TYPE, SMALL)))
    await probe.silent(Kind.RESPONSE, Kind.ERROR)
    await alive(probe)


@CASES.both(
    "an answer that nobody waits for is ignored",
    "Answers to an unknown MessageID are ignored (decision)",
    Level.DECISION,
    needs=PONGS,
)
async def _unknown_answers(probe: Probe) -> None:
    number = 0xDEADBEEF
    await probe.send(encode(Ack(number)) + encode(Error(number, TYPE, SMALL)) + encode(ErrorUndef(number)))
    await alive(probe)


@CASES.both(
    "a PONG that nobody asked for is ignored", "A PONG only acknowledges (decision)", Level.DECISION, needs=PONGS
)
async def _unasked_pong(probe: Probe) -> None:
    await probe.send(encode(PONG))
    await alive(probe)


@CASES.both(
    "an unknown command closes the connection",
    "A command is one of 0 to 6; else nobody knows where it ends (decision)",
    Level.DECISION,
)
async def _unknown_command(probe: Probe) -> None:
    await probe.send(b"\x07")
    await probe.closed()


@CASES.both(
    "a length beyond reason is refused before its bytes come",
    "The longest payload may be restricted; one that is longer closes the connection (decision)",
    Level.DECISION,
)
async def _too_large(probe: Probe) -> None:
    await probe.send(encode(DataAck(12, TYPE, b""))[:-4] + b"\xff" * 4)
    await probe.closed()
