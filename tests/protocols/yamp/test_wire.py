"""yamp between two peers on real sockets: what only the whole stack can show."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

import wireloom
from wireloom.formats import body_formats
from wireloom.model import HandshakeFailed, Kind, Message, RequestFailed, RequestTimeout
from wireloom.protocols.yamp import frames

LOOPBACK = "yamp://127.0.0.1:0"


async def echo(message: Message) -> object:
    return message.body


def service() -> wireloom.Service:
    made = wireloom.Service()
    made.request("echo")(echo)

    @made.request("slow")
    async def slow(message: Message) -> object:
        await asyncio.sleep(60)
        return None

    @made.request("count")
    async def count(message: Message) -> AsyncIterator[object]:
        yield 1
        yield 2
        yield wireloom.Result("done")

    return made


@contextlib.asynccontextmanager
async def scripted(*answers: frames.Frame) -> AsyncIterator[str]:
    """A server that gives each client these frames and nothing else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"".join(map(frames.encode, answers)))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor"])
async def test_values_travel_in_the_serializer_the_client_names(serializer: str) -> None:
    async with (
        wireloom.serve(LOOPBACK, service()) as server,
        wireloom.connect(server.url, settings={"serializer": serializer}) as peer,
    ):
        assert peer.session.content_type == body_formats.CONTENT_TYPES[serializer]
        assert await peer.request("echo", {"c": [21.5, None]}) == {"c": [21.5, None]}


async def test_a_request_for_a_uri_nobody_handles_gets_a_response_of_type_error() -> None:
    async with wireloom.serve(LOOPBACK, service()) as server, wireloom.connect(server.url) as peer:
        with pytest.raises(RequestFailed):
            await peer.request("nobody/home", 1)
        assert await peer.request("echo", 2) == 2


async def test_a_request_times_out_with_an_error_and_the_connection_goes_on() -> None:
    async with wireloom.serve(LOOPBACK, service()) as server, wireloom.connect(server.url) as peer:
        with pytest.raises(RequestTimeout):
            await peer.request("slow", 1, timeout=0.05)
        assert await peer.request("echo", 2) == 2


async def test_progress_reaches_the_caller_step_by_step() -> None:
    async with wireloom.serve(LOOPBACK, service()) as server, wireloom.connect(server.url) as peer:
        assert [step async for step in peer.request_progress("count")] == [1, 2]


async def test_a_client_follows_a_redirect() -> None:
    async with wireloom.serve(LOOPBACK, service()) as server:
        elsewhere = server.url.replace("yamp://", "tcp://")
        async with (
            wireloom.serve(LOOPBACK, settings={"redirect": elsewhere}) as first,
            wireloom.connect(first.url) as peer,
        ):
            assert await peer.request("echo", 1) == 1
            assert peer.url == server.url


async def test_a_client_follows_at_most_5_redirects_in_a_row() -> None:
    came = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        await reader.readexactly(8)
        port = writer.get_extra_info("sockname")[1]
        writer.write(frames.encode(frames.CloseRedirect(f"tcp://127.0.0.1:{port}")))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"yamp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(HandshakeFailed, match="more than 5 times"):
            await wireloom.connect(url, reconnect=False).open()
    assert came == 6


async def test_a_refusal_is_told_in_the_words_of_the_server() -> None:
    async with scripted(frames.Close("closed for the winter")) as place:
        with pytest.raises(HandshakeFailed, match="closed for the winter"):
            await wireloom.connect(f"yamp://{place}", reconnect=False).open()


async def test_a_server_of_another_version_is_named() -> None:
    async with scripted(frames.Handshake(2, "json")) as place:
        with pytest.raises(HandshakeFailed, match="version 2 is not supported"):
            await wireloom.connect(f"yamp://{place}", reconnect=False).open()


async def test_system_frames_reach_no_handler() -> None:
    handled: list[Message] = []
    event = frames.Event(bytes(15) + b"\1", "temperature", b"21.5")
    talk = (frames.Ping(b"you there?"), frames.Pong(b"nobody asked"), event)

    async with wireloom.serve(LOOPBACK, lambda message, peer: handled.append(message)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        hello = frames.encode(frames.Handshake(frames.VERSION, "json"))
        writer.write(hello + b"".join(map(frames.encode, (*talk, frames.Close("enough")))))
        async with asyncio.timeout(20):
            assert await reader.read() == hello + frames.encode(frames.Pong(b"you there?"))
            while not handled:
                await asyncio.sleep(0.01)
        writer.close()
    assert [(message.kind, message.topic) for message in handled] == [(Kind.EVENT, "temperature")]

    told: list[Message] = []
    handshake = frames.Handshake(frames.VERSION, "json")
    async with (
        scripted(handshake, *talk, event) as address,
        asyncio.timeout(20),
        wireloom.connect(f"yamp://{address}", handler=lambda message, _: told.append(message)),
    ):
        while len(told) < 2:
            await asyncio.sleep(0.01)
    assert [(message.kind, message.topic) for message in told] == [(Kind.EVENT, "temperature")] * 2
