"""What may be said when in an emp conversation, as tables: "Communication flow" of the specification.

What is not in them breaks a rule, or is not for the application to say.
"""

from __future__ import annotations

from wireloom.model import Kind
from wireloom.protocols.contract import SessionState
from wireloom.protocols.emp import frames
from wireloom.protocols.emp.frames import Type

OPENING, OPEN, CLOSING, CLOSED = SessionState
APPLICATION = frames.FIRST_APPLICATION_TYPE
"""Stands for all types from 128 on."""

_WHILE_OPEN = {
    Type.BYE: CLOSED,
    Type.PING: OPEN,
    Type.PONG: OPEN,
    Type.ERROR: CLOSED,
    Type.DATA: OPEN,
    APPLICATION: OPEN,
}

CONVERSATION: dict[SessionState, dict[int, SessionState]] = {
    OPENING: {Type.HELLO: OPEN, Type.BYE: CLOSED, Type.ERROR: CLOSED},
    OPEN: _WHILE_OPEN,
    CLOSING: {type_: CLOSING if then is OPEN else then for type_, then in _WHILE_OPEN.items()},
    CLOSED: {},
}
"""In each state the types that may be received, and the state each leads to."""

OUT_OF_TURN = {
    OPENING: "emp.handshake.order",
    OPEN: "emp.hello.repeated",
    CLOSING: "emp.hello.repeated",
    CLOSED: "emp.flow.after-end",
}
"""The rule that is broken by any other type."""

MAY_SEND: dict[SessionState, frozenset[Kind]] = {
    OPENING: frozenset({Kind.CLOSE, Kind.ERROR}),
    OPEN: frozenset({Kind.EVENT, Kind.REQUEST, Kind.RESPONSE, Kind.OTHER, Kind.PING, Kind.ERROR, Kind.CLOSE}),
    CLOSING: frozenset({Kind.RESPONSE, Kind.ERROR, Kind.OTHER}),
    CLOSED: frozenset(),
}
"""What goes out at once in each state; what the application sends while OPENING waits for OPEN. `hello` and
`pong` are the session's own."""

ANSWERS = (Kind.RESPONSE, Kind.ERROR, Kind.OTHER)
"""Kinds that answer a request when they have a `correlation_id`."""
