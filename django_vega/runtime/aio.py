"""Async callers: the flight is a task of its leader's loop, everybody has a future of their own.

Nobody awaits the task itself and nothing is shielded: cancelling one caller reaches that caller
alone, and 16,000 waiters are released in linear time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any

from django_vega.core.call import UNSET, Call, CallRuntime, CallSite, Step, Unset, current
from django_vega.core.errors import WaitTimeout
from django_vega.runtime.announcer import Outbox
from django_vega.runtime.flights import Flights, OnCall
from django_vega.runtime.outcomes import follower_outcome, outcome, result_outcome, wait_slice
from django_vega.runtime.pool import LoopPool
from django_vega.runtime.steps import atake


class LoopWaiter:
    """A task that waits on a future of its own."""

    __slots__ = ("_future", "chain", "loop", "target")

    def __init__(self, chain: Sequence[Call] = ()) -> None:
        self.chain = chain
        self.target: Call | None = None
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self.loop.create_future()

    def wake(self) -> bool:
        """Let the waiter look again; see `Waiter`."""
        if asyncio._get_running_loop() is self.loop:
            self._resume()
            return True
        try:
            self.loop.call_soon_threadsafe(self._resume)
        except RuntimeError:  # the loop is closed
            return False
        return True

    async def wait(self, timeout: float | None = None) -> None:
        """Wait for a wake, or for ``timeout`` seconds."""
        timer = None if timeout is None else self.loop.call_later(timeout, self._resume)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()
        self._future = self.loop.create_future()

    def _resume(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def _make_waiter(_: Call, chain: Sequence[Call]) -> LoopWaiter:
    return LoopWaiter(chain)


class LoopRunner:
    """Runs and awaits the calls of async functions.

    Args:
        flights: The table of the coordinator.
        runtime: What the `Call` objects turn to.
        workers: How many submitted calls run at once per loop.
        capacity: How many more may wait.
    """

    def __init__(self, flights: Flights, runtime: CallRuntime, workers: int, capacity: int) -> None:
        self._flights = flights
        self._runtime = runtime
        self._workers = workers
        self._capacity = capacity
        self._pools: weakref.WeakKeyDictionary[Any, LoopPool] = weakref.WeakKeyDictionary()
        self._pools_lock = threading.Lock()

    async def call(  # noqa: C901, PLR0912 - one loop, told in its order
        self,
        site: CallSite,
        key: str,
        work: Callable[[Call], Awaitable[Any]],
        on_call: OnCall | None = None,
    ) -> Any:
        """Coordinate one call and return what it comes to."""
        flights = self._flights
        began = flights.clock.monotonic()
        abandoned: Call | None = None
        while True:
            outbox: Outbox = []
            call = flights.new_call(
                site,
                key,
                work,
                self._runtime,
                predecessor=abandoned,
                on_call=on_call,
                asked_at=began,
            )
            leads = False
            try:
                if flights.remote is None:
                    returned = flights.admit(call, outbox, _make_waiter)
                else:
                    returned = await self.admit(call, outbox, _make_waiter)
                if call.leader is not None:
                    leader = await self._follow(call, began, outbox)
                    if not leader.was_left:
                        return follower_outcome(site, key, leader)
                    abandoned = leader
                    continue
                if call.caller is not None:
                    await self._wait_for_turn(call, began, outbox)
                if call.reason == "orphaned-intent":
                    return returned
                if call.settled:
                    if not call.ended:
                        # Let go by the queue, and cancelled before its caller came back.
                        flights.settle(call, "cancel", outbox)
                    return outcome(call, first_hand=True)
                leads = True  # from here on the flight is its task's, which may not have begun
                return await self._lead(call, outbox)
            except BaseException as error:
                if not (leads or call.ended):
                    flights.withdraw(call, outbox, error)
                if isinstance(error, GeneratorExit):
                    outbox.clear()  # a closed coroutine must not await
                raise
            finally:
                if outbox:
                    await flights.announcer.aflush(outbox)

    async def admit(
        self, call: Call, outbox: Outbox, make_waiter: Callable[[Call, Sequence[Call]], Any]
    ) -> Any:
        """Let the call's strategy decide; see `Flights.admit`. Asks the server, if there is one."""
        remote = self._flights.remote
        if remote is None:
            return self._flights.admit(call, outbox, make_waiter)
        return await atake(
            remote.admission(call, outbox, make_waiter, LoopWaiter), remote.link.executor(call)
        )

    async def result(self, call: Call, timeout: float | None | Unset = UNSET) -> Any:
        """Wait until ``call`` settles; see `Call.result`."""
        flights = self._flights
        if timeout is UNSET:
            timeout = call.site.options.timeout
        began = flights.clock.monotonic()
        outbox: Outbox = []
        inner = current.get()
        waiter = LoopWaiter(() if inner is None else inner.chain())
        try:
            while not call.done():
                last = call.last_leader()
                waited = flights.clock.monotonic() - began
                if timeout is not None and waited >= timeout:
                    raise WaitTimeout(call.shown_key, waited, flights.describe(last))
                if not flights.join(last, waiter):
                    if not call.done():
                        # The leader was abandoned; whoever takes over is about to be named.
                        await waiter.wait(wait_slice(timeout, waited))
                    continue
                try:
                    self._start_ahead(last)
                    await waiter.wait(wait_slice(timeout, waited))
                    flights.abandon_if_lost(last, outbox)
                finally:
                    flights.leave(waiter, outbox)
        finally:
            if outbox:
                await flights.announcer.aflush(outbox)
        last = call.last_leader()
        return result_outcome(call, last)

    def wait(self, call: Call) -> Generator[Any, None, Any]:
        """Return the iterator that ``await call`` drives."""
        return self.result(call).__await__()

    def pool(self) -> LoopPool:
        """Return the running loop's places for submitted calls."""
        loop = asyncio.get_running_loop()
        with self._pools_lock:
            pool = self._pools.get(loop)
            if pool is None:
                pool = self._pools[loop] = LoopPool(
                    weakref.proxy(loop), self._workers, self._capacity, self._start
                )
            return pool

    # Leading

    async def _lead(self, call: Call, outbox: Outbox) -> Any:
        task = _spawn(self._fly(call, outbox))
        if not task.done():
            waiter = call.caller = LoopWaiter()
            task.add_done_callback(self._landing(call, waiter))
            try:
                while not (task.done() or call.state == "cancelled"):
                    await waiter.wait()
            except BaseException:
                call.caller_gone = True
                self._flights.cancel_unwanted(call, outbox)
                raise
            finally:
                call.caller = None
        return outcome(call, first_hand=True)

    async def _fly(self, call: Call, outbox: Outbox) -> None:
        """Run the body of a flight and settle it; the task has a context of its own."""
        flights, work, task = self._flights, call.work, asyncio.current_task()
        call.body = task
        assert task is not None
        assert work is not None
        current.set(call)
        end: dict[str, Any] = {}
        try:
            flights.announcer.announce_running(call, outbox)
            if call.settled:
                # Cancelled before its first step: it starts all the same, as one that is cancelled
                # a moment later does, and gets as far as its first await.
                task.cancel()
            elif outbox:
                await flights.announcer.aflush(outbox)
            end["value"] = await work(call)
            step: Step = "succeed"
        except asyncio.CancelledError as error:
            # Nobody but the end of its loop cancels a flight's task from outside.
            is_meant = call.settled or not task.cancelling()
            step = "cancel" if is_meant and call.state != "writing" else "abandon"
            end.update(error=error, reason="abort" if is_meant else "abandoned")
        except Exception as error:  # noqa: BLE001 - every caller gets it
            step, end["error"] = "fail", error
        except BaseException as error:
            # A flight that nobody can reach any more was ended by others. Its coroutine is closed
            # by the garbage collector, at any moment: also while this thread holds the lock.
            if not call.ended:
                flights.settle(call, "abandon", outbox, error=error, reason="abandoned")
            if isinstance(error, GeneratorExit):
                return  # a closed coroutine must not await
            if call.caller_gone or call.pool is not None:
                raise
            step = "abandon"
        if call.lease is None or step == "abandon":
            flights.settle(call, step, outbox, **end)
        else:
            await self._settle(call, step, outbox, end)
        end.clear()  # an error that is kept here would keep this frame
        if outbox:
            await flights.announcer.aflush(outbox)

    async def _settle(self, call: Call, step: Step, outbox: Outbox, end: dict[str, Any]) -> None:
        """Tell the server what a flight came to, then everybody here."""
        remote = self._flights.remote
        assert remote is not None
        try:
            await atake(
                remote.endings.settlement(call, step, outbox, **end), remote.link.executor(call)
            )
        finally:
            if not call.ended:  # cancelled while the server was told
                self._flights.settle(call, step, outbox, **end)

    def _landing(
        self, call: Call, waiter: LoopWaiter | None
    ) -> Callable[[asyncio.Task[None]], None]:
        def landed(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                task.exception()
            if not call.ended:
                # The task was cancelled before its first step: nothing of the body has run.
                outbox: Outbox = []
                self._flights.settle(call, "abandon", outbox, reason="abandoned")
            if waiter is not None:
                waiter.wake()

        return landed

    def _start(self, call: Call) -> bool:
        """Start the task of a queued call of a pool; False when it is not to be had."""
        if not self._flights.run(call):
            return False
        task = _spawn(self._fly(call, []))
        task.add_done_callback(self._landing(call, None))
        task.add_done_callback(lambda _: call.pool.landed())
        return True

    def _start_ahead(self, call: Call) -> None:
        pool = self.pool()
        if pool.runs_here():
            ahead = self._flights.startable(call, pool)
            if ahead is not None:
                pool.start_beyond(ahead)

    # Waiting

    async def _follow(self, call: Call, began: float, outbox: Outbox) -> Call:
        """Wait for the leader's outcome and return the leader, which may have been abandoned."""
        flights, waiter = self._flights, call.caller
        timeout = call.site.options.timeout
        try:
            if outbox:
                await flights.announcer.aflush(outbox)
            while not (leader := call.last_leader()).settled:
                waited = flights.clock.monotonic() - began
                if timeout is not None and waited >= timeout:
                    raise WaitTimeout(call.shown_key, waited, flights.describe(leader))
                self._start_ahead(leader)
                await waiter.wait(wait_slice(timeout, waited))
                flights.abandon_if_lost(leader, outbox)
        finally:
            flights.leave(waiter, outbox)
        return leader

    async def _wait_for_turn(self, call: Call, began: float, outbox: Outbox) -> None:
        """Hold a parked caller until its call may run; see `ThreadRunner`."""
        flights, waiter = self._flights, call.caller
        timeout = call.site.options.timeout
        try:
            if outbox:
                await flights.announcer.aflush(outbox)
            while call.state == "parked":
                waited = flights.clock.monotonic() - began
                if timeout is not None and waited >= timeout:
                    holder = flights.describe_holder(call)
                    if flights.give_up(call, outbox, "wait-timeout"):
                        raise WaitTimeout(call.shown_key, waited, holder)
                    continue
                self._start_ahead(call)
                await waiter.wait(wait_slice(timeout, waited))
                flights.abandon_if_lost(call, outbox)
        except BaseException as error:
            flights.withdraw(call, outbox, error)
            raise
        call.caller = None
        flights.leave(waiter)


def _spawn(flight: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start the task of a flight, at once where Python can."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(flight, loop=loop, eager_start=True)
    return loop.create_task(flight)
