"""ticker by itself: the wire, however it is cut and whatever it holds, and the conversation."""

from __future__ import annotations

import asyncio
import random

import pytest
from wireloom_ticker import TICKER
from wireloom_ticker.frames import VERBS, Frame, decode, encode

from wireloom import RequestFailed, Service
from wireloom.model import Direction, Kind, Message, ProtocolViolation
from wireloom.protocols.contract import CUT, Decoded, Rejected, Role, Session, SessionState, decode_stream
from wireloom.testing import peer_pair

FRAMES = [
    Frame("EVENT", topic="prices/green tea", content_type="text/plain", body=b"3.20"),
    Frame("EVENT", topic="-", body=b"\n\0 any bytes\n"),
    Frame("ASK", 7, "prices/of", content_type="application/json", body=b'"tea"'),
    Frame("DONE", 7, body=b""),
    Frame("FAIL", 2**32 - 1, code="404", body="no größe".encode()),
    Frame("PING"),
    Frame("PONG"),
    Frame("BYE"),
]
STREAM = b"".join(map(encode, FRAMES))
SETTINGS = TICKER.settings()


def test_every_frame_comes_back_from_its_bytes() -> None:
    assert {frame.verb for frame in FRAMES} == set(VERBS)
    for frame in FRAMES:
        assert decode(encode(frame), 0, 1024) == (frame, len(encode(frame)))


def test_every_message_comes_back_from_its_bytes() -> None:
    for found in decode_stream(TICKER.decoder(Direction.C2S, SETTINGS), STREAM):
        assert isinstance(found, Decoded)
        assert TICKER.encode(found.message, SETTINGS) == STREAM[found.offset : found.offset + found.size]


@pytest.mark.parametrize("cut", range(len(STREAM)))
def test_it_does_not_matter_how_the_stream_is_cut(cut: int) -> None:
    decoder = TICKER.decoder(Direction.C2S, SETTINGS)
    frames = []
    for piece in (STREAM[:cut], STREAM[cut:]):
        decoder.feed(piece)
        frames += [found.frame for found in decoder]
    assert frames == FRAMES


@pytest.mark.parametrize("seed", range(300))
def test_every_byte_of_garbage_is_in_one_message_or_one_reject(seed: int) -> None:
    draw = random.Random(seed)
    garbage = bytearray(STREAM)
    for _ in range(draw.randint(1, 5)):
        garbage[draw.randrange(len(garbage))] = draw.randrange(256)
    position = 0
    for found in decode_stream(TICKER.decoder(Direction.C2S, SETTINGS), bytes(garbage)):
        assert found.offset == position
        position += found.size if isinstance(found, Decoded) else len(found.data)
        assert not isinstance(found, Rejected) or found.clause in {*TICKER.clauses, CUT}
    assert position == len(garbage)


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"x" * 4097, "ticker.line.too-long"),
        (b"SELL tea\n", "ticker.verb.unknown"),
        (b"PING now\n", "ticker.words.count"),
        (b"EVENT  - 0\n", "ticker.word.text"),
        (b"EVENT - - 0\n", "ticker.word.text"),
        (b"EVENT %FF - 0\n", "ticker.word.text"),
        (b"DONE -1 - 0\n", "ticker.number.form"),
        (b"DONE 4294967296 - 0\n", "ticker.number.form"),
        (b"EVENT a - 4000000000\n", "ticker.body.too-long"),
        (b"EVENT a - 2\nabc", "ticker.body.end"),
    ],
)
def test_what_is_wrong_is_named_as_soon_as_it_is_seen(data: bytes, clause: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode(data, 0, 1024)
    assert caught.value.clause == clause


def said(*frames: Frame, role: Role = Role.SERVER) -> tuple[Session, list[Kind]]:
    """A session that was told this, and the kinds of messages it took."""
    session = TICKER.session(role, SETTINGS)
    session.connected(0.0)
    batches = session.receive(b"".join(map(encode, frames)), 1.0)
    return session, [message.kind for batch in batches for message in batch.messages]


@pytest.mark.parametrize(
    ("frames", "clause"),
    [
        ([Frame("ASK", 1, "a"), Frame("ASK", 1, "b")], "ticker.id.reused"),
        ([Frame("ASK", 1, "a"), Frame("BYE"), Frame("PING")], "ticker.bye.last"),
    ],
)
def test_breaking_the_conversation_ends_it(frames: list[Frame], clause: str) -> None:
    session, kinds = said(*frames)
    assert len(kinds) == len(frames) - 1
    assert session.violation is not None
    assert (session.violation.clause, session.state) == (clause, SessionState.CLOSED)
    assert session.refused == encode(frames[-1])


def test_who_says_bye_still_gets_the_answers_it_waits_for() -> None:
    session, _ = said(Frame("ASK", 1, "a"), Frame("BYE"))
    assert session.state is SessionState.CLOSING
    session.send(Message(Kind.RESPONSE, body=b"yes", correlation_id="1"), 2.0)
    assert (session.outgoing(), session.state) == (b"DONE 1 - 3\nyes\nBYE\n", SessionState.CLOSED)


def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    session, _ = said()
    assert session.deadline() == 1.0 + 30.0
    session.expire(31.0)
    assert (session.outgoing(), session.deadline()) == (b"PING\n", 41.0)
    session.expire(41.0)
    assert (session.state, session.close_reason) == (SessionState.CLOSED, "idle")


def test_tokens_are_blanked_in_what_the_journal_gets() -> None:
    session = TICKER.session(Role.SERVER, SETTINGS)
    session.connected(0.0)
    (batch,) = session.receive(encode(Frame("ASK", 1, "$hub/login", body=b'{"token": "secret"}')), 1.0)
    assert b"secret" in batch.messages[0].body and b"secret" not in batch.data
    assert decode(bytes(batch.data), 0, 1024) is not None


def test_a_batch_ends_with_its_first_control_message() -> None:
    session = TICKER.session(Role.SERVER, SETTINGS)
    session.connected(0.0)
    said = [
        encode(Frame("EVENT", topic="a", body=b"1")),
        encode(Frame("ASK", 1, "$hub/subscribe", body=b"{}")),
        encode(Frame("EVENT", topic="a", body=b"2")),
    ]
    before, after = session.receive(b"".join(said), 1.0)
    assert [message.topic for message in before.messages] == ["a", "$hub/subscribe"]
    assert (before.data, after.data) == (said[0] + said[1], said[2])


def test_a_service_answers_and_refuses() -> None:
    service = Service()

    @service.request("prices/of")
    async def price(message: Message) -> float:
        if message.value() != "tea":
            raise RequestFailed("404", b"not on the market")
        return 3.2

    async def talk() -> None:
        async with peer_pair("ticker", service) as (client, server):
            assert await client.request("prices/of", "tea") == 3.2
            with pytest.raises(RequestFailed, match="404: not on the market"):
                await client.request("prices/of", "snow")
            async with client.subscribe("prices/#") as prices:
                await server.publish("prices/tea", 3.3)
                assert (await anext(prices)).value() == 3.3

    asyncio.run(talk())
