"""The event mesh: nodes, identities and trust.

::

    from wireloom import mesh

    async with mesh.Node("mesh://0.0.0.0:5041", key="node.json", trust="trust.json") as node:
        await node.publish("alarm/fire", {"room": 4}, urgent=True)
"""

from wireloom.peers.mesh.node import Node
from wireloom.peers.mesh.streams import Changes, Events, PeerChange, PeerInfo
from wireloom.protocols.mesh.identity import Identity, load_identity
from wireloom.protocols.mesh.node import Change, Relay
from wireloom.protocols.mesh.settings import MeshSettings, Require
from wireloom.protocols.mesh.trust import TrustedKey, TrustStore, load_trust

__all__ = [
    "Change",
    "Changes",
    "Events",
    "Identity",
    "MeshSettings",
    "Node",
    "PeerChange",
    "PeerInfo",
    "Relay",
    "Require",
    "TrustStore",
    "TrustedKey",
    "load_identity",
    "load_trust",
]
