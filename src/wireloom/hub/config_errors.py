"""Errors in a configuration: all of them are collected and reported together."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from wireloom.model import ConfigError
from wireloom.protocols.contract import Framing
from wireloom.transports.registry import transport

if TYPE_CHECKING:
    from wireloom.hub.access import AccessConfig
    from wireloom.hub.config import HttpConfig, ListenerConfig
    from wireloom.transports.address import Address

T = TypeVar("T")
D = TypeVar("D")
_EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104
_UDP, _TCP = "UDP", "TCP"


class WrongKey(ConfigError):
    """The value at `key` is wrong. Whoever loads the file adds its name and the line."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


class Mistakes(ConfigError):
    """Several mistakes, in the order of the file's parts."""

    def __init__(self, found: Sequence[ConfigError]) -> None:
        super().__init__("; ".join(map(str, found)))
        self.found = tuple(found)


class Collector:
    """Goes on after a mistake, so that the next one is found, too."""

    def __init__(self) -> None:
        self.found: list[ConfigError] = []

    def attempt(self, parse: Callable[[], T], otherwise: T) -> T:
        """What `parse` returns; after a mistake something else, which nobody will use."""
        try:
            return parse()
        except ConfigError as error:
            self.found.append(error)
            return otherwise

    def table(
        self,
        values: Mapping[str, object],
        parse: Callable[[Mapping[str, object]], T],
        told: Callable[[ConfigError, str | None], ConfigError],
        otherwise: D,
    ) -> T | D:
        """What a table means. Wrong keys are left out, one after the other, to see what else is wrong."""
        left, wrong = values, set[str]()
        while True:
            try:
                return parse(left)
            except WrongKey as error:
                if error.key in wrong:
                    return otherwise  # this is only missing because it was left out
                self.found.append(told(error, error.key))
                wrong.add(error.key)
                left = _without(left, error.key)

    def check(self) -> None:
        """Raise what was found."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise Mistakes(self.found)


def _without(table: Mapping[str, object], key: str) -> dict[str, object]:
    """A table, and the tables in it, without a key."""
    return {
        name: _without(value, key) if isinstance(value, Mapping) else value
        for name, value in table.items()
        if name != key
    }


def taken(listener: ListenerConfig, others: Sequence[ListenerConfig]) -> str | None:
    """Why a listener cannot have its place: another one has it. None where it is free."""
    place = _place(listener)
    for other in others:
        if listener.url == other.url:
            return f"there is a listener at {listener.url} above; each needs a place of its own"
        if place is not None and _overlap(place, _place(other)):
            return f"{other.url} above has {place[0]} port {listener.address.port} already; each needs one of its own"
    return None


def taken_by_pages(http: HttpConfig, listeners: Sequence[ListenerConfig]) -> str | None:
    """The same for the pages."""
    for listener in listeners:
        if _overlap((_TCP, http.address), _place(listener)):
            return f"the listener {listener.url} has port {http.address.port} already; name another with url"
    return None


def _place(listener: ListenerConfig) -> tuple[str, Address] | None:
    """The kind of port and the address; None where none is opened, or any free one."""
    if listener.scheme.local or not listener.address.port or transport(listener.scheme.transport).listens_as_client:
        return None
    return (_UDP if listener.protocol.framing is Framing.DATAGRAM else _TCP), listener.address


def _overlap(one: tuple[str, Address], other: tuple[str, Address] | None) -> bool:
    if other is None or one[0] != other[0] or one[1].port != other[1].port or not one[1].port:
        return False
    hosts = (one[1].host, other[1].host)
    return hosts[0] == hosts[1] or any(host in _EVERY_ADDRESS for host in hosts)


def unknown_tokens(access: AccessConfig) -> Iterator[tuple[int, str]]:
    """Rules for tokens that nobody has: the number of each, and what to say."""
    names = access.tokens.names
    for number, rule in enumerate(access.rules):
        for who in rule.who:
            kind, _, name = who.partition(":")
            if kind == "token" and not any(fnmatch.fnmatchcase(each, name) for each in names):
                known = ", ".join(names) or "none; [access] names their file: tokens"
                yield number, f"who: no token has the name {name!r}; known: {known}"
