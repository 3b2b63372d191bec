"""Sessions of the stream protocols that are past their handshake, and what may be said to them."""

from __future__ import annotations

from tests.protocols.emp import strategies as emp_strategies
from tests.protocols.hsp import strategies as hsp_strategies
from tests.protocols.yamp import strategies as yamp_strategies
from wireloom.protocols.contract import Role, Session
from wireloom.protocols.emp import frames as emp_frames
from wireloom.protocols.registry import protocol
from wireloom.protocols.yamp import frames as yamp_frames

STREAMS = {
    "emp": emp_strategies.stream() | emp_strategies.mutated_stream(),
    "hsp": hsp_strategies.stream() | hsp_strategies.mutated_stream(),
    "yamp": yamp_strategies.streams | yamp_strategies.spoiled(),
}
GREETINGS = {
    "emp": emp_frames.encode(emp_frames.Frame(emp_frames.Type.HELLO, emp_frames.encode_hello(emp_frames.Hello()))),
    "yamp": yamp_frames.encode(yamp_frames.Handshake(1, "json")),
}
TOPICS = {7: "sensors/kitchen", 300: "$hub/map"}


def talking(name: str, role: Role = Role.SERVER, *, unique: int = 1, **values: object) -> Session:
    """A session whose handshake is done."""
    own = protocol(name)
    if name == "emp":
        values = {"profile": "on", **values}
    session = own.session(role, own.settings(values), unique=unique, topics=TOPICS if name == "hsp" else None)
    session.connected(0.0)
    session.receive(GREETINGS.get(name, b""), 0.0)
    session.outgoing()
    return session
