"""Large values are read and written by another thread, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator

import pytest
from lxml import etree

import wireloom
from wireloom import Message, Peer, Result
from wireloom.chunked_json import is_large
from wireloom.formats import body_formats
from wireloom.testing import peer_pair

LARGE = [{"n": n, "text": "x" * 20} for n in range(5000)]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[threading.Thread]]:
    """The threads in which large bodies were read and written."""
    seen: dict[str, set[threading.Thread]] = {"loads": set(), "dumps": set()}
    loads, dumps = body_formats.BodyFormat.loads, body_formats.BodyFormat.dumps

    def watched_loads(self: body_formats.BodyFormat, data: bytes) -> object:
        if len(data) > 64 * 1024:
            seen["loads"].add(threading.current_thread())
        return loads(self, data)

    def watched_dumps(self: body_formats.BodyFormat, value: object) -> bytes:
        data = dumps(self, value)
        if len(data) > 64 * 1024:
            seen["dumps"].add(threading.current_thread())
        return data

    monkeypatch.setattr(body_formats.BodyFormat, "loads", watched_loads)
    monkeypatch.setattr(body_formats.BodyFormat, "dumps", watched_dumps)
    return seen


def not_on_the_loop(threads: dict[str, set[threading.Thread]]) -> bool:
    return all(seen and threading.current_thread() not in seen for seen in threads.values())


@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor"])
async def test_large_values_are_read_and_written_elsewhere(
    serializer: str, threads: dict[str, set[threading.Thread]]
) -> None:
    async def twice(message: Message, peer: Peer) -> object:
        value = await peer.value(message)
        assert isinstance(value, list)
        return value + value

    async with peer_pair("yamp", twice, settings={"serializer": serializer}) as (client, _):
        assert await client.request("twice", LARGE) == LARGE + LARGE
    assert not_on_the_loop(threads)


async def test_large_xml_is_read_and_written_elsewhere(threads: dict[str, set[threading.Thread]]) -> None:
    async def back(message: Message, peer: Peer) -> object:
        return await peer.value(message)

    root = etree.Element("readings")
    for n in range(5000):
        etree.SubElement(root, "reading", celsius=str(n))
    async with peer_pair("yamp", back, settings={"serializer": "xml"}) as (client, _):
        answer = await client.request("x", root)
    assert etree.tostring(answer) == etree.tostring(root)  # type: ignore[arg-type]
    assert not_on_the_loop(threads)


async def test_large_answers_of_plain_functions_and_generators(threads: dict[str, set[threading.Thread]]) -> None:
    async def steps() -> AsyncIterator[object]:
        yield Result(LARGE)

    def handler(message: Message, peer: Peer) -> object:
        return LARGE if message.topic == "plain" else steps()

    async with peer_pair("yamp", handler) as (client, _):
        assert await client.request("plain") == LARGE
        assert await client.request("generator") == LARGE
    assert not_on_the_loop(threads)


async def test_large_events_arrive_in_order() -> None:
    seen: list[object] = []
    async with peer_pair("yamp", lambda message, peer: seen.append(peer.decode(message))) as (client, _):
        for n in range(5):
            await client.publish("a", [*LARGE, n])
            await client.publish("a", n)
            await client.publish("a", [*LARGE, n], ack=True)
        await client.request("a")
    assert [each[-1] if isinstance(each, list) else each for each in seen[:15]] == [n for n in range(5) for _ in "123"]


async def test_cancelling_while_a_large_step_is_read_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def report(message: Message, peer: Peer) -> AsyncIterator[object]:
        yield LARGE
        yield Result("done")

    async with peer_pair("yamp", report) as (client, _):
        building = client.request_progress("report")
        reading, go_on = asyncio.Event(), asyncio.Event()
        value = client.value

        async def slowly(message: Message) -> object:
            reading.set()
            await go_on.wait()
            return await value(message)

        monkeypatch.setattr(client, "value", slowly)
        taking = asyncio.ensure_future(anext(building))
        await reading.wait()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        go_on.set()
        assert await anext(building) == LARGE
        assert await building == "done"


async def test_a_value_that_cannot_be_written_fails_the_same_way_when_it_is_large() -> None:
    async with peer_pair("yamp", lambda message, peer: [*LARGE, object()]) as (client, _):
        with pytest.raises(wireloom.NotSupported):
            await client.request("x", [*LARGE, object()])
        with pytest.raises(wireloom.RequestFailed, match="500"):
            await client.request("x")


@pytest.mark.parametrize(
    "value", [None, 7, 1.5, "x", b"x" * 10**6, {"a": [1, 2, {"b": "c"}]}, [1] * 1000, object(), bytearray(10**6)]
)
def test_small_values(value: object) -> None:
    assert not is_large(value)


@pytest.mark.parametrize(
    "value", ["x" * 100_000, [1] * 5000, {"a": {"b": [[1] * 100] * 100}}, [["x" * 1000] * 10] * 10]
)
def test_large_values(value: object) -> None:
    assert is_large(value)
    assert len(json.dumps(value)) > 10_000
