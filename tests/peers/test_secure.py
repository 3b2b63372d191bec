"""TLS through the API: certificates both ways, and errors a person understands."""

from __future__ import annotations

from pathlib import Path

import pytest

import wireloom
from tests.certificates import Authority
from wireloom import TLS, ConfigError, Message, Peer, PeerClosed


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("secure"))


@pytest.fixture(params=["hsps", "emps", "yamps", "yamp+wss"])
def url(request: pytest.FixtureRequest) -> str:
    return f"{request.param}://127.0.0.1:0"


async def who(message: Message, peer: Peer) -> object:
    assert peer.pipe.tls is not None
    if peer.pipe.tls.peer_name not in (None, "ann"):
        raise wireloom.RequestFailed("403")
    return None


async def test_server_is_verified_by_its_authority(url: str, authority: Authority) -> None:
    certificate, key = authority.issue("server")
    async with wireloom.serve(url, who, tls=TLS(certificate=certificate, key=key)) as server:
        async with wireloom.connect(server.url, tls=TLS(ca=authority.path)) as peer:
            await peer.request("who")
            assert peer.pipe.tls is not None and peer.pipe.tls.peer_name == "server"
        with pytest.raises(PeerClosed, match=r"certificate is not trusted .*TLS\(ca="):
            await wireloom.connect(server.url)
        async with wireloom.connect(server.url, tls=TLS(verify=False)) as peer:
            await peer.request("who")


async def test_certificate_must_bear_the_right_name(url: str, authority: Authority) -> None:
    certificate, key = authority.issue("server")
    async with wireloom.serve(url, who, tls=TLS(certificate=certificate, key=key)) as server:
        with pytest.raises(PeerClosed, match="certificate"):
            await wireloom.connect(server.url, tls=TLS(ca=authority.path, server_hostname="other.example"))
        async with wireloom.connect(server.url, tls=TLS(ca=authority.path, server_hostname="localhost")) as peer:
            await peer.request("who")


async def test_client_certificate_is_asked_for(url: str, authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    settings = TLS(certificate=certificate, key=key, ca=authority.path)
    async with wireloom.serve(url, who, tls=settings) as server:
        mine, my_key = authority.issue("ann")
        async with wireloom.connect(server.url, tls=TLS(mine, my_key, ca=authority.path)) as peer:
            await peer.request("who")
        with pytest.raises(wireloom.WireloomError):
            async with wireloom.connect(server.url, tls=TLS(ca=authority.path), reconnect=False) as peer:
                await peer.request("who", timeout=5)
        stranger = Authority(tmp_path, "Stranger")
        theirs, their_key = stranger.issue("mallory")
        with pytest.raises(wireloom.WireloomError):
            async with wireloom.connect(
                server.url, tls=TLS(theirs, their_key, ca=authority.path), reconnect=False
            ) as peer:
                await peer.request("who", timeout=5)


async def test_server_without_a_certificate_says_what_it_needs(url: str) -> None:
    with pytest.raises(ConfigError, match="needs a certificate"):
        async with wireloom.serve(url):
            pass
