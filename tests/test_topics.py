"""Patterns match as MQTT users expect, and the index agrees with plain matching."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireloom.model import ConfigError
from wireloom.topics import Subscriptions, is_pattern, matches, validate_pattern, validate_topic

LEVELS = st.sampled_from(["a", "b", "", "$x", "ab"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
PATTERNS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(LEVELS | st.just("+"), min_size=1, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool) | st.just("#")


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+/b", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a/b", True),
        ("+", "a", True),
        ("+", "$hub", False),
        ("#", "$hub/x", False),
        ("$hub/#", "$hub/x", True),
        ("$hub/+", "$hub/x", True),
        ("a/+/#", "a/b", True),
        ("a//b", "a//b", True),
        ("a/+/b", "a//b", True),
    ],
)
def test_pattern_matches_topic_as_mqtt_says(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a+", "a/b#", "##", "a\0", "a\x1b", "a\n/+", "\ud800"])
def test_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError):
        validate_pattern(pattern)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "a\x7f", "a\x9b", "\udfff", "x" * 70000, "ä" * 40000])
def test_bad_topic_is_refused(topic: str) -> None:
    with pytest.raises(ConfigError):
        validate_topic(topic)


def test_is_pattern() -> None:
    assert is_pattern("a/#") and is_pattern("+") and not is_pattern("a/b")


@given(st.lists(PATTERNS, max_size=8), st.lists(st.integers(0, 7), max_size=4), TOPICS)
def test_index_agrees_with_matching(patterns: list[str], removed: list[int], topic: str) -> None:
    index: Subscriptions[int] = Subscriptions()
    kept = dict(enumerate(patterns))
    for number, pattern in kept.items():
        assert index.add(pattern, number)
        index.lookup(topic)
    for number in removed:
        if number in kept:
            assert index.remove(kept.pop(number), number)
        index.lookup(topic)
    assert sorted(index.lookup(topic)) == sorted(n for n, p in kept.items() if matches(p, topic))
    assert len(index) == len(kept)
    for number in list(kept):
        index.drop(number)
    assert index.lookup(topic) == ()
    assert (len(index), index.shapes, index.memory) == (0, 0, 0)


def test_subscriber_with_overlapping_patterns_is_found_once() -> None:
    index: Subscriptions[str] = Subscriptions()
    for pattern in ("a/#", "a/+", "a/b"):
        index.add(pattern, "x")
    assert index.lookup("a/b") == ("x",)
    assert index.patterns("x") == ("a/#", "a/+", "a/b")
    assert index.remove("a/#", "y") is False


def test_remembered_lookups_are_bounded() -> None:
    index: Subscriptions[str] = Subscriptions(remember=10)
    index.add("#", "x")
    for number in range(100):
        assert index.lookup(str(number)) == ("x",)
    assert len(index._found) <= 10


def test_lookups_of_many_subscribers_are_not_all_remembered() -> None:
    index: Subscriptions[int] = Subscriptions()
    for number in range(3000):
        index.add("#", number)
    for number in range(1000):
        assert len(index.lookup(str(number))) == 3000
    assert sum(map(len, index._found.values())) < 1_010_000
    index.lookup("x" * 5000)
    assert all(len(topic) < 100 for topic in index._found)


def test_a_lookup_takes_one_step_for_each_shape_whatever_the_topic_says() -> None:
    index: Subscriptions[str] = Subscriptions()
    levels = 2000
    index.add("/".join("+" * levels), "x")
    for number in range(1000):
        index.add(f"{number}/+/+", str(number))
    assert index.shapes == 2
    assert not index.has_shape("+/a")
    assert index.has_shape("a/b") and index.has_shape("zzz/+/+")
    # With a step for each way to match, this would never end.
    assert index.lookup("/".join("+" * levels)) == ("x",)
    assert index.lookup("/".join("a" * levels)) == ("x",)
    assert index.lookup("7/a/b") == ("7",)
