"""WebSocket as a byte stream: one message a write, Origins checked, compatible with other implementations."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.transports.recorder import Recorder
from wireloom.transports import Address, Listener, Options, transport


async def listen(owners: list[Recorder], options: Options | None = None, *, echo: bool = True) -> Listener:
    def welcome() -> Recorder:
        owners.append(Recorder(echo=echo))
        return owners[-1]

    return await transport("ws").listen(Address("127.0.0.1", 0), welcome, options or Options())


async def test_each_write_is_one_binary_message() -> None:
    owners: list[Recorder] = []
    listener = await listen(owners, echo=False)
    async with connect(f"ws://{listener.address}/some/path?x=1") as socket:
        await owners[0].until("opened")
        owners[0].pipe.write(b"first")
        owners[0].pipe.write(b"second")
        assert await socket.recv() == b"first"
        assert await socket.recv() == b"second"
        assert owners[0].pipe.headers["upgrade"].lower() == "websocket"
        assert owners[0].pipe.carries_messages
    await owners[0].until("ended")
    listener.close()


async def test_fragments_and_empty_messages_are_one_stream() -> None:
    owners: list[Recorder] = []
    listener = await listen(owners, echo=False)
    async with connect(f"ws://{listener.address}/") as socket:
        await socket.send([b"a", b"", b"bc"])
        await socket.send(b"")
        await socket.send(b"d")
        await owners[0].until_size(4)
        assert bytes(owners[0].data) == b"abcd"
    listener.close()
    await owners[0].until("ended")


async def test_text_messages_are_refused() -> None:
    owners: list[Recorder] = []
    listener = await listen(owners)
    async with connect(f"ws://{listener.address}/") as socket:
        await socket.send("text")
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1003
    listener.close()
    await owners[0].until("ended")


@pytest.mark.parametrize(
    ("allowed", "origin", "welcome"),
    [
        (None, None, True),
        (None, "https://evil.example", False),
        (("https://good.example",), "https://good.example", True),
        (("https://good.example",), "https://evil.example", False),
        (("https://good.example",), None, True),
        (("*",), "https://any.example", True),
    ],
)
async def test_web_pages_connect_only_from_allowed_origins(
    allowed: tuple[str, ...] | None, origin: str | None, welcome: bool
) -> None:
    owners: list[Recorder] = []
    listener = await listen(owners, Options(origins=allowed))
    try:
        async with connect(f"ws://{listener.address}/", origin=origin) as socket:
            await socket.send(b"hi")
            assert await socket.recv() == b"hi"
            assert welcome
    except InvalidStatus as error:
        assert error.response.status_code == 403
        assert not welcome
        assert owners[0].events == []
    listener.close()


async def test_plain_http_gets_an_answer_and_no_owner() -> None:
    owners: list[Recorder] = []
    listener = await listen(owners)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 426")
    writer.close()
    assert owners[0].events == []
    listener.close()


async def test_silent_client_is_dropped() -> None:
    owners: list[Recorder] = []
    listener = await listen(owners, Options(handshake_timeout=0.05))
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
    with pytest.raises(ConnectionResetError):
        assert await reader.read() == b""
        raise ConnectionResetError
    writer.close()
    assert owners[0].events == []
    listener.close()


async def test_client_talks_to_another_implementation() -> None:
    async def echo(socket: ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)

    async with serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        owner = Recorder()
        pipe = await transport("ws").connect(Address("127.0.0.1", port), owner, Options())
        pipe.write(b"x" * 100_000)
        pipe.write(b"y")
        await owner.until_size(100_001)
        assert owner.reads[-1] == b"y"
        pipe.close()
        await owner.until("ended")
        assert owner.error is None


async def test_server_that_is_no_websocket_server() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(OSError, match="404"):
        await transport("ws").connect(Address("127.0.0.1", port), Recorder(), Options())
    server.close()


async def test_message_above_the_limit_ends_the_connection() -> None:
    owners: list[Recorder] = []
    listener = await listen(owners, Options(max_message=1000))
    async with connect(f"ws://{listener.address}/") as socket:
        await socket.send(b"x" * 1001)
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009
    listener.close()
    await owners[0].until("ended")
