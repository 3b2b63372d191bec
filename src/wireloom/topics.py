"""Topics and patterns: `/`-separated levels, `+` for one level, `#` for the rest, as MQTT users expect.

The one place that knows how a pattern matches. A wildcard at the first level does not match topics that
begin with `$`: those belong to the hub, and whoever wants them names them.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from wireloom.model import ConfigError

MAX_TOPIC = 65535
"""Longest topic or pattern in bytes of UTF-8."""
_REMEMBERED_TOPIC, _REMEMBERED = 1024, 1_000_000
"""The longest topic whose subscribers are remembered, and how many subscribers of all topics together."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

S = TypeVar("S", bound=Hashable)


def validate_topic(topic: str) -> str:
    """The topic itself, or a ConfigError that says what is wrong with it.

    >>> validate_topic("sensors/kitchen")
    'sensors/kitchen'
    >>> validate_topic("sensors/+")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: topic 'sensors/+' holds a wildcard; '+' and '#' are for patterns only
    """
    _check_text("topic", topic)
    if "+" in topic or "#" in topic:
        raise ConfigError(f"topic {shortened(topic)} holds a wildcard; '+' and '#' are for patterns only")
    return topic


def validate_pattern(pattern: str) -> str:
    """The pattern itself, or a ConfigError that says what is wrong with it.

    >>> validate_pattern("sensors/+/temperature")
    'sensors/+/temperature'
    >>> validate_pattern("sensors/#/temperature")
    Traceback (most recent call last):
    wireloom.errors.ConfigError: pattern 'sensors/#/temperature': '#' must be the last level
    """
    _check_text("pattern", pattern)
    levels = pattern.split("/")
    for index, level in enumerate(levels):
        if level == "#" and index < len(levels) - 1:
            raise ConfigError(f"pattern {shortened(pattern)}: '#' must be the last level")
        if len(level) > 1 and ("+" in level or "#" in level):
            raise ConfigError(f"pattern {shortened(pattern)}: '+' and '#' must fill a level, not be part of one")
    return pattern


def is_pattern(text: str) -> bool:
    """Whether the text holds a wildcard."""
    return "+" in text or "#" in text


def matches(pattern: str, topic: str) -> bool:
    """Whether a valid pattern matches a topic.

    >>> matches("sensors/+", "sensors/kitchen"), matches("sensors/+", "sensors/kitchen/oven")
    (True, False)
    >>> matches("sensors/#", "sensors/kitchen/oven"), matches("sensors/#", "sensors")
    (True, True)
    >>> matches("#", "$hub/undeliverable"), matches("$hub/#", "$hub/undeliverable")
    (False, True)
    """
    if pattern == topic:
        return True
    if topic[:1] == "$" and pattern[:1] in ("+", "#"):
        return False
    wanted, levels = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        head = wanted[:-1]
        return len(levels) >= len(head) and _same(head, levels)
    return len(wanted) == len(levels) and _same(wanted, levels)


def covers(pattern: str, wanted: str) -> bool:
    """Whether everything that `wanted`, a topic or a pattern, can match is matched by `pattern`, too.

    >>> covers("sensors/#", "sensors/+/oven"), covers("sensors/+", "sensors/#"), covers("+/kitchen", "sensors/kitchen")
    (True, False, True)
    >>> covers("#", "#"), covers("#", "$hub/undeliverable"), covers("a/+", "a/+"), covers("a/#", "a")
    (True, False, True, True)
    """
    if wanted[:1] == "$" and pattern[:1] in ("+", "#"):
        return False
    allowed, levels = pattern.split("/"), wanted.split("/")
    for index, level in enumerate(allowed):
        if level == "#":
            return True
        if index >= len(levels) or levels[index] == "#" or level not in ("+", levels[index]):
            return False
    return len(allowed) == len(levels)


def _same(wanted: Iterable[str], levels: Iterable[str]) -> bool:
    return all(want in ("+", level) for want, level in zip(wanted, levels, strict=False))


def _check_text(what: str, text: str) -> None:
    if not text:
        raise ConfigError(f"a {what} must not be empty")
    if len(text) > MAX_TOPIC or size_of(text) > MAX_TOPIC:
        raise ConfigError(f"{what} {text[:40]!r}… is longer than {MAX_TOPIC} bytes")
    if not (text.isascii() and text.isprintable()) and (control := _CONTROL.search(text)):
        raise ConfigError(f"{what} {shortened(text)} holds the control character U+{ord(control[0]):04X}")


def size_of(text: str) -> int:
    """Bytes of a topic or pattern in UTF-8; a ConfigError for text that has no such form."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{shortened(text)} is no text: it holds half of a surrogate pair") from None


def shortened(text: str) -> str:
    """A topic as it stands in an error: quoted, and not longer than people read.

    >>> shortened("a/b"), shortened("x" * 100) == repr("x" * 80) + "…"
    ("'a/b'", True)
    """
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}…"


class Shape(NamedTuple):
    """Where a pattern has its wildcards: patterns of one shape that match a topic are one and the same text."""

    levels: int
    """How many there are, without a `#`."""
    any_levels: tuple[int, ...]
    """Which of them are `+`."""
    has_rest: bool
    """Whether a `#` follows."""


def shape_of(pattern: str) -> Shape | None:
    """The shape of a valid pattern; None for one without wildcards.

    >>> shape_of("a/+/c/#"), shape_of("a/b")
    (Shape(levels=3, any_levels=(1,), has_rest=True), None)
    """
    if not is_pattern(pattern):
        return None
    levels = pattern.split("/")
    has_rest = levels[-1] == "#"
    return Shape(len(levels) - has_rest, tuple(i for i, level in enumerate(levels) if level == "+"), has_rest)


class Subscriptions(Generic[S]):
    """Who wants what: an index from patterns to subscribers, with lookups remembered until it changes.

    Theory of operation
    -------------------
    Patterns are kept by their text. A topic is looked up as it is, for patterns without wildcards, and once for each
    shape in use: its levels with `+` where the shape has them, and `#` for the rest, are the only pattern of this shape
    that can match. So a lookup takes as many steps as there are shapes, however many patterns there are and whatever
    they and the topic say. People use few shapes; `shapes` tells how many, so that their number can be limited.

    >>> index = Subscriptions[str]()
    >>> index.add("sensors/#", "ann"), index.add("sensors/+", "bob"), index.add("sensors/#", "ann")
    (True, True, False)
    >>> index.lookup("sensors/kitchen")
    ('ann', 'bob')
    >>> index.drop("ann"); index.lookup("sensors/kitchen")
    ('bob',)
    """

    def __init__(self, remember: int = 4096) -> None:
        self._subscribers: dict[str, dict[S, None]] = {}
        self._patterns: dict[S, dict[str, None]] = {}
        self._shapes: dict[Shape, int] = {}
        """How many patterns have each."""
        self._found: dict[str, tuple[S, ...]] = {}
        self._remember = remember
        self._remembered = 0
        """Subscribers in `_found`."""
        self._count = 0
        self.memory = 0
        """Bytes that all patterns take, about."""

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._patterns)

    @property
    def shapes(self) -> int:
        """How many different shapes the patterns have."""
        return len(self._shapes)

    def has_shape(self, pattern: str) -> bool:
        """Whether a valid pattern needs no shape that is not there yet."""
        shape = shape_of(pattern)
        return shape is None or shape in self._shapes

    def add(self, pattern: str, subscriber: S) -> bool:
        """Enter a subscription; False when it was there already."""
        own = self._patterns.get(subscriber, {})
        if validate_pattern(pattern) in own:
            return False
        self._patterns.setdefault(subscriber, own)[pattern] = None
        subscribers = self._subscribers.get(pattern)
        if subscribers is None:
            subscribers = self._subscribers[pattern] = {}
            shape = shape_of(pattern)
            if shape is not None:
                self._shapes[shape] = self._shapes.get(shape, 0) + 1
        subscribers[subscriber] = None
        self._count += 1
        self.memory += _memory_of(pattern)
        self._forget()
        return True

    def remove(self, pattern: str, subscriber: S) -> bool:
        """Take a subscription out; False when there was none."""
        own = self._patterns.get(subscriber, {})
        if pattern not in own:
            return False
        del own[pattern]
        if not own:
            del self._patterns[subscriber]
        subscribers = self._subscribers[pattern]
        del subscribers[subscriber]
        if not subscribers:
            del self._subscribers[pattern]
            shape = shape_of(pattern)
            if shape is not None:
                self._shapes[shape] -= 1
                if not self._shapes[shape]:
                    del self._shapes[shape]
        self._count -= 1
        self.memory -= _memory_of(pattern)
        self._forget()
        return True

    def drop(self, subscriber: S) -> None:
        """Take out everything one subscriber wanted."""
        for pattern in self.patterns(subscriber):
            self.remove(pattern, subscriber)

    def patterns(self, subscriber: S) -> tuple[str, ...]:
        """What one subscriber wants, in the order it asked."""
        return tuple(self._patterns.get(subscriber, ()))

    def count(self, subscriber: S) -> int:
        """How many patterns one subscriber has."""
        return len(self._patterns.get(subscriber, ()))

    def has(self, pattern: str, subscriber: S) -> bool:
        """Whether a subscriber has a pattern."""
        return pattern in self._patterns.get(subscriber, ())

    def subscribers(self) -> tuple[S, ...]:
        """Everybody who wants anything."""
        return tuple(self._patterns)

    def lookup(self, topic: str) -> tuple[S, ...]:
        """Everybody who wants this topic, each once."""
        found = self._found.get(topic)
        if found is None:
            found = tuple(self._search(topic))
            if len(topic) <= _REMEMBERED_TOPIC:
                if len(self._found) >= self._remember or self._remembered > _REMEMBERED:
                    self._forget()
                self._found[topic] = found
                self._remembered += len(found)
        return found

    def _forget(self) -> None:
        self._found.clear()
        self._remembered = 0

    def _search(self, topic: str) -> dict[S, None]:
        found = dict(self._subscribers.get(topic, ())) if not is_pattern(topic) else {}
        levels = topic.split("/")
        count, is_reserved = len(levels), topic[:1] == "$"
        for size, any_levels, has_rest in self._shapes:
            if size > count or (size < count and not has_rest):
                continue
            if is_reserved and (not size or (any_levels and not any_levels[0])):
                continue
            wanted = levels[:size]
            for level in any_levels:
                wanted[level] = "+"
            if has_rest:
                wanted.append("#")
            subscribers = self._subscribers.get("/".join(wanted))
            if subscribers is not None:
                found.update(subscribers)
        return found


def _memory_of(pattern: str) -> int:
    """Bytes that a subscription takes: its text, and its places in dictionaries."""
    return sys.getsizeof(pattern) + 512


def read_topic_map(path: Path) -> dict[int, str]:
    """Numbers that stand for topics, from a file: JSON such as {"7": "sensors/kitchen"}, or TOML.

    In TOML that is a line `7 = "sensors/kitchen"`. Either may have them under the name `topics`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the map of topics: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}") from None
    if isinstance(content, dict) and isinstance(content.get("topics"), dict):
        content = content["topics"]
    if not isinstance(content, dict) or not all(
        number.isdecimal() and isinstance(topic, str) for number, topic in content.items()
    ):
        raise ConfigError(f'{path} must map numbers to topics, such as {{"7": "sensors/kitchen"}}')
    return {int(number): topic for number, topic in content.items()}
