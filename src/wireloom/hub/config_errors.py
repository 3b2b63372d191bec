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
    """The value at `key` is wrong. The loader adds the file name and the line."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


class Mistakes(ConfigError):
    """Several errors, in the order of the file's sections."""

    def __init__(self, found: Sequence[ConfigError]) -> None:
        super().__init__("; ".join(map(str, found)))
        self.found = tuple(found)


class Collector:
    """Collects errors and continues, so that all errors are reported at once."""

    def __init__(self) -> None:
        self.found: list[ConfigError] = []

    def attempt(self, parse: Callable[[], T], otherwise: T) -> T:
        """The result of `parse`, or `otherwise` after an error. Nobody uses `otherwise`: `check` raises later."""
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
        """Parse a table. After an error, remove the wrong key and parse again, to find further errors."""
        left, wrong = values, set[str]()
        while True:
            try:
                return parse(left)
            except WrongKey as error:
                if error.key in wrong:
                    return otherwise  # missing only because it was removed here
                self.found.append(told(error, error.key))
                wrong.add(error.key)
                left = _without(left, error.key)

    def check(self) -> None:
        """Raise the collected errors, if any."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise Mistakes(self.found)


def _without(table: Mapping[str, object], key: str) -> dict[str, object]:
    """A table, with its nested tables, without a key."""
    return {
        name: _without(value, key) if isinstance(value, Mapping) else value
        for name, value in table.items()
        if name != key
    }


def taken(listener: ListenerConfig, others: Sequence[ListenerConfig]) -> str | None:
    """Why a listener cannot have its address: another one has it. None if it is free."""
    place = _place(listener)
    for other in others:
        if listener.url == other.url:
            return f"there is a listener at {listener.url} above; each needs a place of its own"
        if place is not None and _overlap(place, _place(other)):
            return f"{other.url} above has {place[0]} port {listener.address.port} already; each needs one of its own"
    return None


def taken_by_pages(http: HttpConfig, listeners: Sequence[ListenerConfig]) -> str | None:
    """The same for the HTTP pages."""
    for listener in listeners:
        if _overlap((_TCP, http.address), _place(listener)):
            return f"the listener {listener.url} has port {http.address.port} already; name another with url"
    return None


def _place(listener: ListenerConfig) -> tuple[str, Address] | None:
    """The kind of port and the address. None if no port is opened, or any free one."""
    if listener.scheme.local or not listener.address.port or transport(listener.scheme.transport).listens_as_client:
        return None
    return (_UDP if listener.protocol.framing is Framing.DATAGRAM else _TCP), listener.address


def _overlap(one: tuple[str, Address], other: tuple[str, Address] | None) -> bool:
    if other is None or one[0] != other[0] or one[1].port != other[1].port or not one[1].port:
        return False
    hosts = (one[1].host, other[1].host)
    return hosts[0] == hosts[1] or any(host in _EVERY_ADDRESS for host in hosts)


def unknown_tokens(access: AccessConfig) -> Iterator[tuple[int, str]]:
    """Rules that name unknown tokens: the number of each rule, and the error text."""
    names = access.tokens.names
    for number, rule in enumerate(access.rules):
        for who in rule.who:
            kind, _, name = who.partition(":")
            if kind == "token" and not any(fnmatch.fnmatchcase(each, name) for each in names):
                known = ", ".join(names) or "none; [access] names their file: tokens"
                yield number, f"who: no token has the name {name!r}; known: {known}"
