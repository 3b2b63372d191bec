"""The live page: what the hub and the pipeline are doing, in a browser."""

from wireloom.console.server import Console, ConsoleSettings

__all__ = ["Console", "ConsoleSettings"]
