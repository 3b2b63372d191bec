"""The live page: what the hub and the pipeline are doing, in a browser."""

from wireloom.console.server import Console, Settings

__all__ = ["Console", "Settings"]
