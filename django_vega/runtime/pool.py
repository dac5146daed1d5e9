"""Bounded places for submitted calls: threads for sync functions, tasks for async ones.

The permit is taken first, the call is made after; a place is given back when the body has ended.
Source: the seed "concurrency-composition", section 3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any

from django_vega.core.call import Call, current
from django_vega.runtime.permits import Permits


class ThreadPool:
    """Threads for submitted calls of sync functions.

    Args:
        workers: How many calls run at once.
        capacity: How many more may wait for a worker.
        start: Runs a queued call unless somebody else has claimed it.
        surround: The host's frame around one piece of work.
    """

    def __init__(
        self,
        workers: int,
        capacity: int,
        start: Callable[[Call], None],
        surround: Callable[[], Any],
    ) -> None:
        self.workers = workers
        self.capacity = capacity
        self.permits = Permits(workers + capacity)
        self._start = start
        self._surround = surround
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="django-vega")

    def enqueue(self, call: Call) -> None:
        """Let a worker start the call; one that was claimed or cancelled meanwhile is passed."""
        self._executor.submit(Context().run, self._work, call)

    def runs_here(self) -> bool:
        """Whether the current code runs inside a call of this pool."""
        return _runs_inside(self)

    def close(self) -> None:
        """Let no worker survive; join them, unless one may be waiting for this very thread."""
        call = current.get()
        on_a_worker = call is not None and any(outer.pool is not None for outer in call.chain())
        on_a_loop = asyncio._get_running_loop() is not None
        self._executor.shutdown(wait=not (on_a_worker or on_a_loop), cancel_futures=True)

    def _work(self, call: Call) -> None:
        with self._surround():
            self._start(call)


class LoopPool:
    """Tasks of one event loop for submitted calls of async functions, under the same two bounds.

    Used from its loop's thread, except that calls may be enqueued from any.

    Args:
        loop: The loop.
        workers: How many calls run at once.
        capacity: How many more may wait.
        start: Starts the task of a queued call; returns False when it is not to be had.
    """

    def __init__(
        self, loop: Any, workers: int, capacity: int, start: Callable[[Call], bool]
    ) -> None:
        self.loop = loop
        self.workers = workers
        self.capacity = capacity
        self.permits = Permits(workers + capacity)
        self._start = start
        self._running = 0
        self._ready: deque[Call] = deque()

    def enqueue(self, call: Call) -> None:
        """Let the call start when fewer than ``workers`` run."""
        self.loop.call_soon_threadsafe(self._enqueue, call)

    def runs_here(self) -> bool:
        """Whether the current code runs inside a call of this pool."""
        return _runs_inside(self)

    def landed(self) -> None:
        """Note that the task of a started call has ended."""
        self._running -= 1
        self._start_ready()

    def start_beyond(self, call: Call) -> None:
        """Start a call at once, because one that holds a place waits for it."""
        if self._start(call):
            self._running += 1

    def _enqueue(self, call: Call) -> None:
        self._ready.append(call)
        self._start_ready()

    def _start_ready(self) -> None:
        while self._ready and self._running < self.workers:
            call = self._ready.popleft()
            try:
                self._running += self._start(call)
            except BaseException:
                self.loop.call_soon(self._start_ready)
                raise


def _runs_inside(pool: Any) -> bool:
    call = current.get()
    return call is not None and any(outer.pool is pool for outer in call.chain())
