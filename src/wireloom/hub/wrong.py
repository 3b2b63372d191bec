"""A mistake in the configuration, at a key; whoever loads the file adds its name and the line."""

from __future__ import annotations

from wireloom.model import ConfigError


class WrongKey(ConfigError):
    """The value at `key` is wrong."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key
