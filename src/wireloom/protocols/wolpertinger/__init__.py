"""wolpertinger: remote method calls in XML, confirmed, compressed, encrypted, in pieces if need be."""

from wireloom.protocols.wolpertinger.protocol import WOLPERTINGER
from wireloom.protocols.wolpertinger.settings import WolpertingerSettings

__all__ = ["WOLPERTINGER", "WolpertingerSettings"]
