"""What a wolpertinger conversation is, for those who read it afterwards."""

from __future__ import annotations

from wireloom.model import Kind
from wireloom.protocols.pairing import Conversation, Pairing, PairingRule, Severity, requests

CONVERSATION = Conversation(
    pairings=(
        requests(
            unknown=PairingRule("wolpertinger.response.unknown-call", Severity.INFO, "a response to no pending call"),
            again=PairingRule(
                "wolpertinger.call-id.reused", Severity.WARNING, "another call with the id of one that is pending"
            ),
            # Who saw no confirmation sends a message again; it is confirmed again, and taken once.
            resent_by="message_id",
            resent=PairingRule(
                "wolpertinger.message-id.again", Severity.INFO, "a call or an answer that was sent again"
            ),
        ),
        Pairing(
            frozenset(Kind) - {Kind.ACK},
            frozenset({Kind.ACK}),
            id_attribute="message_id",
            counted=True,
            unknown=PairingRule("wolpertinger.result.unknown-id", Severity.INFO, "a confirmation of no message"),
        ),
    )
)
