"""What the table holds of one key, and what a step of it leaves to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from django_vega.core.call import Call
from django_vega.core.errors import VegaError


class UnsafeWait(VegaError):
    """A thread asked to be parked behind a flight that may need this very thread to go on."""


class Entry:
    """What the table knows of one key."""

    __slots__ = ("flights", "parked", "stopping", "version")

    def __init__(self) -> None:
        self.flights: list[Call] = []
        self.parked: deque[Call] = deque()
        self.stopping: list[Call] = []
        self.version = 0

    def peers(self) -> list[Call]:
        """Return the unsettled calls that others can have to do with, oldest first."""
        calls = (*self.flights, *self.parked)
        return sorted((c for c in calls if not (c.settled or c.closed)), key=lambda call: call.id)

    def occupants(self) -> list[Call]:
        """Return the calls whose bodies a queue waits for."""
        return [*self.flights, *self.stopping]

    def forget(self, call: Call) -> bool:
        """Take a call away, wherever it is; False when it was not there."""
        found = False
        for calls in (self.flights, self.parked, self.stopping):
            if call in calls:
                calls.remove(call)
                found = True
        return found

    def is_idle(self) -> bool:
        """Whether nothing is left to remember."""
        return not (self.flights or self.parked or self.stopping)


class Effects:
    """What is left to do once the lock is released.

    Attributes:
        settled: Calls that this step settled, each with the waiters it had.
        released: Parked calls that this step allowed to run.
        move: How the call was admitted: the built-in reducer's word, ``solo`` or ``busy``; else
            None.
        cancelled_ids: Of the calls that a server has cancelled for this one, wherever they ran.
    """

    __slots__ = ("cancelled_ids", "move", "released", "settled")

    def __init__(self, move: str | None = None) -> None:
        self.cancelled_ids: tuple[int, ...] = ()
        self.settled: list[tuple[Call, Sequence[Any]]] = []
        self.released: list[Call] = []
        self.move = move
