"""Time as the rules see it: a clock that can be replaced, and the clock of generations."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the coordinator reads the time, in seconds."""

    def monotonic(self) -> float:
        """Return a time that never goes back; only differences mean anything."""

    def time(self) -> float:
        """Return the seconds since the epoch, for people."""


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


class HybridClock:
    """Issues generations: ``max(last + 1, now in µs, floor + 1)``.

    Later generations of one clock are larger, and clocks of different processes agree as far as
    their hosts do. Fits 2**53 until the year 2255. Not locked: its owner serialises the calls.
    """

    __slots__ = ("_last", "_now")

    def __init__(self, clock: Clock) -> None:
        self._last = 0
        self._now = clock.time

    def see(self, generation: int) -> None:
        """Let the next generation be above one that another clock issued."""
        self._last = max(self._last, generation)

    def next(self, floor: int = 0) -> int:
        """Return a generation above every earlier one and above ``floor``."""
        self._last = max(self._last + 1, int(self._now() * 1_000_000), floor + 1)
        return self._last
