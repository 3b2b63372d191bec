"""What a yamp conversation is, for those who read it afterwards."""

from __future__ import annotations

from wireloom.model import Direction, Kind
from wireloom.protocols.pairing import Conversation, Greeting, Key, PairingRule, Severity, pings, requests

CONVERSATION = Conversation(
    pairings=(
        requests(
            asked_by="progressive",
            stopped_by="kill",
            unknown=PairingRule("yamp.response.unknown", Severity.INFO, "a response to no pending request"),
            again=PairingRule(
                "yamp.request.uid-reused", Severity.WARNING, "a request with the uid of one that is pending"
            ),
            unasked=PairingRule(
                "yamp.progress.unrequested", Severity.WARNING, "progress that the request did not ask for"
            ),
        ),
        pings(
            key=Key.BODY,
            counted=True,
            unknown=PairingRule("yamp.pong.unasked", Severity.INFO, "a pong with the payload of no ping"),
        ),
    ),
    greeting=Greeting(
        {
            Direction.C2S: frozenset({Kind.OPEN}),
            Direction.S2C: frozenset({Kind.OPEN, Kind.CLOSE, Kind.REDIRECT}),
        },
        missing=PairingRule("yamp.handshake.first", Severity.WARNING, "the first frame is no handshake"),
        repeated=PairingRule("yamp.handshake.repeated", Severity.WARNING, "another handshake after the first frame"),
    ),
    one_way={
        Kind.REDIRECT: (
            Direction.S2C,
            PairingRule("yamp.redirect.direction", Severity.WARNING, "a close-redirect from the client"),
        )
    },
)
