"""What may be said when in a yamp conversation, as tables: which frames each role takes, which kinds are sent."""

from __future__ import annotations

from collections.abc import Mapping

from wireloom.model import Kind
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.yamp.frames import FrameType, violation

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


def refuse_out_of_turn(state: SessionState, type_: int) -> None:
    """Refuse a frame that is out of turn by its first byte, before any of it is waited for."""
    if type_ > FrameType.RESPONSE:
        return  # `frames.decode` says that there is no such type
    name = FrameType(type_).name.lower().replace("_", "-")
    if type_ == FrameType.CLOSE_REDIRECT:
        raise violation("yamp.redirect.direction", "a client sent close-redirect")
    if state is SessionState.OPENING:
        raise violation("yamp.handshake.first", f"{name} before the handshake")
    if type_ == FrameType.HANDSHAKE:
        raise violation("yamp.handshake.repeated", "a second handshake")
