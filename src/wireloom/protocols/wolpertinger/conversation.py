"""What a wolpertinger conversation is, for those who read it afterwards."""

from __future__ import annotations

from wireloom.model import Kind
from wireloom.protocols.conversation import Conversation, Pairing, Rule, Severity, requests

CONVERSATION = Conversation(
    pairings=(
        requests(
            unknown=Rule("wolpertinger.response.unknown-call", Severity.INFO, "a response to no pending call"),
            # Who saw no confirmation sends a call again, so this is no breach by itself.
            again=Rule(
                "wolpertinger.call-id.reused",
                Severity.INFO,
                "a call with the id of one that is pending: sent again, or another one",
            ),
        ),
        # A message that is sent again, because its confirmation was lost, is confirmed again: nothing to find.
        Pairing(
            frozenset(Kind) - {Kind.ACK},
            frozenset({Kind.ACK}),
            id_attribute="message_id",
            unknown=Rule("wolpertinger.result.unknown-id", Severity.INFO, "a confirmation of no message"),
        ),
    )
)
