"""The settings of one emp connection: limits, timers, and leniency towards peers that need it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

from wireloom.model import ConfigError
from wireloom.protocols.contract import Settings, apply_agreed
from wireloom.protocols.emp.extensions import MAX_DECOMPRESSED_DEFAULT
from wireloom.protocols.emp.frames import MAX_MESSAGE_DEFAULT, MAX_MESSAGE_LIMIT, SizeMode

SMALLEST_MAX_MESSAGE = 1024
"""What handshake, liveness and an `error` that explains itself need."""


SIZE_MODE = 0
"""In topic maps of journals of format 1 only: the number under which they state the size mode of a connection."""


class Profile(StrEnum):
    """Whether the hub's extension blocks (128 and 129) are sent. They are always understood.

    >>> Profile(True), Profile("auto")
    (<Profile.ON: 'on'>, <Profile.AUTO: 'auto'>)
    """

    AUTO = "auto"
    """To peers that sent one themselves. A client sends them first, except to a server whose sizes are exclusive."""
    ON = "on"
    OFF = "off"

    @classmethod
    def _missing_(cls, value: object) -> Profile | None:
        return (cls.ON if value else cls.OFF) if isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class EmpSettings(Settings):
    """Limits and timers of one emp connection; times are in seconds.

    >>> EmpSettings.parse({"size_mode": "exclusive"}).size_mode
    <SizeMode.EXCLUSIVE: 'exclusive'>
    >>> EmpSettings(max_message=3)
    Traceback (most recent call last):
    wireloom.errors.ConfigError: setting 'max_message' is 3; it must be from 1024 to 4294967295
    """

    agreed_fields: ClassVar[tuple[str, ...]] = ("size_mode",)

    max_message: int = MAX_MESSAGE_DEFAULT
    """Bytes of one message, its size field included, sent or received."""
    max_decompressed: int = MAX_DECOMPRESSED_DEFAULT
    """Bytes of a body once it is decompressed."""
    max_requests: int = 65_536
    """Requests that wait for a response, in each direction."""
    handshake_timeout: float = 5.0
    ping_interval: float = 10.0
    """From one ping to the next; 0 for none."""
    pong_timeout: float = 5.0
    close_timeout: float = 5.0
    """Seconds that `bye` waits for pending answers."""
    size_mode: SizeMode = SizeMode.AUTO
    """Whether sizes count their own four bytes: `inclusive` or `exclusive`; `auto`: as the peer's `hello` shows."""
    profile: Profile = Profile.AUTO
    """Whether topics are sent, in the hub's extension: `on` or `off`; `auto`: to peers that sent one themselves."""
    compress_above: int | None = None
    """Bodies larger than this are sent as GZIP if that is shorter; None for never."""

    def __post_init__(self) -> None:
        _in_range("max_message", self.max_message, SMALLEST_MAX_MESSAGE, MAX_MESSAGE_LIMIT)
        _in_range("max_decompressed", self.max_decompressed, 0, MAX_MESSAGE_LIMIT)
        _in_range("max_requests", self.max_requests, 1, MAX_MESSAGE_LIMIT)
        _in_range("ping_interval", self.ping_interval, 0, None)
        for name in ("handshake_timeout", "pong_timeout", "close_timeout"):
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"setting {name!r} is {value}; it must be more than 0 seconds")
        if self.compress_above is not None:
            _in_range("compress_above", self.compress_above, 0, None)


def _in_range(name: str, value: float, low: int, high: int | None) -> None:
    if not low <= value <= (math.inf if high is None else high):
        wanted = f"{low} or more" if high is None else f"from {low} to {high}"
        raise ConfigError(f"setting {name!r} is {value}; it must be {wanted}")


def for_numbers(settings: EmpSettings, numbers: Mapping[int, str] | None) -> EmpSettings:
    """The settings to read a connection with that has these numbers; only journals of format 1 have any.

    >>> for_numbers(EmpSettings(), {SIZE_MODE: "exclusive"}).size_mode
    <SizeMode.EXCLUSIVE: 'exclusive'>
    """
    mode = (numbers or {}).get(SIZE_MODE)
    if mode is None or mode == settings.size_mode:
        return settings
    return apply_agreed(settings, {"size_mode": mode})


@lru_cache(maxsize=1024)
def settled(settings: EmpSettings, size_mode: SizeMode, profile: Profile) -> EmpSettings:
    """The settings in force on a connection, once it is known what `auto` means there; one object for equal ones."""
    return replace(settings, size_mode=size_mode, profile=profile)
