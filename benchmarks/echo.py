"""Servers that answer every request with its body, one kind a peer; `python -m benchmarks.echo KIND` prints a port."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import cast

import uvloop

import wireloom
from benchmarks.servers import free_port
from wireloom.transports.busy_poll import BUSY_POLL


def how(kind: str) -> tuple[str, float]:
    """The scheme, and for how long to stay awake."""
    return kind.removesuffix(ASLEEP), 0.0 if kind.endswith(ASLEEP) else BUSY_POLL


async def bare() -> int:
    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.write = transport.write  # type: ignore[attr-defined]

        def data_received(self, data: bytes) -> None:
            self.write(data)

    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    _keep.append(server)
    return int(server.sockets[0].getsockname()[1])


async def relay(target: int) -> int:
    """Passes bytes on to the bare server at a port, and its answers back: the least that anything in between does."""
    loop = asyncio.get_running_loop()

    class Outward(asyncio.Protocol):
        def __init__(self, back: asyncio.Transport) -> None:
            self.data_received = back.write  # type: ignore[method-assign]

    class Inward(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            back = cast(asyncio.Transport, transport)
            self.onward = loop.create_task(loop.create_connection(lambda: Outward(back), "127.0.0.1", target))

        def data_received(self, data: bytes) -> None:
            if self.onward.done():
                self.onward.result()[0].write(data)
            else:
                self.onward.add_done_callback(lambda _: self.data_received(data))

    server = await loop.create_server(Inward, "127.0.0.1", 0)
    _keep.append(server)
    return int(server.sockets[0].getsockname()[1])


async def ours(kind: str) -> int:
    def handler(message: wireloom.Message, peer: wireloom.Peer) -> bytes:
        return message.body

    scheme, busy_poll = how(kind)
    server = wireloom.serve(f"{scheme}://127.0.0.1:0", handler, settings=SETTINGS.get(scheme), busy_poll=busy_poll)
    _keep.append(server)
    await server.__aenter__()
    return server.port


async def provider(kind: str, port: int) -> int:
    """A provider at a hub that runs already."""
    scheme, busy_poll = how(kind)
    peer = await wireloom.connect(
        f"{scheme}://127.0.0.1:{port}", handler=lambda message, peer: message.body, busy_poll=busy_poll
    )
    await peer.provide("bench")
    _keep.append(peer)
    return port


async def websockets() -> int:
    from websockets.asyncio.server import ServerConnection, serve

    logging.getLogger("websockets").setLevel(logging.CRITICAL)

    async def handler(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    server = await serve(handler, "127.0.0.1", 0, compression=None)
    _keep.append(server)
    return int(next(iter(server.sockets)).getsockname()[1])


async def grpc() -> int:
    import grpc.aio

    async def echo(request: bytes, context: object) -> bytes:
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _keep.append(server)
    return int(port)


async def zmq() -> int:
    import zmq.asyncio

    socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    async def loop() -> None:
        while True:
            await socket.send_multipart(await socket.recv_multipart())

    _keep.append(asyncio.create_task(loop()))
    return int(port)


async def nats(port: int) -> int:
    """A responder on a nats-server that runs already."""
    import nats as client

    connection = await client.connect(f"nats://127.0.0.1:{port}")

    async def answer(message: client.aio.msg.Msg) -> None:
        await message.respond(message.data)

    await connection.subscribe("bench", cb=answer)
    await connection.flush()
    _keep.append(connection)
    return free_port()


ASLEEP = "-asleep"
"""After the name of a scheme: without `busy_poll`, on both ends."""
SETTINGS: dict[str, dict[str, object]] = {"yamp": {"serializer": "raw"}}
_keep: list[object] = []


async def main(kind: str, *rest: str) -> None:
    makers = {"bare": bare, "websockets": websockets, "grpc": grpc, "zmq": zmq}
    if kind == "nats":
        port = await nats(int(rest[0]))
    elif kind == "relay":
        port = await relay(int(rest[0]))
    elif kind == "provider":
        port = await provider(rest[0], int(rest[1]))
    elif kind in makers:
        port = await makers[kind]()
    else:
        port = await ours(kind)
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
