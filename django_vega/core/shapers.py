"""Shapers: rules that stand in front of the strategy and swallow calls before they are made. Pure.

A debounce window and the memory of a throttle are values that their owner serialises; time is
passed in, in seconds of one monotonic clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Debounce:
    """Wait until a key has been quiet; then one run answers all who asked; see `debounce`."""

    wait: float
    max_wait: float

    def __post_init__(self) -> None:
        _require_seconds("debounce", "wait", self.wait)
        _require_seconds("debounce", "max_wait", self.max_wait)
        if self.max_wait < self.wait:
            raise ValueError(
                f"debounce(wait={self.wait!r}, max_wait={self.max_wait!r}): nothing would ever "
                "wait so long; pass a max_wait of at least wait"
            )


@dataclass(frozen=True, slots=True)
class Throttle:
    """Let a key's calls through at most once per interval; see `throttle`."""

    interval: float

    def __post_init__(self) -> None:
        _require_seconds("throttle", "interval", self.interval)


Shaper: TypeAlias = Debounce | Throttle


def debounce(wait: float, max_wait: float) -> Debounce:
    """Run once a key has been quiet for ``wait`` seconds; earlier callers share that outcome.

    The last caller of a burst runs, on its own thread or loop; those before it are swallowed and
    count as waiting for its flight. When it goes away, or its own timeout passes, the one before it
    is next. A burst is one call: what its strategy or ``while_busy`` answers goes to all. Callers
    with other options have a burst of their own. Code that runs inside a flight is not held back,
    and who is held back is no call yet, so that ``cancel()`` does not reach it.

        calls        a  b  c
        time         0  1  2           wait=2: c runs at 4, a and b get its outcome

    Args:
        wait: Seconds without another call of the key; above 0.
        max_wait: Seconds after the first call of a burst at which it runs in any case, so that a
            steady stream of calls cannot put it off forever; at least ``wait``.

    Raises:
        TypeError, ValueError: A value is no number of seconds, or out of range.
    """
    return Debounce(wait, max_wait)


def throttle(interval: float) -> Throttle:
    """Let one call of a key through per ``interval`` seconds, the first at once.

    Those in between are swallowed at once: a refresh is ``skipped``, a function with a value of its
    own raises ``CallCancelled("throttled")``.

    Args:
        interval: Seconds from a call that was let through to the next that may be; above 0.

    Raises:
        TypeError, ValueError: ``interval`` is no number of seconds, or not above 0.
    """
    return Throttle(interval)


def _require_seconds(shaper: str, name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{shaper}({name}={value!r}): pass a number of seconds")
    if not 0 < value < float("inf"):
        raise ValueError(f"{shaper}({name}={value!r}): pass seconds above 0")


class Window:
    """One burst of calls of a key that is held back until the key is quiet.

    Attributes:
        members: Who is held back, in order of arrival. The last one runs when the time has come.
        fires_at: When that is.
    """

    __slots__ = ("_last_moment", "fires_at", "members")

    def __init__(self, shaper: Debounce, now: float) -> None:
        self.members: list[Any] = []
        self._last_moment = now + shaper.max_wait
        self.fires_at = now

    def arrive(self, member: Any, shaper: Debounce, now: float) -> None:
        """Hold ``member`` back; it runs unless another one comes."""
        self.members.append(member)
        self.fires_at = min(now + shaper.wait, self._last_moment)

    @property
    def runner(self) -> Any:
        """Who runs when the time has come; None when nobody is left."""
        return self.members[-1] if self.members else None


class Passes:
    """When each throttled key may pass again; keys whose interval is over are forgotten."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}
        self._ends: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._until)

    def take(self, slot: Hashable, shaper: Throttle, now: float) -> bool:
        """Let a call pass and close the key for the interval; False when it is closed."""
        while self._ends and self._ends[0][0] <= now:
            del self._until[heapq.heappop(self._ends)[2]]
        if slot in self._until:
            return False
        self._until[slot] = now + shaper.interval
        # The count keeps slots from being compared.
        self._count += 1
        heapq.heappush(self._ends, (self._until[slot], self._count, slot))
        return True
