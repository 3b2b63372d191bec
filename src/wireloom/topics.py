"""Topics and patterns: `/`-separated levels, `+` for one level, `#` for the rest, as in MQTT.

Only this module implements matching. A wildcard at the first level does not match topics that begin with `$`. These
belong to the hub, and a pattern must name them.
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
"""Maximum bytes of a topic or pattern in UTF-8."""
_REMEMBERED_TOPIC, _REMEMBERED = 1024, 1_000_000
"""Limits of the lookup cache: the longest topic in it, and the total number of subscribers in it."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

S = TypeVar("S", bound=Hashable)


def validate_topic(topic: str) -> str:
    """The topic itself. Raises ConfigError, which says what is wrong, if it is not valid.

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
    """The pattern itself. Raises ConfigError, which says what is wrong, if it is not valid.

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
    """Whether the text contains a wildcard."""
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
    """Whether `pattern` matches everything that `wanted`, a topic or a pattern, can match.

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
    """Bytes of a topic or pattern in UTF-8. Raises ConfigError for text that UTF-8 cannot encode."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{shortened(text)} is no text: it holds half of a surrogate pair") from None


def shortened(text: str) -> str:
    """A topic as quoted in an error: shortened if it is long.

    >>> shortened("a/b"), shortened("x" * 100) == repr("x" * 80) + "…"
    ("'a/b'", True)
    """
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}…"


class Shape(NamedTuple):
    """The positions of wildcards in a pattern. At most one pattern of a shape can match a given topic."""

    levels: int
    """The number of levels, without a `#`."""
    any_levels: tuple[int, ...]
    """Indexes of the levels that are `+`."""
    has_rest: bool
    """Whether it ends with `#`."""


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
    """An index from patterns to subscribers. Lookups are cached until it changes.

    Theory of operation
    -------------------
    The problem: find all patterns that match a topic, fast, however many patterns there are.

    The idea: store patterns by their text, and count their shapes (the positions of their wildcards). For one shape,
    only one pattern can match a topic: the topic's levels, with `+` and `#` at the positions of the shape. So a lookup
    tries the topic itself, then one text for each shape in use.

    The invariant: a lookup takes as many steps as there are shapes, whatever patterns and topic are. Few shapes are
    common in practice. `shapes` returns their number, so that it can be limited.

    Example: the patterns `a/+` and `b/+` have one shape. A lookup of `a/x` tries the texts `a/x` and `a/+`.

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
        """The number of patterns of each shape."""
        self._found: dict[str, tuple[S, ...]] = {}
        self._remember = remember
        self._remembered = 0
        """The number of subscribers in the cache `_found`."""
        self._count = 0
        self.memory = 0
        """Approximate bytes of all patterns."""

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._patterns)

    @property
    def shapes(self) -> int:
        """How many different shapes the patterns have."""
        return len(self._shapes)

    def has_shape(self, pattern: str) -> bool:
        """Whether the shape of a valid pattern is already in use, or it has no wildcard."""
        shape = shape_of(pattern)
        return shape is None or shape in self._shapes

    def add(self, pattern: str, subscriber: S) -> bool:
        """Add a subscription. Returns False if it exists already."""
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
        """Remove a subscription. Returns False if there was none."""
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
        """Remove all subscriptions of one subscriber."""
        for pattern in self.patterns(subscriber):
            self.remove(pattern, subscriber)

    def patterns(self, subscriber: S) -> tuple[str, ...]:
        """The patterns of one subscriber, in the order they were added."""
        return tuple(self._patterns.get(subscriber, ()))

    def count(self, subscriber: S) -> int:
        """How many patterns one subscriber has."""
        return len(self._patterns.get(subscriber, ()))

    def has(self, pattern: str, subscriber: S) -> bool:
        """Whether a subscriber has a pattern."""
        return pattern in self._patterns.get(subscriber, ())

    def subscribers(self) -> tuple[S, ...]:
        """All subscribers."""
        return tuple(self._patterns)

    def lookup(self, topic: str) -> tuple[S, ...]:
        """All subscribers of this topic, each once."""
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
    """Approximate bytes of a subscription: its text, and its dictionary entries."""
    return sys.getsizeof(pattern) + 512


def read_topic_map(path: Path) -> dict[int, str]:
    """Topic numbers from a file: JSON such as {"7": "sensors/kitchen"}, or TOML.

    In TOML that is a line `7 = "sensors/kitchen"`. In both, they may be inside a table named `topics`.
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
