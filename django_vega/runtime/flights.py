"""The table behind its one lock, and the effects of its steps: who is woken, what is announced.

The lock is held for single steps of the table and never while anything runs, waits or is told.
"""

from __future__ import annotations

import itertools
import logging
import os
import platform
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from django_vega.backends.base import Backend, BackendUnavailableError
from django_vega.core.admission import CoordinationContext, CoordinatorFunction
from django_vega.core.call import (
    Call,
    CallRuntime,
    CallSite,
    FlightRecord,
    Step,
    current,
)
from django_vega.core.clock import Clock
from django_vega.core.entry import Effects, UnsafeWait
from django_vega.core.errors import (
    Busy,
    CallCancelled,
    CoordinationProtocolError,
    OrphanedIntentError,
    QueueFull,
)
from django_vega.core.events import CallCreated, CallQueued, CoordinationOrphanedIntent
from django_vega.core.table import Table
from django_vega.runtime.announcer import Announcer, Host, Outbox
from django_vega.runtime.bodies import is_lost, stop_body

if TYPE_CHECKING:
    from django_vega.runtime.remote import Remote

logger = logging.getLogger("django_vega")

# What keeps a call from running keeps all who gathered behind it.
_FOR_ALL = (BackendUnavailableError, QueueFull)

# A coordinator whose key changes this often while it decides changes the key itself.
_MOST_QUESTIONS = 10_000


# Told of each call that is made for one caller, while nobody else knows of it.
OnCall: TypeAlias = Callable[[Call], None]


class Waiter(Protocol):
    """Somebody who wants to look again when something changed; a wake is only a hint."""

    chain: Sequence[Call]
    # The call that it waits for now; written under the lock of the flights.
    target: Call | None

    def wake(self) -> bool:
        """Wake the waiter; False when its thread or loop is gone for good."""


class Flights:
    """Every flight of one coordinator, shared by threads, event loops and the pool.

    Args:
        backend: Issues generations.
        host: The framework around.
        clock: The time.
        threads_wait_for_loops: Whether a blocked thread may wait for an async flight.
        raise_orphans: Whether an undecided call raises instead of returning what its coordinator
            returned.
    """

    def __init__(
        self,
        backend: Backend,
        host: Host,
        clock: Clock,
        *,
        threads_wait_for_loops: bool = False,
        raise_orphans: bool = False,
    ) -> None:
        self.backend = backend
        self.host = host
        self.clock = clock
        self.threads_wait_for_loops = threads_wait_for_loops
        self._raise_orphans = raise_orphans
        #: Who else has a say in it, where the backend is shared.
        self.remote: Remote | None = None
        self.reset()

    def reset(self) -> None:
        """Start with an empty table; in a forked child the parent's flights are not ours."""
        # Reentrant: a signal handler, or a KEY_DISPLAY, may ask on the thread that holds it.
        self.lock = threading.RLock()
        self.closed = False
        self.process = f"{platform.node()}:{os.getpid()}"
        self.announcer = Announcer(self.host, self.clock, self.process)
        self._ids = itertools.count(1)
        self.table = Table(
            self.backend.next_generation,
            self.clock.monotonic,
            threads_wait_for_loops=self.threads_wait_for_loops,
        )

    def new_call(
        self,
        site: CallSite,
        key: str,
        work: Callable[[Call], Any] | None,
        runtime: CallRuntime,
        *,
        predecessor: Call | None = None,
        thread: int | None = None,
        pool: Any = None,
        on_call: OnCall | None = None,
        asked_at: float | None = None,
    ) -> Call:
        """Return an idle call; one that is submitted to a pool is nobody's inner call.

        Args:
            asked_at: When its caller asked, if that was not now.
        """
        call = Call(
            next(self._ids),
            site,
            key,
            work,
            runtime,
            created_at=self.clock.monotonic() if asked_at is None else asked_at,
            parent=current.get() if pool is None else None,
            predecessor=predecessor,
            thread=thread,
            pool=pool,
        )
        if on_call is not None:
            on_call(call)
        return call

    # Admission

    def admit(
        self, call: Call, outbox: Outbox, make_waiter: Callable[[Call, Sequence[Call]], Any]
    ) -> Any:
        """Let the call's strategy decide; afterwards the call's state says what to do.

        Args:
            call: An idle call.
            outbox: Takes the events for the host.
            make_waiter: Makes the waiter of a call that follows or is parked.

        Returns:
            What a coordinator returned that decided nothing, else None.

        Raises:
            CallCancelled: The coordinator is closed.
            Exception: What the table or the coordinator raised; the call has ended.
        """
        chain = call.parent.chain() if call.parent is not None else ()
        self.announcer.announce(outbox, CallCreated, call)
        try:
            if self.follow_heir(call, chain, outbox, make_waiter):
                return None
            return self.decide(call, chain, outbox, make_waiter)
        except BaseException as error:
            self.fail_admission(call, error, outbox)
            raise

    def decide(
        self,
        call: Call,
        chain: Sequence[Call],
        outbox: Outbox,
        make_waiter: Callable[[Call, Sequence[Call]], Any],
    ) -> Any:
        """Let the strategy of an announced call decide by what is in flight in this process."""
        if isinstance(call.site.options.strategy, CoordinatorFunction):
            return self._ask(call, call.site.options.strategy, chain, outbox, make_waiter)
        self.abandon_lost(call.slot, outbox)
        with self.lock:
            self.refuse_closed(call)
            effects = self.table.admit(call, chain)
            self.hook(call, chain, make_waiter)
            self._answer_if_busy(call)
        self.announcer.announce_move(call, effects, outbox)
        self.perform(effects, outbox)
        return None

    def fail_admission(self, call: Call, error: BaseException, outbox: Outbox) -> None:
        """End a call that was not admitted; whoever gathered behind it goes on alone.

        Raises:
            SynchronousCallError: The error says that the thread must not wait.
        """
        waiters, call.waiters = call.waiters, None
        if waiters and call.state == "idle" and not isinstance(error, _FOR_ALL):
            self.table.refuse(call, "drop", reason="abandoned", error=error)
            self.announcer.announce_settled(call, outbox)
        self._refuse(call, error, outbox)
        for waiter in waiters or ():
            waiter.wake()
        if isinstance(error, UnsafeWait):
            raise self.host.synchronous_call_error(
                f"{call.shown_key} is held by a flight that this thread must not wait for: an "
                "async one of this process, which may need the thread, or one that runs below "
                "on it. Call the function from async code, or set "
                '"SYNC_WAITS_FOR_ASYNC": True where threads are known to be plain'
            ) from None

    def follow_heir(
        self,
        call: Call,
        chain: Sequence[Call],
        outbox: Outbox,
        make_waiter: Callable[[Call, Sequence[Call]], Any],
    ) -> bool:
        """Let a follower of an abandoned call follow whoever took over; False: it is on its own."""
        if call.predecessor is None:
            return False
        with self.lock:
            follows = self.table.follow_heir(call, chain)
            if follows:
                self.hook(call, chain, make_waiter)
        if follows:
            self.announcer.announce_move(call, Effects(), outbox)
        return follows

    def _ask(
        self,
        call: Call,
        coordinator: CoordinatorFunction,
        chain: Sequence[Call],
        outbox: Outbox,
        make_waiter: Callable[[Call, Sequence[Call]], Any],
    ) -> Any:
        self.abandon_lost(call.slot, outbox)
        for _ in range(_MOST_QUESTIONS):
            with self.lock:
                self.refuse_closed(call)
                version, peers = self.table.peers(call.slot)
                records = [self.record(peer) for peer in peers]
                intent = self.record(call)
            context = CoordinationContext(intent, records, call.site.options)
            returned = coordinator(context)
            decision = context.decision()
            if decision.choice is None:
                return self.orphan(call, coordinator, returned, outbox)
            with self.lock:
                self.refuse_closed(call)
                effects = self.table.apply(call, decision, version, chain)
                if effects is not None:
                    self.hook(call, chain, make_waiter)
                    self._answer_if_busy(call)
            if effects is not None:
                self.announcer.announce_move(call, effects, outbox)
                for event in decision.events:
                    self.announcer.announce_draft(outbox, call, event)
                self.perform(effects, outbox)
                return None
        raise CoordinationProtocolError(
            f"coordinator {coordinator.name!r} was asked {_MOST_QUESTIONS} times for "
            f"{call.shown_key} and the key changed each time: it must be pure and quick"
        )

    def orphan(
        self, call: Call, coordinator: CoordinatorFunction, returned: Any, outbox: Outbox
    ) -> Any:
        """End a call that its coordinator did not decide on; returns what that returned."""
        logger.error(
            "coordinator %r decided nothing for %s; the call did not run",
            coordinator.name,
            call.shown_key,
        )
        if self._raise_orphans:
            raise OrphanedIntentError(call.shown_key, coordinator.name)
        call.value = returned
        self._end_orphan(call, outbox)
        return returned

    def _end_orphan(self, call: Call, outbox: Outbox, error: BaseException | None = None) -> None:
        self.announcer.announce(outbox, CoordinationOrphanedIntent, call)
        self.table.refuse(call, "drop", reason="orphaned-intent", error=error)
        self.announcer.announce_settled(call, outbox)

    def hook(
        self, call: Call, chain: Sequence[Call], make_waiter: Callable[[Call, Sequence[Call]], Any]
    ) -> None:
        """Make the waiter that the decision asks for, in the step that took it."""
        self.table.name_heir(call)
        if call.leader is not None:
            waiter = call.caller = make_waiter(call, chain)
            for one in (waiter, *(call.waiters or ())):
                self._wait_for(call.leader, one)
            call.waiters = None
        elif call.state == "parked":
            waiter = call.caller = make_waiter(call, chain)
            if waiter is not None and waiter.chain:
                self.table.waits.begin(waiter.chain, call)
                waiter.target = call

    def _wait_for(self, target: Call, waiter: Waiter) -> None:
        """Let a waiter be told when ``target`` settles, and no more of what it waited for."""
        if waiter.chain:
            if waiter.target is not None:
                self.table.waits.end(waiter.chain, waiter.target)
            self.table.waits.begin(waiter.chain, target)
        self.table.attach(target, waiter)
        waiter.target = target

    def _answer_if_busy(self, call: Call) -> None:
        if call.reason == "busy":
            holder = next(self.table.calls(call.slot))
            age = self.clock.monotonic() - (holder.started_at or holder.created_at)
            self.answer_busy(call, holder.process or self.process, age)

    def answer_busy(self, call: Call, owner: str, age: float) -> None:
        """Give a call that was turned away its answer, or say who is in its way, since when."""
        answer, while_busy = call.site.answer, call.site.options.while_busy
        if answer is not None and while_busy != "raise":
            call.value = answer(call.key, "skipped" if while_busy == "skip" else "stale")
        else:
            call.error = Busy(call.shown_key, owner, age, max(1.0, age))

    def refuse_closed(self, call: Call) -> None:
        """Raise `CallCancelled` where the coordinator is closed."""
        if self.closed:
            raise CallCancelled("shutdown", call.shown_key)

    def _refuse(self, call: Call, error: BaseException, outbox: Outbox) -> None:
        if call.state != "idle":
            return
        if isinstance(error, OrphanedIntentError):
            self._end_orphan(call, outbox, error)
            return
        if isinstance(error, QueueFull):
            self.table.refuse(call, "drop", reason="queue-full", error=error)
        elif isinstance(error, CallCancelled) and self.closed:
            self.table.refuse(call, "drop", reason=error.reason, error=error)
        else:
            self.table.refuse(call, "fail", error=error)
        self.announcer.announce_settled(call, outbox)

    def abandon_lost(self, slot: tuple[str, str], outbox: Outbox) -> None:
        """Settle the flights of a key whose event loops are closed."""
        with self.lock:
            lost = [call for call in self.table.calls(slot) if is_lost(call)]
        for call in lost:
            self.settle(call, "abandon", outbox, reason="abandoned")

    # The life of a flight

    def run(self, call: Call) -> bool:
        """Claim a queued call; False when somebody else did, or it was cancelled."""
        with self.lock:
            return self.table.run(call)

    def close_unless_needed(self, call: Call) -> bool:
        """Let nobody join a running call any more; False when one that joined needs it to run."""
        with self.lock:
            return self.table.close_unless_needed(call)

    def begin_writing(self, call: Call) -> None:
        """Go over to ``writing``, from where nothing cancels the call any more.

        Raises:
            CallCancelled: It was cancelled before.
        """
        with self.lock:
            if not self.table.begin_writing(call):
                raise CallCancelled(call.reason or "abort", call.shown_key)

    def settle(
        self,
        call: Call,
        step: Step,
        outbox: Outbox,
        *,
        value: Any = None,
        error: BaseException | None = None,
        reason: str | None = None,
    ) -> None:
        """Note that the body ended, and give the call its outcome unless it has one."""
        if call.lease is not None and self.remote is not None:
            self.remote.endings.give_up(call)
        with self.lock:
            effects = self.table.settle(call, step, value=value, error=error, reason=reason)
        self.give_back(call)
        self.perform(effects, outbox)

    def cancel(self, call: Call, outbox: Outbox, reason: str = "abort") -> bool:
        """Cancel one call; False when it is settled or writing."""
        with self.lock:
            effects = self.table.cancel(call, reason)
        if effects is None:
            return False
        self.perform(effects, outbox)
        return True

    def give_up(self, call: Call, outbox: Outbox, reason: str) -> bool:
        """Cancel a parked call for its own caller; False when it is parked no more.

        Not `cancel`: a call that was released a moment ago would be cancelled as one whose body
        runs, and nobody would ever run it, nor end it.
        """
        with self.lock:
            effects = self.table.cancel(call, reason) if call.state == "parked" else None
        if effects is None:
            return False
        self.perform(effects, outbox)
        return True

    def withdraw(self, call: Call, outbox: Outbox, error: BaseException) -> None:
        """Leave nothing of a call whose caller was interrupted before it ran or waited."""
        waiter, call.caller = call.caller, None
        if waiter is not None:
            self.leave(waiter)
        self._refuse(call, error, outbox)
        if not (call.ended or self.give_up(call, outbox, "caller-gone")):
            self.settle(call, "abandon", outbox, error=error, reason="abandoned")

    def cancel_all(
        self,
        outbox: Outbox,
        *,
        flights: str,
        parked: str,
        where: Callable[[tuple[str, str]], bool] | None = None,
        close: bool = False,
    ) -> int:
        """Cancel every call of the chosen keys and return how many that were."""
        with self.lock:
            self.closed = self.closed or close
            effects = self.table.cancel_all(flights=flights, parked=parked, where=where)
        self.perform(effects, outbox)
        return len(effects.settled)

    def leave(self, waiter: Waiter, outbox: Outbox | None = None) -> None:
        """Take a waiter away from what it waits for.

        Args:
            waiter: Waits no more.
            outbox: Given where a flight that nobody waits for any more may be cancelled.
        """
        target = waiter.target
        if target is None:
            return
        # Where nothing is left to take away no lock is needed: a garbage collector may be calling.
        if waiter.chain or not target.settled:
            with self.lock:
                target = waiter.target
                assert target is not None
                self.table.leave(target, waiter)
                if waiter.chain:
                    self.table.waits.end(waiter.chain, target)
                waiter.target = None
        if outbox is not None:
            self.cancel_unwanted(target, outbox)

    def cancel_unwanted(self, call: Call, outbox: Outbox) -> None:
        """Cancel a flight that its own caller and all followers have left, where that is asked."""
        if call.site.options.on_last_leave != "cancel" or not call.caller_gone:
            return
        with self.lock:
            effects = None if call.waiters else self.table.cancel(call, "caller-gone")
        if effects is not None:
            self.perform(effects, outbox)

    def join(self, target: Call, waiter: Waiter) -> bool:
        """Let a waiter be told when ``target`` settles; False when it has.

        Raises:
            ReentrantCallError, DeadlockError: The wait would never end.
        """
        with self.lock:
            if target.settled:
                return False
            if waiter.chain:
                self.table.waits.check(waiter.chain, target)
            self._wait_for(target, waiter)
            return True

    def startable(self, call: Call, pool: Any) -> Call | None:
        """Return a queued call of the pool that has to run before ``call`` can settle."""
        with self.lock:
            ahead = [call] if call.state == "queued" else list(self.table.calls(call.slot))
            return next((c for c in ahead if c.state == "queued" and c.pool is pool), None)

    def abandon_if_lost(self, call: Call, outbox: Outbox) -> None:
        """Settle a flight whose event loop is closed, or those that a parked call waits for."""
        if call.state == "parked":
            self.abandon_lost(call.slot, outbox)
        elif is_lost(call):
            self.settle(call, "abandon", outbox, reason="abandoned")

    # Effects

    def perform(self, effects: Effects, outbox: Outbox) -> None:
        """Stop bodies, wake waiters and callers, announce what was settled."""
        for call, waiters in effects.settled:
            if not call.ended:
                stop_body(call)
            else:
                self.give_back(call)
            if call.state == "cancelled" and call.caller is not None:
                call.caller.wake()
            if call.lease is not None and self.remote is not None:
                self.remote.endings.note_cancelled(call)
            for waiter in waiters:
                waiter.wake()
        try:
            for call, _ in effects.settled:
                if call.process is None:
                    self.announcer.announce_settled(call, outbox)
        finally:
            self._let_go(effects.released, outbox)

    def _let_go(self, released: Sequence[Call], outbox: Outbox) -> None:
        """Let parked calls run, whatever becomes of those who are told."""
        if not released:
            return
        call = released[0]
        try:
            if call.pool is not None:
                self.announcer.announce(outbox, CallQueued, call)
        finally:
            if call.pool is not None:
                self.enqueue(call, outbox)
            elif call.caller is not None and not call.caller.wake():
                self.settle(call, "abandon", outbox, reason="abandoned")
            self._let_go(released[1:], outbox)

    def enqueue(self, call: Call, outbox: Outbox) -> None:
        """Let a worker of its pool have a call; it is abandoned when the pool's loop is gone."""
        try:
            call.pool.enqueue(call)
        except (RuntimeError, ReferenceError):
            self.settle(call, "abandon", outbox, reason="abandoned")

    def give_back(self, call: Call) -> None:
        """Give back the place in a pool that a call holds, once, whoever comes first."""
        if call.permit is None:
            return
        with self.lock:
            permit, call.permit = call.permit, None
        if permit is not None:
            permit()

    def record(self, call: Call) -> FlightRecord:
        """Return a frozen picture of a call."""
        return self.table.record(call, self.process)

    def records(self, slot: tuple[str, str] | None = None) -> tuple[FlightRecord, ...]:
        """Return a frozen picture of every call that is in flight, parked or stopping."""
        with self.lock:
            calls = sorted(self.table.calls(slot), key=lambda call: call.id)
            return tuple(self.record(call) for call in calls)

    def slots(self, where: Callable[[tuple[str, str]], bool]) -> dict[tuple[str, str], int]:
        """Return the chosen keys, and how many of their flights run in other processes."""
        with self.lock:
            found: dict[tuple[str, str], int] = {}
            for call in self.table.calls():
                if where(call.slot):
                    found[call.slot] = found.get(call.slot, 0) + (call.process is not None)
            return found

    def describe(self, call: Call) -> str:
        """Say who holds up a caller, for messages."""
        age = self.clock.monotonic() - (call.started_at or call.created_at)
        return f"call {call.id} on {call.process or self.process}, {call.state} for {age:.1f} s"

    def describe_holder(self, call: Call) -> str:
        """Say who a parked call waits for, for messages."""
        with self.lock:
            ahead = [other for other in self.table.calls(call.slot) if other is not call]
        return self.describe(ahead[0] if ahead else call)
