"""The history checker itself: it finds what it is there for, and nothing else."""

import pytest

from tests.processes.crew import check, overlaps

FLIGHT = [
    {"what": "asked", "call": "0-1", "process": 0, "at": 1.0},
    {"what": "began", "call": 7, "process": 0, "generation": 5, "at": 2.0},
    {"what": "ended", "generation": 5, "process": 0, "at": 3.0},
    {"what": "call:settled", "call": 7, "process": 0, "at": 4.0},
    {"what": "got", "call": "0-1", "process": 0, "generation": 5, "at": 4.5},
]


def caller(at: float) -> list[dict[str, object]]:
    """Return what a caller in another process tells that gets the outcome of the flight."""
    return [
        {"what": "asked", "call": "1-1", "process": 1, "at": at},
        {"what": "got", "call": "1-1", "process": 1, "generation": 5, "at": 9.0},
    ]


@pytest.mark.parametrize("at", [0.5, 2.5, 3.5])
def test_check__in_flight_with_it(at: float):
    """Whoever asked before the flight was settled may have its outcome, however late."""
    check([*FLIGHT, *caller(at)])


def test_check__older_than_its_caller():
    """Whoever asked afterwards may not."""
    with pytest.raises(AssertionError, match="older than its caller"):
        check([*FLIGHT, *caller(4.1)])


def test_check__a_killed_leader():
    """A flight that never settled gave nobody anything too early."""
    check([*FLIGHT[:3], *caller(8.0)])


def test_overlaps__counts_bodies():
    """At most so many bodies ran at once."""
    steps = ["began", "ended", "began", "began", "ended", "began", "ended", "ended"]
    assert overlaps([{"what": what} for what in steps]) == 2
