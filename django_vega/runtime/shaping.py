"""Shapers at work: callers that are held back, and calls that pass or are swallowed.

A debounced caller waits on its own thread or loop. The last one of a burst runs; when it goes away
first, the one before it runs in its place, so that nobody waits for a run that never comes.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from django_vega.core.call import CallSite
from django_vega.core.errors import CallCancelled, WaitTimeout
from django_vega.core.outcome import replica
from django_vega.core.shapers import Debounce, Passes, Throttle, Window
from django_vega.runtime.aio import LoopWaiter
from django_vega.runtime.announcer import Outbox
from django_vega.runtime.flights import Flights
from django_vega.runtime.outcomes import wait_slice
from django_vega.runtime.threads import ThreadWaiter

# Threads and loops have windows of their own: a thread must not wait for a loop.
Slot: TypeAlias = tuple[str, str, bool]


class Held:
    """A caller that a debounce holds back, until it runs or has the outcome of the one that ran."""

    __slots__ = ("began", "error", "has_outcome", "key", "site", "value", "waiter")

    def __init__(
        self, site: CallSite, key: str, waiter: ThreadWaiter | LoopWaiter, began: float
    ) -> None:
        self.site = site
        self.key = key
        self.waiter = waiter
        self.began = began
        self.has_outcome = False
        self.value: Any = None
        self.error: BaseException | None = None

    def outcome(self) -> Any:
        """Return or raise what the run came to, as a caller that did not run gets it."""
        if self.error is not None:
            raise replica(self.error)
        adapt = self.site.for_follower
        return self.value if adapt is None else adapt(self.value)


class Burst(Window):
    """A window with the member that runs; one that has fired takes no more members."""

    __slots__ = ("running",)

    def __init__(self, shaper: Debounce, now: float) -> None:
        super().__init__(shaper, now)
        self.running: Held | None = None


class Shaping:
    """Applies the shapers of a coordinator's calls.

    Args:
        flights: Whose clock, announcer and end count here too.
    """

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._lock = threading.Lock()
        self._bursts: dict[Slot, Burst] = {}
        self._passes = Passes()

    def call(self, site: CallSite, key: str, run: Callable[[], Any]) -> Any:
        """Shape one call of a sync function; ``run`` hands it to the coordinator."""
        outbox: Outbox = []
        announcer = self._flights.announcer
        shaper = site.options.shaper
        try:
            if isinstance(shaper, Throttle):
                return run() if self._passes_now(site, key, shaper, outbox) else _skipped(site, key)
            assert shaper is not None
            waiter = ThreadWaiter(())
            held, burst = self._arrive(site, key, shaper, waiter)
            try:
                while (delay := self._look(held, burst, outbox)) is not None:
                    waiter.wait(delay)
                if held.has_outcome:
                    return held.outcome()
                announcer.flush(outbox)
                value = run()
            except BaseException as error:
                self._leave(held, burst, error)
                raise
            self._conclude(burst, value, None)
            return value
        finally:
            announcer.flush(outbox)

    async def acall(self, site: CallSite, key: str, run: Callable[[], Awaitable[Any]]) -> Any:
        """Shape one call of an async function."""
        outbox: Outbox = []
        announcer = self._flights.announcer
        shaper = site.options.shaper
        try:
            if isinstance(shaper, Throttle):
                passes = self._passes_now(site, key, shaper, outbox)
                return await run() if passes else _skipped(site, key)
            assert shaper is not None
            waiter = LoopWaiter()
            held, burst = self._arrive(site, key, shaper, waiter)
            try:
                while (delay := self._look(held, burst, outbox)) is not None:
                    await waiter.wait(delay)
                if held.has_outcome:
                    return held.outcome()
                await announcer.aflush(outbox)
                value = await run()
            except BaseException as error:
                self._leave(held, burst, error)
                if isinstance(error, GeneratorExit):
                    outbox.clear()  # a closed coroutine must not await
                raise
            self._conclude(burst, value, None)
            return value
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

    def _arrive(
        self, site: CallSite, key: str, shaper: Debounce, waiter: ThreadWaiter | LoopWaiter
    ) -> tuple[Held, Burst]:
        now = self._flights.clock.monotonic()
        held = Held(site, key, waiter, now)
        with self._lock:
            burst = self._bursts.get(_slot(held))
            if burst is None:
                burst = self._bursts[_slot(held)] = Burst(shaper, now)
            burst.arrive(held, shaper, now)
        return held, burst

    def _look(self, held: Held, burst: Burst, outbox: Outbox) -> float | None:
        """Return for how long to wait before looking again; None to run, or to take the outcome.

        Raises:
            WaitTimeout: The caller's timeout passed first.
            CallCancelled: The coordinator was closed.
        """
        swallowed: list[Held] = []
        with self._lock:
            if held.has_outcome:
                return None
            if self._flights.closed:
                raise CallCancelled("shutdown", held.site.display(held.key))
            self._forget_gone(burst)
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
            raise WaitTimeout(held.site.display(held.key), waited, "held back by debounce")
        return wait_slice(timeout, waited)

    def _fire(self, held: Held, burst: Burst) -> list[Held]:
        """Let ``held`` run; returns whom that swallows, the first time."""
        burst.members.remove(held)
        burst.running = held
        if self._bursts.get(_slot(held)) is not burst:
            return []  # it takes the place of one that has gone
        del self._bursts[_slot(held)]
        return list(burst.members)

    def _forget_gone(self, burst: Burst) -> None:
        """Pass over members whose loop is closed: they will not run."""
        if burst.running is not None and _is_gone(burst.running):
            burst.running = None
        while burst.members and _is_gone(burst.members[-1]):
            burst.members.pop()

    def _leave(self, held: Held, burst: Burst, error: BaseException) -> None:
        """Note that a caller is gone, or that its run has failed for all."""
        if burst.running is held and isinstance(error, Exception):
            self._conclude(burst, None, error)
            return
        with self._lock:
            if burst.running is held:
                burst.running = None
            elif held in burst.members:
                burst.members.remove(held)
            if not burst.members and self._bursts.get(_slot(held)) is burst:
                del self._bursts[_slot(held)]
            heir = burst.runner
        if heir is not None:
            heir.waiter.wake()

    def _conclude(self, burst: Burst, value: Any, error: BaseException | None) -> None:
        """Give everybody who was swallowed the outcome of the run."""
        with self._lock:
            members = tuple(burst.members)
            for held in members:
                held.value, held.error = value, error
                held.has_outcome = True
        for held in members:
            held.waiter.wake()


def _slot(held: Held) -> Slot:
    return held.site.scope, held.key, held.site.is_async


def _is_gone(held: Held) -> bool:
    return isinstance(held.waiter, LoopWaiter) and held.waiter.loop.is_closed()


def _skipped(site: CallSite, key: str) -> Any:
    if site.answer is None:
        raise CallCancelled("throttled", site.display(key))
    return site.answer(key, "skipped")
