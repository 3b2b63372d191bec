"""What every pipe promises, for every transport alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.transports.recorder import Recorder
from wireloom.transports import TLS, Address, Options, Pipe, transport
from wireloom.transports.many_writes import write_each

NAMES = ["tcp", "tls", "memory", "unix", "ws", "wss"]
SECURE = ("tls", "wss")
HALVES = ("tcp", "memory", "unix")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets of the file system stand in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def place(name: str, word: str, port: int = 0) -> Address:
    """Where a transport can listen."""
    return Address("" if name == "unix" else "127.0.0.1", port, word)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def options(name: str, authority: Authority) -> tuple[Options, Options]:
    if name not in SECURE:
        return Options(), Options()
    certificate, key = authority.issue("server")
    return (
        Options(tls=TLS(ca=authority.path).client_context()),
        Options(tls=TLS(certificate=certificate, key=key).server_context()),
    )


@asynccontextmanager
async def joined(
    name: str, options: tuple[Options, Options], *, echo: bool = False, server_type: type[Recorder] = Recorder
) -> AsyncIterator[tuple[Recorder, Recorder]]:
    """A connected pair of owners: client and server."""
    servers: list[Recorder] = []

    def welcome() -> Recorder:
        servers.append(server_type(echo=echo))
        return servers[-1]

    address = place(name, "test" if name in ("memory", "unix") else "")
    listener = await transport(name).listen(address, welcome, options[1])
    client = Recorder()
    try:
        await transport(name).connect(listener.address, client, options[0])
        while not servers:
            await asyncio.sleep(0)
        await servers[0].until("opened")
        yield client, servers[0]
    finally:
        listener.close()
        for owner in (client, *servers):
            if owner._pipe is not None and "ended" not in owner.events:
                owner.pipe.abort()
                await owner.until("ended")


async def test_bytes_arrive_in_order(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options, echo=True) as (client, _):
        sent = b"".join(number.to_bytes(4) for number in range(20_000))
        for start in range(0, len(sent), 7777):
            client.pipe.write(sent[start : start + 7777])
        await client.until_size(len(sent))
        assert bytes(client.data) == sent


async def test_bytes_written_to_many_pipes_at_once_keep_their_place_among_others(
    name: str, options: tuple[Options, Options]
) -> None:
    async with joined(name, options) as (client, server):
        expected = b""
        for number in range(40):
            text = f"{number}:".encode()
            server.pipe.write(text)
            write_each([server.pipe], b"skipped" + text * 2, [7], [7 + 2 * len(text)])
            server.pipe.write(text)
            expected += text * 4
            if number % 3 == 0:
                await client.until_size(len(expected))
        await client.until_size(len(expected))
        assert bytes(client.data) == expected


async def test_only_pipes_that_send_bytes_as_they_are_give_their_socket(
    name: str, options: tuple[Options, Options]
) -> None:
    async with joined(name, options) as (client, server):
        assert [each.pipe.descriptor() >= 0 for each in (client, server)] == [name in ("tcp", "unix")] * 2


async def test_opened_comes_first_and_ended_last(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options) as (client, server):
        client.pipe.write(b"hello")
        await server.until("received")
        client.pipe.close()
        await client.until("ended")
        if "ended" not in server.events:
            server.pipe.close()
        await server.until("ended")
        for owner in (client, server):
            assert owner.events[0] == "opened" and owner.events[-1] == "ended"
            assert owner.events.count("opened") == owner.events.count("ended") == 1


async def test_what_was_written_before_close_arrives(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options) as (client, server):
        client.pipe.write(b"x" * 300_000)
        client.pipe.close()
        await server.until_size(300_000)
        await server.until("input_ended")


async def test_half_close_leaves_the_other_half_open(name: str, options: tuple[Options, Options]) -> None:
    if name not in HALVES:
        pytest.skip(f"{name} has no halves")
    async with joined(name, options) as (client, server):
        client.pipe.write(b"last words")
        client.pipe.finish()
        await server.until("input_ended")
        assert bytes(server.data) == b"last words"
        server.pipe.write(b"answer")
        await client.until_size(6)
        server.pipe.close()
        await client.until("input_ended")


async def test_paused_reading_holds_bytes_back_and_loses_none(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options) as (client, server):
        server.pipe.pause_reading()
        client.pipe.write(b"one")
        client.pipe.write(b"two")
        await asyncio.sleep(0.05)
        assert not server.data
        server.pipe.resume_reading()
        await server.until_size(6)
        assert bytes(server.data) == b"onetwo"


class Pausing(Recorder):
    """Wants nothing to be read from the beginning on."""

    def opened(self, pipe: Pipe) -> None:
        pipe.pause_reading()
        super().opened(pipe)


async def test_who_pauses_while_it_is_opened_is_handed_nothing_until_it_resumes(
    name: str, options: tuple[Options, Options]
) -> None:
    """uvloop begins to read after `connection_made`, whatever was asked for in it."""
    async with joined(name, options, server_type=Pausing) as (client, server), asyncio.timeout(30):
        sent = bytearray()
        while client.writing:
            piece = len(sent).to_bytes(8, "big") * 8192
            client.pipe.write(piece)
            sent += piece
            await asyncio.sleep(0)
        assert server.events == ["opened"]
        server.pipe.resume_reading()
        await server.until_size(len(sent))
        assert server.data == sent


async def test_reader_may_pause_inside_received(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options) as (client, server):
        take = server.received

        def once(data: bytes) -> None:
            take(data)
            server.pipe.pause_reading()

        server.received = once  # type: ignore[method-assign]
        if hasattr(server.pipe, "data_received") and name in ("tcp", "tls", "unix"):
            pytest.skip("TCP binds the callback when it connects; reads stop at the socket")
        for _ in range(5):
            client.pipe.write(b"abc")
        await server.until("received")
        await asyncio.sleep(0.05)
        assert len(server.reads) == 1
        while len(server.data) < 15:
            server.pipe.resume_reading()
            await asyncio.sleep(0)


async def test_writer_is_paused_by_a_reader_that_does_not_read(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options) as (client, server):
        server.pipe.pause_reading()
        total = 0
        while client.writing and total < 64 * 1024 * 1024:
            client.pipe.write(b"x" * 65536)
            total += 65536
            await asyncio.sleep(0)
        assert not client.writing, "the writer was never told to stop"
        server.pipe.resume_reading()
        await client.until("resumed")
        await server.until_size(total)


async def test_abort_is_noticed_by_the_other_side(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options) as (client, server):
        client.pipe.abort()
        await client.until("ended")
        while not {"input_ended", "ended"} & set(server.events):
            await asyncio.sleep(0)


async def test_pipe_knows_both_addresses(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options) as (client, server):
        assert client.pipe.peername == server.pipe.sockname != ""
        assert client.pipe.sockname == server.pipe.peername != ""


async def test_nobody_listens(name: str, options: tuple[Options, Options]) -> None:
    with pytest.raises(OSError):
        await transport(name).connect(place(name, "nobody", 1), Recorder(), options[0])


async def test_address_in_use(name: str, options: tuple[Options, Options]) -> None:
    address = place(name, "taken")
    listener = await transport(name).listen(address, Recorder, options[1])
    try:
        with pytest.raises(OSError):
            await transport(name).listen(listener.address, Recorder, options[1])
    finally:
        listener.close()


async def test_closed_listener_takes_nobody(name: str, options: tuple[Options, Options]) -> None:
    listener = await transport(name).listen(place(name, "closed"), Recorder, options[1])
    listener.close()
    await asyncio.sleep(0)
    with pytest.raises(OSError):
        await transport(name).connect(listener.address, Recorder(), options[0])


@pytest.mark.parametrize("name", SECURE, indirect=True)
async def test_tls_tells_version_and_certificate(name: str, options: tuple[Options, Options]) -> None:
    async with joined(name, options) as (client, server):
        assert client.pipe.tls is not None and server.pipe.tls is not None
        assert client.pipe.tls.version in ("TLSv1.2", "TLSv1.3")
        assert client.pipe.tls.cipher
        assert client.pipe.tls.peer_name == "server" and client.pipe.tls.peer_certificate
        assert server.pipe.tls.peer_certificate is None


@pytest.mark.parametrize("name", SECURE, indirect=True)
async def test_untrusted_server_is_refused(name: str, options: tuple[Options, Options], tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "Stranger")
    listener = await transport(name).listen(Address("127.0.0.1", 0), Recorder, options[1])
    try:
        with pytest.raises(OSError, match="certificate verify failed"):
            context = TLS(ca=stranger.path).client_context()
            await transport(name).connect(listener.address, Recorder(), Options(tls=context))
    finally:
        listener.close()


@pytest.mark.parametrize("name", SECURE, indirect=True)
async def test_client_certificate_tells_who_the_client_is(name: str, authority: Authority) -> None:
    certificate, key = authority.issue("server")
    server = TLS(certificate=certificate, key=key, ca=authority.path).server_context()
    mine, my_key = authority.issue("ann")
    client = TLS(certificate=mine, key=my_key, ca=authority.path).client_context()
    async with joined(name, (Options(tls=client), Options(tls=server))) as (_, owner):
        assert owner.pipe.tls is not None
        assert owner.pipe.tls.peer_name == "ann"


@pytest.mark.parametrize("name", ["tcp", "tls", "unix", "ws"], indirect=True)
async def test_an_owner_whose_connecting_is_cancelled_at_the_last_moment_is_told_and_can_abort(
    name: str, options: tuple[Options, Options]
) -> None:
    class Cancelled(Recorder):
        def opened(self, pipe: Pipe) -> None:
            super().opened(pipe)
            connecting.cancel()

    def welcome() -> Recorder:
        servers.append(Recorder())
        return servers[-1]

    client, servers = Cancelled(), list[Recorder]()
    address = place(name, "test" if name == "unix" else "")
    listener = await transport(name).listen(address, welcome, options[1])
    connecting = asyncio.ensure_future(transport(name).connect(listener.address, client, options[0]))
    with pytest.raises(asyncio.CancelledError):
        await connecting
    if "ended" not in client.events:
        client.pipe.abort()
    await asyncio.wait_for(client.until("ended"), 5)
    listener.close()
    for each in servers:
        if each._pipe is not None:
            await each.until("input_ended" if name in HALVES else "ended")
            each.pipe.abort()
