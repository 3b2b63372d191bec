"""The public names of wolpertinger's components, see `peers/wolpertinger/components.py`."""

from wireloom.peers.wolpertinger.components import Components, Int32, Int64, Structured, UInt64, component, method

__all__ = ["Components", "Int32", "Int64", "Structured", "UInt64", "component", "method"]
