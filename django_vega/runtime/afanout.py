"""Fan-out over tasks of one event loop: the iterating task pulls and reads, one per target runs.

The tasks hold no reference to the `AsyncFanOut` itself, so that leaving it behind ends it.
"""

from __future__ import annotations

import _thread
import asyncio
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from django_vega.core.clock import Clock, SystemClock
from django_vega.core.fan import Accounting, Outcome, Snapshot, Status
from django_vega.core.places import Effects, Item, Move
from django_vega.runtime.aio import LoopWaiter
from django_vega.runtime.fan import Engine, Plan
from django_vega.runtime.outcomes import LOOK_AGAIN

T = TypeVar("T")
R = TypeVar("R")


class Tasks(Engine):
    """The tasks of a fan-out; used on its loop, but for `tokens_came`."""

    #: Woken at news that may concern the reader; that of the last fan-out of a chain.
    reader: LoopWaiter

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, clock)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[Item, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Belong to the running loop, and begin to count the time."""
        super().start()
        self.loop = asyncio.get_running_loop()
        self.reader = LoopWaiter()
        self._set_timer()

    def end_with(self, later: Engine) -> None:
        """Take over the deadline of a later stage of the chain, if that is sooner."""
        super().end_with(later)
        self._set_timer()

    def close(self) -> None:
        """Start nothing more, drop what waits, and cancel what runs; does not wait."""
        self.act(self.fan.close)
        if self.loop is None or self.loop.is_closed():
            return
        if self._timer is not None:
            self._timer.cancel()
        current = asyncio.current_task(self.loop)
        for item, task in self._tasks.items():
            if item.place != "astray" and task is not current:
                task.cancel()
        self.reader.wake()

    async def join(self) -> None:
        """Wait until all tasks of a closed fan-out are done.

        Those whose time is over were cancelled then, and are waited for no longer than a second.
        """
        if asyncio.current_task() in self._tasks.values():
            return  # closed by a body, which nobody can wait for here
        while self.fan.is_running:
            await asyncio.wait(list(self._tasks.values()), timeout=self.wait_at_most())
            self.look()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=LOOK_AGAIN)

    def tokens_came(self, waiter: Any) -> bool:
        """Let the item in line have its tokens, on the loop; False when the loop is closed."""
        assert self.loop is not None
        if asyncio._get_running_loop() is self.loop:
            return self._tokens_came(waiter)
        try:
            self.loop.call_soon_threadsafe(self._tokens_came, waiter)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _tokens_came(self, waiter: Any) -> bool:
        came = super().tokens_came(waiter)
        if not came and self.account is not None:
            self.account.stop_waiting(waiter)
        self.reader.wake()
        return True

    def _staff(self, effects: Effects) -> None:
        """Tasks are made without the lock: steps are taken on the loop's thread alone."""

    def _carry_out(self, effects: Effects) -> None:
        for item in effects.astray:
            self._tasks[item].cancel()
        for item in effects.ready:
            # Not by a factory, which may run the body at once: bodies would pile up on the stack.
            task = asyncio.Task(self._run(item), loop=self.loop, context=item.context)
            self._tasks[item] = task
            task.add_done_callback(partial(self._landed, item))

    async def _run(self, item: Item) -> None:
        if not self.begin(item):
            return
        item.context = None
        self._set_timer()
        status, value, error = await self._call(item)
        self.act(self.fan.finish, item, status, value, error)
        self.reader.wake()
        if isinstance(error, KeyboardInterrupt):
            raise error

    async def _call(self, item: Item) -> tuple[Status, Any, BaseException | None]:
        try:
            value = await self.plan.function(item.target)
        except GeneratorExit:
            # The loop is gone. The garbage collector may have come while this very thread is inside
            # of any lock, so another one takes the locks.
            _thread.start_new_thread(self._lose, (item,))
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            was_asked_for = task is not None and task.cancelling()
            return "unknown" if was_asked_for else "failed", None, error
        except BaseException as error:  # noqa: BLE001 - it is this target's, SystemExit too
            return "failed", None, error
        return "done", value, None

    def _lose(self, item: Item) -> None:
        self.close()
        self.act(self.fan.finish, item, "unknown")

    def _landed(self, item: Item, task: asyncio.Task[None]) -> None:
        del self._tasks[item]
        if not task.cancelled():
            task.exception()
        if item.place == "ready":  # cancelled from outside before its first step
            self.act(self.fan.finish, item, "not_started")
        self.reader.wake()

    def _set_timer(self) -> None:
        """Look when the next timeout or the deadline is due, whatever the reader does."""
        due = self.due()
        if due is None:
            return
        assert self.loop is not None
        when = self.loop.time() + max(0.0, due - self.clock.monotonic())
        if self._timer is not None:
            if self._timer.when() <= when and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self.look()
        self.reader.wake()
        self._set_timer()


class AsyncFanOut(Generic[T, R]):
    """A fan-out over tasks: iterate with ``async for``, best inside of ``async with``.

    See `django_vega.afan_out`. It belongs to the loop on which its first step is taken; one task at
    a time may iterate. A step that is cancelled ends the fan-out: its tasks are cancelled and have
    ended when the CancelledError goes on.
    """

    def __init__(
        self, plan: Plan, targets: AsyncIterable[T] | Iterable[T], clock: Clock | None = None
    ) -> None:
        self._crew = Tasks(plan, clock or SystemClock())
        self._targets: Any = targets
        # Of a queryset `iter()` is its query: not before the first step.
        is_source = isinstance(targets, AsyncIterator | Iterator | AsyncFanOut)
        self._source: Any = targets if is_source else None
        self._is_stepping = False
        self._is_pulling = False
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<afan_out: {self.accounting()}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome[T, R]:
        self._enter()
        try:
            while (found := await self._look()) is Move.WAIT:
                await self._crew.reader.wait()
            if isinstance(found, Outcome):
                return found
            await self._end()
        except GeneratorExit:
            self._leave()  # a closed coroutine must not await
            raise
        except BaseException:
            await self.aclose()
            raise
        finally:
            self._is_stepping = False
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._leave()

    def snapshot(self) -> Snapshot:
        """Return where the targets are: running, queued, held, unread."""
        return self._crew.snapshot()

    def accounting(self) -> Accounting:
        """Return how many of the pulled targets came to what; the sum is what was pulled."""
        return self._crew.accounting()

    async def aclose(self) -> None:
        """Stop pulling, drop what is queued, cancel the tasks and wait for them; repeatable.

        A target that was running is ``unknown`` then, unless its body makes something else of its
        cancellation. Closing a fan-out over another one closes that one too.
        """
        self._crew.close()
        try:
            await self._close_source()
        finally:
            await self._crew.join()

    def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        if self._crew.loop not in {None, loop}:
            raise RuntimeError(
                "this fan-out was begun on another event loop. Iterate over it on the loop of its "
                "first step"
            )
        if self._is_stepping:
            raise RuntimeError(
                "another task waits for the next outcome of this fan-out. Iterate in one task, or "
                "begin a fan-out in each"
            )
        self._is_stepping = True
        if self._crew.loop is None:
            self._crew.start()

    async def _look(self) -> Outcome[T, R] | Move:
        """Return the next outcome, WAIT or END; waits for nothing but the targets."""
        crew = self._crew
        may_pull = True
        while (found := crew.read(may_pull=may_pull)) is Move.PULL:
            target = await self._pull()
            if target is Move.WAIT:
                may_pull = False
            elif target is not Move.END and (outcome := crew.admit(target)) is not None:
                return outcome
        return found

    async def _pull(self) -> Any:
        """Return the next target, WAIT when a fan-out has none yet, or END."""
        try:
            if self._source is None:
                has_aiter = isinstance(self._targets, AsyncIterable)
                self._source = aiter(self._targets) if has_aiter else iter(self._targets)
            source = self._source
            if isinstance(source, AsyncFanOut):
                target = await source.poll(self._crew)
            else:
                self._is_pulling = True
                try:
                    if isinstance(source, Iterator):
                        return next(source)
                    return await self._wait_for_target(source)
                finally:
                    self._is_pulling = False
        except (StopIteration, StopAsyncIteration):
            target = Move.END
        except Exception as error:  # noqa: BLE001 - raised after the account
            self._error = error
            target = Move.END
        if target is Move.END:
            self._crew.fan.exhausted = True
        return target

    async def _wait_for_target(self, source: AsyncIterator[T]) -> T | Move:
        """Wait for a target until the deadline; then the source is cancelled, and nobody asks."""
        deadline = self._crew.fan.deadline
        if deadline is None:
            return await anext(source)
        limit = asyncio.timeout(max(0.0, deadline - self._crew.clock.monotonic()))
        try:
            async with limit:
                return await anext(source)
        except TimeoutError:
            if not limit.expired():
                raise
            return Move.WAIT

    async def poll(self, later: Tasks) -> Outcome[T, R] | Move:
        """Look on behalf of the next stage of a chain, whose reader waits for both."""
        self._enter()
        self._crew.reader = later.reader
        self._crew.end_with(later)
        try:
            found = await self._look()
            if found is Move.END:
                await self._end()
            return found
        except GeneratorExit:
            self._leave()
            raise
        except BaseException:
            await self.aclose()
            raise
        finally:
            self._is_stepping = False

    async def _end(self) -> None:
        await self.aclose()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _leave(self) -> None:
        """Close without waiting, from wherever the garbage collector comes."""
        crew = self._crew
        if crew.loop is None or crew.fan.closed or sys.is_finalizing():
            return
        try:
            crew.loop.call_soon_threadsafe(crew.close)
        except RuntimeError:  # the loop is closed
            _thread.start_new_thread(crew.close, ())

    async def _close_source(self) -> None:
        if self._is_pulling:
            return  # a running generator cannot be closed; its step closes it
        source, self._source = self._source, None
        self._targets = ()
        if hasattr(source, "aclose"):
            await source.aclose()
        elif hasattr(source, "close"):
            source.close()
