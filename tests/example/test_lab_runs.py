"""The store of the lab's runs: bounded, and each run for its own visitor."""

from typing import Any

import pytest

from example_project.lab.runs import Run, Runs, TooManyRuns


class Quiet(Run):
    """A run that ends when it is told to, and remembers what was done with it."""

    slug = "quiet"

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def start(self) -> None:
        """Begin."""

    def state(self) -> dict[str, Any]:
        return {}

    def lanes(self) -> list[Any]:
        return []

    def close(self) -> None:
        self.is_closed = True
        self.ends()


def over() -> Quiet:
    run = Quiet()
    run.ends()
    return run


def test_runs_are_bounded__the_oldest_goes():
    """Beyond the bound the oldest run is closed and no longer there; the others are."""
    runs = Runs(most=3)
    kept = [runs.start(f"visitor {number}", over()) for number in range(4)]
    assert len(runs) == 3
    assert runs.get("visitor 0", kept[0].id) is None
    assert kept[0].is_closed
    assert [runs.get(f"visitor {it}", kept[it].id) for it in (1, 2, 3)] == kept[1:]


def test_runs_belong_to_their_visitor__another_one_asks():
    """A run is there for whoever started it, and for nobody else."""
    runs = Runs()
    run = runs.start("one", over())
    assert runs.get("one", run.id) is run
    assert runs.get("other", run.id) is None
    assert runs.get("", "nothing") is None


def test_live_runs_are_bounded__more_are_refused():
    """While too many runs go on, another visitor's is refused; one that ends makes room."""
    runs = Runs(most_live=2)
    first = runs.start("one", Quiet())
    runs.start("two", Quiet())
    with pytest.raises(TooManyRuns, match="try again"):
        runs.start("three", Quiet())
    assert len(runs) == 2
    first.ends()
    runs.start("three", Quiet())


def test_next_run_of_a_visitor__takes_the_place_of_the_one_before():
    """A visitor's next run of a tab closes the one before, so it needs no room of its own."""
    runs = Runs(most_live=1)
    first = runs.start("one", Quiet())
    second = runs.start("one", Quiet())
    assert (first.is_closed, second.is_closed) == (True, False)
