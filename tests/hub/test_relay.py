"""Requests and answers that the hub passes on, many at a time: each finds its way as if it came alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import wireloom
from tests.hub.running import eventually, hub_on, journaled, url_of
from wireloom.hub import Hub
from wireloom.journal.verify import verify
from wireloom.model import Kind, Message, RequestFailed

PROGRESSIVE = {"progressive": "true"}
HUB = """
[[listener]]
url = "emp://127.0.0.1:0"
[[listener]]
url = "hsp://127.0.0.1:0"
profile = true
[[listener]]
url = "yamp://127.0.0.1:0"
[http]
url = "off"
"""


@asynccontextmanager
async def provider(hub: Hub, scheme: str, topic: str, handler: object) -> AsyncIterator[wireloom.Peer]:
    async with wireloom.connect(url_of(hub, scheme), handler=handler) as peer:  # type: ignore[arg-type]
        await peer.provide(topic)
        yield peer


async def ask_all(peer: wireloom.Peer, count: int, topic: str = "math/double") -> list[object]:
    bodies = [b"%d" % number for number in range(count)]
    async with asyncio.timeout(60):
        return [each async for each in peer.request_many(topic, bodies, in_flight=64, return_errors=True)]


@pytest.fixture(params=["emp", "hsp", "yamp"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def doubled(scheme: str, count: int) -> list[object]:
    """What those who asked are told: in yamp bodies are JSON, in hsp answers have none."""
    forms = {"emp": lambda number: b"%d" % number, "hsp": lambda _: b"", "yamp": lambda number: number}
    return [forms[scheme](2 * number) for number in range(count)]


def double(message: Message, peer: wireloom.Peer) -> bytes:
    return b"%d" % (2 * int(message.body))


async def test_every_answer_of_many_finds_its_request(tmp_path: Path, scheme: str) -> None:
    async with hub_on(tmp_path, HUB) as hub, provider(hub, scheme, "math/double", double):
        async with wireloom.connect(url_of(hub, scheme)) as peer:
            assert await ask_all(peer, 2000) == doubled(scheme, 2000)
        assert len(hub.router.exchanges) == 0
        assert hub.metrics.requests.value(scheme, "done") == 2000
    found = [each.message for each in journaled(tmp_path)]
    asked = [each for each in found if each.kind is Kind.REQUEST and each.topic == "math/double"]
    answered = [each for each in found if each.kind is Kind.RESPONSE and each.topic in ("math/double", None)]
    # Each came in, and went out.
    assert sorted(int(each.body) for each in asked) == sorted([*range(2000)] * 2)
    if scheme != "hsp":
        assert sorted(int(each.body) for each in answered if each.topic) == sorted([*range(0, 4000, 2)] * 2)
    assert len(answered) >= 4000
    assert list(verify(tmp_path / "journal")) == []


async def test_several_requesters_and_providers_share_what_is_passed_on(tmp_path: Path, scheme: str) -> None:
    counts = [0, 0, 0]

    def counting(number: int) -> object:
        def handler(message: Message, peer: wireloom.Peer) -> bytes:
            counts[number] += 1
            return double(message, peer)

        return handler

    async with (
        hub_on(tmp_path, HUB) as hub,
        provider(hub, scheme, "math/double", counting(0)),
        provider(hub, scheme, "math/double", counting(1)),
        provider(hub, scheme, "math/#", counting(2)),
        wireloom.connect(url_of(hub, scheme)) as first,
        wireloom.connect(url_of(hub, scheme)) as second,
    ):
        expected = doubled(scheme, 900)
        assert await asyncio.gather(ask_all(first, 900), ask_all(second, 900)) == [expected, expected]
        assert sum(counts) == 1800
        assert max(counts) - min(counts) < 10


async def test_answers_that_fail_or_come_late_leave_the_others_alone(tmp_path: Path, scheme: str) -> None:
    later = asyncio.Event()

    async def handler(message: Message, peer: wireloom.Peer) -> bytes:
        number = int(message.body)
        if number % 10 == 3:
            raise RequestFailed("418", b"a teapot")
        if number % 10 == 7:
            await asyncio.wait_for(later.wait(), 20)
        return double(message, peer)

    async with hub_on(tmp_path, HUB) as hub, provider(hub, scheme, "math/double", handler):
        async with wireloom.connect(url_of(hub, scheme)) as peer:
            asking = [asyncio.create_task(peer.request("math/double", b"%d" % number)) for number in range(60)]
            await eventually(lambda: sum(each.done() for each in asking) == 54)
            assert len(hub.router.exchanges) == 6
            later.set()
            outcomes = await asyncio.gather(*asking, return_exceptions=True)
        for number, outcome in enumerate(outcomes):
            if number % 10 == 3:
                assert isinstance(outcome, RequestFailed)
                assert outcome.code == "418"
            else:
                assert outcome == doubled(scheme, 60)[number]
        assert len(hub.router.exchanges) == 0


async def never(message: Message, peer: wireloom.Peer) -> bytes:
    await asyncio.sleep(60)
    return b""


async def waits_for(hub: Hub, count: int) -> None:
    await eventually(lambda: len(hub.router.exchanges) == count)


async def test_a_provider_that_goes_away_fails_all_that_was_passed_on(tmp_path: Path, scheme: str) -> None:
    async with hub_on(tmp_path, HUB) as hub, wireloom.connect(url_of(hub, scheme)) as peer:
        async with provider(hub, scheme, "math/double", never) as gone:
            asking = asyncio.create_task(ask_all(peer, 64))
            await waits_for(hub, 64)
            gone.abort()
            outcomes = await asking
        assert all(isinstance(each, RequestFailed) and each.code == "503" for each in outcomes)
        assert len(hub.router.exchanges) == 0


async def test_a_requester_that_goes_away_is_forgotten_with_all_it_asked(tmp_path: Path, scheme: str) -> None:
    async with hub_on(tmp_path, HUB) as hub, provider(hub, scheme, "math/double", never):
        async with wireloom.connect(url_of(hub, scheme), reconnect=None) as peer:
            asking = asyncio.create_task(ask_all(peer, 64))
            await waits_for(hub, 64)
            peer.abort()
            await asyncio.gather(asking, return_exceptions=True)
        await waits_for(hub, 0)


async def test_a_request_is_found_by_who_asked_it_and_not_by_who_is_to_answer_it(tmp_path: Path) -> None:
    async with hub_on(tmp_path, HUB) as hub, provider(hub, "emp", "math/double", never):
        (answering,) = hub.connections.values()
        async with wireloom.connect(url_of(hub, "emp"), reconnect=None) as peer:
            (asking,) = set(hub.connections.values()) - {answering}
            task = asyncio.create_task(ask_all(peer, 64))
            await waits_for(hub, 64)
            exchanges = hub.router.exchanges
            assert exchanges.waiting(answering, "7") is None
            found = exchanges.waiting(asking, "7")
            assert found is not None
            assert (found.requester, found.provider) == (asking, answering)
            assert "7" in found.waiting.values()
            assert len(exchanges) == 64
            peer.abort()
            await asyncio.gather(task, return_exceptions=True)


async def test_what_is_not_answered_in_time_fails(tmp_path: Path, scheme: str) -> None:
    async with (
        hub_on(tmp_path, HUB + "[limits]\nrequest_timeout = 0.2\n") as hub,
        provider(hub, scheme, "math/double", never),
        wireloom.connect(url_of(hub, scheme)) as peer,
    ):
        outcomes = await ask_all(peer, 64)
        assert all(isinstance(each, RequestFailed) and each.code == "504" for each in outcomes)
        assert len(hub.router.exchanges) == 0


async def test_who_may_not_ask_is_told_so_for_each_request(tmp_path: Path, scheme: str) -> None:
    access = """
[[access.rule]]
who = ["anyone"]
provide = ["math/#"]
request = ["math/double"]
"""
    async with (
        hub_on(tmp_path, HUB + access) as hub,
        provider(hub, scheme, "math/#", double),
        wireloom.connect(url_of(hub, scheme)) as peer,
    ):
        assert await ask_all(peer, 200) == doubled(scheme, 200)
        outcomes = await ask_all(peer, 200, "math/triple")
        assert all(isinstance(each, RequestFailed) and each.code == "403" for each in outcomes)


async def test_requests_over_the_rate_are_refused(tmp_path: Path, scheme: str) -> None:
    limits = '[limits]\nmessages_per_second = 20\nover_rate = "refuse"\n'
    async with (
        hub_on(tmp_path, HUB + limits) as hub,
        provider(hub, scheme, "math/double", double),
        wireloom.connect(url_of(hub, scheme)) as peer,
    ):
        outcomes = await ask_all(peer, 300)
        refused = [each for each in outcomes if isinstance(each, RequestFailed)]
        assert refused
        assert {each.code for each in refused} == {"429"}


@pytest.mark.parametrize("providing", ["emp", "hsp", "yamp"])
async def test_a_provider_of_any_protocol_is_asked_by_any_other(tmp_path: Path, scheme: str, providing: str) -> None:
    async with (
        hub_on(tmp_path, HUB) as hub,
        provider(hub, providing, "math/double", double),
        wireloom.connect(url_of(hub, scheme)) as peer,
    ):
        outcomes = await ask_all(peer, 200)
        assert not any(isinstance(each, Exception) for each in outcomes)
        if scheme == providing:
            assert outcomes == doubled(scheme, 200)
        elif "hsp" not in (scheme, providing):
            assert [int(str(each, "ascii") if isinstance(each, bytes) else str(each)) for each in outcomes] == [
                2 * number for number in range(200)
            ]
        assert len(hub.router.exchanges) == 0


async def test_requests_for_several_topics_stay_in_order_and_find_their_answers(tmp_path: Path, scheme: str) -> None:
    seen: list[tuple[str | None, int]] = []

    def handler(message: Message, peer: wireloom.Peer) -> bytes:
        seen.append((message.topic, int(message.body)))
        return double(message, peer)

    form = "application/json" if scheme == "yamp" else None
    requests = [
        Message(Kind.REQUEST, f"math/{number // 3 % 4}", b"%d" % number, content_type=form) for number in range(300)
    ]
    async with (
        hub_on(tmp_path, HUB) as hub,
        provider(hub, scheme, "math/#", handler),
        wireloom.connect(url_of(hub, scheme)) as peer,
    ):
        async with asyncio.timeout(60):
            answers = [each async for each in peer.ask_many(requests, in_flight=300)]
    assert seen == [(each.topic, int(each.body)) for each in requests]
    if scheme != "hsp":
        assert [int(each.body) for each in answers] == [2 * number for number in range(300)]


async def test_progress_with_one_request_of_a_read_gives_time_to_that_one_alone(tmp_path: Path) -> None:
    async def handler(message: Message, peer: wireloom.Peer) -> AsyncIterator[object]:
        for step in range(100 if message.value() == 3 else 1):
            yield step
            await asyncio.sleep(0.02)
        await asyncio.sleep(60 if message.value() != 3 else 0)
        yield wireloom.Result("late")

    async with (
        hub_on(tmp_path, HUB + "[limits]\nrequest_timeout = 0.5\n") as hub,
        provider(hub, "yamp", "work", handler),
        wireloom.connect(url_of(hub, "yamp")) as peer,
    ):
        requests = [
            Message(Kind.REQUEST, "work", b"%d" % number, None, None, None, "application/json", PROGRESSIVE)
            for number in range(8)
        ]
        async with asyncio.timeout(60):
            outcomes = [each async for each in peer.ask_many(requests, in_flight=8, return_errors=True)]
    failed = [number for number, each in enumerate(outcomes) if isinstance(each, RequestFailed)]
    assert failed == [0, 1, 2, 4, 5, 6, 7]
    assert all(each.code == "504" for each in outcomes if isinstance(each, RequestFailed))
