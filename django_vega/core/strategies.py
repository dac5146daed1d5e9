"""Strategies: one algebra of ``limit`` and ``when_full``, and one reducer that serves them all.

Source: the seed "coordinator": the built-in strategies differ only in what happens to the peers.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

WhenFull: TypeAlias = Literal["reuse", "cancel", "queue", "drop"]
StrategyName: TypeAlias = Literal["none", "dedupe", "restart", "serialize", "exhaust"]
Move: TypeAlias = Literal["proceed", "reuse", "cancel", "queue", "drop", "full"]


class _FromAlias:
    """The default of ``capacity``: the alias's CAPACITY, so that no queue is unbounded unasked."""

    def __repr__(self) -> str:
        return "FROM_ALIAS"

    def __reduce__(self) -> str:
        return "FROM_ALIAS"


FROM_ALIAS: Final = _FromAlias()


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a call does when calls of its scope and key are in flight.

    Args:
        limit: How many calls of one key may be in flight; None is no limit.
        when_full: What a call beyond the limit does: ``reuse`` shares the oldest peer's outcome,
            ``cancel`` cancels the oldest peers until a slot is free, ``queue`` parks in arrival
            order, ``drop`` is dropped with `CallCancelled`.
        capacity: How many calls may be parked per key, only with ``queue``. Default: the alias's
            CAPACITY. None is unbounded and has to be written.

    Raises:
        ValueError: A value is out of range, or ``capacity`` is given without ``queue``.
    """

    limit: int | None = 1
    when_full: WhenFull = "reuse"
    capacity: int | None | _FromAlias = FROM_ALIAS

    def __post_init__(self) -> None:
        if self.limit is not None and not _is_count(self.limit, least=1):
            raise ValueError(
                f"limit={self.limit!r}: pass a whole number of at least 1, or None for no limit"
            )
        if self.when_full not in get_args(WhenFull):
            allowed = ", ".join(get_args(WhenFull))
            raise ValueError(f"when_full={self.when_full!r}: use one of {allowed}")
        if self.capacity is FROM_ALIAS:
            return
        if self.when_full != "queue":
            raise ValueError(
                f"capacity={self.capacity!r} without a queue: only when_full='queue' parks calls"
            )
        if self.capacity is not None and not _is_count(self.capacity, least=0):
            raise ValueError(
                f"capacity={self.capacity!r}: pass a whole number of at least 0, or None for an "
                "unbounded queue"
            )

    @property
    def name(self) -> str:
        """The common name of this point of the algebra, shown in events and in the admin."""
        if self.limit is None:
            return "none"
        if self.limit == 1:
            return _NAME_AT_ONE[self.when_full]
        if self.when_full == "reuse":
            return f"bounded({self.limit})"
        return f"{self.when_full}({self.limit})"


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


_NAME_AT_ONE: Final[dict[WhenFull, str]] = {
    "reuse": "dedupe",
    "cancel": "restart",
    "queue": "serialize",
    "drop": "exhaust",
}

NONE: Final = Strategy(limit=None)
DEDUPE: Final = Strategy()
RESTART: Final = Strategy(when_full="cancel")
EXHAUST: Final = Strategy(when_full="drop")


def serialize(capacity: int | None | _FromAlias = FROM_ALIAS) -> Strategy:
    """Run the calls of one key one after another, in arrival order.

    Args:
        capacity: How many calls may be parked per key; beyond it the call raises `QueueFull`.
            Default: the alias's CAPACITY. None is unbounded.
    """
    return Strategy(when_full="queue", capacity=capacity)


def bounded(limit: int) -> Strategy:
    """Run while fewer than ``limit`` calls of the key are in flight, else share the oldest."""
    return Strategy(limit=limit)


_BY_NAME: Final[dict[str, Strategy]] = {
    "none": NONE,
    "dedupe": DEDUPE,
    "restart": RESTART,
    "serialize": serialize(),
    "exhaust": EXHAUST,
}


def strategy_named(name: str) -> Strategy:
    """Return the strategy of a common name.

    Raises:
        ValueError: There is no such name; the message says which one was probably meant.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        close = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"unknown strategy {name!r}: {hint}Use one of {', '.join(_BY_NAME)}, "
            "a Strategy(...), serialize(...), bounded(...), or a @coordinator"
        ) from None


def decide(
    strategy: Strategy, *, peers: int, occupied: int, parked: int, capacity: int | None
) -> Move:
    """Say what a new call does; the whole of every built-in strategy.

    Args:
        strategy: The new call's own strategy.
        peers: Unsettled calls of the key, parked ones included.
        occupied: Flights of the key and bodies that are still stopping: what a queue waits for.
        parked: Calls that wait in the key's queue.
        capacity: How many may; None is unbounded.
    """
    limit = strategy.limit
    if limit is None:
        return "proceed"
    if strategy.when_full == "queue":
        if occupied < limit and not parked:
            return "proceed"
        return "queue" if capacity is None or parked < capacity else "full"
    return "proceed" if peers < limit else strategy.when_full
