"""Delays grow, are bounded, and are left partly to chance."""

import itertools

from wireloom import Backoff


def test_delays_grow_to_the_maximum() -> None:
    delays = Backoff(minimum=1, maximum=10, factor=3, jitter=0).delays()
    assert list(itertools.islice(delays, 5)) == [1, 3, 9, 10, 10]


def test_jitter_takes_away_a_part_that_chance_decides() -> None:
    draws = iter([0.0, 0.5, 1.0])
    delays = Backoff(minimum=8, maximum=8, jitter=0.5, random=lambda: next(draws)).delays()
    assert list(itertools.islice(delays, 3)) == [8, 6, 4]


def test_attempts_are_counted() -> None:
    assert len(list(Backoff(attempts=3).delays())) == 3
    assert list(Backoff(attempts=0).delays()) == []
