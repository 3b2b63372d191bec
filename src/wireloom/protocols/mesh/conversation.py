"""What can be told about mesh packets afterwards beside what their auditor finds: which node they come from."""

from __future__ import annotations

from wireloom.protocols.conversation import Conversation

CONVERSATION = Conversation(pairings=(), node_attribute="node_id")
