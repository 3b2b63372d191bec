"""Mesh over QUIC: packets in DATAGRAM frames, with secrecy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import wireloom
from tests.certificates import Authority
from tests.transports.recorder import Recorder
from wireloom import TLS, mesh
from wireloom.model import ConfigError, HandshakeFailed, Message, PeerClosed
from wireloom.transports import Address, Options, transport
from wireloom.transports import quic as module

HOME = "mesh+quic://127.0.0.1:0"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("quic"))


@pytest.fixture(scope="module")
def server_tls(authority: Authority) -> TLS:
    certificate, key = authority.issue("127.0.0.1")
    return TLS(certificate=certificate, key=key)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


async def test_connect_and_serve_over_quic(authority: Authority, server_tls: TLS) -> None:
    heard: list[Message] = []

    async def handler(message: Message, peer: wireloom.Peer) -> None:
        heard.append(message)

    async with wireloom.serve(HOME, handler, tls=server_tls) as server:
        async with wireloom.connect(server.url, tls=TLS(ca=authority.path)) as peer:
            assert peer.pipe.tls is not None and peer.pipe.tls.version == "TLSv1.3"
            await peer.publish("a/b", {"c": 1})
            async with peer.subscribe("x/#") as events:
                await eventually(lambda: len(heard) == 1)
                assert await server.publish("x/1", "hello") == 1
                assert (await anext(events)).value() == "hello"
    assert (heard[0].topic, heard[0].value()) == ("a/b", {"c": 1})


async def test_nodes_talk_over_quic(authority: Authority, server_tls: TLS) -> None:
    tls = TLS(
        certificate=server_tls.certificate, key=server_tls.key, ca=authority.path, require_client_certificate=False
    )
    async with (
        mesh.Node(HOME, require="any", tls=tls) as one,
        mesh.Node(HOME, require="any", tls=tls, seeds=[one.url]) as two,
    ):
        async with one.subscribe("#") as events:
            await eventually(lambda: any(b"#" in peer.capabilities for peer in two.peers))
            await two.publish("secret", 1)
            assert (await anext(events)).value() == 1


async def test_a_certificate_that_is_not_trusted_is_refused(server_tls: TLS) -> None:
    async with wireloom.serve(HOME, tls=server_tls) as server:
        with pytest.raises(PeerClosed, match="not trusted"):
            await wireloom.connect(server.url, reconnect=False)
        async with wireloom.connect(server.url, tls=TLS(verify=False)) as peer:
            assert peer.connected


async def test_another_protocol_name_is_refused(
    authority: Authority, server_tls: TLS, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wireloom.serve(HOME, tls=server_tls) as server:
        monkeypatch.setattr(module, "ALPN", "other/1")
        with pytest.raises(PeerClosed):
            await wireloom.connect(server.url, tls=TLS(ca=authority.path), reconnect=False)


async def test_nobody_there_is_told_in_time() -> None:
    with pytest.raises((PeerClosed, HandshakeFailed)):
        await wireloom.connect("mesh+quic://127.0.0.1:9", timeout=0.3, reconnect=False)


async def test_a_server_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        await wireloom.serve(HOME).start()


async def test_each_write_is_one_datagram_frame(authority: Authority, server_tls: TLS) -> None:
    quic = transport("quic")
    server, client = Recorder(echo=True), Recorder()
    listener = await quic.listen(Address("127.0.0.1", 0), lambda: server, Options(certificates=server_tls))
    pipe = await quic.connect(listener.address, client, Options(certificates=TLS(ca=authority.path)))
    sent = [b"x" * size for size in (1, 100, 548)]
    for data in sent:
        pipe.write(data)
    await client.until("received", 3)
    assert client.reads == sent
    client.pipe.pause_reading()
    pipe.write(b"later")
    await asyncio.sleep(0.1)
    assert len(client.reads) == 3
    client.pipe.resume_reading()
    assert client.reads[3:] == [b"later"]
    pipe.close()
    await client.until("ended")
    await server.until("ended")
    listener.close()


async def test_more_than_the_network_takes_is_dropped_and_counted(authority: Authority, server_tls: TLS) -> None:
    quic = transport("quic")
    server, client = Recorder(), Recorder()
    listener = await quic.listen(Address("127.0.0.1", 0), lambda: server, Options(certificates=server_tls))
    pipe = await quic.connect(listener.address, client, Options(certificates=TLS(ca=authority.path)))
    for _ in range(module.MAX_PENDING + 100):
        pipe.write(bytes(500))
    assert not client.writing
    assert pipe.dropped == 100  # type: ignore[attr-defined]
    await client.until("resumed")
    await server.until("received", 100)
    pipe.close()
    await client.until("ended")
    await server.until("ended")
    listener.close()
