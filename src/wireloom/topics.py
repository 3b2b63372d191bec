"""Topics and patterns: `/`-separated levels, `+` for one level, `#` for the rest, as MQTT users expect.

The one place that knows how a pattern matches. A wildcard at the first level does not match topics that
begin with `$`: those belong to the hub, and whoever wants them names them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from wireloom.model import ConfigError

MAX_TOPIC = 65535
"""Longest topic or pattern in bytes of UTF-8."""

S = TypeVar("S", bound=Hashable)


def validate_topic(topic: str) -> str:
    """The topic itself, or a ConfigError that says what is wrong with it.

    >>> validate_topic("sensors/kitchen")
    'sensors/kitchen'
    >>> validate_topic("sensors/+")
    Traceback (most recent call last):
    wireloom.model.ConfigError: topic 'sensors/+' holds a wildcard; '+' and '#' are for patterns only
    """
    _check_text("topic", topic)
    if "+" in topic or "#" in topic:
        raise ConfigError(f"topic {topic!r} holds a wildcard; '+' and '#' are for patterns only")
    return topic


def validate_pattern(pattern: str) -> str:
    """The pattern itself, or a ConfigError that says what is wrong with it.

    >>> validate_pattern("sensors/+/temperature")
    'sensors/+/temperature'
    >>> validate_pattern("sensors/#/temperature")
    Traceback (most recent call last):
    wireloom.model.ConfigError: pattern 'sensors/#/temperature': '#' must be the last level
    """
    _check_text("pattern", pattern)
    levels = pattern.split("/")
    for index, level in enumerate(levels):
        if level == "#" and index < len(levels) - 1:
            raise ConfigError(f"pattern {pattern!r}: '#' must be the last level")
        if len(level) > 1 and ("+" in level or "#" in level):
            raise ConfigError(f"pattern {pattern!r}: '+' and '#' must fill a level, not be part of one")
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
    if "\0" in text:
        raise ConfigError(f"{what} {text!r} holds a NUL character")
    if len(text.encode()) > MAX_TOPIC:
        raise ConfigError(f"{what} {text[:40]!r}… is longer than {MAX_TOPIC} bytes")


class _Node(Generic[S]):
    """One level of the tree: where its patterns end, and the levels below."""

    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _Node[S]] = {}
        self.subscribers: dict[S, None] = {}


class Subscriptions(Generic[S]):
    """Who wants what: an index from patterns to subscribers, with lookups remembered until it changes.

    >>> index = Subscriptions[str]()
    >>> index.add("sensors/#", "ann"), index.add("sensors/+", "bob"), index.add("sensors/#", "ann")
    (True, True, False)
    >>> index.lookup("sensors/kitchen")
    ('ann', 'bob')
    >>> index.drop("ann"); index.lookup("sensors/kitchen")
    ('bob',)
    """

    def __init__(self, remember: int = 4096) -> None:
        self._root: _Node[S] = _Node()
        self._patterns: dict[S, dict[str, None]] = {}
        self._found: dict[str, tuple[S, ...]] = {}
        self._remember = remember

    def __len__(self) -> int:
        return sum(map(len, self._patterns.values()))

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def add(self, pattern: str, subscriber: S) -> bool:
        """Enter a subscription; False when it was there already."""
        own = self._patterns.get(subscriber, {})
        if validate_pattern(pattern) in own:
            return False
        self._patterns.setdefault(subscriber, own)[pattern] = None
        node = self._root
        for level in pattern.split("/"):
            node = node.children.setdefault(level, _Node())
        node.subscribers[subscriber] = None
        self._found.clear()
        return True

    def remove(self, pattern: str, subscriber: S) -> bool:
        """Take a subscription out; False when there was none."""
        own = self._patterns.get(subscriber, {})
        if pattern not in own:
            return False
        del own[pattern]
        if not own:
            del self._patterns[subscriber]
        path = [self._root]
        levels = pattern.split("/")
        for level in levels:
            path.append(path[-1].children[level])
        del path[-1].subscribers[subscriber]
        for parent, level, node in zip(path[-2::-1], levels[::-1], path[:0:-1], strict=True):
            if node.subscribers or node.children:
                break
            del parent.children[level]
        self._found.clear()
        return True

    def drop(self, subscriber: S) -> None:
        """Take out everything one subscriber wanted."""
        for pattern in tuple(self._patterns.get(subscriber, ())):
            self.remove(pattern, subscriber)

    def patterns(self, subscriber: S) -> tuple[str, ...]:
        """What one subscriber wants, in the order it asked."""
        return tuple(self._patterns.get(subscriber, ()))

    def subscribers(self) -> tuple[S, ...]:
        """Everybody who wants anything."""
        return tuple(self._patterns)

    def lookup(self, topic: str) -> tuple[S, ...]:
        """Everybody who wants this topic, each once."""
        found = self._found.get(topic)
        if found is None:
            if len(self._found) >= self._remember:
                self._found.clear()
            found = self._found[topic] = tuple(self._search(topic))
        return found

    def _search(self, topic: str) -> dict[S, None]:
        found: dict[S, None] = {}
        levels = topic.split("/")
        reached = [self._root]
        reserved = topic[:1] == "$"
        for index, level in enumerate(levels):
            below: list[_Node[S]] = []
            for node in reached:
                if not (reserved and index == 0):
                    if rest := node.children.get("#"):
                        found.update(rest.subscribers)
                    if any_level := node.children.get("+"):
                        below.append(any_level)
                if exact := node.children.get(level):
                    below.append(exact)
            reached = below
        for node in reached:
            found.update(node.subscribers)
            if rest := node.children.get("#"):
                found.update(rest.subscribers)
        return found


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
