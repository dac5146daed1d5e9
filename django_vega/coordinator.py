"""One object that does it all: coordinates calls, runs submitted ones, cancels and closes."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from django_vega.backends.base import Backend, SharedBackend
from django_vega.core.call import Call, CallSite, FlightRecord, Unset
from django_vega.core.clock import Clock, SystemClock
from django_vega.core.errors import CallCancelled, NotAdmitted, WaitTimeout
from django_vega.runtime.aio import LoopRunner, LoopWaiter
from django_vega.runtime.announcer import Host, Outbox
from django_vega.runtime.flights import Flights
from django_vega.runtime.link import Sharing
from django_vega.runtime.outcomes import wait_slice
from django_vega.runtime.pool import LoopPool, ThreadPool
from django_vega.runtime.remote import Remote
from django_vega.runtime.renewal import Renewal
from django_vega.runtime.shaping import Shaping
from django_vega.runtime.threads import ThreadRunner, ThreadWaiter

T = TypeVar("T")


class TakeOver:
    """Stands in for a submitted call that follows: no thread or task waits on its behalf."""

    __slots__ = ("_again", "_call", "chain", "target")

    def __init__(self, call: Call, again: Callable[[Call], None]) -> None:
        self.chain: Sequence[Call] = ()
        self.target: Call | None = None
        self._call = call
        self._again = again

    def wake(self) -> bool:
        """Let the call's own function run if its leader abandoned it."""
        if self._call.last_leader().was_left:
            self._again(self._call)
        return True


class Coordinator:
    """Coordinates the calls of one alias.

    Args:
        backend: Who else may run a call.
        host: The framework around.
        workers: Threads of the pool, and tasks per event loop, for submitted calls.
        capacity: Submitted calls that may wait for a worker.
        threads_wait_for_loops: Whether a blocked thread may wait for an async flight.
        raise_orphans: Whether a call that its coordinator does not decide on raises.
        clock: The time.
        sharing: How processes get on over a shared backend.
    """

    def __init__(
        self,
        backend: Backend,
        host: Host,
        *,
        workers: int = 4,
        capacity: int = 100,
        threads_wait_for_loops: bool = False,
        raise_orphans: bool = False,
        clock: Clock | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.backend = backend
        self.host = host
        self.workers = workers
        self.capacity = capacity
        self.flights = Flights(
            backend,
            host,
            clock or SystemClock(),
            threads_wait_for_loops=threads_wait_for_loops,
            raise_orphans=raise_orphans,
        )
        if isinstance(backend, SharedBackend):
            assert sharing is not None
            self.flights.remote = Remote(self.flights, backend, sharing)
        self._build()
        _coordinators.add(self)

    def _build(self) -> None:
        self._pool = ThreadPool(
            self.workers,
            self.capacity,
            self._start_on_thread,
            self.host.pool_item,
        )
        self._threads = ThreadRunner(self.flights, self, self._pool)
        self._loops = LoopRunner(self.flights, self, self.workers, self.capacity)
        self._shaping = Shaping(self.flights)
        remote = self.flights.remote
        self._renewal = None if remote is None else Renewal(remote)
        if self._renewal is not None:
            # One that other settings have replaced is closed by nobody.
            weakref.finalize(self, self._renewal.stop)

    def _start_on_thread(self, call: Call) -> None:
        self._threads.start(call)

    def reset_after_fork(self) -> None:
        """Forget the parent's flights, threads and locks in a forked child."""
        self.flights.reset()
        if self.flights.remote is not None:
            self.flights.remote.reset()
        self._build()

    # Calls

    def call(self, site: CallSite, key: str, work: Callable[[Call], Any]) -> Any:
        """Coordinate one call of a sync function on the caller's thread."""
        if site.options.shaper is not None:
            return self._shaping.call(site, key, partial(self._threads.call, site, key, work))
        return self._threads.call(site, key, work)

    async def acall(self, site: CallSite, key: str, work: Callable[[Call], Any]) -> Any:
        """Coordinate one call of an async function."""
        if site.options.shaper is not None:
            run = partial(self._loops.call, site, key, work)
            return await self._shaping.acall(site, key, run)
        return await self._loops.call(site, key, work)

    def submit(self, site: CallSite, key: str, work: Callable[[Call], Any]) -> Call:
        """Admit a call of a sync function for the pool; wait while the pool is full."""
        permits = self._pool.permits
        if self._pool.runs_here():
            return self._admit(site, key, work, self._pool, permit=permits.take_nowait())
        permits.wait_turn(ThreadWaiter(()), self._patience(site, key))
        return self._admit(site, key, work, self._pool, permit=True)

    async def asubmit(self, site: CallSite, key: str, work: Callable[[Call], Any]) -> Call:
        """Admit a call for the pool, or for the running loop's places, without blocking."""
        pool = self._loops.pool() if site.is_async else self._pool
        permits = pool.permits
        if pool.runs_here():
            return await self._aadmit(site, key, work, pool, permit=permits.take_nowait())
        await permits.await_turn(LoopWaiter(), self._patience(site, key))
        return await self._aadmit(site, key, work, pool, permit=True)

    def submit_nowait(self, site: CallSite, key: str, work: Callable[[Call], Any]) -> Call:
        """Admit a call for the pool, or for the running loop's places, or raise.

        Raises:
            NotAdmitted: There is no room.
        """
        pool = self._loops.pool() if site.is_async else self._pool
        if not pool.permits.take_nowait():
            raise NotAdmitted(site.display(key), pool.workers, pool.capacity)
        return self._admit(site, key, work, pool, permit=True)

    def result(self, call: Call, timeout: float | None | Unset) -> Any:
        """Block until a call settles; see `Call.result`."""
        return self._threads.result(call, timeout)

    def wait(self, call: Call) -> Generator[Any, None, Any]:
        """Await a call; see `Call`."""
        return self._loops.wait(call)

    def ends_fresh(self, call: Call) -> bool:
        """Whether a flight need not run, as its last success is recent; then nobody joins it."""
        return self.flights.close_unless_needed(call)

    def begin_writing(self, call: Call) -> None:
        """Go over to ``writing``; raises `CallCancelled` when the call was cancelled before."""
        self.flights.begin_writing(call)

    # Operating

    def in_flight(self, slot: tuple[str, str] | None = None) -> tuple[FlightRecord, ...]:
        """Return a record of each call in flight, parked or stopping, oldest first."""
        return self.flights.records(slot)

    def cancel(self, call: Call) -> bool:
        """Cancel one call; False when it is settled or writing."""
        return self._tell(lambda outbox: self.flights.cancel(call, outbox))

    def cancel_where(
        self, where: Callable[[tuple[str, str]], bool], *, parked: str = "abort"
    ) -> int:
        """Cancel every call whose scope and key are chosen; return how many.

        Of the keys that this process has to do with, those of other processes too, which are not
        counted where the caller is an event loop.
        """
        slots = self.flights.slots(where)
        count = self._tell(
            lambda outbox: self.flights.cancel_all(
                outbox, flights="abort", parked=parked, where=where
            )
        )
        remote = self.flights.remote
        if remote is None:
            return count
        count -= sum(slots.values())
        if asyncio._get_running_loop() is not None:
            for slot in slots:
                remote.link.later(partial(remote.endings.cancel, slot, parked))
            return count
        return count + sum(remote.endings.cancel(slot, parked) for slot in slots)

    def cancel_all(self) -> int:
        """Void every queue, then cancel every flight; later calls begin anew."""
        return self.cancel_where(lambda _: True, parked="admission-reset")

    def close(self) -> None:
        """Refuse later calls, settle every flight and parked call, join the threads.

        What is being written at this moment ends as it would have.
        """
        self._tell(
            lambda outbox: self.flights.cancel_all(
                outbox, flights="shutdown", parked="shutdown", close=True
            )
        )
        self._shaping.wake_all()
        self._pool.close()
        if self._renewal is not None:
            assert self.flights.remote is not None
            self._renewal.close()
            self.flights.remote.link.close()

    # Steps that the ones above are made of

    def _tell(self, step: Callable[[Outbox], T]) -> T:
        """Take a step and hand its events to the host, whichever kind of thread this is."""
        outbox: Outbox = []
        result = step(outbox)
        self._hand_over(outbox)
        return result

    def _hand_over(self, outbox: Outbox) -> None:
        if not outbox:
            return
        announcer = self.flights.announcer
        if asyncio._get_running_loop() is None:
            announcer.flush(outbox)
            return
        task = asyncio.ensure_future(announcer.aflush(outbox.copy()))
        outbox.clear()
        _telling.add(task)
        task.add_done_callback(_telling.discard)

    def _patience(self, site: CallSite, key: str) -> Callable[[], float]:
        """Return what says how long to wait before looking again whether the pool has a place."""
        began = self.flights.clock.monotonic()
        timeout = site.options.timeout

        def patience() -> float:
            if self.flights.closed:
                raise CallCancelled("shutdown", site.display(key))
            waited = self.flights.clock.monotonic() - began
            if timeout is not None and waited >= timeout:
                holder = f"the pool has {self.workers} workers and {self.capacity} places"
                raise WaitTimeout(site.display(key), waited, holder)
            return wait_slice(timeout, waited)

        return patience

    def _admit(
        self, site: CallSite, key: str, work: Any, pool: ThreadPool | LoopPool, *, permit: bool
    ) -> Call:
        outbox: Outbox = []
        call = self.flights.new_call(site, key, work, self, pool=pool)
        try:
            self._place(call, outbox, permit=permit)
            # Told before a worker can have it: what happens to a call is told in that order.
            self._hand_over(outbox)
        finally:
            if call.state == "queued":
                self.flights.enqueue(call, outbox)
            self._hand_over(outbox)
        return call

    async def _aadmit(
        self, site: CallSite, key: str, work: Any, pool: ThreadPool | LoopPool, *, permit: bool
    ) -> Call:
        outbox: Outbox = []
        call = self.flights.new_call(site, key, work, self, pool=pool)
        try:
            await self._aplace(call, outbox, permit=permit)
            await self.flights.announcer.aflush(outbox)
        finally:
            if call.state == "queued":
                self.flights.enqueue(call, outbox)
            if outbox:
                await self.flights.announcer.aflush(outbox)
        return call

    def _place(self, call: Call, outbox: Outbox, *, permit: bool) -> None:
        """Admit a call that holds a place of its pool."""
        with self._holding(call, permit=permit):
            self._threads.admit(call, outbox, self._stand_in)

    async def _aplace(self, call: Call, outbox: Outbox, *, permit: bool) -> None:
        """Admit a call that holds a place of its pool, from an event loop."""
        with self._holding(call, permit=permit):
            await self._loops.admit(call, outbox, self._stand_in)

    @contextmanager
    def _holding(self, call: Call, *, permit: bool) -> Generator[None, None, None]:
        if permit:
            call.permit = call.pool.permits.give_back
        try:
            yield
        finally:
            # A call that takes no worker gives its place back at once.
            if call.settled:
                self.flights.give_back(call)

    def _stand_in(self, call: Call, _: Sequence[Call]) -> TakeOver | None:
        return None if call.leader is None else TakeOver(call, self._place_again)

    def _place_again(self, call: Call) -> None:
        """Let a submitted follower's own function run, as a new call that it then follows."""
        if self.flights.remote is not None:
            # It may have to ask the server; whoever is here has others to wake.
            self.flights.remote.link.executor(call).submit(self._follow_successor, call)
        elif isinstance(call.pool, LoopPool):
            try:
                call.pool.loop.call_soon_threadsafe(self._follow_successor, call)
            except (RuntimeError, ReferenceError):
                return  # its loop is gone, and with it whoever could have asked
        else:
            self._follow_successor(call)

    def _follow_successor(self, call: Call) -> None:
        outbox: Outbox = []
        assert call.work is not None
        successor = self.flights.new_call(
            call.site,
            call.key,
            call.work,
            self,
            predecessor=call.last_leader(),
            pool=call.pool,
            asked_at=call.created_at,
        )
        try:
            self._threads.admit(successor, outbox, self._stand_in)
        except Exception as error:  # noqa: BLE001 - kept for whoever asks for the result
            successor.error = error
        successor.stands_for = call
        call.leader = successor
        if successor.state == "queued":
            self.flights.enqueue(successor, outbox)
        self._hand_over(outbox)


_coordinators: weakref.WeakSet[Coordinator] = weakref.WeakSet()
_telling: set[asyncio.Future[None]] = set()


def _reset_after_fork() -> None:
    for coordinator in tuple(_coordinators):
        coordinator.reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)
