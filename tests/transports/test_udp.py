"""UDP: a pipe for each source, batches, and what happens when nobody reads."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from tests.transports.recorder import Recorder
from wireloom.transports import Address, Options, transport
from wireloom.transports import datagrams as module
from wireloom.transports.udp import MAX_HELD, UDPListener, UDPPipe

UDP = transport("udp")
HOME = Address("127.0.0.1", 0)


class Batches(Recorder):
    """Takes datagrams as they come: many at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[bytes]] = []

    def received_datagrams(self, data: bytes, ends: list[int]) -> None:
        starts = [0, *ends[:-1]]
        batch = [data[start:end] for start, end in zip(starts, ends, strict=True)]
        self.batches.append(batch)
        for datagram in batch:
            self.received(datagram)


class Door:
    """A listener that keeps its owners."""

    def __init__(self, *, batches: bool = False, echo: bool = False) -> None:
        self.owners: list[Recorder] = []
        self._batches, self._echo = batches, echo

    def __call__(self) -> Recorder:
        self.owners.append(Batches() if self._batches else Recorder(echo=self._echo))
        return self.owners[-1]

    async def open(self, options: Options | None = None, address: Address = HOME) -> UDPListener:
        listener = await UDP.listen(address, self, options or Options())
        assert isinstance(listener, UDPListener)
        return listener


def plain_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def test_each_write_is_one_datagram_and_comes_back() -> None:
    door = Door(echo=True)
    listener = await door.open()
    client = Recorder()
    pipe = await UDP.connect(listener.address, client, Options())
    assert pipe.carries_messages
    for data in (b"one", b"two", b"x" * 548):
        pipe.write(data)
    await client.until("received", 3)
    assert client.reads == [b"one", b"two", b"x" * 548]
    assert (door.owners[0].pipe.peername, client.pipe.peername) == (client.pipe.sockname, str(listener.address))
    pipe.close()
    await client.until("ended")
    door.owners[0].pipe.close()
    listener.close()


async def test_every_source_has_a_pipe_of_its_own() -> None:
    door = Door()
    listener = await door.open()
    with plain_socket() as one, plain_socket() as two:
        for number in range(3):
            one.sendto(b"one%d" % number, ("127.0.0.1", listener.address.port))
            two.sendto(b"two%d" % number, ("127.0.0.1", listener.address.port))
        await until(lambda: sum(len(owner.reads) for owner in door.owners) == 6)
        assert sorted(owner.reads for owner in door.owners) == [
            [b"one0", b"one1", b"one2"],
            [b"two0", b"two1", b"two2"],
        ]
        door.owners[0].pipe.write(b"hello")
        names = {f"127.0.0.1:{sock.getsockname()[1]}": sock for sock in (one, two)}
        assert names[door.owners[0].pipe.peername].recv(100) == b"hello"
    for owner in door.owners:
        owner.pipe.close()
    listener.close()


async def test_many_datagrams_come_in_batches() -> None:
    door = Door(batches=True)
    listener = await door.open()
    with plain_socket() as sock:
        for number in range(600):
            sock.sendto(b"%d" % number, ("127.0.0.1", listener.address.port))
        await until(lambda: door.owners and len(door.owners[0].reads) == 600)
    assert door.owners[0].reads == [b"%d" % number for number in range(600)]
    assert len(door.owners[0].batches) < 100  # type: ignore[attr-defined]
    door.owners[0].pipe.close()
    listener.close()


async def test_without_recvmmsg_it_works_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "other")
    door = Door(batches=True)
    listener = await door.open()
    with plain_socket() as one, plain_socket() as two:
        for number in range(50):
            one.sendto(b"%d" % number, ("127.0.0.1", listener.address.port))
            two.sendto(b"%d" % number, ("127.0.0.1", listener.address.port))
        await until(lambda: sum(len(owner.reads) for owner in door.owners) == 100)
    assert [owner.reads for owner in door.owners] == [[b"%d" % number for number in range(50)]] * 2
    for owner in door.owners:
        owner.pipe.close()
    listener.close()


async def test_ipv6_works_too() -> None:
    door = Door(echo=True)
    listener = await door.open(address=Address("::1", 0))
    client = Recorder()
    pipe = await UDP.connect(listener.address, client, Options())
    pipe.write(b"six")
    await client.until("received")
    assert pipe.peername.startswith("[::1]:")
    assert door.owners[0].pipe.peername == pipe.sockname
    pipe.close()
    door.owners[0].pipe.close()
    listener.close()


async def test_a_stranger_has_a_pipe_from_the_first_datagram_that_is_worth_it() -> None:
    asked: list[bytes] = []

    def admit(data: bytes, source: str) -> bool:
        asked.append(data)
        return data.startswith(b"good")

    door = Door()
    listener = await door.open(Options(admit=admit))
    with plain_socket() as sock:
        for data in (b"bad1", b"bad2", b"good1", b"bad3"):
            sock.sendto(data, ("127.0.0.1", listener.address.port))
        await until(lambda: door.owners and len(door.owners[0].reads) == 2)
    assert door.owners[0].reads == [b"good1", b"bad3"]
    assert (asked, listener.refused) == ([b"bad1", b"bad2", b"good1"], 2)
    door.owners[0].pipe.close()
    listener.close()


async def test_sources_are_limited_and_what_does_not_fit_is_counted() -> None:
    door = Door()
    listener = await door.open(Options(max_sources=2))
    socks = [plain_socket() for _ in range(4)]
    for sock in socks:
        sock.sendto(b"x", ("127.0.0.1", listener.address.port))
    await until(lambda: listener.dropped == 2)
    assert len(door.owners) == 2
    door.owners[0].pipe.close()
    socks[3].sendto(b"again", ("127.0.0.1", listener.address.port))
    await until(lambda: len(door.owners) == 3)
    for owner in door.owners[1:]:
        owner.pipe.close()
    listener.close()
    for sock in socks:
        sock.close()


async def test_an_owner_that_does_not_read_gets_later_what_was_kept_and_the_rest_is_counted() -> None:
    door = Door()
    listener = await door.open()
    with plain_socket() as quiet, plain_socket() as busy:
        quiet.sendto(b"first", ("127.0.0.1", listener.address.port))
        await until(lambda: door.owners)
        busy.sendto(b"other", ("127.0.0.1", listener.address.port))
        await until(lambda: len(door.owners) == 2)
        owner = door.owners[0]
        owner.pipe.pause_reading()
        for _ in range(300):
            quiet.sendto(bytes(1400), ("127.0.0.1", listener.address.port))
        await until(lambda: listener.dropped > 0)
        await asyncio.sleep(0.05)
        assert len(owner.reads) == 1
        owner.pipe.resume_reading()
        kept = len(owner.reads) - 1
        pipe = owner.pipe
        assert isinstance(pipe, UDPPipe)
        assert kept * 1400 <= MAX_HELD
        assert kept + pipe.dropped == 300
    for each in door.owners:
        each.pipe.close()
    listener.close()


async def test_while_nobody_reads_datagrams_stay_in_the_kernel() -> None:
    door = Door()
    listener = await door.open()
    with plain_socket() as sock:
        sock.sendto(b"first", ("127.0.0.1", listener.address.port))
        await until(lambda: door.owners and door.owners[0].reads)
        door.owners[0].pipe.pause_reading()
        for number in range(20):
            sock.sendto(b"%d" % number, ("127.0.0.1", listener.address.port))
        await asyncio.sleep(0.05)
        assert len(door.owners[0].reads) == 1
        door.owners[0].pipe.resume_reading()
        await until(lambda: len(door.owners[0].reads) == 21)
    assert listener.kernel_drops == 0
    door.owners[0].pipe.close()
    listener.close()


async def test_what_the_kernel_drops_is_counted() -> None:
    door = Door()
    listener = await door.open()
    listener._socket._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    listener._socket.pause()
    with plain_socket() as sock:
        for _ in range(200):
            sock.sendto(bytes(500), ("127.0.0.1", listener.address.port))
    assert listener.kernel_drops > 100
    listener.close()


async def test_reaching_out_from_a_listener_uses_its_own_address() -> None:
    door, other = Door(), Door(echo=True)
    here, there = await door.open(), await other.open()
    owner = Recorder()
    pipe = await here.reach(there.address, owner)
    assert await here.reach(there.address, Recorder()) is pipe
    pipe.write(b"hello")
    await owner.until("received")
    assert other.owners[0].pipe.peername == str(here.address)
    pipe.close()
    other.owners[0].pipe.close()
    for listener in (here, there):
        listener.close()


async def test_closing_a_listener_lets_open_pipes_go_on_and_takes_no_new_ones() -> None:
    door = Door(echo=True)
    listener = await door.open()
    client, late = Recorder(), Recorder()
    pipe = await UDP.connect(listener.address, client, Options())
    pipe.write(b"one")
    await client.until("received")
    listener.close()
    pipe.write(b"two")
    await client.until("received", 2)
    stranger = await UDP.connect(listener.address, late, Options())
    stranger.write(b"late")
    await asyncio.sleep(0.05)
    assert len(door.owners) == 1
    door.owners[0].pipe.finish()
    await door.owners[0].until("ended")
    for each in (pipe, stranger):
        each.abort()


async def test_a_peer_that_is_not_there_is_no_error() -> None:
    with plain_socket() as sock:
        port = sock.getsockname()[1]
    client = Recorder()
    pipe = await UDP.connect(Address("127.0.0.1", port), client, Options())
    for _ in range(5):
        pipe.write(b"anybody?")
        await asyncio.sleep(0.01)
    assert client.events == ["opened"]
    pipe.close()
    await client.until("ended")


async def test_an_address_in_use_is_an_oserror() -> None:
    door = Door()
    listener = await door.open()
    with pytest.raises(OSError):
        await door.open(address=listener.address)
    listener.close()


async def test_strangers_wait_for_their_share_and_those_who_are_known_do_not() -> None:
    looked_at: list[bytes] = []

    def admit(datagram: bytes, source: str) -> bool:
        looked_at.append(datagram)
        time.sleep(0.001)  # as a verification does
        return datagram == b"known"

    door = Door()
    listener = await door.open(options=Options(admit=admit))
    known, stranger = plain_socket(), plain_socket()
    place = ("127.0.0.1", listener.address.port)
    known.sendto(b"known", place)
    await until(lambda: door.owners and door.owners[0].data)
    for _ in range(300):
        stranger.sendto(b"x" * 1200, place)
    known.sendto(b"later", place)
    await until(lambda: bytes(door.owners[0].data).endswith(b"later"))
    assert len(looked_at) < 100, "the known one did not wait for all of the stranger's"
    await until(lambda: listener.refused + listener.strangers_dropped == 300)
    assert 0 < listener.strangers_dropped == listener.counters["udp.strangers_dropped"] < 300
    assert len(door.owners) == 1
    for sock in (known, stranger):
        sock.close()
    door.owners[0].pipe.close()
    listener.close()
