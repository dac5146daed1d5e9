"""Admission over processes: what the server decides becomes one step of the table.

Note [Strict join]
    Nobody gets an outcome that was there before he asked. A flight of this process can be joined
    while it has not closed, which it does before its outcome leaves for the server. A stand-in can
    only be joined by the answer to a request that was sent after its caller came. Callers that come
    while such a request is under way gather behind one of them, whose request is the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_vega.backends.base import BackendUnavailableError
from django_vega.backends.local import see_generation
from django_vega.backends.protocol import (
    Admission,
    Cancelled,
    Dropped,
    Ended,
    Follow,
    Full,
    Holder,
    Leader,
    Queued,
    Stale,
)
from django_vega.core.call import Call
from django_vega.core.entry import Effects, UnsafeWait
from django_vega.core.errors import CallCancelled, QueueFull
from django_vega.core.events import CallCreated
from django_vega.core.strategies import NONE, Strategy
from django_vega.runtime.announcer import Outbox
from django_vega.runtime.link import Link
from django_vega.runtime.lookout import Lookout
from django_vega.runtime.steps import Steps, Turn


@dataclass(frozen=True, slots=True)
class Applicant:
    """A call that asks to be admitted.

    Attributes:
        call: Idle.
        chain: The flights that its caller's own code runs inside of.
        outbox: Takes the events for the host.
        make_waiter: Makes the waiter of a call that follows or is parked.
        make_turn: Makes the waiter of a call that waits for its turn to ask.
    """

    call: Call
    chain: Sequence[Call]
    outbox: Outbox
    make_waiter: Callable[[Call, Sequence[Call]], Any]
    make_turn: Callable[[], Any]


class Lane:
    """Callers of one kind and key that have to ask: one does, and one gathers those who come."""

    __slots__ = ("asks", "gathers", "turn")

    def __init__(self, asks: Call) -> None:
        self.asks = asks
        self.gathers: Call | None = None
        #: Waiter of the one who gathers.
        self.turn: Any = None


class Admissions:
    """Lets strategies decide over all processes.

    Args:
        link: To the server.
        lookout: Keeps the stand-ins.
    """

    def __init__(self, link: Link, lookout: Lookout) -> None:
        self._link = link
        self._lookout = lookout
        self.flights = link.flights
        self.reset()

    def reset(self) -> None:
        """Forget who asks, as a forked child has to."""
        # Calls whose request is under way; with a waiter where they wait for another one of these.
        self._asking: dict[tuple[str, str], dict[Call, Any]] = {}
        self._lanes: dict[tuple[tuple[str, str], bool, bool], Lane] = {}

    def admit(self, applicant: Applicant, ask: Callable[[Applicant], Steps[Any]]) -> Steps[Any]:
        """Let a call in, follow, wait or go; see `Flights.admit`.

        Args:
            applicant: The call.
            ask: What asks the server.
        """
        flights, call, outbox = self.flights, applicant.call, applicant.outbox
        flights.announcer.announce(outbox, CallCreated, call)
        try:
            flights.abandon_lost(call.slot, outbox)
            if flights.follow_heir(call, applicant.chain, outbox, applicant.make_waiter):
                return None
            if not self._link.is_down:
                try:
                    return (yield from ask(applicant))
                except BackendUnavailableError as error:
                    self._link.lose_touch(error)
                finally:
                    self._leave_lane(call)
            return self._do_without(applicant)
        except BaseException as error:
            self._withdraw(call)
            flights.fail_admission(call, error, outbox)
            raise

    def ask(self, applicant: Applicant) -> Steps[Any]:
        """Ask the server what a call under a `Strategy` does."""
        call = applicant.call
        strategy = call.site.options.strategy
        assert isinstance(strategy, Strategy)
        if strategy.when_full == "reuse" and strategy.limit is not None and call.site.options.waits:
            if (yield from self._gather(applicant)):
                return None
        elif strategy.when_full == "cancel":
            self._refuse_own(call, strategy.limit, applicant.chain)
        try:
            request = partial(self._link.admit, call, strategy)
            effects = yield from self.request(applicant, request)
        except UnsafeWait:
            if strategy.when_full != "reuse":
                raise
            # Only a flight of this process that may need this thread: lead another one.
            self._withdraw(call)
            request = partial(self._link.admit, call, NONE, is_solo=True)
            effects = yield from self.request(applicant, request)
            assert effects is not None
            effects.move = "solo"
        assert effects is not None
        self.tell(applicant, effects)
        return None

    def request(
        self,
        applicant: Applicant,
        request: Callable[[], Admission | Stale],
        reason: str = "exhaust-dropped",
    ) -> Steps[Effects | None]:
        """Ask the server and do what it says, once it is known here what it speaks of.

        Returns:
            None where the key has changed, so that nothing was done.
        """
        call = applicant.call
        with self.flights.lock:
            asking = self._asking.setdefault(call.slot, {})
            asking[call] = None
        try:
            reply = yield request
            if isinstance(reply, Stale):
                return None
            while True:
                with self.flights.lock:
                    if not self._is_early(call, reply):
                        return self.apply(applicant, reply, reason)
                    turn = asking[call] = applicant.make_turn()
                yield Turn(turn)
        finally:
            with self.flights.lock:
                del asking[call]
                turns = [turn for turn in asking.values() if turn is not None]
                if not asking:
                    self._asking.pop(call.slot, None)
            for turn in turns:
                turn.wake()

    def _is_early(self, call: Call, reply: Admission) -> bool:
        """Whether the server names a flight of this process that has yet to hear that it is one."""
        if not isinstance(reply, Follow) or reply.holder.process != self._link.process:
            return False
        is_known = self.flights.table.found(call.slot, reply.generation, here=True) is not None
        others = (turn for one, turn in self._asking[call.slot].items() if one is not call)
        return not is_known and any(turn is None for turn in others)

    def _gather(self, applicant: Applicant) -> Steps[bool]:
        """Share a flight of this process or a request that is not sent yet; False: ask, now."""
        call, chain = applicant.call, applicant.chain
        slot = (call.slot, call.site.options.next, call.site.is_async)
        strategy = call.site.options.strategy
        # With more places everybody may get one. What code inside a flight waits for has to be
        # known at once, or a circle would be found too late.
        asks_alone = bool(chain) or getattr(strategy, "limit", 1) != 1
        while True:
            if self._link.is_down:
                raise BackendUnavailableError("the server has gone meanwhile")
            with self.flights.lock:
                self.flights.refuse_closed(call)
                effects = self.flights.table.join_here(call, chain)
                lane = self._lanes.get(slot)
                if effects is not None:
                    self.flights.hook(call, chain, applicant.make_waiter)
                elif asks_alone:
                    return False
                elif lane is None:
                    self._lanes[slot] = Lane(call)
                    return False
                elif lane.asks is call:
                    return False
                elif lane.gathers is None:
                    lane.gathers, lane.turn = call, applicant.make_turn()
                elif lane.gathers is not call:
                    effects = self.flights.table.share(call, lane.gathers, chain)
                    self.flights.hook(call, chain, applicant.make_waiter)
                turn = None if lane is None else lane.turn
            if effects is not None:
                self.tell(applicant, effects)
                return True
            yield Turn(turn)

    def _leave_lane(self, call: Call) -> None:
        """Let the one who gathered ask next, once a call has its answer or is gone."""
        slot = (call.slot, call.site.options.next, call.site.is_async)
        with self.flights.lock:
            lane = self._lanes.get(slot)
            if lane is None:
                return
            turn = lane.turn
            if lane.gathers is call:
                lane.gathers = lane.turn = None
            elif lane.asks is not call:
                return
            elif lane.gathers is None:
                del self._lanes[slot]
                return
            else:
                lane.asks, lane.gathers, lane.turn = lane.gathers, None, None
        turn.wake()

    def apply(self, applicant: Applicant, reply: Admission, reason: str) -> Effects:
        """Make the server's decision a step of the table."""
        flights, table = self.flights, self.flights.table
        call, chain = applicant.call, applicant.chain
        with flights.lock:
            flights.refuse_closed(call)
            if isinstance(reply, Leader):
                effects = self._lead(call, reply)
            elif isinstance(reply, Follow):
                effects = table.share(call, self._lookout.leader(call, reply), chain)
            elif isinstance(reply, Queued):
                effects = table.park(call, chain)
            elif isinstance(reply, Full) and call.site.options.waits:
                capacity = call.site.options.capacity
                assert capacity is not None
                raise QueueFull(call.shown_key, capacity, _shown(reply.holder))
            elif isinstance(reply, Ended):
                raise CallCancelled(reply.reason, call.shown_key)
            else:
                assert isinstance(reply, Dropped | Full)
                effects = self._drop(call, reply.holder, reason)
            if call.state not in {"running", "queued", "parked"}:
                call.lease = None
            flights.hook(call, chain, applicant.make_waiter)
        return effects

    def _lead(self, call: Call, reply: Leader) -> Effects:
        table, lease = self.flights.table, call.lease
        assert lease is not None
        see_generation(reply.generation)
        effects = table.lead(call, reply.generation)
        self.cancel(call, reply.cancelled, effects)
        return effects

    def cancel(self, call: Call, cancelled: Sequence[Cancelled], effects: Effects) -> None:
        """Take note of what the server has cancelled for a call: here, and in other processes."""
        table, cancelled_ids = self.flights.table, []
        for one in cancelled:
            here = [
                peer
                for peer in table.calls(call.slot)
                if peer.lease is not None and peer.lease.token == one.token
            ]
            for peer in here:
                assert peer.lease is not None
                peer.lease.lost = "abort"
                done = table.cancel(peer, "abort")
                effects.settled += [] if done is None else done.settled
            if not any(peer.state == "writing" for peer in here):
                cancelled_ids.append(id_of(one.token))
            if one.process != self._link.process and call.lease is not None:
                call.lease.voids_older |= one.generation is not None
        effects.cancelled_ids += tuple(cancelled_ids)

    def _drop(self, call: Call, holder: Holder, reason: str) -> Effects:
        if call.site.options.waits:
            self.flights.table.refuse(call, "drop", reason=reason)
            return Effects("drop")
        effects = self.flights.table.turn_away(call)
        self.flights.answer_busy(call, _process(holder), holder.age)
        return effects

    def _refuse_own(self, call: Call, limit: int | None, chain: Sequence[Call]) -> None:
        """Refuse, before the server cancels it, what the caller's own code runs inside of."""
        with self.flights.lock:
            own = [peer for peer in chain if peer.slot == call.slot]
            if own and limit is not None:
                self.flights.table.waits.check(chain, own[0])

    def _do_without(self, applicant: Applicant) -> Any:
        """Do as the alias says while the server cannot be reached."""
        call, chain = applicant.call, applicant.chain
        call.lease = None
        self._link.count_uncoordinated()
        if self._link.on_error == "raise":
            raise BackendUnavailableError(
                f"{call.shown_key}: the server of this alias cannot be reached; the call did not "
                'run. Look at the server, or set "ON_BACKEND_ERROR": "local"'
            )
        if self._link.on_error == "local":
            return self.flights.decide(call, chain, applicant.outbox, applicant.make_waiter)
        with self.flights.lock:
            self.flights.refuse_closed(call)
            effects = self.flights.table.lead(call, self._link.backend.next_generation())
            self.flights.hook(call, chain, applicant.make_waiter)
        self.tell(applicant, effects)
        return None

    def tell(self, applicant: Applicant, effects: Effects) -> None:
        """Announce what an admission came to, and do what is left to do."""
        self.flights.announcer.announce_move(applicant.call, effects, applicant.outbox)
        self.flights.perform(effects, applicant.outbox)

    def _withdraw(self, call: Call) -> None:
        """Leave nothing at the server of a call that was not admitted here."""
        lease, call.lease = call.lease, None
        if lease is not None and call.state == "idle":
            self._link.later(partial(self._link.backend.leave, lease.key_hash, lease.token, ""))


def id_of(token: str, process: str | None = None) -> int:
    """Return the id of a call by its token; one of another process gets a number of its own."""
    owner, _, number = token.rpartition("#")
    if process is None or owner.rstrip("+") == process:
        return int(number)
    return int(hashlib.sha256(token.encode()).hexdigest()[:12], 16)


def _process(holder: Holder) -> str:
    return holder.process.partition("/")[0] or "another process"


def _shown(holder: Holder) -> str:
    doing = "parked" if holder.generation is None else "running"
    return f"{_process(holder)}, {doing} for {holder.age:.1f} s"
