"""Test kit for service authors: peers and a hub without ports, and networks and disks with faults."""

from wireloom.testing.clock import ManualClock
from wireloom.testing.faults import FaultProxy, Faults
from wireloom.testing.memory_hub import MemoryHub, hub
from wireloom.testing.pair import Pair, peer_pair
from wireloom.testing.simulated_disk import SimulatedDisk

__all__ = ["ManualClock", "FaultProxy", "Faults", "MemoryHub", "Pair", "SimulatedDisk", "hub", "peer_pair"]
