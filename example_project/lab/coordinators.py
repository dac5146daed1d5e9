"""Tab 1: what each strategy makes of calls on one key."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Final

from django_vega import DEDUPE, EXHAUST, NONE, RESTART, Strategy, bounded, serialize
from example_project.lab.burst import Burst
from example_project.lab.lanes import Lane, lanes_of
from example_project.lab.runs import Run, spawn

STRATEGIES: Final[dict[str, Strategy]] = {
    strategy.name: strategy
    for strategy in (NONE, DEDUPE, RESTART, serialize(), EXHAUST, bounded(2))
}


class CoordinatorsRun(Run):
    """One burst under one strategy.

    Args:
        strategy: A name of STRATEGIES.
        calls: How many calls.
        spacing: Seconds between them.
        duration: Seconds that the function takes.
    """

    slug: ClassVar[str] = "coordinators"

    def __init__(self, strategy: str, calls: int, spacing: float, duration: float) -> None:
        super().__init__()
        self.strategy = strategy
        self.burst = Burst(STRATEGIES[strategy], calls, spacing, duration, self.id)
        self._thread: threading.Thread

    def start(self) -> None:
        """Fire."""
        self._thread = spawn(self._play)

    def wait(self) -> None:
        """Wait until each caller has its answer."""
        self._thread.join()

    def state(self) -> dict[str, Any]:
        """Return what came of the burst."""
        return {"strategy": self.strategy, **self.burst.state()}

    def lanes(self) -> list[Lane]:
        """Return one lane per call."""
        with self.burst.journal.changed:
            return lanes_of(self.burst.journal)

    def _play(self) -> None:
        try:
            self.burst.play()
        finally:
            self.ends()
