"""Sync callers: the leader runs on its own thread, everybody else blocks theirs until told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django_vega.core.call import UNSET, Call, CallRuntime, CallSite, Step, Unset, current
from django_vega.core.errors import CallCancelled, WaitTimeout
from django_vega.runtime.announcer import Outbox
from django_vega.runtime.flights import Flights, OnCall
from django_vega.runtime.outcomes import follower_outcome, outcome, result_outcome, wait_slice
from django_vega.runtime.pool import ThreadPool
from django_vega.runtime.steps import take


class ThreadWaiter:
    """A blocked thread."""

    __slots__ = ("_event", "chain", "target")

    def __init__(self, chain: Sequence[Call]) -> None:
        self.chain = chain
        self.target: Call | None = None
        self._event = threading.Event()

    def wake(self) -> bool:
        """Let the waiter look again; see `Waiter`."""
        self._event.set()
        return True

    def wait(self, timeout: float) -> None:
        """Block until a wake, or for ``timeout`` seconds."""
        self._event.wait(timeout)
        self._event.clear()


def _make_waiter(_: Call, chain: Sequence[Call]) -> ThreadWaiter:
    return ThreadWaiter(chain)


class ThreadRunner:
    """Runs and awaits the calls of sync functions.

    Args:
        flights: The table of the coordinator.
        runtime: What the `Call` objects turn to.
        pool: Where submitted calls run.
    """

    def __init__(self, flights: Flights, runtime: CallRuntime, pool: ThreadPool) -> None:
        self._flights = flights
        self._runtime = runtime
        self._pool = pool

    def call(
        self,
        site: CallSite,
        key: str,
        work: Callable[[Call], Any],
        on_call: OnCall | None = None,
    ) -> Any:
        """Coordinate one call on the caller's own thread and return what it comes to."""
        flights = self._flights
        began = flights.clock.monotonic()
        thread = threading.get_ident()
        abandoned: Call | None = None
        while True:
            outbox: Outbox = []
            call = flights.new_call(
                site,
                key,
                work,
                self._runtime,
                predecessor=abandoned,
                thread=thread,
                on_call=on_call,
                asked_at=began,
            )
            try:
                returned = self.admit(call, outbox, _make_waiter)
                flights.announcer.flush(outbox)
                if call.leader is not None:
                    leader = self._follow(call, began, outbox)
                    if not leader.was_left:
                        return follower_outcome(site, key, leader)
                    abandoned = leader
                    continue
                if call.caller is not None:
                    self._wait_for_turn(call, began, outbox)
                if call.reason == "orphaned-intent":
                    return returned
                if call.ended:
                    return outcome(call, first_hand=True)
                return self.execute(call, outbox)
            except BaseException as error:
                flights.withdraw(call, outbox, error)
                raise
            finally:
                flights.announcer.flush(outbox)

    def admit(
        self, call: Call, outbox: Outbox, make_waiter: Callable[[Call, Sequence[Call]], Any]
    ) -> Any:
        """Let the call's strategy decide; see `Flights.admit`. Asks the server, if there is one."""
        remote = self._flights.remote
        if remote is None:
            return self._flights.admit(call, outbox, make_waiter)
        return take(remote.admission(call, outbox, make_waiter, partial(ThreadWaiter, ())))

    def _settle(self, call: Call, step: Step, outbox: Outbox, **end: Any) -> None:
        """Give a flight its outcome; the server first, if it knows the call."""
        remote = self._flights.remote
        if call.lease is None or remote is None:
            self._flights.settle(call, step, outbox, **end)
        else:
            take(remote.endings.settlement(call, step, outbox, **end))

    def execute(self, call: Call, outbox: Outbox) -> Any:
        """Run the body of a running call on this thread, and settle it."""
        flights = self._flights
        if call.settled:
            flights.settle(call, "cancel", outbox)
            raise CallCancelled(call.reason or "abort", call.shown_key)
        work = call.work
        assert work is not None
        token = current.set(call)
        try:
            flights.announcer.announce_running(call, outbox)
            flights.announcer.flush(outbox)
            value = work(call)
        except Exception as error:
            self._settle(call, "fail", outbox, error=error)
            if call.state == "cancelled":
                raise CallCancelled(call.reason or "abort", call.shown_key) from error
            raise
        except asyncio.CancelledError as error:
            self._settle(call, _cancel_step(call), outbox, error=error, reason="abort")
            raise CallCancelled(call.reason or "abort", call.shown_key) from error
        except BaseException as error:
            flights.settle(call, "abandon", outbox, error=error, reason="abandoned")
            raise
        else:
            self._settle(call, "succeed", outbox, value=value)
            if call.state == "cancelled":
                raise CallCancelled(call.reason or "abort", call.shown_key)
            return value
        finally:
            current.reset(token)
            del work

    def result(self, call: Call, timeout: float | None | Unset) -> Any:
        """Block until ``call`` settles; see `Call.result`."""
        flights = self._flights
        if timeout is UNSET:
            timeout = call.site.options.timeout
        began = flights.clock.monotonic()
        outbox: Outbox = []
        inner = current.get()
        waiter = ThreadWaiter(() if inner is None else inner.chain())
        try:
            while not call.done():
                last = call.last_leader()
                self._refuse_unsafe_wait(last)
                waited = flights.clock.monotonic() - began
                if timeout is not None and waited >= timeout:
                    raise WaitTimeout(call.shown_key, waited, flights.describe(last))
                if not flights.join(last, waiter):
                    if not call.done():
                        # The leader was abandoned; whoever takes over is about to be named.
                        waiter.wait(wait_slice(timeout, waited))
                    continue
                try:
                    ahead = self._ahead(last)
                    if ahead is not None:
                        self.start(ahead)
                    else:
                        waiter.wait(wait_slice(timeout, waited))
                        flights.abandon_if_lost(last, outbox)
                finally:
                    flights.leave(waiter, outbox)
        finally:
            flights.announcer.flush(outbox)
        last = call.last_leader()
        return result_outcome(call, last)

    def start(self, call: Call) -> None:
        """Run a queued call of the pool on this thread unless somebody else has claimed it."""
        if not self._flights.run(call):
            return
        call.thread = threading.get_ident()
        outbox: Outbox = []
        try:
            self.execute(call, outbox)
        except BaseException as error:
            # The call keeps it for whoever asks for the result.
            if call.error is None and not isinstance(error, CallCancelled):
                raise
        finally:
            self._flights.announcer.flush(outbox)

    def _ahead(self, call: Call) -> Call | None:
        """Return what a worker of the pool has to run itself before ``call`` can settle."""
        return self._flights.startable(call, self._pool) if self._pool.runs_here() else None

    def _refuse_unsafe_wait(self, call: Call) -> None:
        if asyncio._get_running_loop() is not None:
            raise self._flights.host.synchronous_call_error(
                f"result() of {call.shown_key} would block the running event loop; await the call"
            )
        if call.site.is_async and not self._flights.threads_wait_for_loops:
            raise self._flights.host.synchronous_call_error(
                f"{call.shown_key} is an async flight of this process, and a thread that waits for "
                "it may be the one that it needs; await the call from async code, or set "
                '"SYNC_WAITS_FOR_ASYNC": True where threads are known to be plain'
            )

    def _follow(self, call: Call, began: float, outbox: Outbox) -> Call:
        """Wait for the leader's outcome and return the leader, which may have been abandoned."""
        flights, waiter = self._flights, call.caller
        timeout = call.site.options.timeout
        try:
            while not (leader := call.last_leader()).settled:
                waited = flights.clock.monotonic() - began
                if timeout is not None and waited >= timeout:
                    raise WaitTimeout(call.shown_key, waited, flights.describe(leader))
                ahead = self._ahead(leader)
                if ahead is not None:
                    self.start(ahead)
                    continue
                waiter.wait(wait_slice(timeout, waited))
                flights.abandon_if_lost(leader, outbox)
        finally:
            call.caller = None
            flights.leave(waiter, outbox)
        return leader

    def _wait_for_turn(self, call: Call, began: float, outbox: Outbox) -> None:
        """Block a parked caller until its call may run.

        Raises:
            WaitTimeout: Its timeout passed; it gave up its place.
        """
        flights, waiter = self._flights, call.caller
        timeout = call.site.options.timeout
        try:
            while call.state == "parked":
                waited = flights.clock.monotonic() - began
                if timeout is not None and waited >= timeout:
                    holder = flights.describe_holder(call)
                    if flights.give_up(call, outbox, "wait-timeout"):
                        raise WaitTimeout(call.shown_key, waited, holder)
                    continue
                ahead = self._ahead(call)
                if ahead is not None:
                    self.start(ahead)
                    continue
                waiter.wait(wait_slice(timeout, waited))
                flights.abandon_if_lost(call, outbox)
        finally:
            call.caller = None
            flights.leave(waiter)


def _cancel_step(call: Call) -> Any:
    """A CancelledError that nobody asked for cancels; while writing it can only abandon."""
    return "abandon" if call.state == "writing" else "cancel"
