"""Sets of numbers kept as stretches: the same as sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wireloom.protocols.stretches import Stretches

ranges = st.builds(lambda first, count: range(first, first + count), st.integers(0, 40), st.integers(1, 12))


@given(st.lists(st.tuples(st.booleans(), ranges)))
def test_they_hold_what_a_set_holds(steps: list[tuple[bool, range]]) -> None:
    kept, expected = Stretches(), set[int]()
    for adds, numbers in steps:
        if adds:
            fits = expected.isdisjoint(numbers)
            assert kept.add(numbers) is fits
            expected |= set(numbers) if fits else set()
        else:
            fits = expected.issuperset(numbers)
            assert kept.remove(numbers) is fits
            expected -= set(numbers) if fits else set()
        assert list(kept) == sorted(expected)
        assert len(kept) == len(expected)
        assert bool(kept) is bool(expected)
        assert [number for number in range(60) if number in kept] == sorted(expected)


@given(st.lists(ranges))
def test_numbers_in_a_row_are_one_stretch(steps: list[range]) -> None:
    kept = Stretches()
    at = 0
    for numbers in steps:
        assert kept.add(range(at, at + len(numbers)))
        at += len(numbers)
        assert kept._firsts == [0]
        assert kept._stops == [at]


def test_all_can_be_taken_out() -> None:
    kept = Stretches()
    kept.add(range(5))
    kept.add(range(10, 20))
    kept.clear()
    assert list(kept) == []
    assert kept.add(range(12))
