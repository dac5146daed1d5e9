"""Shapers at work: callers that are held back, and calls that pass or are swallowed.

A debounced caller waits on its own thread or loop. The last one of a burst runs; when it goes away
first, the one before it runs in its place, so that nobody waits for a run that never comes.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from django_vega.core.call import Call, CallSite, Options, current_call
from django_vega.core.errors import CallCancelled, WaitTimeout
from django_vega.core.shapers import Debounce, Passes, Throttle, Window
from django_vega.runtime.aio import LoopWaiter
from django_vega.runtime.announcer import Outbox
from django_vega.runtime.flights import Flights, OnCall
from django_vega.runtime.outcomes import follower_outcome, wait_slice
from django_vega.runtime.threads import ThreadWaiter

# Calls that come to the same: of one function, scope and key, under the same options but for how
# long they wait. Threads and loops have windows of their own: a thread must not wait for a loop.
Slot: TypeAlias = tuple[str, str, bool, Options]


class Held:
    """A caller that a debounce holds back, until it runs or has the outcome of the one that ran."""

    __slots__ = ("began", "burst", "is_gone", "key", "site", "waiter")

    def __init__(
        self, site: CallSite, key: str, waiter: ThreadWaiter | LoopWaiter, began: float
    ) -> None:
        self.site = site
        self.key = key
        self.waiter = waiter
        self.began = began
        self.burst: Burst | None = None
        self.is_gone = False

    @property
    def slot(self) -> Slot:
        """Whom it shares a run with."""
        options = replace(self.site.options, timeout=None)
        return self.site.scope, self.key, self.site.is_async, options

    def may_run(self) -> bool:
        """Whether there is still somebody, on a loop that is open."""
        waiter = self.waiter
        return not (self.is_gone or (isinstance(waiter, LoopWaiter) and waiter.loop.is_closed()))


class Burst(Window):
    """A window with the member that runs, and its call; one that has fired takes no more members.

    The members are told with the flight of that call, and count as waiting for it.
    """

    __slots__ = ("call", "running")

    def __init__(self, shaper: Debounce, now: float) -> None:
        super().__init__(shaper, now)
        self.running: Held | None = None
        self.call: Call | None = None

    def outcome(self) -> Call | None:
        """Return the call that has the outcome of all; None while there is none.

        What is the runner's own matter is none: that it left, waited too long, or was refused as
        the thread that it is.
        """
        if self.call is None:
            return None
        last = self.call.last_leader()
        is_refused = last.state == "error" and last.started_at is None
        return last if last.settled and not (last.was_left or is_refused) else None


class Shaping:
    """Applies the shapers of a coordinator's calls.

    Args:
        flights: Whose clock, announcer and end count here too.
    """

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        # Reentrant: a signal handler may close the coordinator on the thread that holds it.
        self._lock = threading.RLock()
        self._bursts: dict[Slot, Burst] = {}
        self._passes = Passes()

    def call(self, site: CallSite, key: str, run: Callable[[OnCall | None], Any]) -> Any:
        """Shape one call of a sync function.

        Args:
            site: Whose call it is.
            key: Its key.
            run: Hands it to the coordinator, which tells of the call that it makes of it.
        """
        outbox: Outbox = []
        announcer = self._flights.announcer
        shaper = site.options.shaper
        try:
            if isinstance(shaper, Throttle):
                passes = self._passes_now(site, key, shaper, outbox)
                return run(None) if passes else _skipped(site, key)
            if current_call() is not None:
                return run(None)  # what a flight waits for must not wait for that flight
            assert shaper is not None
            waiter = ThreadWaiter(())
            held = Held(site, key, waiter, self._flights.clock.monotonic())
            try:
                burst = self._arrive(held, shaper)
                while (delay := self._look(held, burst, outbox)) is not None:
                    waiter.wait(delay)
                if burst.running is not held:
                    return _outcome(held, burst)
                announcer.flush(outbox)
                return run(partial(self._board, burst))
            finally:
                self._leave(held, outbox)
        finally:
            announcer.flush(outbox)

    async def acall(
        self, site: CallSite, key: str, run: Callable[[OnCall | None], Awaitable[Any]]
    ) -> Any:
        """Shape one call of an async function; see `call`."""
        outbox: Outbox = []
        announcer = self._flights.announcer
        shaper = site.options.shaper
        try:
            if isinstance(shaper, Throttle):
                passes = self._passes_now(site, key, shaper, outbox)
                return await run(None) if passes else _skipped(site, key)
            if current_call() is not None:
                return await run(None)
            assert shaper is not None
            waiter = LoopWaiter()
            held = Held(site, key, waiter, self._flights.clock.monotonic())
            try:
                burst = self._arrive(held, shaper)
                while (delay := self._look(held, burst, outbox)) is not None:
                    await waiter.wait(delay)
                if burst.running is not held:
                    return _outcome(held, burst)
                await announcer.aflush(outbox)
                return await run(partial(self._board, burst))
            except GeneratorExit:
                # Closed, maybe by the garbage collector, at any moment and inside of any lock: it
                # takes no step. The others see it when they look again.
                held.is_gone = True
                outbox.clear()
                raise
            finally:
                if not held.is_gone:
                    self._leave(held, outbox)
        finally:
            if outbox:
                await announcer.aflush(outbox)

    def wake_all(self) -> None:
        """Let everybody who is held back look again."""
        with self._lock:
            held = [one for burst in self._bursts.values() for one in burst.members]
        for one in held:
            one.waiter.wake()

    # Throttle

    def _passes_now(self, site: CallSite, key: str, shaper: Throttle, outbox: Outbox) -> bool:
        with self._lock:
            passes = self._passes.take((site.scope, key), shaper, self._flights.clock.monotonic())
        if not passes:
            self._flights.announcer.announce_swallowed(outbox, site, key, "throttle")
        return passes

    # Debounce

    def _arrive(self, held: Held, shaper: Debounce) -> Burst:
        with self._lock:
            self._forget_dead()
            burst = self._bursts.get(held.slot)
            if burst is None or not any(member.may_run() for member in burst.members):
                burst = self._bursts[held.slot] = Burst(shaper, held.began)
            held.burst = burst
            burst.arrive(held, shaper, held.began)
        return burst

    def _look(self, held: Held, burst: Burst, outbox: Outbox) -> float | None:
        """Return for how long to wait before looking again; None to run, or to take the outcome.

        Raises:
            WaitTimeout: The caller's timeout passed first.
            CallCancelled: The coordinator was closed.
        """
        swallowed: list[Held] = []
        with self._lock:
            if burst.outcome() is not None:
                return None
            if self._flights.closed:
                raise CallCancelled("shutdown", held.site.display(held.key))
            if burst.running is not None and not burst.running.may_run():
                burst.running = None
            while not burst.members[-1].may_run():
                burst.members.pop()
            now = self._flights.clock.monotonic()
            is_next = burst.running is None and burst.runner is held
            if is_next and now >= burst.fires_at:
                swallowed = self._fire(held, burst)
        if burst.running is held:
            for one in swallowed:
                self._flights.announcer.announce_swallowed(outbox, one.site, one.key, "debounce")
            return None
        waited, timeout = now - held.began, held.site.options.timeout
        if is_next:
            return wait_slice(burst.fires_at - now, 0.0)
        if timeout is not None and waited >= timeout:
            call = burst.call
            holder = self._flights.describe(call.last_leader()) if call else "held back by debounce"
            raise WaitTimeout(held.site.display(held.key), waited, holder)
        return wait_slice(timeout, waited)

    def _fire(self, held: Held, burst: Burst) -> list[Held]:
        """Let ``held`` run; returns whom that swallows, the first time."""
        burst.members.remove(held)
        burst.running = held
        if self._bursts.get(held.slot) is not burst:
            return []  # it takes the place of one that has gone
        del self._bursts[held.slot]
        return list(burst.members)

    def _board(self, burst: Burst, call: Call) -> None:
        """Let the members of a burst wait for a call that was made and nobody else knows of."""
        with self._lock:
            burst.call = call
            call.waiters = dict.fromkeys(held.waiter for held in burst.members) or None
            for held in burst.members:
                held.waiter.target = call

    def _leave(self, held: Held, outbox: Outbox) -> None:
        """Take a caller away that has, or needs, no outcome any more, and nobody else."""
        burst = held.burst
        if burst is None:
            return
        with self._lock:
            if burst.running is held:
                burst.running = None
            elif held in burst.members:
                burst.members.remove(held)
            if not burst.members and self._bursts.get(held.slot) is burst:
                del self._bursts[held.slot]
            others = tuple(burst.members)
        for other in others:
            other.waiter.wake()
        self._flights.leave(held.waiter, outbox)

    def _forget_dead(self) -> None:
        """Forget the oldest bursts while their loops are closed under all their members."""
        while self._bursts:
            slot, burst = next(iter(self._bursts.items()))
            if any(held.may_run() for held in burst.members):
                return
            del self._bursts[slot]


def _outcome(held: Held, burst: Burst) -> Any:
    call = burst.outcome()
    assert call is not None
    return follower_outcome(held.site, held.key, call)


def _skipped(site: CallSite, key: str) -> Any:
    if site.answer is None:
        raise CallCancelled("throttled", site.display(key))
    return site.answer(key, "skipped")
