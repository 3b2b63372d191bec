"""mesh: the Event Mesh Protocol, signed events in single datagrams."""

from wireloom.protocols.mesh.protocol import MESH
from wireloom.protocols.mesh.settings import MeshSettings

__all__ = ["MESH", "MeshSettings"]
