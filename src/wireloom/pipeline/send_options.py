"""How messages are sent back to a live peer: the options, their checks, and what is said about wrong ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from wireloom.model import ConfigError
from wireloom.peers import Client, connect, endpoint
from wireloom.protocols.settings import Written
from wireloom.transports import TLS

SETTINGS = "settings."
DEFAULTS = {
    "url": "",
    "pace": "0",
    "ack": "false",
    "requests": "false",
    "topicPrefix": "",
    "timeout": "30",
    "token": "",
    "topics": "",
    "ca": "",
    "certificate": "",
    "key": "",
}
"""Every option of `df.write.format("wireloom")` beside `settings.<name>`, with what it is when it is not given."""

_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Where messages go, and how; plain values, so that they travel to tasks."""

    url: str
    pace: float = 0.0
    """0: as fast as the peer takes them; 1: with the gaps they had; 2: twice as fast."""
    ack: bool = False
    """Whether each event is an acknowledged publish."""
    requests: bool = False
    """Whether requests are asked again."""
    topic_prefix: str = ""
    timeout: float = 30.0
    """Seconds to connect, and to wait for an answer."""
    settings: Mapping[str, object] = field(default_factory=dict)
    topics: Mapping[int, str] | None = None
    """Numbers that stand for topics, in protocols that number them."""
    token: str | None = field(default=None, repr=False)
    tls: TLS | None = None

    def __post_init__(self) -> None:
        if not self.url:
            raise ConfigError("option 'url' is missing: it says where to send, such as hsp://127.0.0.1:5042")
        if not (math.isfinite(self.pace) and self.pace >= 0):
            raise ConfigError(
                f"the pace is {self.pace:g}; it must be 0 (as fast as possible) or a factor such as 1 or 2.5"
            )
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise ConfigError(f"the timeout is {self.timeout:g}; it must be a number of seconds such as 30")
        place = endpoint(self.url)
        protocol = place.protocol
        protocol.settings(place.settings_with(self.settings))
        if self.token is not None and not protocol.takes_tokens:
            raise ConfigError(f"{protocol.name} has no way to show a token")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SendOptions:
        """Options by name, in any case; an unknown or a wrong one is an error that names the right ones.

        >>> SendOptions.parse({"url": "hsp://127.0.0.1", "topicprefix": "again/", "settings.profile": "true"}).settings
        {'profile': 'true'}
        """
        known = {name.lower(): name for name in DEFAULTS}
        values, settings = dict(DEFAULTS), dict[str, object]()
        for name, value in given.items():
            if name.lower().startswith(SETTINGS):
                settings[name[len(SETTINGS) :]] = Written(value)
            elif name.lower() in known:
                values[known[name.lower()]] = value
            else:
                listed = ", ".join([*sorted(DEFAULTS), f"{SETTINGS}<name>"])
                raise ConfigError(f"unknown option {name!r} for writing the format wireloom; known: {listed}")
        return cls(
            url=values["url"],
            pace=_number("pace", values["pace"], "0 (as fast as possible) or a factor such as 1 or 2.5"),
            ack=_switch("ack", values["ack"]),
            requests=_switch("requests", values["requests"]),
            topic_prefix=values["topicPrefix"],
            timeout=_number("timeout", values["timeout"], "a number of seconds such as 30"),
            settings=settings,
            topics=_topics(values["topics"]),
            token=values["token"] or None,
            tls=_tls(values),
        )

    def connect(self) -> Client:
        """The peer. A connection that is lost stays lost: nobody knows which of the last messages arrived."""
        return connect(
            self.url,
            settings=self.settings,
            topics=self.topics,
            tls=self.tls,
            token=self.token,
            reconnect=False,
            timeout=self.timeout,
        )


def _number(name: str, text: str, right: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        raise ConfigError(f"option {name!r} is {text!r}; it must be {right}")
    return float(text)


def _switch(name: str, text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ConfigError(f"option {name!r} is {text!r}; it must be true or false")
    return _SWITCH[text.lower()]


def _topics(text: str) -> dict[int, str] | None:
    if not text:
        return None
    try:
        found = {int(number): topic for number, topic in json.loads(text).items()}
        if all(isinstance(topic, str) for topic in found.values()):
            return found
    except (ValueError, AttributeError):
        pass
    raise ConfigError(
        f'option \'topics\' is {text!r}; it must map numbers to topics, such as {{"7": "sensors/kitchen"}}'
    )


def _tls(values: Mapping[str, str]) -> TLS | None:
    ca, certificate, key = (values[name] or None for name in ("ca", "certificate", "key"))
    return TLS(certificate=certificate, key=key, ca=ca) if ca or certificate or key else None
