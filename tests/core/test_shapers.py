"""Shapers as values: a window of a burst, and what a throttle remembers. Time is passed in."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_vega import debounce, throttle
from django_vega.core.shapers import Debounce, Passes, Throttle, Window


def fires_at(shaper, *arrivals):
    """Return when a window fires that got calls at these times."""
    window = Window(shaper, arrivals[0])
    for number, at in enumerate(arrivals):
        window.arrive(number, shaper, at)
    return window.fires_at


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ([0], 2),
        ([0, 1], 3),
        ([0, 1, 1.5, 3], 5),
        ([0, 1, 2, 3, 4], 6),
        ([0, 1, 2, 3, 4, 5], 6),
        ([10, 11.5, 13, 14.5, 16], 16),
    ],
)
def test_window__fires_when_it_is_quiet_or_at_the_last_moment(arrivals, expected):
    """Two seconds after the last call, and at the latest six after the first one."""
    assert fires_at(debounce(wait=2, max_wait=6), *arrivals) == expected


def test_window__the_last_one_runs():
    """Of those who are held back the last to come runs; when it leaves, the one before it."""
    shaper = Debounce(1, 5)
    window = Window(shaper, 0.0)
    assert window.runner is None
    for name in "abc":
        window.arrive(name, shaper, 0.0)
    assert window.runner == "c"
    window.members.remove("c")
    assert window.runner == "b"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 5), st.integers(0, 9))
def test_window__no_call_waits_longer_than_allowed(gaps, wait, more):
    """Each call is answered within max_wait of the first of its burst, and wait of the last."""
    shaper = Debounce(wait, wait + more)
    arrivals = list(itertools.accumulate(gaps))
    window = None
    for at in arrivals:
        if window is None or at >= window.fires_at:
            window, first = Window(shaper, at), at
        window.arrive(at, shaper, at)
        assert at <= window.fires_at <= first + shaper.max_wait
        assert window.fires_at <= at + wait


def test_throttle__lets_one_pass_per_interval():
    """The first passes, those within the interval do not, and the count starts at a pass."""
    passes, shaper = Passes(), throttle(10)
    story = [(0, True), (0, False), (9.9, False), (10, True), (15, False), (20, True), (60, True)]
    assert [passes.take("key", shaper, now) for now, _ in story] == [passed for _, passed in story]


def test_throttle__keys_are_their_own():
    """Keys, and intervals of different functions, do not get in each other's way."""
    passes = Passes()
    assert passes.take(("f", "a"), Throttle(100), 0)
    assert passes.take(("f", "b"), Throttle(1), 0)
    assert not passes.take(("f", "a"), Throttle(100), 50)
    assert passes.take(("f", "b"), Throttle(1), 50)
    assert not passes.take(("f", "a"), Throttle(100), 99)


def test_throttle__remembers_nothing_that_is_over():
    """After 100,000 keys only those of the last interval are kept."""
    passes, shaper = Passes(), Throttle(1)
    for number in range(100_000):
        assert passes.take(number, shaper, number / 100)
    assert len(passes) <= 100
    assert len(passes._ends) == len(passes)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_seconds__out_of_range(value):
    """Seconds are above 0 and finite; the message says which argument of what."""
    with pytest.raises(ValueError, match=r"debounce\(wait=.*: pass seconds above 0"):
        debounce(wait=value, max_wait=5)
    with pytest.raises(ValueError, match=r"debounce\(max_wait="):
        debounce(wait=1, max_wait=value)
    with pytest.raises(ValueError, match=r"throttle\(interval="):
        throttle(value)


@pytest.mark.parametrize("value", [None, "1", True, [1]])
def test_seconds__of_another_type(value):
    """What is no number is no number of seconds."""
    with pytest.raises(TypeError, match=r"debounce\(wait="):
        debounce(wait=value, max_wait=5)
    with pytest.raises(TypeError, match=r"throttle\(interval="):
        throttle(value)


def test_debounce__max_wait_is_required_and_at_least_wait():
    """Without an end a steady stream of calls would put the run off forever."""
    with pytest.raises(TypeError, match="max_wait"):
        debounce(wait=1)
    with pytest.raises(ValueError, match="pass a max_wait of at least wait"):
        debounce(wait=2, max_wait=1)
    assert debounce(wait=2, max_wait=2) == Debounce(2, 2)
