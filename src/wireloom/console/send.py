"""What a person sends from the page: a publish stays a publish, and a request shows its answer.

In a protocol whose requests are publishes (hsp), an acknowledged publish is a call where somebody provides its topic, a
request is a publish where nobody does, and answers have no body. So any other listener of the hub is better. Where
there is none, a publish goes out unconfirmed, and a request is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

import wireloom
from wireloom.console.recent_traffic import Line, body_of, showable
from wireloom.model import Kind, Message, NotSupported
from wireloom.protocols.contract import PUBLISH
from wireloom.protocols.publish_rules import validate_publish
from wireloom.protocols.registry import scheme as find_scheme
from wireloom.transports.address import parse_url

TIMEOUT = 30.0
_PLAIN = ("tcp", "ws")
"""Transports on which the console needs no certificate to be let in."""


def listener_among(urls: Iterable[str]) -> str | None:
    """The listener of a hub to send through; None where the console can use none of them.

    >>> listener_among(["mesh://127.0.0.1:5041", "hsp://127.0.0.1:5042", "yamp://127.0.0.1:5043"])
    'yamp://127.0.0.1:5043'
    >>> listener_among(["hsp://127.0.0.1:5042"]), listener_among(["yamps://127.0.0.1:5043"])
    ('hsp://127.0.0.1:5042', None)
    """
    usable = [url for url in urls if _is_usable(url)]
    return min(usable, key=is_ambiguous, default=None)


def is_ambiguous(url: str) -> bool:
    """Whether a publish and a request look alike on the wire behind this URL."""
    return find_scheme(parse_url(url).scheme)[0].request_is_publish


async def publish(url: str, message: Message) -> str:
    """Publish an event; returns what is known of it, for a person. Raises as `Peer.publish` does."""
    assert message.topic is not None
    validate_publish(message.topic)
    async with wireloom.connect(url, reconnect=False) as peer:
        if is_ambiguous(url):
            peer.send(message.with_(kind=Kind.EVENT))
            await peer.drain()
            return (
                f"sent to {message.topic}; whether the hub kept it is not known: {peer.protocol.name} cannot confirm "
                "a publish that is surely no request. A listener of another protocol can (--via URL)"
            )
        await peer.ask(message.with_(kind=Kind.REQUEST, topic=PUBLISH + message.topic), timeout=TIMEOUT)
    return f"published to {message.topic} and kept by the hub"


async def request(url: str, message: Message) -> Line:
    """Ask whoever provides the topic; returns the answer for a page. Raises as `Peer.request` does."""
    if is_ambiguous(url):
        raise NotSupported(
            f"{url} cannot carry a request with an answer: name a listener of another protocol with --via URL, "
            "or add one to the hub"
        )
    async with wireloom.connect(url, reconnect=False) as peer:
        answer = await peer.ask(message.with_(kind=Kind.REQUEST), timeout=TIMEOUT)
    return showable({"size": len(answer.body), **body_of(answer)})


def _is_usable(url: str) -> bool:
    found = find_scheme(parse_url(url).scheme)[1]
    return found.transport in _PLAIN and not found.secure
