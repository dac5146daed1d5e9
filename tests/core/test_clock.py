"""Generations grow, whatever the machine's clock does."""

from hypothesis import given
from hypothesis import strategies as st

from django_vega.core.clock import HybridClock, SystemClock


class SetClock:
    """A clock that shows what it is told."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def test_next__is_the_time_in_microseconds():
    """A generation tells when it was taken, and is far below 2**53."""
    assert HybridClock(SetClock(1_700_000_000.25)).next() == 1_700_000_000_250_000
    assert HybridClock(SystemClock()).next() < 2**53


def test_next__while_the_clock_stands_still():
    """Generations taken at one instant differ and are in order."""
    clock = HybridClock(SetClock(1.0))
    assert [clock.next() for _ in range(3)] == [1_000_000, 1_000_001, 1_000_002]


def test_next__after_the_clock_was_set_back():
    """A clock that goes back delays nothing and repeats nothing."""
    time = SetClock(100.0)
    clock = HybridClock(time)
    first = clock.next()
    time.now = 1.0
    assert clock.next() == first + 1


def test_next__above_a_floor():
    """What another process has issued is passed, at once and from then on."""
    clock = HybridClock(SetClock(1.0))
    assert clock.next(floor=5_000_000) == 5_000_001
    assert clock.next(floor=3) == 5_000_002


@given(
    st.lists(
        st.tuples(st.floats(min_value=0, max_value=9e9), st.integers(0, 2**53 - 10**6)),
        min_size=1,
    )
)
def test_next__grows_under_any_clock_and_floor(steps):
    """Each generation is above every earlier one, above its floor and not before its time."""
    time = SetClock()
    clock = HybridClock(time)
    last = 0
    for time.now, floor in steps:
        generation = clock.next(floor)
        assert generation > last
        assert generation > floor
        assert generation >= int(time.now * 1_000_000)
        last = generation


def test_system_clock__goes_on():
    """The machine's clocks are read at each call."""
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.time() > 1_600_000_000
