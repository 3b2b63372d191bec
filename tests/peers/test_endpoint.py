"""From a URL to protocol, transport and address."""

import pytest

import wireloom
from wireloom import ConfigError
from wireloom.peers import endpoint


@pytest.mark.parametrize(
    ("url", "protocol", "transport", "text"),
    [
        ("hsp://h", "hsp", "tcp", "hsp://h:5042"),
        ("hsps://[::1]:7", "hsp", "tls", "hsps://[::1]:7"),
        ("emp://h:0", "emp", "tcp", "emp://h:0"),
        ("emps://h", "emp", "tls", "emps://h:5040"),
        ("yamp://h", "yamp", "tcp", "yamp://h:5043"),
        ("yamps://h", "yamp", "tls", "yamps://h:5043"),
        ("yamp+wss://h", "yamp", "wss", "yamp+wss://h:5044"),
        ("yamp+ws://h/p?q=1", "yamp", "ws", "yamp+ws://h:5044/p?q=1"),
        ("memory://yamp/room", "yamp", "memory", "memory://yamp/room"),
        ("hsp+unix:///run/hub.sock", "hsp", "unix", "hsp+unix:///run/hub.sock"),
        ("wolpertinger+unix:///a%20b/c", "wolpertinger", "unix", "wolpertinger+unix:///a%20b/c"),
    ],
)
def test_parts(url: str, protocol: str, transport: str, text: str) -> None:
    place = endpoint(url)
    assert (place.protocol.name, place.transport.name, place.url) == (protocol, transport, text)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("gopher://h", "unknown URL scheme 'gopher'; known: .*hsp.*memory"),
        ("memory://hsp", "memory://<protocol>/<name>"),
        ("memory://smtp/x", "unknown protocol 'smtp'"),
        ("nonsense", "scheme://host:port"),
        ("hsp:///run/hub.sock", "the host is missing"),
        ("hsp+unix://run/hub.sock", "no host but an absolute path, such as hsp[+]unix:///run/wireloom.sock"),
        ("mesh+unix:///run/hub.sock", "unknown URL scheme 'mesh[+]unix'"),
    ],
)
def test_mistakes(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        endpoint(url)


async def test_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'max_paylod'; known: max_numbers, max_payload"):
        wireloom.connect("hsp://127.0.0.1", settings={"max_paylod": 1})


async def test_port_in_use_is_an_os_error() -> None:
    async with wireloom.serve("hsp://127.0.0.1:0") as server:
        with pytest.raises(OSError, match="in use"):
            async with wireloom.serve(server.url):
                pass
