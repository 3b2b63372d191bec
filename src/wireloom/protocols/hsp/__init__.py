"""hsp: a bidirectional stream of typed messages that can be acknowledged or refused."""

from wireloom.protocols.hsp.protocol import HSP, HspSettings

__all__ = ["HSP", "HspSettings"]
