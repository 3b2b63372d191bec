"""Finds protocols: the built-in ones and those of other packages, the same way.

A package brings a protocol by an entry point in the group `wireloom.protocols` that names an object
of a subclass of `contract.Protocol`. The built-in ones are listed here as well, so that a source tree
works before it is installed.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from wireloom.model import ConfigError
from wireloom.protocols.contract import Protocol, Scheme

GROUP = "wireloom.protocols"

BUILT_IN = {
    "emp": "wireloom.protocols.emp:EMP",
    "hsp": "wireloom.protocols.hsp:HSP",
    "mesh": "wireloom.protocols.mesh:MESH",
    "wolpertinger": "wireloom.protocols.wolpertinger:WOLPERTINGER",
    "yamp": "wireloom.protocols.yamp:YAMP",
}
INTERNAL = "emp"
"""The protocol of connections inside the hub, such as the one that publishes events posted over HTTP.

It carries acknowledged publishes, content types and the context of a trace.
"""


@cache
def protocols() -> dict[str, Protocol]:
    """All protocols by name.

    >>> "hsp" in protocols()
    True
    """
    references = dict(BUILT_IN)
    references.update({entry.name: entry.value for entry in entry_points(group=GROUP)})
    found: dict[str, Protocol] = {}
    for name, reference in references.items():
        module, _, attribute = reference.partition(":")
        try:
            protocol = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"entry point {name} = {reference} of {GROUP} cannot be loaded: {error}") from error
        if not isinstance(protocol, Protocol) or protocol.name != name:
            raise ConfigError(f"entry point {name} = {reference} of {GROUP} is not a protocol named {name!r}")
        found[name] = protocol
    return found


def protocol(name: str) -> Protocol:
    """The protocol of that name.

    >>> protocol("smtp")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: unknown protocol 'smtp'; known: ...
    """
    try:
        return protocols()[name]
    except KeyError:
        known = ", ".join(sorted(protocols()))
        raise ConfigError(f"unknown protocol {name!r}; known: {known}") from None


def scheme(name: str) -> tuple[Protocol, Scheme]:
    """The protocol and transport behind a URL scheme.

    >>> scheme("hsp")[1].port
    5042
    >>> scheme("hsp+unix")[1].transport
    'unix'
    """
    for candidate in protocols().values():
        for known in candidate.all_schemes:
            if known.name == name:
                return candidate, known
    names = ", ".join(sorted(s.name for p in protocols().values() for s in p.all_schemes))
    raise ConfigError(f"unknown URL scheme {name!r}; known: {names}")
