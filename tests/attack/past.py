"""Attacks on what is kept: the journal that many read at once, last values, and requests that nobody answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid

from tests.attack.harness import Target, attack
from tests.attack.wire import Peer, json_request
from wireloom.model import Kind, Message

EVENTS = 20_000


def reached(setting: str) -> dict[str, str]:
    """The setting, and the metric that shows it."""
    return {setting: f'wireloom_limits_reached_total{{setting="{setting}"}}'}


async def fill(target: Target, count: int, size: int, *, count_of_topics: int = 10) -> None:
    """Publish events, and wait until they are in the journal."""
    peer = await Peer.connect(target, "emp")
    body = bytes(size)
    for number in range(count):
        peer.write(Message(Kind.EVENT, f"past/{number % count_of_topics}", body, content_type="text/plain"))
        if number % 100 == 99:
            await peer.drain()
    await peer.settle()


@attack("readers of the whole past", limits=reached("replays_per_principal"))
async def readers(target: Target) -> None:
    """64 of one address read 20,000 events from the start; more are refused."""
    await fill(target, EVENTS, 100)
    peers = [await Peer.connect(target, "emp") for _ in range(16)]

    async def read(peer: Peer) -> list[str]:
        """What was said about each of eight replays; the events are read until the end of the attack."""
        names = [{"topic": "past/#", "since": "start", "as": str(name)} for name in range(8)]
        peer.write(*(json_request("subscribe", body, number) for number, body in enumerate(names)))
        said: list[str] = []
        async for message in peer:
            if message.kind in (Kind.RESPONSE, Kind.ERROR):
                said.append(message.body.decode())
                if len(said) == len(names):
                    break
        reading.append(asyncio.create_task(peer.swallow()))
        return said

    reading: list[asyncio.Task[None]] = []
    said = [each for answers in await asyncio.gather(*map(read, peers)) for each in answers]
    assert said.count("") == 64, said
    assert all(not each or "replays_per_principal in [limits]" in each for each in said), said
    await asyncio.sleep(3)
    for task in reading:
        task.cancel()


LAZY = "[limits]\nreplays = 40\nreplay_bytes = 8000000\n"


async def bodies_of(peer: Peer, count: int) -> list[bytes]:
    """The bodies of the next events."""
    found = [each.body for each in peer.events]
    async for message in peer:
        if message.kind is Kind.EVENT:
            found.append(message.body)
        if len(found) >= count:
            break
    return found


@attack(
    "readers of the past that do not read",
    limits={**reached("replays"), **reached("replay_bytes")},
    config=LAZY,
    quick=True,
    budget=8_000_000 + 40 * 1_000_000,
)
async def lazy_readers(target: Target) -> None:
    """What was read for them is dropped, and read again when they read: to each, a message is on its way."""
    await fill(target, 20, 1_000_000)
    peers = [await Peer.connect(target, "emp") for _ in range(50)]
    for number, peer in enumerate(peers):
        answer = await peer.operate("subscribe", topic="past/#", since="start")
        if number >= 40:
            assert answer.status == "429" and b"replays in [limits]" in answer.body, answer
    await asyncio.sleep(1.5)
    for peer in (peers[0], peers[39]):
        sizes = [len(each) for each in await bodies_of(peer, 20)]
        assert sizes == [1_000_000] * 20, sizes


@attack(
    "readers of a past of small events that do not read",
    limits=reached("replay_bytes"),
    config="[limits]\nreplay_bytes = 1000000\n",
    budget=1_000_000,
)
async def lazy_readers_of_small_events(target: Target) -> None:
    """Our own. A piece of the journal is hundreds of messages; what is dropped of it is sent later, each once."""
    _, writer = await target.open("hsp")
    for number in range(20):
        frames = (b"\0\0\7\0\0\1\xf4%0500d" % each for each in range(1000 * number, 1000 * (number + 1)))
        writer.write(b"".join(frames))
        await writer.drain()
    peers = [await Peer.connect(target, "emp") for _ in range(20)]
    for peer in peers:
        assert (await peer.operate("subscribe", topic="load", since="start")).kind is Kind.RESPONSE
    await asyncio.sleep(1.5)
    bodies = await bodies_of(peers[0], 20_000)  # soon enough for the pings that the others do not answer
    assert list(map(int, bodies)) == list(range(20_000)), (len(bodies), bodies[:1], bodies[-1:])


@attack("large last values for those who do not read", config=LAZY, budget=104_000_000)
async def lazy_readers_of_last_values(target: Target) -> None:
    """Our own. The values of a subscription were all read at once.

    On their way to the journal may be 64 MB (`pending_bytes`), to each subscriber one value.
    """
    await fill(target, 80, 2_000_000, count_of_topics=80)
    peers = [await Peer.connect(target, "emp") for _ in range(20)]
    for peer in peers:
        assert (await peer.operate("subscribe", topic="past/#", retained=True)).kind is Kind.RESPONSE
    await asyncio.sleep(1.5)
    sizes = [len(each) for each in await bodies_of(peers[0], 80)]
    assert sizes == [2_000_000] * 80, sizes


@attack(
    "last values of topics without end",
    limits=reached("last_values_bytes"),
    config="[limits]\nlast_values_bytes = 8000000",
    budget=8_000_000,
)
async def last_values(target: Target) -> None:
    """8 MB hold some 6,000 topics of 900 bytes; the newest are known."""
    peer = await Peer.connect(target, "emp")
    for number in range(60_000):
        peer.write(Message(Kind.EVENT, f"{'x' * 900}/{number}", b"1", content_type="text/plain"))
        if number % 100 == 99:
            await peer.drain()
    await peer.settle()
    metrics = await target.metrics()
    assert metrics['wireloom_limit_used{setting="last_values_bytes"}'] <= 8_000_000
    await asyncio.sleep(1)


@attack("last values of 20,000 topics, asked for again and again", limits=reached("replays_per_principal"))
async def retained(target: Target) -> None:
    peer = await Peer.connect(target, "emp")
    for number in range(20_000):
        peer.write(Message(Kind.EVENT, f"values/{number}", b"1", content_type="text/plain"))
    await peer.settle()
    requests = [json_request("subscribe", {"topic": "values/#", "retained": True}, number) for number in range(300)]
    asking = await Peer.connect(target, "emp")
    asking.write(*requests)
    statuses = []
    async for message in asking:
        if message.kind in (Kind.RESPONSE, Kind.ERROR):
            statuses.append(message.status)
            if len(statuses) == len(requests):
                break
    assert "429" in statuses, statuses
    await asyncio.sleep(2)


@attack(
    "requests that nobody answers",
    limits={**reached("requests"), **reached("request_timeout")},
    config="[limits]\nrequests = 10000\nrequest_timeout = 4",
)
async def unanswered(target: Target) -> None:
    """They fail together when their time is over, and again when their provider leaves."""
    provider = await Peer.connect(target, "hsp")
    assert (await provider.operate("provide", topic="silent")).kind is Kind.RESPONSE

    swallowing = asyncio.create_task(provider.swallow())
    errors: list[str] = []
    peers = [await Peer.connect(target, "yamp") for _ in range(3)]

    async def ask(peer: Peer) -> None:
        for at in range(0, 8000, 200):
            for number in range(at, at + 200):
                peer.write(Message(Kind.REQUEST, "silent", b"{}", id=str(number + 1), content_type="application/json"))
            await peer.drain()
        async for message in peer:
            if message.kind is Kind.ERROR:
                errors.append(json.loads(message.body)["code"])
                if errors[-1] == "504" and errors.count("504") > 8_000:
                    break

    asking = [asyncio.create_task(ask(peer)) for peer in peers]
    await asyncio.wait(asking, timeout=10)
    for task in (swallowing, *asking):
        task.cancel()
    assert set(errors) == {"429", "504"}, set(errors)


@attack("large requests for a provider that does not read", limits=reached("queue_bytes"), budget=64_000_000)
async def provider_that_does_not_read(target: Target) -> None:
    provider = await Peer.connect(target, "emp")
    assert (await provider.operate("provide", topic="lazy")).kind is Kind.RESPONSE
    peer = await Peer.connect(target, "yamp")
    ids = itertools.count(1)
    for _ in range(200):
        peer.write(Message(Kind.REQUEST, "lazy", bytes(2_000_000), id=str(next(ids)), content_type="application/json"))
        await peer.drain()
    async for message in peer:
        if message.kind is Kind.ERROR:
            assert b'"503"' in message.body and b"queue_bytes in [limits]" in message.body, message
            break


@attack("large answers for a requester that does not read", limits=reached("queue_bytes"), budget=64_000_000)
async def requester_that_does_not_read(target: Target) -> None:
    provider = await Peer.connect(target, "yamp")
    assert (await provider.operate("provide", topic="much")).kind is Kind.RESPONSE
    peer = await Peer.connect(target, "emp")
    for number in range(200):
        peer.write(Message(Kind.REQUEST, "much", b"{}", id=str(number + 1), content_type="application/json"))
    answered = 0
    async for message in provider:
        if message.kind is not Kind.REQUEST:
            continue
        answer = Message(
            Kind.RESPONSE, "much", bytes(2_000_000), id=str(uuid.uuid4()), correlation_id=message.id, status="done",
            content_type="text/plain",
        )  # fmt: skip
        provider.write(answer)
        await provider.drain()
        answered += 1
        if answered == 200 or (await target.metrics()).get('wireloom_limits_reached_total{setting="queue_bytes"}'):
            break
