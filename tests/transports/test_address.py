"""URLs are taken apart in one place, and what is wrong is said in words."""

import pytest

from wireloom.model import ConfigError
from wireloom.transports import Address, parse_url, transport


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "path"),
    [
        ("hsp://localhost", "hsp", "localhost", None, ""),
        ("hsp://127.0.0.1:5042", "hsp", "127.0.0.1", 5042, ""),
        ("HSP://Example.ORG:1", "hsp", "example.org", 1, ""),
        ("hsp://[::1]:7", "hsp", "::1", 7, ""),
        ("hsp://[fe80::1%25eth0]:7", "hsp", "fe80::1%eth0", 7, ""),
        ("yamp+ws://host:80/a/b?c=d", "yamp+ws", "host", 80, "/a/b?c=d"),
        ("memory://hsp/name", "memory", "hsp", None, "/name"),
        ("hsp://host:0", "hsp", "host", 0, ""),
    ],
)
def test_url_in_its_parts(text: str, scheme: str, host: str, port: int | None, path: str) -> None:
    url = parse_url(text)
    assert (url.scheme, url.host, url.port, url.path) == (scheme, host, port, path)


def test_user_and_query() -> None:
    url = parse_url("x://ann:s%40crt@host/p?a=1&b=")
    assert (url.user, url.password, url.query) == ("ann", "s@crt", (("a", "1"), ("b", "")))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("localhost:5042", "scheme://host:port"),
        ("hsp://", "host is missing"),
        ("hsp://host:99999", "0 to 65535"),
        ("hsp://host:abc", "0 to 65535"),
        ("hsp://host:-1", "0 to 65535"),
        ("hsp://::1:5042", "brackets"),
        ("hsp://[::1", "brackets"),
        ("hsp://a..b:1", "1 to 63 characters"),
        (f"hsp://{'x' * 64}.org", "1 to 63 characters"),
        ("hsp://%00:1", "cannot be seen"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse_url(text)
    assert text in str(caught.value)


@pytest.mark.parametrize("host", ["münchen.example", "example.org.", "a_b", "127.0.0.1"])
def test_hosts_as_people_write_them(host: str) -> None:
    assert parse_url(f"hsp://{host}:1").host == host


def test_address_as_text_puts_ipv6_in_brackets() -> None:
    assert str(Address("::1", 5)) == "[::1]:5"
    assert str(Address("host", 5, "/x")) == "host:5/x"


def test_unknown_transport_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"known: .*memory.*tcp"):
        transport("pigeon")


@pytest.mark.parametrize("name", ["tcp", "tls", "memory", "ws", "wss"])
def test_transports_are_found_by_name(name: str) -> None:
    assert transport(name).name == name
    assert transport(name) is transport(name)
