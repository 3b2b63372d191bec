"""Static routes: topics for peers without topics, copies under other topics, filters, and conversion of formats.

A route selects messages by listener, by topic, and by conditions, and names the topic that they go to. The topic is the
uri in yamp, `Component.Method` in wolpertinger, and the event's name in mesh. Messages without a topic are selected by
their type. Events are published to the new topic as well; requests go to a provider of the new topic instead. What a
route publishes is not routed again.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from wireloom.hub.config_errors import WrongKey
from wireloom.hub.transform import Schema, check_target, parse_schema, transformed, value_of
from wireloom.model import BodyError, ConfigError, Kind, Message
from wireloom.protocols.contract import HUB_PREFIX
from wireloom.topics import matches, validate_pattern, validate_topic

_KEYS = ("to", "topic", "listener", "type", "kind", "where", "content_type", "schema")
_WHERE = re.compile(r"(attributes|body)\.(.+)")
_TOPIC = "{topic}"
_REMEMBERED = 4096

Test = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """Tests one attribute, or one value in a body."""

    part: str
    path: tuple[str, ...]
    test: Test

    def holds(self, message: Message, body: Callable[[], object]) -> bool:
        """Whether the value exists and passes the test."""
        if self.part == "attributes":
            return self.test(message.attributes.get(".".join(self.path)))
        value = body()
        for name in self.path:
            if isinstance(value, Mapping):
                value = value.get(name)
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                value = None
        return self.test(value)


@dataclass(frozen=True, slots=True)
class Route:
    """A table `[[route]]`."""

    to: str
    topic: str | None = None
    listener: str | None = None
    type: int | None = None
    kind: Kind = Kind.EVENT
    where: tuple[Condition, ...] = ()
    content_type: str | None = None
    schema: Schema | None = None

    def fits(self, listener: str, topic: str | None) -> bool:
        """Whether this route may apply to messages of this listener and topic."""
        if self.listener is not None and self.listener != listener:
            return False
        if self.topic is None:
            return self.type is not None or self.listener is not None
        return topic is not None and matches(self.topic, topic)

    def take(self, message: Message) -> Message | None:
        """The message under its new topic, if all conditions hold. Raises BodyError if its body cannot be converted."""
        if self.type is not None and message.attributes.get("type") != str(self.type):
            return None
        if self.where and not self._holds(message):
            return None
        taken = message.with_(topic=self.to.replace(_TOPIC, message.topic or ""))
        return taken if self.content_type is None else transformed(taken, self.content_type, self.schema)

    def _holds(self, message: Message) -> bool:
        read: list[object] = []

        def body() -> object:
            if not read:
                try:
                    read.append(value_of(message, self.schema))
                except BodyError:
                    read.append(None)
            return read[0]

        return all(condition.holds(message, body) for condition in self.where)


def parse_route(table: Mapping[str, object], listeners: Mapping[str, object]) -> Route:
    """Parse one table `[[route]]`. Raises WrongKey."""
    for key in table:
        if key not in _KEYS:
            raise WrongKey(key, f"unknown key {key!r}; known: {', '.join(_KEYS)}")
    to, topic, listener = table.get("to"), table.get("topic"), table.get("listener")
    try:
        if not isinstance(to, str):
            raise WrongKey("to", 'a route needs a topic to go to, such as to = "alerts/fire"')
        validate_topic(to.replace(_TOPIC, "x"))
    except WrongKey:
        raise
    except ConfigError as error:
        raise WrongKey("to", str(error)) from None
    if topic is not None:
        try:
            validate_pattern(str(topic))
        except ConfigError as error:
            raise WrongKey("topic", str(error)) from None
    if listener is not None and listener not in listeners:
        raise WrongKey("listener", f"there is no listener {listener!r}; there are {', '.join(listeners)}")
    number = table.get("type")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise WrongKey("type", f"type is {number!r}; it must be a number")
    kind = table.get("kind", "event")
    if kind not in ("event", "request"):
        raise WrongKey("kind", f"kind is {kind!r}; it must be event or request")
    if topic is None and listener is None and number is None:
        raise WrongKey("to", "the route takes everything; say what, with topic, listener or type")
    schema = parse_schema(table["schema"]) if "schema" in table else None
    content_type = table.get("content_type")
    if content_type is not None:
        check_target(str(content_type), schema)
    return Route(
        to,
        None if topic is None else str(topic),
        None if listener is None else str(listener),
        number,
        Kind(kind),
        _conditions(table.get("where", {})),
        None if content_type is None else str(content_type),
        schema,
    )


def _conditions(table: object) -> tuple[Condition, ...]:
    if not isinstance(table, Mapping):
        raise WrongKey("where", 'where is a table, such as { "body.celsius" = { above = 30 } }')
    found = []
    for key, wanted in table.items():
        named = _WHERE.fullmatch(str(key))
        if named is None:
            raise WrongKey("where", f"where: {key!r} must be attributes.<name> or body.<name>, in quotes")
        path = (named[2],) if named[1] == "attributes" else tuple(named[2].split("."))
        found += [Condition(named[1], path, test) for test in _tests(str(key), wanted)]
    return tuple(found)


def _tests(key: str, wanted: object) -> Iterator[Test]:
    if not isinstance(wanted, Mapping):
        yield functools.partial(operator.eq, wanted)
        return
    for name, limit in wanted.items():
        match name:
            case "above" if isinstance(limit, int | float):
                yield functools.partial(_compares, operator.gt, limit)
            case "below" if isinstance(limit, int | float):
                yield functools.partial(_compares, operator.lt, limit)
            case "exists" if isinstance(limit, bool):
                yield functools.partial(_exists, limit)
            case "matches" if isinstance(limit, str):
                try:
                    yield functools.partial(_matches, re.compile(limit))
                except re.error as error:
                    raise WrongKey("where", f"where: {key}: {limit!r} is no pattern: {error}") from None
            case "one_of" if isinstance(limit, list):
                yield functools.partial(operator.contains, limit)
            case _:
                raise WrongKey(
                    "where", f"where: {key}: {name} = {limit!r}; there are above, below, exists, matches, one_of"
                )


def _compares(compare: Callable[[float, float], bool], limit: float, value: object) -> bool:
    number = _number(value)
    return number is not None and compare(number, limit)


def _exists(wanted: bool, value: object) -> bool:
    return (value is not None) is wanted


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.search(value) is not None


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


class Routes:
    """The routes in force. A topic without routes costs one dictionary lookup."""

    def __init__(self, routes: tuple[Route, ...] = ()) -> None:
        self._routes = routes
        self._known: dict[tuple[str, str | None, Kind], tuple[Route, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._routes)

    def concerning(self, listener: str, topic: str | None, kind: Kind = Kind.EVENT) -> tuple[Route, ...]:
        """The routes that may apply to messages of this listener and topic."""
        key = (listener, topic, kind)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = tuple(route for route in self._routes if route.kind is kind and route.fits(listener, topic))
            self._known[key] = found
        return found

    def request(self, listener: str, message: Message) -> Message:
        """A request under the topic of the first matching route, or unchanged if none matches."""
        if (message.topic or "").startswith(HUB_PREFIX):
            return message
        for route in self.concerning(listener, message.topic, Kind.REQUEST):
            taken = route.take(message)
            if taken is not None:
                return taken
        return message
