"""The one table of watched sets of the process, for threads and event loops alike."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from django_vega.core.clock import Clock, SystemClock
from django_vega.core.errors import CallCancelled
from django_vega.core.watches import Reading, Result, Step, Watcher, Watches

T = TypeVar("T")


class Hub:
    """Takes steps of the table under one short lock, and wakes whom they concern without it.

    Starts no thread and no timer: what nobody watches any more is forgotten at the next step, and
    each change of a model that was ever watched is one.

    Args:
        clock: The time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child must: its parent's watchers are not here."""
        # Re-entrant: the garbage collector may call `leave` in the middle of a step.
        self._lock = threading.RLock()
        self._watches = Watches()
        # Written anywhere, emptied under the lock.
        self._gone: deque[Watcher] = deque()
        # Both read and written under the lock.
        self._inside = False
        self._closed = False

    def __len__(self) -> int:
        return self._take(lambda _: len(self._watches))

    def is_watched(self, topic: Hashable) -> bool:
        """Whether a set is about the topic."""
        return self._take(lambda _: self._watches.is_watched(topic))

    def join(self, key: Hashable, topics: Iterable[Hashable]) -> Watcher:
        """Add a watcher to the set of this key."""
        return self._take(lambda _: self._watches.join(key, topics))

    def look(self, watcher: Watcher, waiter: Any, label: str, *, sends: bool) -> Step:
        """Say what a watcher does next; see `Watches.look`.

        Raises:
            CallCancelled: The hub was closed (``shutdown``).
        """

        def step(now: float) -> Step:
            if self._closed:
                raise CallCancelled("shutdown", label)
            return self._watches.look(watcher, waiter, now, sends=sends)

        return self._take(step)

    def claim(self, watcher: Watcher) -> Reading | None:
        """Begin a reading on this thread; None when there is no need for it any more."""
        return self._take(lambda _: self._watches.claim(watcher))

    def finish(self, reading: Reading, result: Result) -> None:
        """Hand over what a reading came to."""
        self._take(lambda _: self._watches.finish(reading, result))

    def give_up(self, reading: Reading) -> None:
        """Let somebody else read."""
        self._take(lambda _: self._watches.give_up(reading))

    def stop_waiting(self, watcher: Watcher) -> None:
        """Let a watcher go that was cancelled, or whose time is over; it still watches."""
        self._take(lambda _: self._watches.stop_waiting(watcher))

    def leave(self, watcher: Watcher) -> None:
        """Remove a watcher. May be called at any moment, by the garbage collector too."""
        self._gone.append(watcher)
        with self._lock:
            if not self._inside:
                self._take(lambda _: None)

    def changed(self, topics: Iterable[Hashable]) -> None:
        """Let those who watch one of the topics read anew.

        What has changed must be there for every reader: call it after the commit. It is a hint, and
        one too many costs a query; so is what comes from another process.
        """
        self._take(lambda _: self._watches.changed(topics))

    def changed_all(self) -> None:
        """Let everybody read anew."""
        self._take(lambda _: self._watches.changed_all())

    def close(self) -> None:
        """End every watch, and those that begin later, with ``CallCancelled("shutdown")``."""

        def step(_: float) -> None:
            self._closed = True
            self._watches.wake_all()

        self._take(step)

    def _take(self, step: Callable[[float], T]) -> T:
        woken: list[Any] = []
        try:
            with self._lock:
                self._inside = True
                try:
                    now = self.clock.monotonic()
                    while self._gone:
                        self._watches.leave(self._gone.popleft(), now)
                    self._watches.forget(now)
                    return step(now)
                finally:
                    woken = self._watches.take_woken()
                    self._inside = False
        finally:
            # One whose loop is closed has nobody to wake.
            for waiter in woken:
                waiter.wake()


hub = Hub()
os.register_at_fork(after_in_child=hub.reset)
