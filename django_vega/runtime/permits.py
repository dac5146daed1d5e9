"""What may be held by so many at once: first come, first served, for threads and loops alike."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Protocol


class PermitWaiter(Protocol):
    """Somebody in line for permits; they are handed over, not fought for."""

    def wake(self) -> bool:
        """Tell the waiter that its permits are there; False when it is gone for good."""


class BlockedWaiter(PermitWaiter, Protocol):
    """One that blocks its thread."""

    def wait(self, timeout: float) -> None:
        """Block until a wake, or for so many seconds."""


class AwaitingWaiter(PermitWaiter, Protocol):
    """One that is a task."""

    def wait(self, timeout: float) -> Awaitable[None]:
        """Wait for a wake, or for so many seconds."""


class Permits:
    """Permits and the line for them; a call of a pool takes one, who is heavy takes more.

    Args:
        limit: How many there are.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._free = limit
        self._waiting: dict[PermitWaiter, int] = {}  # in order of arrival
        # Told that their permits are there, and not back yet.
        self._told: dict[PermitWaiter, int] = {}

    @property
    def used(self) -> int:
        """How many are taken."""
        return self.limit - self._free

    def take_nowait(self, weight: int = 1) -> bool:
        """Take permits if they are free and nobody waits for some."""
        with self._lock:
            return self._take(weight)

    def take_or_wait(self, waiter: PermitWaiter, weight: int = 1) -> bool:
        """Take permits, or enter ``waiter`` into the line and return False."""
        with self._lock:
            if self._take(weight):
                return True
            self._waiting[waiter] = weight
            return False

    def wait_turn(
        self, waiter: BlockedWaiter, patience: Callable[[], float], weight: int = 1
    ) -> None:
        """Take permits, and block until they are there.

        Args:
            waiter: Of this thread.
            patience: Returns for how many seconds to wait before looking again. What it raises ends
                the wait, and nothing is held.
            weight: How many.
        """
        if self.take_or_wait(waiter, weight):
            return
        try:
            while not self.confirm(waiter):
                waiter.wait(patience())
        except BaseException:
            self.stop_waiting(waiter)
            raise

    async def await_turn(
        self, waiter: AwaitingWaiter, patience: Callable[[], float], weight: int = 1
    ) -> None:
        """Take permits, and wait as a task until they are there; see `wait_turn`."""
        if self.take_or_wait(waiter, weight):
            return
        try:
            while not self.confirm(waiter):
                await waiter.wait(patience())
        except BaseException:
            self.stop_waiting(waiter)
            raise

    def confirm(self, waiter: PermitWaiter) -> bool:
        """Take what was handed over to the waiter; False while that has not happened."""
        with self._lock:
            return self._told.pop(waiter, None) is not None

    def stop_waiting(self, waiter: PermitWaiter) -> None:
        """Leave the line, and pass on the permits if they were handed over meanwhile."""
        with self._lock:
            self._waiting.pop(waiter, None)
            self._free += self._told.pop(waiter, 0)
        self._hand_out()

    def give_back(self, weight: int = 1) -> None:
        """Free permits, and hand them to the first in line as far as they go.

        Raises:
            ValueError: More come back than were taken.
        """
        with self._lock:
            if self._free + weight > self.limit:
                raise ValueError(
                    f"{weight} tokens of the budget come back, and {self.limit - self._free} of "
                    f"{self.limit} are taken. Release what was acquired, once"
                )
            self._free += weight
        self._hand_out()

    def _take(self, weight: int) -> bool:
        if weight > self._free or (self._waiting and weight):
            return False
        self._free -= weight
        return True

    def _hand_out(self) -> None:
        while True:
            with self._lock:
                waiter = next(iter(self._waiting), None)
                if waiter is None or self._waiting[waiter] > self._free:
                    return
                weight = self._told[waiter] = self._waiting.pop(waiter)
                self._free -= weight
            # Outside the lock: whoever is told may come right back.
            if not waiter.wake():
                with self._lock:
                    self._free += self._told.pop(waiter, 0)
