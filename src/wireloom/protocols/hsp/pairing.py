"""What an hsp conversation is, for those who read it afterwards."""

from __future__ import annotations

from wireloom.protocols.pairing import Conversation, PairingRule, Severity, pings, requests

CONVERSATION = Conversation(
    pairings=(
        requests(
            unknown=PairingRule("hsp.response.unknown-id", Severity.INFO, "an answer to no pending DATA_ACK"),
            again=PairingRule(
                "hsp.message-id.reused", Severity.WARNING, "a DATA_ACK with the id of one that is pending"
            ),
        ),
        pings(counted=True, unknown=PairingRule("hsp.pong.unasked", Severity.INFO, "a PONG that nobody asked for")),
    )
)
