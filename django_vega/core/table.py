"""The table of flights: key -> calls, and every step that changes it. Pure: no lock, no waiting.

Its owner serialises the calls and performs the returned effects after releasing its lock.

Note [Invariants]
    1. Settle, removal and the snapshot of the waiters are one step, and removal checks identity: a
       key that already belongs to a newer flight is left alone.
    2. A follower's leaving removes that follower only.
    3. A flight belongs to the table, not to the caller that started it.
    4. Nothing is kept for a key without a flight, a parked call or a stopping body.
    5. An uncontended call builds no waiter: they are made when the first follower arrives.
    6. A wait that would never end is refused before it begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from django_vega.core.admission import CoordinatorFunction, Decision
from django_vega.core.call import Call, FlightRecord, Step
from django_vega.core.entry import Effects, Entry, UnsafeWait
from django_vega.core.errors import QueueFull, ReentrantCallError
from django_vega.core.strategies import Move, Strategy, decide
from django_vega.core.waits import WaitGraph


class Table:
    """Every flight of one coordinator.

    Args:
        next_generation: Issues the generation of a call when it is allowed to run.
        monotonic: The time, in seconds.
        threads_wait_for_loops: Whether a blocked thread may wait for an async flight.
    """

    def __init__(
        self,
        next_generation: Callable[[], int],
        monotonic: Callable[[], float],
        *,
        threads_wait_for_loops: bool = False,
    ) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._next_generation = next_generation
        self._monotonic = monotonic
        self._threads_wait_for_loops = threads_wait_for_loops
        self._version = 0
        self.waits = WaitGraph(self._ahead)

    # What is there

    def __len__(self) -> int:
        return len(self._entries)

    def calls(self, slot: tuple[str, str] | None = None) -> Iterator[Call]:
        """Yield the unsettled calls and those whose body is stopping, of one key or of all."""
        if slot is not None:
            entries: Iterable[Entry] = filter(None, [self._entries.get(slot)])
        else:
            entries = self._entries.values()
        for entry in entries:
            yield from entry.flights
            yield from entry.parked
            yield from entry.stopping

    def peers(self, slot: tuple[str, str]) -> tuple[int, list[Call]]:
        """Return the version of a key and its unsettled calls, oldest first."""
        entry = self._entries.get(slot)
        return (0, []) if entry is None else (entry.version, entry.peers())

    def record(self, call: Call, process: str) -> FlightRecord:
        """Return a frozen picture of a call."""
        strategy = call.site.options.strategy
        return FlightRecord(
            id=call.id,
            key=call.key,
            scope=call.site.scope,
            function=call.site.function,
            strategy=strategy.name,
            state="stopping" if call.settled else call.state,
            reason=call.reason,
            generation=call.generation,
            age=self._monotonic() - call.created_at,
            joined=len(call.waiters or ()),
            is_async=call.site.is_async,
            process=call.process or process,
        )

    # Admission

    def admit(self, call: Call, chain: Sequence[Call] = ()) -> Effects:
        """Apply the call's strategy: afterwards it runs, is queued or parked, follows, or is over.

        Args:
            call: A call in state ``idle`` whose strategy is a `Strategy`.
            chain: The flights that the caller's own code runs inside of.

        Raises:
            ReentrantCallError, DeadlockError: It would wait for, or cancel, what waits for it.
            QueueFull: Its queue is at capacity.
            UnsafeWait: A blocked thread would wait for a flight that may need it. After any of
                these the call is still idle.
        """
        strategy = call.site.options.strategy
        assert isinstance(strategy, Strategy)
        entry = self._entries.get(call.slot)
        if entry is None:
            self._start(call)
            return Effects("proceed")
        peers = entry.peers()
        move: Move = decide(
            strategy,
            peers=len(peers),
            occupied=len(entry.flights) + len(entry.stopping),
            parked=len(entry.parked),
            capacity=call.site.options.capacity,
        )
        if move in _WAITS and not call.site.options.waits:
            return self.turn_away(call)
        if move == "reuse":
            return self._reuse(call, peers, chain)
        effects = Effects(move)
        if move == "proceed":
            self._start(call)
        elif move == "cancel":
            assert strategy.limit is not None
            surplus = len(peers) - strategy.limit + 1
            doomed = [peer for peer in peers if peer.state in _CANCELLABLE][:surplus]
            self._refuse_own(call, doomed, chain)
            for peer in doomed:
                self._cancel(peer, "abort", effects)
            self._start(call)
            self._release(call.slot, effects)
        elif move == "drop":
            self.refuse(call, "drop", reason="exhaust-dropped")
        else:
            self._park(call, entry, chain, full=move == "full")
        return effects

    def apply(
        self, call: Call, decision: Decision, version: int, chain: Sequence[Call] = ()
    ) -> Effects | None:
        """Apply a coordinator's decision if the key is still at ``version``.

        Returns:
            None when the key changed: the coordinator has to be asked again.

        Raises:
            ReentrantCallError, DeadlockError, QueueFull, UnsafeWait: As in `admit`.
        """
        entry = self._entries.get(call.slot)
        if version != (0 if entry is None else entry.version):
            return None
        effects = Effects(decision.choice)
        peers = [] if entry is None else entry.peers()
        if entry is not None and decision.choice in _WAITS and not call.site.options.waits:
            return self.turn_away(call)  # in whose favour should a peer be cancelled?
        doomed = [peer for peer in peers if peer.id in decision.cancel_ids]
        self._refuse_own(call, doomed, chain)
        if decision.choice == "proceed":
            self._start(call)
        elif decision.choice == "reuse":
            effects = self._reuse(call, [p for p in peers if p.id == decision.peer_id], chain)
        elif decision.choice == "queue":
            if entry is None:
                self._start(call)
            else:
                capacity = call.site.options.capacity
                parked = sum(peer not in doomed for peer in entry.parked)
                full = capacity is not None and parked >= capacity
                self._park(call, entry, chain, full=full)
        else:
            self.refuse(call, "drop", reason=decision.reason)
        for peer in doomed:
            if peer.state in _CANCELLABLE:
                self._cancel(peer, "abort", effects)
        self._release(call.slot, effects)
        if call in effects.released:
            effects.released.remove(call)  # it never waited: its caller sees what it may do
        return effects

    def follow_heir(self, call: Call, chain: Sequence[Call]) -> bool:
        """Let a follower of an abandoned call have the outcome of whoever took over, if it may.

        It has been in flight with it, even where that is settled by now: of all followers one runs.

        Raises:
            ReentrantCallError, DeadlockError: As in `admit`.
        """
        heir = None if call.predecessor is None else _last_abandoned(call.predecessor).heir
        if heir is None:
            return False
        has_begun = heir.started_at is not None and heir.started_at <= call.created_at
        if call.site.options.next and has_begun:
            return False
        if not heir.settled:
            if not self._may_wait(call, heir):
                return False
            if chain:
                self.waits.check(chain, heir)
        self._join(call, heir)
        return True

    def name_heir(self, call: Call) -> None:
        """Note who took over from the abandoned call, once a follower of it was admitted."""
        abandoned = None if call.predecessor is None else _last_abandoned(call.predecessor)
        leads = call.state in {"running", "queued", "parked"}
        if abandoned is not None and abandoned.heir is None and (leads or call.leader is not None):
            abandoned.heir = call.leader or call
        call.predecessor = None  # or a key that is abandoned again and again keeps them all

    # What a server has decided

    def join_here(self, call: Call, chain: Sequence[Call] = ()) -> Effects | None:
        """Let a call share a flight of this process; None where the server has to be asked.

        Raises:
            ReentrantCallError, DeadlockError: As in `admit`.
        """
        strategy = call.site.options.strategy
        assert isinstance(strategy, Strategy)
        assert strategy.limit is not None
        entry = self._entries.get(call.slot)
        here = [p for p in entry.peers() if p.process is None] if entry is not None else []
        if call.site.options.next:
            here = [peer for peer in here if peer.state in _NOT_BEGUN]
        elif sum(peer.state != "parked" for peer in here) < strategy.limit:
            return None
        return self._share_first(call, here, chain)

    def share(self, call: Call, leader: Call, chain: Sequence[Call] = ()) -> Effects:
        """Let a call follow another one.

        Raises:
            ReentrantCallError, DeadlockError: As in `admit`.
            UnsafeWait: A blocked thread would wait for a flight that may need it.
        """
        if leader not in chain and not self._may_wait(call, leader):
            raise UnsafeWait
        if chain:
            self.waits.check(chain, leader)
        self._join(call, leader)
        return Effects("reuse")

    def lead(self, call: Call, generation: int) -> Effects:
        """Let an idle or parked call run under a generation that the server has issued."""
        effects = Effects("proceed")
        if call.state == "parked":
            self._entries[call.slot].parked.remove(call)
            effects.released.append(call)
        self._start(call, generation)
        return effects

    def park(self, call: Call, chain: Sequence[Call] = ()) -> Effects:
        """Hold a call until the server lets it run.

        Raises:
            ReentrantCallError, DeadlockError, UnsafeWait: As in `admit`.
        """
        entry = self._entries.get(call.slot)
        if entry is None:
            entry = self._entries[call.slot] = Entry()
        effects = Effects("queue")
        try:
            self._park(call, entry, chain, full=False)
        except Exception:
            self._release(call.slot, effects)
            raise
        return effects

    def turn_away(self, call: Call) -> Effects:
        """End a call that would have to wait and is not to; `Effects.move` says ``busy``."""
        self.refuse(call, "drop", reason="busy")
        return Effects("busy")

    def stand_in(self, call: Call, generation: int, age: float) -> None:
        """Note a flight of another process; ``call`` stands for it and has no body."""
        call.step("run")
        call.generation = generation
        call.started_at = self._monotonic() - age
        self._entries.setdefault(call.slot, Entry()).flights.append(call)
        self._touch(call)

    def found(self, slot: tuple[str, str], generation: int, *, here: bool) -> Call | None:
        """Return the flight of a generation, of this process or a stand-in, if it is not over."""
        entry = self._entries.get(slot)
        flights = () if entry is None else entry.flights
        same = (call for call in flights if call.generation == generation)
        return next((call for call in same if (call.process is None) is here), None)

    def release(self, slot: tuple[str, str]) -> Effects:
        """Let parked calls run that wait for this process only, as far as there is room."""
        effects = Effects()
        self._release(slot, effects)
        return effects

    def refuse(
        self,
        call: Call,
        step: Step,
        *,
        reason: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """End an idle call that never enters the table."""
        state = call.after(step)
        call.reason = reason
        call.error = error
        call.ended = True
        call.work = None
        call.state = state

    def attach(self, leader: Call, waiter: Any) -> None:
        """Let ``waiter`` be told when ``leader`` settles."""
        if leader.waiters is None:
            leader.waiters = {}
        leader.waiters[waiter] = None

    def leave(self, leader: Call, waiter: Any) -> None:
        """Take one waiter away, and nothing else (invariant 2)."""
        if leader.waiters is not None:
            leader.waiters.pop(waiter, None)

    # The life of a flight

    def run(self, call: Call) -> bool:
        """Claim a queued call for the one who asks first; False when it is not to be had."""
        if call.state != "queued":
            return False
        call.step("run")
        self._touch(call)
        return True

    def close(self, call: Call) -> None:
        """Let nobody join a call any more."""
        call.closed = True
        self._touch(call)

    def close_unless_needed(self, call: Call) -> bool:
        """Close a call; False when one that joined needs it to run."""
        if not call.is_needed:
            self.close(call)
        return call.closed

    def begin_writing(self, call: Call) -> bool:
        """Go over to ``writing``, from where nothing cancels; False when it was cancelled."""
        if call.state != "running":
            return False
        call.step("write")
        self._touch(call)
        return True

    def settle(
        self,
        call: Call,
        step: Step,
        *,
        value: Any = None,
        error: BaseException | None = None,
        reason: str | None = None,
    ) -> Effects:
        """Give the call the outcome that its body came to; the body has ended.

        A call that was cancelled before keeps that outcome; only its body goes (invariant 1).
        """
        effects = Effects()
        if call.ended:
            return effects
        if not call.settled:
            call.after(step)  # an illegal step changes nothing
            call.error = error
            call.value = value
            self._settle(call, step, reason, effects)
        call.error = error
        call.work = None
        entry = self._entries.get(call.slot)
        if entry is not None and entry.forget(call):
            self._touch(call)
        call.ended = True  # last: who is interrupted before comes here again
        self._release(call.slot, effects)
        return effects

    def cancel(self, call: Call, reason: str = "abort") -> Effects | None:
        """Settle one call as cancelled; None when it is settled or writing."""
        if call.state not in _CANCELLABLE:
            return None
        effects = Effects()
        self._cancel(call, reason, effects)
        self._release(call.slot, effects)
        return effects

    def cancel_all(
        self, *, flights: str, parked: str, where: Callable[[tuple[str, str]], bool] | None = None
    ) -> Effects:
        """Cancel every call of the chosen keys; the queues are voided before any head is.

        Args:
            flights: Reason for the flights.
            parked: Reason for the parked calls.
            where: Chooses keys by scope and key; default all.
        """
        effects = Effects()
        chosen = [slot for slot in self._entries if where is None or where(slot)]
        for slot in chosen:
            for call in tuple(self._entries[slot].parked):
                self._cancel(call, parked, effects)
        for slot in chosen:
            for call in tuple(self._entries[slot].flights):
                if call.state in _CANCELLABLE:
                    self._cancel(call, flights, effects)
            self._release(slot, effects)
        return effects

    # Steps that the ones above are made of

    def _start(self, call: Call, generation: int | None = None) -> None:
        generation = self._next_generation() if generation is None else generation
        call.step("run" if call.pool is None else "queue")
        call.generation = generation
        call.started_at = self._monotonic()
        entry = self._entries.get(call.slot)
        if entry is None:
            entry = self._entries[call.slot] = Entry()
        entry.flights.append(call)
        self._touch(call)

    def _reuse(self, call: Call, peers: Sequence[Call], chain: Sequence[Call]) -> Effects:
        if call.site.options.next:
            peers = [peer for peer in peers if peer.state in _NOT_BEGUN]
            peers = [peer for peer in peers if peer in chain or self._may_wait(call, peer)]
            if not peers and self._parks_safely(call, chain):
                return Effects("queue")
        shared = self._share_first(call, peers, chain)
        if shared is not None:
            return shared
        self._start(call)
        return Effects("solo")

    def _share_first(
        self, call: Call, peers: Sequence[Call], chain: Sequence[Call]
    ) -> Effects | None:
        """Let a call follow the first peer that it may wait for; None where there is none."""
        for peer in peers:
            if peer in chain or self._may_wait(call, peer):
                return self.share(call, peer, chain)
        return None

    def _join(self, call: Call, leader: Call) -> None:
        leader.is_needed |= call.site.options.force or call.site.options.next
        call.reason = "dedupe"
        call.leader = leader
        call.ended = True
        call.step("drop")

    def _park(self, call: Call, entry: Entry, chain: Sequence[Call], *, full: bool) -> None:
        if full:
            capacity = call.site.options.capacity
            assert capacity is not None
            holder = next(iter(entry.occupants() or entry.parked))
            doing = "stopping" if holder.settled else holder.state
            raise QueueFull(call.shown_key, capacity, f"call {holder.id}, {doing}")
        call.step("park")
        entry.parked.append(call)
        try:
            if chain:
                self.waits.check(chain, call)
            if call.lease is None:
                ahead = [*self._bodies_ahead(call, entry), *self._line_ahead(call, entry)]
            else:
                ahead = [*entry.occupants(), *(p for p in entry.parked if p is not call)]
            if not (ahead or call.lease) or not all(self._may_wait(call, p) for p in ahead):
                raise UnsafeWait
        except Exception:
            entry.parked.remove(call)
            call.state = "idle"
            raise
        self._touch(call)

    def _parks_safely(self, call: Call, chain: Sequence[Call]) -> bool:
        """Park a call behind the flights of its key, unless its thread must not wait for them."""
        entry = self._entries[call.slot]
        own = next((body for body in entry.occupants() if body in chain), None)
        if own is not None:
            self.waits.check(chain, own)
        try:
            self._park(call, entry, chain, full=False)
        except UnsafeWait:
            return False
        return True

    def _may_wait(self, call: Call, peer: Call) -> bool:
        """Whether the call's thread may block until the peer settles.

        A thread must not wait for a body that sits below it on its own stack, nor for an async
        flight, which may need this very thread.
        """
        if call.thread is None or peer.process is not None:
            return True
        if peer.thread == call.thread:
            return False
        return self._threads_wait_for_loops or not peer.site.is_async

    def _refuse_own(self, call: Call, doomed: Sequence[Call], chain: Sequence[Call]) -> None:
        """Refuse to cancel what the caller's own code runs inside of."""
        if any(peer in chain for peer in doomed):
            keys = tuple(flight.shown_key for flight in reversed(chain))
            raise ReentrantCallError((*keys, call.shown_key))

    def _cancel(self, call: Call, reason: str, effects: Effects) -> None:
        body_runs = call.state == "running" and call.process is None
        self._settle(call, "cancel", reason, effects)
        if body_runs:
            entry = self._entries.get(call.slot)
            if entry is None:
                entry = self._entries[call.slot] = Entry()
            entry.stopping.append(call)
            self._touch(call)
        else:
            call.ended = True
            call.work = None

    def _settle(self, call: Call, step: Step, reason: str | None, effects: Effects) -> None:
        entry = self._entries.get(call.slot)
        parked = call.state == "parked"
        # Readers take no lock: whoever sees the settled state sees all that belongs to it.
        call.reason = reason
        waiters, call.waiters = call.waiters, None
        call.step(step)
        effects.settled.append((call, tuple(waiters or ())))
        if entry is None:
            return
        if parked:
            entry.parked.remove(call)
        elif call in entry.flights:
            entry.flights.remove(call)
        self._touch(call)

    def _release(self, slot: tuple[str, str], effects: Effects) -> None:
        """Let the head of a key's queue run while there is room, and forget an idle key."""
        entry = self._entries.get(slot)
        if entry is None:
            return
        while (ready := self._ready(entry)) is not None:
            entry.parked.remove(ready)
            self._start(ready)
            effects.released.append(ready)
        if entry.is_idle():
            del self._entries[slot]

    def _ahead(self, parked: Call) -> tuple[list[Call], int]:
        """Return the bodies that a parked call waits for, and how many of them have to end."""
        entry = self._entries[parked.slot]
        bodies = self._bodies_ahead(parked, entry)
        lowest = min(map(_queue_limit, (*self._line_ahead(parked, entry), parked)))
        return bodies, len(bodies) - lowest + 1

    def _ready(self, entry: Entry) -> Call | None:
        """Return the first parked call that may run; but for `_passes_by` that is the head."""
        for parked in entry.parked:
            if parked.lease is not None:
                continue  # the server says when
            has_room = len(self._bodies_ahead(parked, entry)) < _queue_limit(parked)
            if has_room and not self._line_ahead(parked, entry):
                return parked
            if not _shares_next(parked):
                break
        return None

    def _bodies_ahead(self, parked: Call, entry: Entry) -> list[Call]:
        return [body for body in entry.occupants() if not self._passes_by(parked, body)]

    def _line_ahead(self, parked: Call, entry: Entry) -> list[Call]:
        line = itertools.takewhile(lambda call: call is not parked, entry.parked)
        return [call for call in line if not self._passes_by(parked, call)]

    def _passes_by(self, parked: Call, peer: Call) -> bool:
        """Whether a call that waits for the next run does not wait for this peer.

        A thread does not for an async flight, which may need it: threads have their own next run.
        """
        is_unsafe = parked.thread is not None and peer.site.is_async and peer.process is None
        return is_unsafe and not self._threads_wait_for_loops and _shares_next(parked)

    def _touch(self, call: Call) -> None:
        """Give the key a version of its own, so that a decision on an older picture is void."""
        self._version += 1
        entry = self._entries.get(call.slot)
        if entry is not None:
            entry.version = self._version


def _last_abandoned(call: Call) -> Call:
    """Return the last of a line of calls of which each was to take over from the one before."""
    while call.heir is not None and call.heir.settled and call.heir.was_left:
        call = call.heir
    return call


def _shares_next(parked: Call) -> bool:
    """Whether the call is parked by ``next``, and not by its strategy."""
    options = parked.site.options
    return options.next and getattr(options.strategy, "when_full", None) == "reuse"


def _queue_limit(parked: Call) -> int:
    """Return how many bodies a parked call suffers beside it, itself included."""
    strategy = parked.site.options.strategy
    if isinstance(strategy, CoordinatorFunction):
        return 1
    assert strategy.limit is not None
    return strategy.limit


_WAITS: Final = frozenset({"reuse", "queue", "full"})
_NOT_BEGUN: Final = frozenset({"parked", "queued"})
_CANCELLABLE: Final = frozenset({"parked", "queued", "running"})
