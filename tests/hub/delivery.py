"""What happens to each verb between two protocols: tried with real peers through a real hub, told in a few words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import wireloom
from tests.hub.running import eventually, hub_on, url_of
from wireloom.hub import Hub
from wireloom.model import Kind, LimitExceeded, Message, NotSupported, RequestFailed

PROTOCOLS = ("emp", "mesh", "hsp", "yamp", "wolpertinger")
LISTENERS = "".join(f'[[listener]]\nurl = "{name}://127.0.0.1:0"\nprofile = true\n' for name in PROTOCOLS)
HUB = LISTENERS.replace('mesh://127.0.0.1:0"\n', 'mesh://127.0.0.1:0"\nsettings = { require = "any" }\n')
HUB += '[http]\nurl = "off"\n[limits]\nrequest_timeout = 0.5\n'
CANNOT = "cannot be sent"
SOON = 20.0
LARGE = b"x" * 20_000

Experiment = Callable[[Hub, str, str], Awaitable[str]]


@asynccontextmanager
async def connect(hub: Hub, name: str, **options: object) -> AsyncIterator[wireloom.Client]:
    """A peer that leaves without waiting for anything."""
    async with wireloom.connect(url_of(hub, name), reconnect=False, **options) as peer:  # type: ignore[arg-type]
        try:
            yield peer
        finally:
            peer.abort()


async def outcome(asking: Awaitable[object]) -> str:
    """The end of a request in a few words."""
    try:
        async with asyncio.timeout(SOON):
            value = await asking
    except RequestFailed as failure:
        text = failure.body.decode().strip('"')
        return f"error {failure.code}" + (", with the reason" if text else "")
    except (NotSupported, LimitExceeded):
        return CANNOT
    return "the answer" if value == {"got": 21} else "an answer without a body"


@asynccontextmanager
async def providing(hub: Hub, name: str, handler: object):  # type: ignore[no-untyped-def]
    """A peer that answers requests for `sums`, where its protocol can."""
    async with connect(hub, name, handler=handler) as provider:
        with suppress(NotSupported):
            await provider.provide("sums")
        yield provider


async def double(message: Message, peer: wireloom.Peer) -> object:
    return {"got": message.value()}


async def publish(hub: Hub, source: str, target: str, body: object = None, *, ack: bool = False) -> str:
    told = []
    value = body or {"c": 21.5}
    async with connect(hub, source) as sender, connect(hub, target) as receiver, connect(hub, "emp") as watcher:
        async with receiver.subscribe("rooms/+") as events, watcher.subscribe("$hub/undeliverable") as lost:
            try:
                await sender.publish("rooms/kitchen", value, ack=ack)
            except (NotSupported, LimitExceeded):
                return CANNOT
            acknowledged = ", acknowledged after the sync" if ack else ""
            if ack:
                assert hub.journal.durable == hub.journal.last_ticket or hub.metrics.acknowledged.value(source) >= 1
            waiting = {asyncio.ensure_future(anext(events)), asyncio.ensure_future(anext(lost))}
            done, pending = await asyncio.wait(waiting, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
            for each in pending:
                each.cancel()
            told = [task.result() for task in done]
    assert told, "neither delivered nor told"
    if told[0].topic == "$hub/undeliverable":
        return "undeliverable" + acknowledged
    # A yamp peer reads every body with its serializer: text of others reaches it as a string.
    is_raw = isinstance(value, bytes) and (target != "yamp" or source == "yamp")
    expected = value.decode() if isinstance(value, bytes) and not is_raw else value
    assert (told[0].topic, told[0].body if is_raw else told[0].value()) == ("rooms/kitchen", expected)
    return "delivered" + acknowledged


async def acknowledged_publish(hub: Hub, source: str, target: str) -> str:
    return await publish(hub, source, target, ack=True)


async def large_publish(hub: Hub, source: str, target: str) -> str:
    return await publish(hub, source, target, LARGE)


async def request(hub: Hub, source: str, target: str) -> str:
    async with providing(hub, target, double), connect(hub, source) as asking:
        return await outcome(asking.request("sums", 21))


async def failing_request(hub: Hub, source: str, target: str) -> str:
    async def handler(message: Message, peer: wireloom.Peer) -> object:
        raise RequestFailed("418", b"short and stout")

    async with providing(hub, target, handler), connect(hub, source) as asking:
        return await outcome(asking.request("sums", 21))


async def progress(hub: Hub, source: str, target: str) -> str:
    async def handler(message: Message, peer: wireloom.Peer):  # type: ignore[no-untyped-def]
        yield 1
        yield 2
        yield wireloom.Result({"got": 21})

    async with providing(hub, target, handler), connect(hub, source) as asking:
        steps: list[object] = []

        async def ask() -> object:
            call = asking.request_progress("sums", 21)
            steps.extend([step async for step in call])
            return await call

        ended = await outcome(ask())
        if steps == [1, 2]:
            return f"both steps, then {ended}"
        assert not any(steps), steps
        return ended


async def slow_provider(hub: Hub, source: str, target: str) -> str:
    working, stopped = asyncio.Event(), asyncio.Event()

    async with providing(hub, target, waits(working, stopped)), connect(hub, source) as asking:
        ended = await outcome(asking.request("sums", 21, timeout=SOON))
        return await with_fate(ended, working, stopped, target)


def waits(working: asyncio.Event, stopped: asyncio.Event):  # type: ignore[no-untyped-def]
    """A handler that works until it is told to stop."""

    async def handler(message: Message, peer: wireloom.Peer) -> object:
        working.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            stopped.set()
            raise
        return None

    return handler


async def with_fate(ended: str, working: asyncio.Event, stopped: asyncio.Event, target: str) -> str:
    """How a request ended, and whether its provider was told to stop working on it."""
    if not working.is_set():
        return ended
    if target == "yamp":
        await asyncio.wait_for(stopped.wait(), SOON)
    return f"{ended}; the provider is told" if stopped.is_set() else ended


async def lost_provider(hub: Hub, source: str, target: str) -> str:
    working, stopped = asyncio.Event(), asyncio.Event()
    async with providing(hub, target, waits(working, stopped)) as provider, connect(hub, source) as asking:
        hub.router.exchanges.timeout = SOON  # so that no timeout is taken for it
        call = asyncio.ensure_future(outcome(asking.request("sums", 21, timeout=SOON)))
        await until(call, working)
        provider.abort()
        return await call


async def until(call: asyncio.Future[str], working: asyncio.Event) -> None:
    """Until the provider works, or the request is over without it."""
    await asyncio.wait([call, asyncio.ensure_future(working.wait())], return_when=asyncio.FIRST_COMPLETED)


async def give_up(hub: Hub, source: str, target: str, *, kill: bool) -> str:
    working, stopped = asyncio.Event(), asyncio.Event()
    async with providing(hub, target, waits(working, stopped)), connect(hub, source) as asking:
        hub.router.exchanges.timeout = SOON
        try:
            sent = asking.send(Message(Kind.REQUEST, "sums", b"21", content_type="application/json"))
        except NotSupported:
            return CANNOT
        if sent.id is None:
            return CANNOT
        async with asking.messages() as messages:
            try:
                if target != "mesh":
                    await asyncio.wait_for(working.wait(), SOON)
                asking.cancel(sent, kill=kill)
            except NotSupported:
                return CANNOT
            if kill:
                await eventually(lambda: len(hub.router.exchanges) == 0)
                return await with_fate("no answer", working, stopped, target)
            async with asyncio.timeout(SOON):
                async for message in messages:
                    if message.correlation_id == sent.id:
                        break
        ended = f"error {message.status}" if message.kind is Kind.ERROR else str(message.status)
        return await with_fate(ended, working, stopped, target)


async def cancel(hub: Hub, source: str, target: str) -> str:
    return await give_up(hub, source, target, kill=False)


async def kill(hub: Hub, source: str, target: str) -> str:
    return await give_up(hub, source, target, kill=True)


async def lost_requester(hub: Hub, source: str, target: str) -> str:
    working, stopped = asyncio.Event(), asyncio.Event()
    async with providing(hub, target, waits(working, stopped)), connect(hub, source) as asking:
        hub.router.exchanges.timeout = SOON
        call = asyncio.ensure_future(outcome(asking.request("sums", 21, timeout=SOON)))
        await until(call, working)
        if not working.is_set():
            return await call
        asking.abort()
        call.cancel()
        await eventually(lambda: len(hub.router.exchanges) == 0)
        return await with_fate("forgotten", working, stopped, target)


async def two_providers(hub: Hub, source: str, target: str) -> str:
    seen: list[int] = []

    def handler(number: int):  # type: ignore[no-untyped-def]
        async def handle(message: Message, peer: wireloom.Peer) -> object:
            seen.append(number)
            return {"got": 21}

        return handle

    async with (
        providing(hub, target, handler(1)),
        providing(hub, target, handler(2)),
        connect(hub, source) as asking,
    ):
        ended = [await outcome(asking.request("sums", 21)) for _ in range(4)]
    if sorted(seen) == [1, 1, 2, 2] and len(set(ended)) == 1:
        return "two each"
    return ended[0]


EXPERIMENTS: dict[str, Experiment] = {
    "Publish": publish,
    "Acknowledged publish": acknowledged_publish,
    "Publish of 20,000 bytes": large_publish,
    "Request": request,
    "Request that the provider refuses": failing_request,
    "Request with progress": progress,
    "Cancel": cancel,
    "Kill": kill,
    "The provider takes too long": slow_provider,
    "The provider goes away": lost_provider,
    "The requester goes away": lost_requester,
    "Four requests, two providers": two_providers,
}


async def observe(folder: Path, verb: str, source: str, target: str) -> str:
    """What happens, in the words of docs/delivery.md."""
    async with hub_on(folder, HUB) as hub:
        return await EXPERIMENTS[verb](hub, source, target)
