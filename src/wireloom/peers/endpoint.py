"""From a URL to everything needed to reach it: protocol, transport, address."""

from __future__ import annotations

from dataclasses import dataclass

from wireloom.model import ConfigError
from wireloom.protocols import registry
from wireloom.protocols.contract import Protocol
from wireloom.transports import Address, Transport, parse_url, transport

MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place that speaks a protocol."""

    protocol: Protocol
    scheme: str
    transport: Transport
    address: Address
    secure: bool = False

    @property
    def url(self) -> str:
        """The URL of this place, with its port."""
        if self.scheme == MEMORY:
            return f"{MEMORY}://{self.protocol.name}/{self.address.path}"
        return f"{self.scheme}://{self.address}"

    def at(self, address: Address) -> Endpoint:
        """The same way to talk, at another address."""
        return Endpoint(self.protocol, self.scheme, self.transport, address, self.secure)


def endpoint(url: str) -> Endpoint:
    """The place a URL names.

    >>> endpoint("hsp://127.0.0.1").url
    'hsp://127.0.0.1:5042'
    >>> endpoint("memory://hsp/test").transport.name
    'memory'
    >>> endpoint("yamp+unix:///run/hub.sock").url
    'yamp+unix:///run/hub.sock'
    >>> endpoint("gopher://127.0.0.1")
    Traceback (most recent call last):
    wireloom.model.ConfigError: unknown URL scheme 'gopher'; known: ...
    """
    parts = parse_url(url)
    if parts.scheme == MEMORY:
        name = parts.path.strip("/")
        if not name:
            raise ConfigError(f"URL {url!r}: write it as memory://<protocol>/<name>")
        return Endpoint(registry.protocol(parts.host), MEMORY, transport(MEMORY), Address(parts.host, 0, name))
    try:
        protocol, scheme = registry.scheme(parts.scheme)
    except ConfigError as error:
        raise ConfigError(f"{error}, {MEMORY}") from None
    address = parts.address(scheme.port, local=scheme.local)
    return Endpoint(protocol, scheme.name, transport(scheme.transport), address, scheme.secure)
