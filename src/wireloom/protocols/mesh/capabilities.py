"""The hub profile in mesh: what a Hello's capabilities say about subscriptions.

The protocol leaves the capabilities to the application (3.1). Ours are a JSON object with `wireloom`: 1 and, each only
where it says something:

- `subscribe`: patterns of topics whose events this node wants from the one it greets;
- `re`: the Message ID (8 hex digits) of the Hello that this one answers;
- `peers`: addresses (`host:port`) of other nodes that the one greeted may want to know;
- `full`: true when this node takes no more neighbours.

Any other content means nothing to us and is accepted; a node that does not know the profile ignores ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

VERSION = 1


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a Hello says under the profile."""

    subscribe: tuple[str, ...] = ()
    answers: int | None = None
    """The Message ID of the Hello that is answered."""
    peers: tuple[str, ...] = ()
    full: bool = False


def make_capabilities(
    subscribe: Iterable[str] = (), answers: int | None = None, peers: Iterable[str] = (), *, full: bool = False
) -> bytes:
    """Capabilities as bytes.

    >>> make_capabilities(["sensors/#"], 42)
    b'{"wireloom":1,"subscribe":["sensors/#"],"re":"0000002a"}'
    """
    content: dict[str, object] = {"wireloom": VERSION}
    patterns = list(subscribe)
    if patterns:
        content["subscribe"] = patterns
    if answers is not None:
        content["re"] = f"{answers:08x}"
    known = list(peers)
    if known:
        content["peers"] = known
    if full:
        content["full"] = True
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def parse_capabilities(blob: bytes) -> Capabilities | None:
    """What capabilities say under the profile; None when they are not of the profile.

    >>> parse_capabilities(b'{"wireloom":1,"subscribe":["sensors/#"]}')
    Capabilities(subscribe=('sensors/#',), answers=None, peers=(), full=False)
    >>> parse_capabilities(b"anything else") is None
    True
    """
    try:
        content = json.loads(blob)
        if content["wireloom"] != VERSION:
            return None
        answers = content.get("re")
        return Capabilities(
            _texts(content.get("subscribe", [])),
            None if answers is None else int(answers, 16),
            _texts(content.get("peers", [])),
            content.get("full") is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        raise TypeError("not a list of texts")
    return tuple(dict.fromkeys(values))
