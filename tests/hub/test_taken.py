"""A request that a provider takes is a call, no publish: the journal says so, and whoever reads it knows."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import ALL, ack, data, data_ack, hub_on, records, stream_to, url_of
from wireloom.hub import Hub
from wireloom.journal import blocks
from wireloom.journal.exclusions import Excluded, excluding
from wireloom.model import Message

CALLED, PUBLISHED = 7, 8
"""Types of hsp; somebody provides the topic of the first."""
TOPICS = {CALLED: "sensors/kitchen", PUBLISHED: "doors/front"}
STRANGER = """
[access]
[[access.rule]]
who = ["anyone"]
publish = ["sensors/#"]
subscribe = ["#"]
"""
RAW = {"serializer": "raw"}
"""Bodies reach such a yamp peer as they were published."""


@asynccontextmanager
async def provider(hub: Hub, topic: str) -> AsyncIterator[list[Message]]:
    """Somebody who answers requests, and what was asked."""
    asked: list[Message] = []

    async def answer(message: Message, _: wireloom.Peer) -> bytes:
        asked.append(message)
        return b""

    async with wireloom.connect(url_of(hub, "hsp"), handler=answer) as peer:
        await peer.provide(topic)
        yield asked


async def past(hub: Hub) -> list[tuple[str | None, bytes]]:
    """What a subscriber gets that asks for the past; one more event shows where it ends."""
    end = secrets.token_bytes(8)
    async with wireloom.connect(url_of(hub, "yamp"), settings=RAW) as peer:
        await peer.publish("the/end", end, ack=True)
        async with peer.subscribe("#", since="start") as events, asyncio.timeout(60):
            found = [await anext(events)]
            while found[-1].body != end:
                found.append(await anext(events))
    return [(event.topic, event.body) for event in found if event.topic != "the/end"]


async def say(hub: Hub, frames: bytes, answers: int) -> set[bytes]:
    """Send frames, and wait for that many answers of five bytes."""
    reader, writer = await stream_to(hub)
    writer.write(frames)
    async with asyncio.timeout(60):
        answered = await reader.readexactly(5 * answers)
    writer.close()
    return {answered[at : at + 5] for at in range(0, len(answered), 5)}


@pytest.mark.parametrize("order", ["calls last", "calls first"])
async def test_calls_are_no_part_of_the_past(tmp_path: Path, order: str) -> None:
    frames = [data_ack(1, b"published", PUBLISHED), data_ack(2, b"called", CALLED), data(b"event", CALLED)]
    if order == "calls first":
        frames = [frames[1], frames[0], frames[2]]
    expected = [(TOPICS[PUBLISHED], b"published"), (TOPICS[CALLED], b"event")]
    async with hub_on(tmp_path, ALL) as hub:
        async with provider(hub, TOPICS[CALLED]) as asked:
            assert await say(hub, b"".join(frames), 2) == {ack(1), ack(2)}
            assert [message.body for message in asked] == [b"called"]
        assert sorted(await past(hub)) == sorted(expected)
        # Nobody provides it any more: now it is a publish.
        assert await say(hub, data_ack(3, b"published, too", CALLED), 1) == {ack(3)}
        expected.append((TOPICS[CALLED], b"published, too"))
        assert sorted(await past(hub)) == sorted(expected)
    async with hub_on(tmp_path, ALL) as hub:
        assert sorted(await past(hub)) == sorted(expected)
    [taken] = records(tmp_path, "taken")
    assert taken.details == {"ids": ["2"]}


@pytest.mark.parametrize("count", [5000, 300])
async def test_a_read_of_many_calls_is_told_by_a_range(tmp_path: Path, count: int) -> None:
    async with hub_on(tmp_path, ALL) as hub:
        async with provider(hub, TOPICS[CALLED]) as asked:
            frames = b"".join(
                data_ack(number, b"%d" % number, CALLED if number % 500 else PUBLISHED) for number in range(count)
            )
            assert len(await say(hub, frames, count)) == count
            assert sorted(int(each.body) for each in asked) == [number for number in range(count) if number % 500]
        published = [(TOPICS[PUBLISHED], b"%d" % number) for number in range(0, count, 500)]
        assert sorted(await past(hub)) == sorted(published)
        assert all(len(each.details.get("ids", ())) <= 2 for each in records(tmp_path, "taken"))  # type: ignore[arg-type]
    async with hub_on(tmp_path, ALL) as hub:
        assert sorted(await past(hub)) == sorted(published)


async def test_who_goes_on_amid_a_read_is_not_given_its_calls(tmp_path: Path) -> None:
    async with hub_on(tmp_path, ALL) as hub:
        async with provider(hub, TOPICS[CALLED]):
            frames = b"".join(
                data_ack(number, b"%d" % number, PUBLISHED if number % 3 == 0 else CALLED) for number in range(30)
            )
            await say(hub, frames, 30)
        async with wireloom.connect(url_of(hub, "yamp"), settings=RAW) as peer:
            async with peer.subscribe("#", since="start") as events:
                seen = [await anext(events) for _ in range(4)]
            since = seen[-1].attributes["offset"]
            async with peer.subscribe("#", since=since) as events, asyncio.timeout(30):
                seen += [await anext(events) for _ in range(6)]
            assert [int(event.body) for event in seen] == list(range(0, 30, 3))


async def test_a_call_is_not_the_last_value_of_its_topic(tmp_path: Path) -> None:
    async def last_value(hub: Hub) -> bytes:
        async with wireloom.connect(url_of(hub, "yamp"), settings=RAW) as peer:
            async with peer.subscribe(TOPICS[CALLED], retained=True) as events, asyncio.timeout(30):
                return (await anext(events)).body

    async with hub_on(tmp_path, ALL) as hub:
        async with provider(hub, TOPICS[CALLED]):
            # Event and call in one read.
            await say(hub, data(b"value", CALLED) + data_ack(1, b"call", CALLED), 1)
            assert await last_value(hub) == b"value"
            await say(hub, data_ack(2, b"another", CALLED), 1)
            assert await last_value(hub) == b"value"
    async with hub_on(tmp_path, ALL) as hub:
        assert await last_value(hub) == b"value"
    (tmp_path / "journal" / "last-values.jsonl").unlink()
    async with hub_on(tmp_path, ALL) as hub:
        assert await last_value(hub) == b"value"


async def test_what_the_journal_says_is_what_is_done(tmp_path: Path) -> None:
    """A provider that comes with the read itself takes what follows in it, and the journal says so."""
    async with hub_on(tmp_path, ALL) as hub:
        asked: list[Message] = []

        async def answer(message: Message, _: wireloom.Peer) -> bytes:
            asked.append(message)
            return b""

        async with wireloom.connect(url_of(hub, "hsp"), handler=answer) as peer, asyncio.timeout(30):
            [connection] = hub.connections.values()
            connection.driver.hold("test")
            providing = asyncio.create_task(peer.provide(TOPICS[CALLED]))
            await asyncio.sleep(0)
            publishing = asyncio.create_task(peer.publish(TOPICS[CALLED], b"called", ack=True))
            await asyncio.sleep(0.05)
            connection.driver.release("test")
            await asyncio.gather(providing, publishing)
        assert [message.body for message in asked] == [b"called"]
        assert await past(hub) == []


async def test_a_read_with_thousands_of_refused_publishes_is_recorded_in_parts(tmp_path: Path) -> None:
    """Ids that make no ranges: one record would be too large for a block."""
    count = 12_000
    async with hub_on(tmp_path, ALL + STRANGER) as hub:
        frames = b"".join(data_ack(3_000_000_000 + 2 * number, b"", PUBLISHED) for number in range(count))
        frames += data_ack(1, b"allowed", CALLED)
        reader, writer = await stream_to(hub)
        writer.write(frames)
        answers = b""
        async with asyncio.timeout(60):
            while ack(1) not in answers:
                piece = await reader.read(1 << 20)
                assert piece, "the connection was closed"
                answers += piece
        writer.close()
        async with wireloom.connect(url_of(hub, "yamp"), settings=RAW) as peer:
            async with peer.subscribe("#", since="start") as events, asyncio.timeout(60):
                assert (await anext(events)).body == b"allowed"
    refused = [number for each in records(tmp_path, "denied") for number in each.details["ids"]]  # type: ignore[union-attr]
    assert len(set(refused)) == count


def test_ids_are_said_in_as_few_words_as_possible_and_understood() -> None:
    assert list(excluding(["5", "6", "7", "9", "x", "11", "12"])) == [{"ids": ["9", "x"], "ranges": [[5, 7], [11, 12]]}]
    assert list(excluding(["05", "٣", "-1", "", None])) == [{"ids": ["05", "٣", "-1", ""]}]
    assert list(excluding([])) == []
    ids = [str(number) for number in range(0, 60_000, 2)] + [f"{number}-ü" for number in range(9000)] + ["y" * 90_000]
    parts = list(excluding(ids))
    assert len(parts) > 5
    excluded = Excluded()
    for part in parts:
        assert len(blocks.record_comment("taken", part, 1)) <= blocks.MAX_COMMENT
        excluded.add(json.loads(json.dumps(part)))
    assert all(each in excluded for each in ids)
    assert not any(each in excluded for each in ("1", "59999", "ü", "00", None))


def test_ranges_are_found_whatever_a_record_says() -> None:
    excluded = Excluded()
    excluded.add({"ids": 7, "ranges": [[5, 9], [7, 20], "x", [1], [30, 2], [40, 40.5], [100, 10**30], True]})
    excluded.add({"ranges": {"a": 1}, "ids": ["1", 2]})
    found = [number for number in range(50) if str(number) in excluded]
    assert found == [1, 2, *range(5, 21)]
    assert str(10**17) in excluded
    assert "9" * 5000 not in excluded


async def test_ranges_that_attack_the_reader_take_no_longer_than_others(tmp_path: Path) -> None:
    """Many ranges, and many ids to look up: a search, no scan."""
    excluded = Excluded()
    excluded.add({"ranges": [[number, number + 1] for number in range(0, 400_000, 4)]})
    async with asyncio.timeout(20):
        assert sum(str(number) in excluded for number in range(100_000)) == 50_000
        await asyncio.sleep(0)
