"""Fan-out over threads: the iterating one pulls and reads, one per worker runs the function.

Threads are started when there is a target for them, and end with the fan-out. They hold no
reference to the `FanOut` itself, so that leaving it behind ends it.
"""

from __future__ import annotations

import _thread
import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from django_vega.core.clock import Clock, SystemClock
from django_vega.core.fan import Accounting, Outcome, Snapshot, Status
from django_vega.core.places import Effects, Item, Move
from django_vega.runtime.fan import Engine, Plan
from django_vega.runtime.outcomes import LOOK_AGAIN
from django_vega.runtime.threads import ThreadWaiter

logger = logging.getLogger("django_vega")

T = TypeVar("T")
R = TypeVar("R")


# What is around the function for the target of this context.
_surround: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar(
    "django_vega_fan_out_surround"
)


class Frame(Protocol):
    """What worker threads need of the host."""

    def capture(self) -> Callable[[], AbstractContextManager[None]]:
        """Return what surrounds the function on a worker, as it is around the iterating code.

        It is entered in a copy of the context, so it need not restore what it sets there.
        """

    def thread_ends(self) -> None:
        """Leave nothing behind on a thread that is about to end."""

    def synchronous_call_error(self, message: str) -> Exception:
        """Return the error for a wait that would block an event loop."""


class _Worker:
    """A thread that serves one slot, until the slot is taken from it."""

    # `item` and `is_dismissed` are written under the engine's lock, except that the thread itself
    # takes its item away.
    __slots__ = ("is_dismissed", "item", "slot", "thread", "waiter")

    def __init__(self, item: Item) -> None:
        self.slot = item.slot
        self.item: Item | None = item
        self.is_dismissed = False
        self.waiter = ThreadWaiter(())
        self.thread: threading.Thread

    def next_item(self) -> Item | None:
        """Wait for an item; None when there will be none."""
        while True:
            item = self.item
            if item is not None:
                self.item = None  # not before it is there: nobody gives another one meanwhile
                return item
            if self.is_dismissed:
                return None
            self.waiter.wait(threading.TIMEOUT_MAX)


class Crew(Engine):
    """The worker threads of a fan-out."""

    def __init__(self, plan: Plan, frame: Frame, clock: Clock) -> None:
        super().__init__(plan, clock)
        #: Woken at news that may concern the reader; that of the last fan-out of a chain.
        self.reader = ThreadWaiter(())
        self._frame = frame
        # By slot, under the lock.
        self._workers: dict[int, _Worker] = {}

    def close(self) -> None:
        """Start nothing more, drop what waits, and let idle workers go; does not wait."""
        self.act(self._close)
        self.reader.wake()

    def join(self) -> None:
        """Wait until all workers of a closed fan-out have gone, but those whose time is over."""
        with self._lock:
            threads = {worker.thread for worker in self._workers.values()}
        if threading.current_thread() in threads:
            return  # closed by a body, which nobody can wait for here
        while self.fan.is_running:
            self.reader.wait(self.wait_at_most())
            self.look()
        with self._lock:
            threads = {worker.thread for worker in self._workers.values()}
        for thread in threads:
            thread.join()

    def _close(self) -> None:
        self.fan.close()
        for worker in self._workers.values():
            worker.is_dismissed = True
            worker.waiter.wake()

    def tokens_came(self, waiter: Any) -> bool:
        """Let the item in line have its tokens; the reader may be waiting for room."""
        came = super().tokens_came(waiter)
        self.reader.wake()
        return came

    def _staff(self, effects: Effects) -> None:
        for item in effects.astray:
            worker = self._workers.pop(item.slot, None)
            if worker is not None:
                worker.is_dismissed = True
        for item in effects.ready:
            worker = self._workers.get(item.slot)
            if worker is None:
                self._hire(item)
            else:
                worker.item = item
                worker.waiter.wake()

    def _hire(self, item: Item) -> None:
        worker = _Worker(item)
        worker.thread = threading.Thread(
            target=self._serve,
            args=(worker,),
            name=f"django-vega fan-out, worker {item.slot + 1}",
            daemon=True,  # one whose body hangs must not hold up the end of the interpreter
        )
        try:
            worker.thread.start()
        except RuntimeError as error:  # the machine has no more threads
            self.fan.finish(item, "failed", None, error)
        else:
            self._workers[item.slot] = worker

    def _carry_out(self, effects: Effects) -> None:
        """Nothing is left to do: threads were told under the lock."""

    def _serve(self, worker: _Worker) -> None:
        item = None
        try:
            while (item := worker.next_item()) is not None:
                item.context.run(self._run, item)
                item = None  # an idle worker keeps no target alive
        except BaseException as error:
            # Raised into the thread from outside, and not inside of the function.
            self.act(self._bury, worker, item, error)
            self.reader.wake()
            raise
        finally:
            try:
                self._frame.thread_ends()
            except Exception:
                logger.exception("a worker of a fan-out could not clean up its thread")

    def _here(self) -> Context:
        context = copy_context()
        context.run(_surround.set, self._frame.capture())
        return context

    def _run(self, item: Item) -> None:
        if self.begin(item):
            item.context = None
            end = self._call(item.target)
            self.act(self.fan.finish, item, *end)
            self.reader.wake()

    def _call(self, target: Any) -> tuple[Status, Any, BaseException | None]:
        try:
            with _surround.get()():
                value = self.plan.function(target)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError(f"{self.plan.function!r} returned a coroutine. Use afan_out")
        except BaseException as error:  # noqa: BLE001 - it is this target's, SystemExit too
            return "failed", None, error
        return "done", value, None

    def _bury(self, worker: _Worker, item: Item | None, error: BaseException) -> None:
        """Let another worker come for the slot of one that died."""
        if self._workers.get(worker.slot) is worker:
            del self._workers[worker.slot]
            left = self.fan.at(worker.slot)
            if left is not None and left.place == "ready":
                self._hire(left)
                return
        if item is not None:
            self.fan.finish(item, "unknown", None, error)


class FanOut(Generic[T, R]):
    """A fan-out over threads: iterate over it, best inside of ``with``; see `django_vega.fan_out`.

    One thread at a time may iterate; `snapshot`, `accounting` and `close` may be called from any.
    """

    def __init__(
        self, plan: Plan, targets: Iterable[T], frame: Frame, clock: Clock | None = None
    ) -> None:
        self._crew = Crew(plan, frame, clock or SystemClock())
        self._frame = frame
        self._targets: Any = targets
        # Of a queryset `iter()` is its query: not before the first step.
        self._source: Any = targets if isinstance(targets, Iterator) else None
        self._is_pulling = False
        self._error: Exception | None = None
        self._stepping = threading.Lock()
        self._thread: int | None = None

    def __repr__(self) -> str:
        return f"<fan_out: {self.accounting()}>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Outcome[T, R]:
        self._enter()
        self._begin()
        try:
            while (found := self._look()) is Move.WAIT:
                self._crew.reader.wait(self.wait_at_most())
            if isinstance(found, Outcome):
                return found
            self._end()
        except BaseException:
            self.close()
            raise
        finally:
            self._stepping.release()
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        crew = self._crew
        if self._thread is None or crew.fan.closed or sys.is_finalizing():
            return
        # The garbage collector may come while this very thread is inside of any lock. So another
        # one takes the locks, and this one waits for it no longer than for anything else.
        is_closed = threading.Lock()
        is_closed.acquire()
        _thread.start_new_thread(_close, (crew, is_closed))
        if self._thread == threading.get_ident() and is_closed.acquire(timeout=LOOK_AGAIN):
            self._close_source()
            crew.join()

    def snapshot(self) -> Snapshot:
        """Return where the targets are: running, queued, held, unread."""
        return self._crew.snapshot()

    def accounting(self) -> Accounting:
        """Return how many of the pulled targets came to what; the sum is what was pulled."""
        return self._crew.accounting()

    def close(self) -> None:
        """Stop pulling, drop what is queued, join the workers, close the targets; repeatable.

        What runs is waited for, until its timeout or the deadline; what already ran is not undone.
        Closing a fan-out over another one closes that one too.
        """
        self._crew.close()
        try:
            self._close_source()
        finally:
            self._crew.join()

    def _enter(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise self._frame.synchronous_call_error(
                "a step of fan_out() would block the running event loop; use "
                "`async for outcome in afan_out(…)` with an async function"
            )
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError(
                "another thread waits for the next outcome of this fan-out. Iterate on one thread, "
                "or begin a fan-out on each"
            )

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.get_ident()
            self._crew.start()

    def _look(self) -> Outcome[T, R] | Move:
        """Return the next outcome, WAIT or END; waits for nothing but the targets."""
        crew = self._crew
        may_pull = True
        while (found := crew.read(may_pull=may_pull)) is Move.PULL:
            target = self._pull()
            if target is Move.WAIT:
                may_pull = False
            elif target is not Move.END and (outcome := crew.admit(target)) is not None:
                return outcome
        return found

    def _pull(self) -> Any:
        """Return the next target, WAIT when a fan-out has none yet, or END."""
        try:
            if self._source is None:
                self._source = iter(self._targets)
            source = self._source
            if isinstance(source, FanOut):
                target: Any = source.poll(self._crew)
            else:
                self._is_pulling = True
                try:
                    return next(source)
                finally:
                    self._is_pulling = False
        except StopIteration:
            target = Move.END
        except Exception as error:  # noqa: BLE001 - raised after the account
            self._error = error
            target = Move.END
        if target is Move.END:
            self._crew.fan.exhausted = True
        return target

    def poll(self, later: Crew) -> Outcome[T, R] | Move:
        """Look on behalf of the next stage of a chain, whose reader waits for both."""
        self._enter()
        self._begin()
        self._crew.reader = later.reader
        self._crew.end_with(later)
        try:
            found = self._look()
            if found is Move.END:
                self._end()
            return found
        except BaseException:
            self.close()
            raise
        finally:
            self._stepping.release()

    def _end(self) -> None:
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_at_most(self) -> float:
        """Return for how many seconds to wait before looking again, at this or one upstream."""
        seconds = self._crew.wait_at_most()
        upstream = self._source
        return min(seconds, upstream.wait_at_most()) if isinstance(upstream, FanOut) else seconds

    def _close_source(self) -> None:
        if self._is_pulling:
            return  # a running generator cannot be closed; its step closes it
        source, self._source = self._source, None
        self._targets = ()
        close = getattr(source, "close", None)
        if close is not None:
            close()


def _close(crew: Crew, is_closed: threading.Lock) -> None:
    try:
        crew.close()
    finally:
        is_closed.release()
