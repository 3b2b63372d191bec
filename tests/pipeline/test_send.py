"""Messages go back to the wire: the core of `df.write.format("wireloom")` and of `wireloom replay`, without Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import wireloom
from tests.hub.running import hub_on, journaled, url_of
from wireloom.cli.main import main
from wireloom.model import ConfigError, Kind, Message, PeerClosed, RequestFailed
from wireloom.pipeline import Warehouse, tables
from wireloom.pipeline.schemas import MESSAGES, arrow_schema
from wireloom.pipeline.send import Pace, SendCounts, SendFailed, send_batches
from wireloom.pipeline.send_options import DEFAULTS, SendOptions
from wireloom.testing import FaultProxy

SECOND = 1_000_000
JSON = "application/json"


def rows(*given: dict[str, object]) -> pa.RecordBatch:
    """Rows of `messages` with what matters; a second between them unless they say so."""
    filled = [{"time": number * SECOND, "kind": "event", **row} for number, row in enumerate(given)]
    return pa.Table.from_pylist(filled, schema=arrow_schema(MESSAGES.columns)).combine_chunks().to_batches()[0]


def events(*topics_and_bodies: tuple[str, bytes]) -> pa.RecordBatch:
    return rows(*({"topic": topic, "body": body, "content_type": JSON} for topic, body in topics_and_bodies))


class Receiver:
    """A peer that keeps what it gets, and answers every request with its body."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.peers: list[wireloom.Peer] = []

    async def __call__(self, message: Message, peer: wireloom.Peer) -> bytes | None:
        self.got.append(message)
        self.peers.append(peer)
        if message.topic == "refused":
            raise RequestFailed("409", b"not again")
        return message.body if message.kind is Kind.REQUEST else None

    @property
    def seen(self) -> list[tuple[str, str | None, bytes]]:
        return [(str(message.kind), message.topic, message.body) for message in self.got]

    async def have(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.got) < count:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("ack", [False, True])
@pytest.mark.parametrize("scheme", ["hsp", "emp", "yamp", "wolpertinger"])
async def test_a_peer_receives_every_event_in_order_with_its_body(scheme: str, ack: bool) -> None:
    said = [(f"a/{number % 3}", b'{"n": %d}' % number) for number in range(1000)]
    receiver = Receiver()
    async with wireloom.serve(f"{scheme}://127.0.0.1:0", receiver) as server:
        sent = await send_batches([events(*said[:400]), events(*said[400:])], SendOptions(server.url, ack=ack))
        await receiver.have(len(said))
    assert sent == SendCounts(published=1000, acknowledged=1000 if ack else 0)
    assert [message[1:] for message in receiver.seen] == said


async def test_a_hub_has_what_it_acknowledged_in_its_journal(tmp_path: Path) -> None:
    async with hub_on(tmp_path) as hub:
        said = [("sensors/kitchen", b"1"), ("sensors/attic", b"2")]
        sent = await send_batches([events(*said)], SendOptions(url_of(hub), ack=True, topic_prefix="again/"))
        assert sent == SendCounts(published=2, acknowledged=2)
        kept = [(e.message.topic, e.message.body) for e in journaled(tmp_path) if e.message.kind is Kind.REQUEST]
    assert kept == [("again/sensors/kitchen", b"1"), ("again/sensors/attic", b"2")]


MIXED = (
    {"topic": "a", "body": b"1", "attributes": [("type", "7"), ("urgent", "1")]},
    {"kind": "request", "topic": "math/add", "body": b"2", "protocol": "yamp"},
    {"kind": "response", "body": b"3"},
    {"kind": "request", "topic": "$hub/publish/b", "body": b"4", "protocol": "emp"},
    {"kind": "request", "topic": "$hub/subscribe", "body": b"{}", "protocol": "emp"},
    {"kind": "request", "body": b"{}", "protocol": "emp", "attributes": [("operation", "subscribe")]},
    {"kind": "request", "topic": "c", "body": b"5", "protocol": "hsp"},
    {"kind": "ping"},
    {"kind": "event", "topic": "$hub/undeliverable", "body": b"{}"},
    {"kind": "event", "body": b"no topic"},
    {"kind": "request", "topic": "refused", "body": b"6", "protocol": "emp"},
)


async def test_what_belongs_to_its_connection_is_left_out_and_counted() -> None:
    receiver = Receiver()
    async with wireloom.serve("yamp://127.0.0.1:0", receiver) as server:
        sent = await send_batches([rows(*MIXED)], SendOptions(server.url))
        await receiver.have(2)
    assert receiver.seen == [("event", "a", b"1"), ("event", "b", b"4")]
    skipped = Counter({"request": 3, "hub operation": 3, "response": 1, "ping": 1, "event without topic": 1})
    assert sent == SendCounts(published=2, skipped=skipped)
    assert str(sent).startswith("2 published, 9 skipped (3 ")


@pytest.mark.parametrize("ack", [False, True])
async def test_requests_are_asked_again_if_that_is_wanted_and_a_refusal_is_an_answer(ack: bool) -> None:
    receiver = Receiver()
    async with wireloom.serve("yamp://127.0.0.1:0", receiver) as server:
        sent = await send_batches([rows(*MIXED)], SendOptions(server.url, requests=True, ack=ack))
        await receiver.have(5)
    assert (sent.published, sent.acknowledged, sent.requested, sent.refused) == (2, 2 if ack else 0, 3, 1)
    asked = [(topic, body) for kind, topic, body in receiver.seen if kind == "request"]
    assert asked == [("math/add", b"2"), ("c", b"5"), ("refused", b"6")]


async def test_a_publish_that_is_refused_is_an_error_that_says_how_far_it_went() -> None:
    receiver = Receiver()
    async with wireloom.serve("yamp://127.0.0.1:0", receiver) as server:
        batch = events(("a", b"1"), ("refused", b"2"))
        with pytest.raises(
            SendFailed,
            match=r"to 'refused' was not acknowledged: request failed with 409: not again; before that: 2 published \(1 ack",
        ):
            await send_batches([batch], SendOptions(server.url, ack=True))


async def test_a_protocol_without_acknowledgements_says_so() -> None:
    async with wireloom.serve("mesh://127.0.0.1:0", Receiver()) as server:
        with pytest.raises(SendFailed, match="the message to 'a' was not sent: mesh has no requests"):
            await send_batches([events(("a", b"1"))], SendOptions(server.url, ack=True))


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        await asyncio.sleep(0)


@pytest.mark.parametrize(("factor", "expected"), [(1.0, [0, 2.5, 2.5, 10]), (2.0, [0, 1.25, 1.25, 5]), (0.0, [0] * 4)])
async def test_the_gaps_are_kept_times_the_factor(factor: float, expected: list[float]) -> None:
    clock = Clock()
    times: list[float] = []
    receiver = Receiver()
    batch = rows(*({"topic": "a", "body": b"x", "time": int(t * SECOND)} for t in (50, 52.5, 51, 60)))

    class Noted(Pace):
        def left(self, time_us: int | None) -> float:
            left = super().left(time_us)
            if left <= 0:
                times.append(clock.now - 100)
            return left

    async with wireloom.serve("hsp://127.0.0.1:0", receiver) as server:
        await send_batches([batch], SendOptions(server.url, pace=factor), Noted(factor, clock, clock.sleep))
        await receiver.have(4)
    assert times == pytest.approx(expected)


async def test_a_connection_that_is_lost_is_an_error_that_says_how_far_it_went() -> None:
    receiver = Receiver()
    async with wireloom.serve("hsp://127.0.0.1:0", receiver) as server, FaultProxy(server.url) as proxy:

        def batches() -> Iterator[pa.RecordBatch]:
            yield events(*[("a", b"x" * 100)] * 50)
            proxy.to_server.cut_after = 2000
            yield events(*[("a", b"x" * 100)] * 500)

        with pytest.raises(SendFailed, match=r"the connection to .*; before that: \d+ published.*sends those again"):
            await send_batches(batches(), SendOptions(proxy.url, ack=True))


async def test_a_connection_that_is_lost_is_noticed_during_a_long_pause() -> None:
    receiver = Receiver()
    async with wireloom.serve("hsp://127.0.0.1:0", receiver) as server:
        clock = Clock()

        async def sleep(seconds: float) -> None:
            await receiver.have(1)
            for peer in receiver.peers:
                peer.abort()
            await asyncio.sleep(0.01)
            await clock.sleep(seconds / 1000)

        batch = rows(*({"topic": "a", "body": b"x", "time": t * SECOND} for t in (0, 86_400)))
        with pytest.raises(SendFailed, match="before that: 1 published"):
            await send_batches([batch], SendOptions(server.url, pace=1), Pace(1, clock, sleep))


async def test_a_peer_that_does_not_take_the_last_messages_is_an_error() -> None:
    async with wireloom.serve("hsp://127.0.0.1:0", Receiver()) as server, FaultProxy(server.url) as proxy:
        proxy.to_server.stalled = True
        with pytest.raises(SendFailed, match=r"did not take the last messages in time.*; before that: 3 published"):
            await send_batches([events(*[("a", b"x")] * 3)], SendOptions(proxy.url))


async def test_a_peer_that_does_not_listen_is_named() -> None:
    async with wireloom.serve("hsp://127.0.0.1:0", Receiver()) as server:
        url = server.url
    with pytest.raises(PeerClosed, match=f"cannot reach {url}"):
        await send_batches([events(("a", b"1"))], SendOptions(url))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "option 'url' is missing"),
        ({"url": "gopher://127.0.0.1"}, "unknown URL scheme 'gopher'; known: "),
        ({"pace": "fast"}, "option 'pace' is 'fast'; it must be 0 .* or a factor such as 1 or 2.5"),
        ({"pace": "-1"}, "option 'pace' is '-1'"),
        ({"ack": "yes"}, "option 'ack' is 'yes'; it must be true or false"),
        ({"timeout": "0"}, "the timeout is 0; it must be a number of seconds"),
        ({"topics": "[7]"}, "option 'topics' is '\\[7\\]'; it must map numbers to topics"),
        ({"settings.colour": "red"}, "colour"),
        ({"paces": "1"}, f"unknown option 'paces' for writing the format wireloom; known: {', '.join(sorted(DEFAULTS))}, settings.<name>"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SendOptions.parse(options if not options or "url" in options else {"url": "hsp://127.0.0.1", **options})


async def test_rows_that_lack_a_column_are_named() -> None:
    async with wireloom.serve("hsp://127.0.0.1:0", Receiver()) as server:
        plain = pa.RecordBatch.from_pylist([{"topic": "a"}])
        with pytest.raises(ConfigError, match="no column 'body'; to be sent they need topic, body, time"):
            await send_batches([plain], SendOptions(server.url, pace=1))
        wrong = pa.RecordBatch.from_pylist([{"topic": 1, "body": "x"}])
        with pytest.raises(ConfigError, match="the column 'topic' is int64; it must be a string"):
            await send_batches([wrong], SendOptions(server.url))


async def test_topic_and_body_are_enough() -> None:
    receiver = Receiver()
    async with wireloom.serve("hsp://127.0.0.1:0", receiver) as server:
        await send_batches([pa.RecordBatch.from_pylist([{"topic": "a", "body": "text"}])], SendOptions(server.url))
        await receiver.have(1)
    assert receiver.seen == [("event", "a", b"text")]


# The command


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Twelve messages of two connections, in two files that are not in the order of time."""
    made = Warehouse.prepared(tmp_path / "w")
    folder = made.folder(MESSAGES)
    given = [
        {"time": SECOND + 1000 * number, "kind": "event", "topic": f"t/{number % 2}", "body": b"%d" % number,
         "connection": "a", "direction": "c2s", "sequence": number, "protocol": "hsp"}
        for number in range(12)
    ]  # fmt: skip
    given.append({"time": 0, "kind": "pong", "connection": "a", "direction": "s2c", "sequence": 0, "protocol": "hsp"})
    for number, part in enumerate((given[5:], given[:5])):
        stored = pa.Table.from_pylist(part, schema=arrow_schema(MESSAGES.stored))
        written = tables.write_rows(folder, MESSAGES, stored, {"date": "1970-01-01"})
        tables.commit(tables.open_table(folder), MESSAGES, "q", number, [written])
    return made.root


async def replay(warehouse: Path, *words: str) -> int:
    return await asyncio.to_thread(main, ["replay", "--warehouse", str(warehouse), *words])


async def test_the_command_sends_what_is_selected_in_the_order_of_time(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver = Receiver()
    async with wireloom.serve("emp://127.0.0.1:0", receiver) as server:
        assert await replay(warehouse, "--to", server.url, "--ack") == 0
        assert [message.body for message in receiver.got] == [b"%d" % number for number in range(12)]
        assert capsys.readouterr().out.startswith(
            f"12 published (12 acknowledged), 1 skipped (1 pong); to {server.url} in "
        )
        receiver.got.clear()
        words = (
            "--where",
            "topic = 't/1' -- odd ones",
            "--limit",
            "4",
            "--ack",
            "--topic-prefix",
            "x/",
            "--pace",
            "1000",
        )
        assert await replay(warehouse, "--to", server.url, *words) == 0
        assert [(message.topic, message.body) for message in receiver.got] == [
            ("x/t/1", b"%d" % n) for n in (1, 3, 5, 7)
        ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--where", "topik = 'a'"), "the query does not work: Binder Error"),
        (("--where", "topic::int = 1"), "the query does not work: Conversion Error"),
        (("--where", " "), "--where is empty"),
        (("--limit", "-1"), "--limit -1: it must be a number of rows"),
        (("--pace", "-1"), "the pace is -1; it must be 0"),
        (("--set", "colour=red"), "colour"),
    ],
)
async def test_what_is_wrong_with_the_command_is_one_line(
    warehouse: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    async with wireloom.serve("hsp://127.0.0.1:0", Receiver()) as server:
        assert await replay(warehouse, "--to", server.url, *words) != 0
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert text in line
    assert printed.out == ""
