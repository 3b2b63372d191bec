"""What can be told about mesh packets afterwards beside what their auditor finds: which node they come from."""

from __future__ import annotations

from wireloom.model import Kind
from wireloom.protocols.mesh.frames import EventType
from wireloom.protocols.pairing import Conversation

CONVERSATION = Conversation(
    pairings=(),
    node_attribute="node_id",
    locked_attribute="event_type",
    locked_kinds={str(int(EventType.EVENT)): Kind.EVENT, str(int(EventType.HEARTBEAT)): Kind.PING},
)
