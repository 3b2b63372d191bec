"""For the tests of those who write services: connected peers without a port, and a network that misbehaves."""

from wireloom.testing.faults import FaultProxy, Faults
from wireloom.testing.pair import Pair, peer_pair

__all__ = ["FaultProxy", "Faults", "Pair", "peer_pair"]
