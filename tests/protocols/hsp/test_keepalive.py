"""Keep-alive with a simulated clock: PING every 30 s when idle, closed when no PONG came in 10 s."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.model import Kind, Message
from wireloom.protocols.contract import Role, SessionState
from wireloom.protocols.hsp import HSP, frames
from wireloom.protocols.hsp.session import HspSession

HOURS = 3600.0


def opened(now: float = 0, **values: object) -> HspSession:
    session = HSP.session(Role.SERVER, HSP.settings(values))
    session.connected(now)
    return session


def test_the_defaults_are_thirty_and_ten_seconds() -> None:
    session = opened(100)
    assert session.deadline() == 130
    session.expire(130)
    assert (session.outgoing(), session.deadline()) == (b"\x03", 140)


def test_intervals_are_settings() -> None:
    session = opened(100, ping_interval=5, pong_timeout=2.5)
    assert session.deadline() == 105
    session.expire(106)
    assert session.deadline() == 108.5


def test_nothing_happens_before_the_deadline() -> None:
    session = opened()
    session.expire(math.nextafter(30, 0))
    assert session.outgoing() == b""
    session.expire(30)
    session.outgoing()
    session.expire(math.nextafter(40, 0))
    assert (session.state, session.outgoing()) == (SessionState.OPEN, b"")


def test_whatever_is_heard_puts_the_ping_off() -> None:
    session = opened()
    session.receive(frames.encode(frames.Data(7, b"hello"))[:3], 20)
    assert session.deadline() == 50
    session.expire(30)
    assert session.outgoing() == b""


def test_a_peer_that_answers_no_ping_is_closed_as_idle() -> None:
    session = opened()
    session.expire(30)
    assert session.outgoing() == b"\x03"
    session.expire(40)
    assert (session.state, session.close_reason, session.violation) == (SessionState.CLOSED, "idle", None)
    assert (session.outgoing(), session.deadline()) == (b"", None)


def test_only_a_pong_answers_a_ping() -> None:
    session = opened()
    session.expire(30)
    session.receive(frames.encode(frames.Data(7, b"")) + frames.encode(frames.PING), 35)
    assert session.deadline() == 40
    session.expire(40)
    assert session.state is SessionState.CLOSED


def test_a_pong_in_time_starts_the_next_interval() -> None:
    session = opened()
    session.expire(30)
    session.receive(b"\x04", 39.5)
    assert session.deadline() == 69.5
    assert session.counters == {}


def test_one_ping_waits_at_a_time() -> None:
    session = opened()
    session.expire(30)
    session.expire(31)
    session.expire(39)
    assert session.outgoing() == b"\x03"


def test_a_pong_answers_one_ping_only() -> None:
    session = opened()
    session.expire(30)
    session.receive(b"\x04\x04", 31)
    assert session.counters == {"hsp.pong.unasked": 1}


def test_a_ping_of_the_application_is_waited_for_as_well() -> None:
    session = opened()
    session.send(Message(Kind.PING), 12)
    assert (session.outgoing(), session.deadline()) == (b"\x03", 22)
    session.send(Message(Kind.PING), 15)
    assert session.deadline() == 22
    session.receive(b"\x04", 16)
    assert (session.counters, session.deadline()) == ({}, 46)


def test_an_interval_of_zero_turns_keep_alive_off() -> None:
    session = opened(ping_interval=0)
    assert session.deadline() is None
    session.expire(1000 * HOURS)
    assert (session.state, session.outgoing()) == (SessionState.OPEN, b"")


def test_there_is_no_deadline_before_the_connection_and_after_the_goodbye() -> None:
    session = HSP.session(Role.CLIENT, HSP.settings())
    assert session.deadline() is None
    session.connected(0)
    session.receive(frames.encode(frames.DataAck(1, 7, b"")), 0)
    session.close(0)
    assert (session.state, session.deadline()) == (SessionState.CLOSING, None)


def test_a_live_peer_is_kept_for_five_thousand_hours() -> None:
    """Two sessions, each the other's peer, with nothing to say and an answer that takes half a second."""
    ours, theirs = opened(ping_interval=300), opened(ping_interval=0)
    now, pings = 0.0, 0
    while now < 5000 * HOURS:
        due = ours.deadline()
        assert due == now + 300
        now = due
        ours.expire(now)
        asked = ours.outgoing()
        assert asked == b"\x03"
        pings += 1
        theirs.receive(asked, now + 0.25)
        now += 0.5
        ours.receive(theirs.outgoing(), now)
        assert ours.state is SessionState.OPEN
    assert pings == math.ceil(5000 * HOURS / 300.5)
    assert ours.counters == theirs.counters == {}
    assert ours.sent == theirs.sent == pings


def test_a_busy_peer_is_never_pinged_in_a_thousand_hours() -> None:
    session = opened()
    chatter = frames.encode(frames.Data(7, b""))
    now = 0.0
    while now < 1000 * HOURS:
        now += 29.0
        session.receive(chatter, now)
        session.expire(now)
    assert (session.outgoing(), session.state) == (b"", SessionState.OPEN)


@given(st.lists(st.tuples(st.sampled_from(["data", "pong", "expire"]), st.floats(0, 50)), max_size=40))
def test_keep_alive_follows_its_rule_whatever_happens_when(steps: list[tuple[str, float]]) -> None:
    """Against a model: heard at `heard`, pinged at `pinged`."""
    session = opened()
    now, heard, pinged, closed = 0.0, 0.0, None, False
    expected = b""
    for what, after in steps:
        now += after
        if what == "expire":
            session.expire(now)
            if not closed and pinged is None and now >= heard + 30:
                pinged = now
                expected += b"\x03"
            elif not closed and pinged is not None and now >= pinged + 10:
                closed = True
        else:
            session.receive(b"\x04" if what == "pong" else b"\x00\x00\x07\x00\x00\x00\x00", now)
            if not closed:
                heard = now
                pinged = None if what == "pong" else pinged
        assert (session.state is SessionState.CLOSED) == closed
        due = None if closed else (heard + 30 if pinged is None else pinged + 10)
        assert session.deadline() == pytest.approx(due) if due is not None else session.deadline() is None
    assert session.outgoing() == expected
