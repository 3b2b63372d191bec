"""Every limit is attacked: a new setting of `[limits]` without an attack fails here."""

from __future__ import annotations

from dataclasses import fields

from tests.attack.harness import load
from wireloom.hub.limits import HubLimits

NO_LIMITS = {
    "slow_consumer": "says what happens at `queue_bytes`",
    "over_rate": "says what happens at a rate",
    "busy_poll_seconds": "is no limit on peers, but how long the hub stays awake",
    "drain_seconds": "holds for the stop of a hub; see tests/hub/test_drain.py and tests/hub/test_stall.py",
}
"""Settings of `[limits]` that no peer can reach, and why."""


def test_every_limit_has_an_attack_that_reaches_it() -> None:
    attacked = {setting for each in load().values() for setting in each.limits}
    settings = {each.name for each in fields(HubLimits)}
    assert sorted(settings - attacked - NO_LIMITS.keys()) == [], "write an attack, see tests/attack/harness.py"
    assert sorted(attacked - settings) == [], "these settings do not exist"
    assert sorted(NO_LIMITS.keys() & attacked) == []


def test_every_limit_is_a_safe_number_and_is_said_in_metrics() -> None:
    amounts = HubLimits().amounts()
    assert {each.name for each in fields(HubLimits)} - amounts.keys() == {"slow_consumer", "over_rate"}
    assert all(amount > 0 for amount in amounts.values())
