"""What may be said when in a yamp conversation, as tables: which frames each role takes, which kinds are sent."""

from __future__ import annotations

from collections.abc import Mapping

from wireloom.model import Kind
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.yamp.frames import FrameType

ANSWERS = frozenset((Kind.RESPONSE, Kind.ERROR, Kind.PROGRESS))

_TALK = frozenset(
    (
        FrameType.PING,
        FrameType.PONG,
        FrameType.CLOSE,
        FrameType.EVENT,
        FrameType.REQUEST,
        FrameType.CANCEL,
        FrameType.RESPONSE,
    )
)
RECEIVES: Mapping[tuple[Role, SessionState], frozenset[FrameType]] = {
    (Role.SERVER, SessionState.OPENING): frozenset((FrameType.HANDSHAKE, FrameType.CLOSE)),
    (Role.SERVER, SessionState.OPEN): _TALK,
    (Role.SERVER, SessionState.CLOSING): _TALK,
    (Role.SERVER, SessionState.CLOSED): frozenset(),
    (Role.CLIENT, SessionState.OPENING): frozenset((FrameType.HANDSHAKE, FrameType.CLOSE, FrameType.CLOSE_REDIRECT)),
    (Role.CLIENT, SessionState.OPEN): _TALK | {FrameType.CLOSE_REDIRECT},
    (Role.CLIENT, SessionState.CLOSING): _TALK | {FrameType.CLOSE_REDIRECT},
    (Role.CLIENT, SessionState.CLOSED): frozenset(),
}
"""Which frames each role takes in each state."""
