"""Two sessions and a clock that is only a number: months of pings in seconds."""

from __future__ import annotations

import random

import pytest

from tests.protocols.reading import messages_of
from wireloom.model import Kind
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.emp import EmpSettings, frames
from wireloom.protocols.emp.frames import SizeMode
from wireloom.protocols.emp.session import EmpSession

HOUR = 3600.0


class Line:
    """Two sessions and the bytes between them, each with the time at which it arrives."""

    def __init__(self, settings: EmpSettings, seed: int, slowest: float) -> None:
        self.random = random.Random(seed)
        self.slowest = slowest
        self.ends = {role: EmpSession(role, settings) for role in Role}
        self.now = 0.0
        self.on_the_way: dict[Role, list[tuple[float, bytes]]] = {role: [] for role in Role}
        self.pings = dict.fromkeys(Role, 0)
        self.cut_off: set[Role] = set()
        for session in self.ends.values():
            session.connected(0.0)
        self.carry()

    def carry(self) -> None:
        """Put what the sessions say on the way; a stream keeps its order however late its parts are."""
        for role, other in ((Role.CLIENT, Role.SERVER), (Role.SERVER, Role.CLIENT)):
            data = self.ends[role].outgoing()
            if data and role not in self.cut_off:
                queue = self.on_the_way[other]
                arrives = self.now + self.random.uniform(0.0, self.slowest)
                queue.append((max(arrives, queue[-1][0] if queue else 0.0), data))

    def step(self) -> bool:
        """Go to the next thing that happens; False when nothing will."""
        times = [queue[0][0] for queue in self.on_the_way.values() if queue]
        times += [due for due in (session.deadline() for session in self.ends.values()) if due is not None]
        if not times:
            return False
        assert min(times) >= self.now
        self.now = min(times)
        for role, session in self.ends.items():
            queue = self.on_the_way[role]
            while queue and queue[0][0] <= self.now:
                for message in messages_of(session.receive(queue.pop(0)[1], self.now)):
                    self.pings[role] += message.kind is Kind.PING
            due = session.deadline()
            if due is not None and due <= self.now:
                session.expire(self.now)
        self.carry()
        return True


def run_hours(hours: float, settings: EmpSettings, slowest: float) -> Line:
    line = Line(settings, seed=7, slowest=slowest)
    while line.now < hours * HOUR:
        assert line.step()
        if any(session.state is not SessionState.OPEN for session in line.ends.values()):
            assert line.now < settings.handshake_timeout, "the connection was lost"
    return line


def test_a_thousand_hours_of_pings_keep_a_live_connection_open() -> None:
    line = run_hours(1000, EmpSettings(ping_interval=120), slowest=2.4)
    for role in Role:
        assert line.ends[role].counters == {}
        assert line.pings[role] == pytest.approx(1000 * HOUR / 120, abs=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_hours_of_pings_at_the_default_interval() -> None:
    line = run_hours(2000, EmpSettings(), slowest=2.4)
    for role in Role:
        assert line.ends[role].counters == {}
        assert line.pings[role] == pytest.approx(2000 * HOUR / 10, abs=2)


def test_a_pong_that_takes_longer_than_the_interval_delays_the_next_ping() -> None:
    settings = EmpSettings(ping_interval=1, pong_timeout=30)
    line = run_hours(5, settings, slowest=10)
    for role in Role:
        assert line.ends[role].counters == {}
        assert line.pings[role] < 5 * HOUR / 5


@pytest.mark.parametrize("silent", Role)
def test_a_peer_that_falls_silent_is_noticed_within_interval_and_timeout(silent: Role) -> None:
    for silent_from in (0.5 * HOUR, HOUR + 3.3, 2 * HOUR + 9.99):
        line = Line(EmpSettings(), seed=1, slowest=0.5)
        while line.now < silent_from:
            assert line.step()
        line.cut_off.add(silent)
        begun = line.now
        other = line.ends[Role.SERVER if silent is Role.CLIENT else Role.CLIENT]
        while other.state is SessionState.OPEN:
            assert line.step()
        assert other.close_reason == "idle"
        assert line.now - begun <= 10 + 5 + 2 * 0.5


def test_a_peer_that_never_says_hello_is_left_after_the_handshake_timeout() -> None:
    session = EmpSession(Role.SERVER, EmpSettings(handshake_timeout=2.5, size_mode=SizeMode.INCLUSIVE))
    session.connected(100.0)
    session.outgoing()
    assert session.deadline() == 102.5
    session.expire(102.5)
    found = frames.decode(session.outgoing())
    assert found is not None
    assert frames.decode_error(found[0].body).code == frames.ErrorCode.TIMEOUT


def test_traffic_does_not_stand_in_for_the_pong() -> None:
    line = Line(EmpSettings(), seed=3, slowest=0.1)
    while line.ends[Role.SERVER].state is not SessionState.OPEN or line.now < 9:
        assert line.step()
    server = line.ends[Role.SERVER]
    server.expire(server.deadline() or 0.0)
    lost = server.outgoing()
    assert lost
    event = frames.encode(frames.Frame(frames.Type.DATA, b"still here"))
    while server.state is SessionState.OPEN:
        due = server.deadline()
        assert due is not None
        assert [m.kind for m in messages_of(server.receive(event, due - 0.5))] == [Kind.EVENT]
        server.expire(due)
    assert server.close_reason == "idle"
