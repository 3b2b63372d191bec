"""Finds the transport behind a scheme: the built-in ones and those of other packages, the same way.

A package brings a transport by an entry point in the group `wireloom.transports` that names an object of a
subclass of `base.Transport`. A transport's module is imported when it is first asked for.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from wireloom.extras import how_to_install
from wireloom.model import ConfigError
from wireloom.transports.base import Transport

GROUP = "wireloom.transports"

BUILT_IN = {
    "tcp": "wireloom.transports.tcp:TCP",
    "tls": "wireloom.transports.tcp:TLS_OVER_TCP",
    "memory": "wireloom.transports.memory:MEMORY",
    "quic": "wireloom.transports.quic:QUIC",
    "udp": "wireloom.transports.udp:UDP",
    "unix": "wireloom.transports.unix:UNIX",
    "ws": "wireloom.transports.websocket:WS",
    "wss": "wireloom.transports.websocket:WSS",
    "xmpp": "wireloom.transports.xmpp:XMPP",
}


@cache
def _references() -> dict[str, str]:
    return {**BUILT_IN, **{entry.name: entry.value for entry in entry_points(group=GROUP)}}


@cache
def transport(name: str) -> Transport:
    """The transport of that name.

    >>> transport("tcp").name
    'tcp'
    >>> transport("pigeon")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: unknown transport 'pigeon'; known: ...
    """
    reference = _references().get(name)
    if reference is None:
        raise ConfigError(f"unknown transport {name!r}; known: {', '.join(sorted(_references()))}")
    module, _, attribute = reference.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"transport {name!r} needs the package {missing.name!r}: {how_to_install(missing.name)}"
        ) from None
    if not isinstance(found, Transport):
        raise ConfigError(f"entry point {name} = {reference} of {GROUP} is not a transport")
    return found
