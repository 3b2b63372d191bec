"""emp over real sockets: TCP and TLS, two of our peers, and a hand-written one."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import wireloom
from wireloom.model import Message, RequestFailed
from wireloom.peers.peer import Peer
from wireloom.protocols.emp import frames
from wireloom.protocols.emp.frames import Frame, Type
from wireloom.transports import TLS


async def answer(message: Message, peer: Peer) -> object:
    if message.topic == "no/such":
        raise RequestFailed("404", b"no such topic")
    return message.value()


@pytest.fixture
def certificate(tmp_path: Path) -> TLS:
    """A certificate for the loopback address that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return TLS(certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")


async def converse(url: str, tls: TLS | None) -> None:
    async with wireloom.connect(url, tls=tls) as peer:
        assert await peer.request("math/echo", {"a": 1}, timeout=20) == {"a": 1}
        many = [peer.request("math/echo", number, timeout=20) for number in range(64)]
        assert await asyncio.gather(*many) == list(range(64))
        with pytest.raises(RequestFailed, match="404"):
            await peer.request("no/such", b"", timeout=20)
        assert await peer.request("math/echo", "still here", timeout=20) == "still here"


async def test_requests_are_answered_over_tcp() -> None:
    async with wireloom.serve("emp://127.0.0.1:0", answer) as server:
        await converse(f"emp://127.0.0.1:{server.port}", None)


async def test_requests_are_answered_over_tls(certificate: TLS) -> None:
    async with wireloom.serve("emps://127.0.0.1:0", answer, tls=certificate) as server:
        await converse(f"emps://127.0.0.1:{server.port}", TLS(ca=certificate.certificate))


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    head = await asyncio.wait_for(reader.readexactly(4), 20)
    found = frames.decode(head + await asyncio.wait_for(reader.readexactly(int.from_bytes(head) - 4), 20))
    assert found is not None
    return found[0]


async def test_a_peer_that_breaks_a_rule_is_told_which_and_left() -> None:
    async with wireloom.serve("emp://127.0.0.1:0", answer) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            assert (await read_frame(reader)).type == Type.HELLO
            writer.write(
                frames.encode(Frame(Type.HELLO, bytes.fromhex("01000000"))) + bytes.fromhex("0000000806000000")
            )
            told = await read_frame(reader)
            assert frames.decode_error(told.body).message.startswith("emp.type.reserved")
            assert await asyncio.wait_for(reader.read(), 20) == b""
        finally:
            writer.close()
            await writer.wait_closed()


async def test_a_peer_that_says_bye_sees_the_connection_closed() -> None:
    async with wireloom.serve("emp://127.0.0.1:0", answer) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(frames.encode(Frame(Type.HELLO, bytes.fromhex("01000000"))) + frames.encode(Frame(Type.BYE)))
            assert (await read_frame(reader)).type == Type.HELLO
            assert await asyncio.wait_for(reader.read(), 20) == b""
        finally:
            writer.close()
            await writer.wait_closed()
