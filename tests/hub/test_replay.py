"""Subscriptions that ask for the past: every committed message once, in order, with its offset, then what comes."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import data, data_ack, eventually, hub_on, port_of, records, stream_to, url_of
from wireloom import RequestFailed
from wireloom.cli.main import main
from wireloom.hub import Hub
from wireloom.journal import Offset, segments
from wireloom.model import Message

SCHEMES = ("hsp", "emp", "yamp", "wolpertinger")
HUB = "".join(f'[[listener]]\nurl = "{scheme}://127.0.0.1:0"\nprofile = true\n' for scheme in SCHEMES)
HUB += '[http]\nurl = "http://127.0.0.1:0"\n'
SMALL = HUB + "[journal]\nsegment_bytes = 20000\n"


async def take(events: AsyncIterator[Message], count: int) -> list[Message]:
    async with asyncio.timeout(60):
        return [await anext(events) for _ in range(count)]


def numbers(events: list[Message]) -> list[int]:
    return [int(event.body) for event in events]


async def publish(hub: Hub, scheme: str, topic: str, count: range, *, ack: bool = True) -> None:
    async with wireloom.connect(url_of(hub, scheme)) as peer:
        for number in count:
            await peer.publish(topic, b"%d" % number, ack=ack)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_past_and_then_the_present_in_every_protocol(tmp_path: Path, scheme: str) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        for at, source in enumerate(SCHEMES):
            await publish(hub, source, f"news/{source}", range(at * 10, at * 10 + 10), ack=source != "hsp")
            await publish(hub, source, "other", range(3))
        await hub.commit.wait(hub.journal.last_ticket)
        async with wireloom.connect(url_of(hub, scheme)) as peer:
            async with peer.subscribe("news/#", since="start") as events:
                past = await take(events, 40)
                await publish(hub, "emp", "news/emp", range(40, 45))
                present = await take(events, 5)
        assert numbers(past + present) == list(range(45))
        assert [event.topic for event in past] == [f"news/{source}" for source in SCHEMES for _ in range(10)]
        named = [event.attributes["offset"].partition(":") for event in past + present]
        assert {epoch for epoch, _, _ in named} == {hub.journal.epoch}
        offsets = [Offset.parse(offset) for _, _, offset in named]
        assert offsets == sorted(set(offsets))


async def test_an_offset_of_after_a_copy_was_made_is_refused_by_the_copy(tmp_path: Path) -> None:
    async with hub_on(tmp_path / "one", HUB) as hub:
        await publish(hub, "yamp", "news", range(5))
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    seen: list[str] = []
    async with hub_on(tmp_path / "one", HUB) as hub:
        await publish(hub, "yamp", "news", range(5, 10))
        async with wireloom.connect(url_of(hub, "emp")) as peer, peer.subscribe("news", since="start") as events:
            seen = [event.attributes["offset"] for event in await take(events, 10)]
    async with hub_on(tmp_path / "copy", HUB) as hub, wireloom.connect(url_of(hub, "emp")) as peer:
        await publish(hub, "yamp", "news", range(100, 120))
        async with peer.subscribe("news", since=seen[2]) as events:
            assert numbers(await take(events, 4)) == [3, 4, 100, 101]
        with pytest.raises(RequestFailed, match="is of a time that this journal does not hold"):
            async with peer.subscribe("news", since=seen[7]):
                pass


async def test_an_offset_is_gone_on_from_after_a_restart_of_the_hub(tmp_path: Path) -> None:
    async with hub_on(tmp_path, SMALL) as hub:
        await publish(hub, "yamp", "news", range(100))
        async with wireloom.connect(url_of(hub, "emp")) as peer, peer.subscribe("news", since="1h") as events:
            seen = await take(events, 30)
    async with hub_on(tmp_path, SMALL) as hub:
        since = seen[-1].attributes["offset"]
        async with wireloom.connect(url_of(hub, "hsp")) as peer, peer.subscribe("news", since=since) as events:
            await publish(hub, "emp", "news", range(100, 120))
            assert numbers(seen + await take(events, 90)) == list(range(120))


async def test_a_subscriber_that_reconnects_goes_on_where_it_was(tmp_path: Path) -> None:
    async with hub_on(tmp_path, SMALL) as hub:
        async with (
            wireloom.connect(url_of(hub, "yamp")) as peer,
            wireloom.connect(url_of(hub, "emp")) as publisher,
            peer.subscribe("news", since="start") as events,
        ):
            seen: list[Message] = []
            for round_ in range(4):
                for number in range(round_ * 50, round_ * 50 + 50):
                    await publisher.publish("news", b"%d" % number)
                seen += await take(events, 20)
                connection = next(c for c in hub.connections.values() if c.name == "yamp")
                connection.driver.abort()
                await eventually(lambda n=round_ + 1: peer.reconnects == n)  # type: ignore[misc]
            seen += await take(events, 120)
            assert numbers(seen) == list(range(200))


REFUSED = {
    "the journal is another one": ({"since": "start"}, ""),
    "the rules have changed": ({}, '[access]\n[[access.rule]]\nwho = ["anyone"]\npublish = ["#"]\n'),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_subscriber_that_gets_nothing_more_after_a_reconnect_is_told(
    tmp_path: Path, scheme: str, why: str
) -> None:
    options, rules = REFUSED[why]
    async with hub_on(tmp_path / "one", HUB) as hub:
        port = port_of(hub, scheme)
        peer = await wireloom.connect(url_of(hub, scheme), reconnect=wireloom.Backoff(minimum=0.01, maximum=0.05))
        events = peer.subscribe("news", **options)  # type: ignore[arg-type]
        async with events:
            await publish(hub, "emp", "news", range(3))
            assert numbers(await take(events, 3)) == [0, 1, 2]
            await hub.stop()
            async with hub_on(
                tmp_path / "two", HUB.replace(f"{scheme}://127.0.0.1:0", f"{scheme}://127.0.0.1:{port}") + rules
            ):
                with pytest.raises(RequestFailed):
                    await take(events, 1)
        await peer.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_whoever_joins_at_any_moment_sees_every_message_once_and_in_order(tmp_path: Path, seed: int) -> None:
    """The seam: a publisher at full speed, subscribers that join at random offsets and leave again."""
    chance = random.Random(seed)
    last = 3000
    offsets: list[tuple[int, str]] = []

    async def full_speed(hub: Hub) -> None:
        reader, writer = await stream_to(hub)
        number = 0
        while number <= last:
            # Reads of one frame and of many: one by one, and in bulk.
            count = min(chance.choice((1, 2, 3, 50, 400)), last + 1 - number)
            writer.write(b"".join(data_ack(n, b"%d" % n, 7) + data(b"noise", 8) for n in range(number, number + count)))
            number += count
            await reader.readexactly(5 * count)
        writer.close()

    async def join(hub: Hub, scheme: str) -> None:
        first, since = chance.choice(offsets) if offsets and chance.random() < 0.8 else (-1, "start")
        async with wireloom.connect(url_of(hub, scheme)) as peer:
            async with peer.subscribe("hsp/7", since=since) as events:
                expected = first + 1
                async with asyncio.timeout(120):
                    async for event in events:
                        assert int(event.body) == expected, (scheme, since)
                        offsets.append((expected, event.attributes["offset"]))
                        expected += 1
                        if expected > last or chance.random() < 0.0005:
                            return

    async with hub_on(tmp_path, SMALL) as hub:
        publishing = asyncio.ensure_future(full_speed(hub))
        while not publishing.done():
            await asyncio.gather(*(join(hub, scheme) for scheme in ("hsp", "emp", "yamp")))
        await publishing
        for scheme in SCHEMES:
            await join(hub, scheme)
        assert len(segments(tmp_path / "journal")) > 3


async def test_a_subscriber_that_does_not_read_costs_no_memory_and_loses_nothing(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        reader, writer = await stream_to(hub)
        for first in range(0, 2000, 200):
            writer.write(b"".join(data_ack(n, b"%d" % n + b" " * 4000) for n in range(first, first + 200)))
            await reader.readexactly(1000)
        async with wireloom.connect(url_of(hub, "emp"), queue=8) as peer:
            async with peer.subscribe("hsp/7", since="start") as events:
                await take(events, 1)
                connection = next(c for c in hub.connections.values() if c.name == "emp")
                await eventually(lambda: connection.driver.writing_is_paused, 30)
                sent = hub.metrics.replayed.value("emp")
                assert sent < 2000
                assert connection.queued_bytes == 0
                assert numbers(await take(events, 1999)) == list(range(1, 2000))
        assert connection.lost == 0
        writer.close()


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_subscriber_gets_the_past_no_faster_than_it_confirms_it(tmp_path: Path, size: int) -> None:
    few = HUB.replace('wolpertinger://127.0.0.1:0"', 'wolpertinger://127.0.0.1:0"\nsettings = { max_unconfirmed = 8 }')
    async with hub_on(tmp_path, few) as hub:
        async with wireloom.connect(url_of(hub, "yamp")) as peer:
            for number in range(200):
                await peer.publish("news", b"%-*d" % (size, number), ack=True)
        async with wireloom.connect(url_of(hub, "wolpertinger")) as peer:
            async with peer.subscribe("news", since="start") as one, peer.subscribe("news", since="start") as other:
                assert numbers(await take(one, 200)) == numbers(await take(other, 200)) == list(range(200))
        assert not hub.metrics.undeliverable.value("wolpertinger")


async def test_what_retention_took_is_left_out_and_told(tmp_path: Path) -> None:
    async with hub_on(tmp_path, SMALL) as hub:
        await publish(hub, "hsp", "hsp/7", range(600))
        await hub.commit.wait(hub.journal.last_ticket)
        async with wireloom.connect(url_of(hub, "emp")) as peer:
            async with peer.subscribe("hsp/7", since="start") as events:
                first = (await take(events, 1))[0].attributes["offset"]
            for path in segments(tmp_path / "journal")[:3]:
                path.unlink()
            async with peer.subscribe("hsp/7", since=first) as events:
                left = numbers(await take(events, 1))
                left += numbers(await take(events, 599 - left[0]))
                assert left == list(range(left[0], 600))
                assert left[0] > 10
    assert records(tmp_path, "lost")[0].details["reason"] == "retention: removed before it was read"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"since": "yesterday"}, "since 'yesterday' is no point in a journal"),
        ({"since": 5}, "since is 5"),
        ({"since": "9" * 400 + "d"}, "is no point in a journal"),
        ({"since": "1000000.0"}, "since 1000000.0 is past the end of this journal"),
        ({"since": "start", "as": "a/b"}, "as is 'a/b'"),
        ({"since": "start", "as": "a+"}, "holds a wildcard"),
        ({"since": "start", "retained": True}, "exclude each other"),
        ({"retained": "yes"}, "retained is 'yes'"),
    ],
)
async def test_wrong_options_are_answered_with_an_error(tmp_path: Path, options: dict[str, object], says: str) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, "emp")) as peer:
        with pytest.raises(RequestFailed, match=says):
            await peer.request("$hub/subscribe", {"topic": "a", **options})
        with pytest.raises(RequestFailed, match="there already"):
            for _ in range(2):
                await peer.request("$hub/subscribe", {"topic": "a", "since": "start", "as": "same"})
        await peer.request("$hub/unsubscribe", {"topic": "a", "as": "same"})
        with pytest.raises(RequestFailed, match=r"replays_per_principal in \[limits\]"):
            for number in range(65):
                await peer.request("$hub/subscribe", {"topic": "a", "since": "start", "as": str(number)})
        assert len(hub.replays) == 64
    assert len(hub.replays) == 0


async def test_sub_since_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with hub_on(tmp_path, HUB) as hub:
        await publish(hub, "emp", "news", range(5))
        url = f"yamp://127.0.0.1:{port_of(hub, 'yamp')}"
        command = ["sub", url, "news", "--since", "start", "--count", "5"]
        assert await asyncio.to_thread(main, command) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["body"] for line in lines] == [str(n) for n in range(5)]
        offset = lines[2]["attributes"]["offset"]
        assert await asyncio.to_thread(main, ["sub", url, "news", "--since", offset, "--count", "2", "--body"]) == 0
        assert capsys.readouterr().out == "3\n4\n"
        assert await asyncio.to_thread(main, ["sub", url, "news", "--retained", "--count", "1", "--body"]) == 0
        assert capsys.readouterr().out == "4\n"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_what_was_refused_is_not_part_of_the_past(tmp_path: Path, scheme: str) -> None:
    rules = '[[access.rule]]\nwho = ["anyone"]\npublish = ["open/#"]\nsubscribe = ["#"]\n'
    async with hub_on(tmp_path, HUB + rules) as hub:
        async with wireloom.connect(url_of(hub, scheme)) as peer:
            for number in range(6):
                with pytest.raises(RequestFailed):
                    await peer.publish("closed/door", b"%d" % number, ack=True)
                await peer.publish("closed/door", b"%d" % number)
                await peer.publish("open/door", b"%d" % number, ack=True)
            async with peer.subscribe("#", since="start") as events:
                past = await take(events, 6)
            assert [event.topic for event in past] == ["open/door"] * 6
            assert set(hub.last_values.tickets) == {"open/door"}
    (tmp_path / "journal" / "last-values.jsonl").unlink()
    async with hub_on(tmp_path, HUB + rules) as hub:
        await eventually(lambda: bool(hub.last_values.tickets))
        assert set(hub.last_values.tickets) == {"open/door"}


CLOSED = """
[[listener]]
url = "hsp://127.0.0.1:0"
topics = { 7 = "open/door", 8 = "closed/door" }
[[listener]]
url = "emp://127.0.0.1:0"
[http]
url = "off"
[[access.rule]]
who = ["anyone"]
publish = ["open/#"]
subscribe = ["#"]
"""


@pytest.mark.parametrize("count", [4, 100])
async def test_what_was_refused_stays_so_wherever_in_its_read_the_past_begins(tmp_path: Path, count: int) -> None:
    async with hub_on(tmp_path, CLOSED) as hub, wireloom.connect(url_of(hub, "emp")) as peer:
        _, writer = await stream_to(hub)
        writer.write(b"".join(data_ack(number, b"%d" % number, 7 + number % 2) for number in range(count)))
        async with peer.subscribe("#", since="start") as events:
            allowed = await take(events, count // 2)
        for number, event in enumerate(allowed[:-1]):
            async with peer.subscribe("#", since=event.attributes["offset"]) as events:
                assert numbers(await take(events, 1)) == [2 * number + 2]
        writer.close()


async def test_what_was_refused_stays_so_in_a_read_that_gives_numbers_to_topics(tmp_path: Path) -> None:
    async with hub_on(tmp_path, CLOSED) as hub, wireloom.connect(url_of(hub, "emp")) as peer:
        _, writer = await stream_to(hub)
        numbered = json.dumps({"topics": {"9": "closed/window"}}).encode()
        writer.write(
            data_ack(1, b"refused", 8)
            + data_ack(2, numbered, 0xFD05)
            + data_ack(3, b"refused", 9)
            + data_ack(4, b"4", 7)
        )
        async with peer.subscribe("#", since="start") as events:
            assert numbers(await take(events, 1)) == [4]
        writer.close()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_what_no_publish_may_be_called_is_not_part_of_the_past(tmp_path: Path, scheme: str) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, scheme)) as peer:
        for topic in ("a/+", "#"):
            with pytest.raises(RequestFailed):
                await peer.publish(topic, b"refused", ack=True)
        await peer.publish("news", b"1", ack=True)
        async with peer.subscribe("#", since="start") as events:
            assert (await take(events, 1))[0].topic == "news"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_what_was_too_much_is_not_part_of_the_past(tmp_path: Path, scheme: str) -> None:
    rate = '[limits]\nmessages_per_second = 20\nover_rate = "refuse"\n'
    taken: list[int] = []
    async with hub_on(tmp_path, HUB + rate) as hub, wireloom.connect(url_of(hub, scheme)) as peer:
        await peer.publish("news", b"0", ack=True)
        refused = 0
        for number in range(1, 100):
            try:
                await peer.publish("news", b"%d" % number, ack=True)
                taken.append(number)
            except RequestFailed:
                refused += 1
        assert refused > 10
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, scheme)) as peer:
        await peer.publish("news", b"100", ack=True)
        async with peer.subscribe("news", since="start") as events:
            assert numbers(await take(events, len(taken) + 2)) == [0, *taken, 100]
