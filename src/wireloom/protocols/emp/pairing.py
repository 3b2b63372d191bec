"""What an emp conversation is, for those who read it afterwards."""

from __future__ import annotations

from wireloom.model import Direction, Kind
from wireloom.protocols.pairing import Conversation, Greeting, PairingRule, Severity, pings, requests

_FIRST = frozenset({Kind.OPEN, Kind.CLOSE, Kind.ERROR})

CONVERSATION = Conversation(
    pairings=(
        requests(
            unknown=PairingRule("emp.response.unknown-id", Severity.WARNING, "a response to no pending request"),
            again=PairingRule(
                "emp.request.reused-id", Severity.WARNING, "a request with the id of one that is pending"
            ),
        ),
        pings(
            unknown=PairingRule("emp.pong.unasked", Severity.INFO, "a pong that nobody asked for"),
            again=PairingRule("emp.ping.overlap", Severity.WARNING, "a ping before the pong to the last one"),
        ),
    ),
    greeting=Greeting(
        {Direction.C2S: _FIRST, Direction.S2C: _FIRST},
        missing=PairingRule("emp.handshake.order", Severity.WARNING, "the first message is no hello"),
        repeated=PairingRule("emp.hello.repeated", Severity.WARNING, "another hello after the first message"),
    ),
    farewells={Kind.CLOSE: "close", Kind.ERROR: "error"},
)
