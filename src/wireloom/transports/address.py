"""Addresses and URLs: the one place that takes them apart, and complains in words."""

from __future__ import annotations

import ipaddress
from collections.abc import Container
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from wireloom.model import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """A place that can be reached or listened at, whatever the transport; without a host, a file of this machine.

    >>> str(Address("::1", 5042)), str(Address("", path="/run/hub.sock"))
    ('[::1]:5042', '/run/hub.sock')
    """

    host: str
    port: int = 0
    path: str = ""
    user: str | None = None

    def __str__(self) -> str:
        if not self.host:
            return quote(self.path)
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = "" if self.user is None else f"{self.user}@"
        return f"{user}{host}:{self.port}{self.path}"

    def with_port(self, port: int) -> Address:
        """The same place with another port."""
        return replace(self, port=port)

    def with_path(self, path: str) -> Address:
        """The same place with another path."""
        return replace(self, path=path)


@dataclass(frozen=True, slots=True)
class URL:
    """A URL in its parts; `port` is None when the text names none."""

    text: str
    scheme: str
    host: str
    port: int | None
    path: str
    query: tuple[tuple[str, str], ...] = ()
    user: str | None = None
    password: str | None = None

    def without(self, names: Container[str]) -> URL:
        """The same URL without some names of its query.

        >>> url = parse_url("yamp+ws://127.0.0.1/chat?max_body=10&room=7").without({"max_body"})
        >>> url.text, url.path
        ('yamp+ws://127.0.0.1/chat?room=7', '/chat?room=7')
        """
        query = tuple(each for each in self.query if each[0] not in names)
        tail = f"?{urlencode(query)}" if query else ""
        text, path = (part.partition("?")[0] + tail for part in (self.text, self.path))
        return replace(self, text=text, path=path, query=query)

    def address(self, default_port: int, *, local: bool = False) -> Address:
        """Where this points; a password in it is a mistake, because others can read the command line.

        With `local` it is a file of this machine, for schemes that have no host and no port.

        >>> str(parse_url("wolpertinger+xmpp://ada@example.org/bob").address(5222))
        'ada@example.org:5222/bob'
        >>> str(parse_url("hsp+unix:///run/hub.sock").address(0, local=True))
        '/run/hub.sock'
        """
        if local:
            if self.host or self.path in ("", "/"):
                example = f"{self.scheme}:///run/wireloom.sock"
                raise ConfigError(f"URL {self.text!r}: it has no host but an absolute path, such as {example}")
            return Address("", path=unquote(self.path))
        if not self.host:
            raise ConfigError(f"URL {self.text!r}: the host is missing")
        if self.password is not None:
            raise ConfigError("a password does not belong into a URL: put it into a file or the environment")
        return Address(self.host, default_port if self.port is None else self.port, self.path, self.user)


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine alone.

    >>> [is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost", "0.0.0.0", "127.example.org")]
    [True, True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_url(text: str) -> URL:
    """Take a URL apart.

    >>> url = parse_url("hsp://[::1]:5042")
    >>> url.scheme, url.host, url.port
    ('hsp', '::1', 5042)
    >>> parse_url("hsp://localhost:99999")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: URL 'hsp://localhost:99999': the port must be a number from 0 to 65535
    >>> parse_url("localhost:5042")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: URL 'localhost:5042': write it as scheme://host:port, such as hsp://127.0.0.1:5042
    """

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"URL {text!r}: {what}")

    if "://" not in text:
        raise wrong("write it as scheme://host:port, such as hsp://127.0.0.1:5042")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise wrong("an IPv6 address stands in brackets, such as hsp://[::1]:5042") from None
    authority = parts.netloc.rpartition("@")[2]
    if authority.count(":") > 1 and not authority.startswith("["):
        raise wrong("an IPv6 address stands in brackets, such as hsp://[::1]:5042")
    try:
        port = parts.port
    except ValueError:
        raise wrong("the port must be a number from 0 to 65535") from None
    if not parts.hostname and parts.path in ("", "/"):
        raise wrong("the host is missing")
    host = unquote(parts.hostname or "")
    try:
        host.encode("idna")
    except UnicodeError:
        raise wrong("the host is no name: each part of it, between dots, has 1 to 63 characters") from None
    if not host.isprintable():
        raise wrong("the host is no name: it has characters that cannot be seen")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return URL(
        text,
        parts.scheme,
        host,
        port,
        path,
        tuple(parse_qsl(parts.query, keep_blank_values=True)),
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
    )
