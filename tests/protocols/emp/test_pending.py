"""The ids of requests: whose turn it is, which are taken, and how many may wait."""

from __future__ import annotations

import pytest

from wireloom.model import LimitExceeded, ProtocolViolation
from wireloom.protocols.emp.extensions import MAX_ID
from wireloom.protocols.emp.pending import Pending


def test_an_id_is_taken_only_when_the_request_goes_out() -> None:
    pending = Pending(5)
    assert (pending.next_id(), pending.next_id()) == ("1", "1")
    pending.asked("1")
    assert pending.next_id() == "2"


def test_an_answered_request_makes_room_but_its_id_stays_used() -> None:
    pending = Pending(1)
    pending.asked(pending.next_id())
    with pytest.raises(LimitExceeded, match="max_requests"):
        pending.next_id()
    pending.settle("1")
    assert pending.next_id() == "2"


def test_after_the_last_id_there_is_none() -> None:
    pending = Pending(5)
    pending.last_id = MAX_ID
    with pytest.raises(LimitExceeded, match="identifiers"):
        pending.next_id()


def test_a_response_that_nobody_waits_for_breaks_a_rule() -> None:
    with pytest.raises(ProtocolViolation, match=r"emp\.response\.unknown-id"):
        Pending(5).settle("1")


def test_the_id_of_an_unanswered_request_is_taken() -> None:
    pending = Pending(2)
    pending.owe("7")
    assert pending.owes
    with pytest.raises(ProtocolViolation, match=r"emp\.request\.reused-id"):
        pending.owe("7")
    pending.owe("8")
    with pytest.raises(ProtocolViolation, match=r"emp\.request\.too-many"):
        pending.owe("9")
