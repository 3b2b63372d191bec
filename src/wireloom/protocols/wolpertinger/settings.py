"""Limits, timers and secrets of one wolpertinger connection."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from wireloom.model import ConfigError
from wireloom.protocols.contract import Settings
from wireloom.protocols.wolpertinger.keys import cluster_password

MIB = 1024 * 1024
MAX_TEXT = 10_000_000
"""The XML library takes no longer text."""
MAX_FRAGMENTS = 1_000_000
MAX_OPEN = 100_000
MAX_TRUST = 4


@dataclass(frozen=True, slots=True)
class WolpertingerSettings(Settings):
    """Every field has a default that suits most peers."""

    profile: bool = True
    """Whether the component `Hub` stands for the hub's operations, and carries events."""
    max_message: int = 8 * MIB
    """Bytes of one message's XML, after decompression."""
    split: int = 30_500
    """Base64 characters above which a message is sent in pieces."""
    gzip_from: int = 2048
    """Bytes of XML from which on it is compressed; 0: never."""
    max_fragments: int = 4096
    """Pieces of one message."""
    max_open: int = 64
    """Messages of one peer that may be incomplete at a time."""
    max_calls: int = 10_000
    """Calls that may wait for their answer at a time, in each direction."""
    max_unconfirmed: int = 10_000
    """Messages that may wait for their delivery confirmation at a time."""
    reassembly_timeout: float = 60.0
    delivery_timeout: float = 20.0
    resends: int = 3
    remember: float = 600.0
    """Seconds a received message_id is remembered, so that a resent message is not executed twice."""
    heartbeat: float = 10.0
    """Seconds of work on a call after which a Heartbeat is sent; 0: never."""
    failure_delay: float = 0.25
    """Seconds after which an encrypted message that could not be read is answered, whatever was wrong with it."""
    answer_delay: float = 0.0
    """Seconds that answers to calls are held back, for peers that lose an answer which comes at once."""
    authenticate: int = 0
    """Clients: the trust level to reach before the conversation begins."""
    required_trust: int = 0
    """Calls for the application from a peer with less trust are answered with error 201."""
    insecure_trust: bool = False
    """Allow trust 3 and 4 over connections that are neither local nor protected by TLS."""
    cluster_key: str = field(default="", repr=False)
    """In hexadecimal digits; what members of a cluster know."""
    user: str = ""
    password: str = field(default="", repr=False)
    users: dict[str, str] = field(default_factory=dict, repr=False)
    """Servers: the passwords of users by name."""
    secrets: str = ""
    """A JSON file with `cluster_key`, `user`, `password` and `users`, to keep them out of the configuration."""
    aes_key: str = field(default="", repr=False)
    """For reading recorded traffic: the key of the connection, in hexadecimal digits."""
    aes_iv: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        ranges = {
            "max_message": (64, MAX_TEXT),
            "split": (64, MAX_TEXT * 2),
            "gzip_from": (0, math.inf),
            "max_fragments": (1, MAX_FRAGMENTS),
            "max_open": (1, MAX_OPEN),
            "max_calls": (1, math.inf),
            "max_unconfirmed": (1, math.inf),
            "resends": (0, 1000),
            "authenticate": (0, MAX_TRUST),
            "required_trust": (0, MAX_TRUST),
        }
        for name in (
            "reassembly_timeout",
            "delivery_timeout",
            "remember",
            "heartbeat",
            "failure_delay",
            "answer_delay",
        ):
            ranges[name] = (0, 1e9)
        for name, (least, most) in ranges.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"setting {name!r} is {getattr(self, name)}; it must be from {least} to {most}")
        cluster_password(self.cluster_key)
        for name, size in (("aes_key", 32), ("aes_iv", 16)):
            text = getattr(self, name)
            try:
                wrong = bool(text) and len(bytes.fromhex(text)) != size
            except ValueError:
                wrong = True
            if wrong:
                raise ConfigError(f"setting {name!r} must be {2 * size} hexadecimal digits")

    @property
    def max_line(self) -> int:
        """Bytes of a line that holds a message of the largest size: base64, padding and metadata included."""
        return (self.max_message + 4096) // 3 * 4 + 4096

    def with_secrets(self) -> WolpertingerSettings:
        """These settings together with what the file of secrets says."""
        if not self.secrets:
            return self
        try:
            values = json.loads(Path(self.secrets).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"setting 'secrets': {self.secrets} cannot be read as JSON: {error}") from None
        known = ("cluster_key", "user", "password", "users")
        if not isinstance(values, dict) or any(name not in known for name in values):
            raise ConfigError(f"setting 'secrets': {self.secrets} must be a JSON object with {', '.join(known)}")
        parsed = WolpertingerSettings.parse(values)
        return replace(self, secrets="", **{name: getattr(parsed, name) for name in values})
