"""What was seen of packets, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wireloom.pipeline.captures.connections import CapturedConnection


@dataclass(slots=True)
class Counts:
    """What was seen of packets."""

    packets: int = 0
    other_packets: int = 0
    other_bytes: int = 0
    """Payload of connections that are none of ours."""
    lost_fragments: int = 0

    def add_other(self, connection: CapturedConnection) -> None:
        """Count what was seen of a connection that is none of ours."""
        self.other_packets += connection.packets
        self.other_bytes += sum(half.seen for half in connection.halves)
        connection.packets = 0
        for half in connection.halves:
            half.seen = 0
