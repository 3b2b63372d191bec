"""Parses a URL into protocol, transport and address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from wireloom.model import ConfigError
from wireloom.protocols import registry
from wireloom.protocols.contract import Protocol
from wireloom.protocols.settings import Written
from wireloom.transports import URL, Address, Transport, parse_url, transport

MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A protocol at an address."""

    protocol: Protocol
    scheme: str
    transport: Transport
    address: Address
    secure: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of the protocol from the query of the URL."""

    @property
    def url(self) -> str:
        """The URL of this endpoint, with its port."""
        if self.scheme == MEMORY:
            return f"{MEMORY}://{self.protocol.name}/{self.address.path}"
        return f"{self.scheme}://{self.address}"

    def at(self, address: Address) -> Endpoint:
        """The same endpoint at another address."""
        return Endpoint(self.protocol, self.scheme, self.transport, address, self.secure, self.settings)

    def settings_with(self, values: Mapping[str, object] | None) -> Mapping[str, object]:
        """The settings of the URL, overridden by `values`."""
        return {**self.settings, **(values or {})}


def split_settings(url: URL, protocol: Protocol, carrier: Transport) -> tuple[URL, Mapping[str, object]]:
    """Split a URL into the URL without settings in its query, and the settings.

    If the transport has its own query, keys that are not settings stay in the URL.

    >>> hsp, tcp = registry.protocol("hsp"), transport("tcp")
    >>> rest, settings = split_settings(parse_url("hsp://127.0.0.1?max_payload=10"), hsp, tcp)
    >>> rest.text, settings
    ('hsp://127.0.0.1', {'max_payload': '10'})
    >>> split_settings(parse_url("hsp://127.0.0.1?maximum=10"), hsp, tcp)
    Traceback (most recent call last):
    wireloom.errors.ConfigError: URL 'hsp://127.0.0.1?maximum=10': unknown setting 'maximum'; known: max_numbers, ...
    """
    known = sorted(each.name for each in fields(protocol.settings_type))
    settings: dict[str, object] = {}
    for name, value in url.query:
        if name in known:
            if name in settings:
                raise ConfigError(f"URL {url.text!r}: setting {name!r} is given twice")
            settings[name] = Written(value)
        elif not carrier.has_query:
            raise ConfigError(f"URL {url.text!r}: unknown setting {name!r}; known: {', '.join(known)}")
    return (url.without(settings) if url.query else url), settings


def endpoint(url: str) -> Endpoint:
    """The endpoint that a URL names.

    >>> endpoint("hsp://127.0.0.1").url
    'hsp://127.0.0.1:5042'
    >>> endpoint("memory://hsp/test").transport.name
    'memory'
    >>> endpoint("yamp+unix:///run/hub.sock").url
    'yamp+unix:///run/hub.sock'
    >>> endpoint("gopher://127.0.0.1")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: unknown URL scheme 'gopher'; known: ...
    """
    parts = parse_url(url)
    if parts.scheme == MEMORY:
        protocol = registry.protocol(parts.host)
        parts, settings = split_settings(parts, protocol, transport(MEMORY))
        name = parts.path.strip("/")
        if not name:
            raise ConfigError(f"URL {url!r}: write it as memory://<protocol>/<name>")
        return Endpoint(protocol, MEMORY, transport(MEMORY), Address(parts.host, 0, name), settings=settings)
    try:
        protocol, scheme = registry.scheme(parts.scheme)
    except ConfigError as error:
        raise ConfigError(f"{error}, {MEMORY}") from None
    parts, settings = split_settings(parts, protocol, transport(scheme.transport))
    address = parts.address(scheme.port, local=scheme.local)
    return Endpoint(protocol, scheme.name, transport(scheme.transport), address, scheme.secure, settings)
