"""Where the targets of a fan-out are, and what may come next.

Pure: no lock, no thread, no clock. Whoever drives it (``runtime.fan``) takes one step at a time and
then does what `Fan.drain` tells.

Note [Places of a target]
    ::

        held -> queued -> ready -> running -> finished -> over
                                      |          ^
                                      +-> expired -> astray -> over

    ``ready`` has a worker and its tokens, and the function has not been called. ``finished`` has an
    outcome that found no room among the unread ones: its worker keeps it, so that a slow reader
    slows the workers. ``expired`` is one whose body runs on after its time; while no more than
    ``workers`` bodies are ``astray``, its worker's slot goes to somebody else. So never more than
    twice ``workers`` bodies run, and all of them are in the snapshot.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from django_vega.core.fan import (
    STATUSES,
    Accounting,
    Limits,
    Outcome,
    Snapshot,
    Status,
    WhenFull,
)

Place: TypeAlias = Literal[
    "new", "held", "queued", "ready", "running", "finished", "expired", "astray", "over"
]


class Move(enum.Enum):
    """What the reader does next, when there is no outcome to return."""

    PULL = "pull"
    WAIT = "wait"
    END = "end"


class Item:
    """A target on its way."""

    # Written by `Fan` alone, unless a line says otherwise.
    __slots__ = (
        "context",  # what of the iterating code is around the function; the driver's
        "expires_at",
        "has_tokens",
        "outcome",  # while it finds no room
        "place",
        "slot",  # the worker's number
        "target",
        "tokens",  # what of the budget the body holds; the driver's
        "weight",
    )

    def __init__(self, target: Any, weight: int = 0, context: Any = None) -> None:
        self.target = target
        self.weight = weight
        self.context = context
        self.place: Place = "new"
        self.slot = -1
        self.has_tokens = False
        self.tokens: Any = None
        self.expires_at: float | None = None
        self.outcome: Outcome[Any, Any] | None = None


@dataclass(slots=True)
class Effects:
    """What the driver has to do after a step, in this order.

    Attributes:
        astray: Items whose worker is theirs alone from now on.
        ready: Items for whose slot a worker has to come.
        freed: Items whose tokens go back.
    """

    astray: list[Item] = field(default_factory=list)
    ready: list[Item] = field(default_factory=list)
    freed: list[Item] = field(default_factory=list)


class Fan:
    """The places of one fan-out's targets.

    Args:
        workers: How many bodies run at once.
        capacity: How many targets may be queued, and how many outcomes unread.
        when_full: ``wait`` holds a target that finds no room, ``reject`` reports it.
        timeout: Seconds from its start after which a target is unknown.
        take: Takes the tokens of an item, or puts it in line for them and returns False; then
            `grant` follows. Asked once per item, when a worker is there for it.
    """

    def __init__(
        self,
        workers: int,
        capacity: int,
        when_full: WhenFull = "wait",
        *,
        timeout: float | None = None,
        take: Callable[[Item], bool] | None = None,
    ) -> None:
        self.limits = Limits(workers, capacity)
        self.deadline: float | None = None
        #: How long the deadline was, for messages.
        self.patience: float | None = None
        #: There are no more targets; written by the reader.
        self.exhausted = False
        #: Nothing is admitted or started any more.
        self.over = False
        #: Nobody reads any more.
        self.closed = False
        self._rejects = when_full == "reject"
        self._timeout = timeout
        self._take = take
        self._slots: list[Item | None] = [None] * workers
        self._idle = list(range(workers))  # a heap
        self._queue: deque[Item] = deque()
        self._held: Item | None = None
        # The first of queue and held, while it is in line for tokens.
        self._asking: Item | None = None
        # On their slots, oldest first; all have the same timeout, so the first expires first.
        self._running: dict[Item, None] = {}
        self._expired: dict[Item, None] = {}
        self._astray: dict[Item, None] = {}
        # Items with an outcome that found no room, in the order of completion.
        self._hands: deque[Item] = deque()
        self._unread: deque[Outcome[Any, Any]] = deque()
        self._ends: dict[Status, int] = dict.fromkeys(STATUSES, 0)
        self._unreported = 0
        self._effects = Effects()
        #: Whether `drain` returns anything.
        self.has_effects = False

    # What is asked

    @property
    def is_running(self) -> bool:
        """Whether a body runs that is not reported yet."""
        return bool(self._running)

    def at(self, slot: int) -> Item | None:
        """Return the item of a slot."""
        return self._slots[slot]

    def due(self) -> float | None:
        """Return when `tick` has something to do; None while nothing is timed."""
        first = next(iter(self._running), None)
        expires_at = None if first is None else first.expires_at
        deadline = None if self.over and not self._running else self.deadline
        if expires_at is None or deadline is None:
            return deadline if expires_at is None else expires_at
        return min(expires_at, deadline)

    def snapshot(self) -> Snapshot:
        """Return where the targets are."""
        held = () if self._held is None else (self._held,)
        return Snapshot(
            running=tuple(item.target for item in self._unreported_on_slots()),
            queued=tuple(item.target for item in self._queue),
            held=tuple(item.target for item in held),
            unread=tuple(outcome.target for outcome in self._unread),
            limits=self.limits,
            overdue=tuple(item.target for item in (*self._expired, *self._astray)),
        )

    def accounting(self) -> Accounting:
        """Return the count of all pulled targets."""
        return Accounting(
            **self._ends,
            running=len(self._unreported_on_slots()),
            queued=len(self._queue),
            held=int(self._held is not None),
        )

    # Steps

    def drain(self) -> Effects:
        """Return what the last steps want done, once."""
        effects, self._effects = self._effects, Effects()
        self.has_effects = False
        return effects

    def read(self, has_pulled: bool, may_pull: bool) -> Outcome[Any, Any] | Move:
        """Return the oldest outcome, or what the reader does instead.

        Where there is room one target is pulled per outcome, so that a slow reader leaves no worker
        idle; and no more than one, so that a slow source holds no outcome back for longer.

        Args:
            has_pulled: Whether a target was pulled since the last outcome.
            may_pull: Whether the source has a target now, or may be waited for.
        """
        if self.closed:
            return Move.END
        may_pull = may_pull and self._held is None and not (self.over or self.exhausted)
        if (self._unread or self._hands) and (has_pulled or not may_pull):
            return self.take()
        if may_pull:
            return Move.PULL
        is_drained = not self._unreported and (self.over or self.exhausted)
        return Move.END if is_drained else Move.WAIT

    def offer(self, item: Item) -> Outcome[Any, Any] | None:
        """Start, queue or hold a pulled target; return its outcome when it is none of these."""
        assert self._held is None
        self._unreported += 1
        if self.over:
            return self._refuse(item, "not_admitted", None)
        item.place = "held"
        self._held = item
        self._advance()
        if not self._rejects or self._held is None:
            return None
        self._held = None
        if item is self._asking:
            self._asking = None
        return self._refuse(item, "not_admitted", None)

    def refuse(self, item: Item, error: BaseException) -> Outcome[Any, Any]:
        """Fail a pulled target that nobody will run."""
        self._unreported += 1
        return self._refuse(item, "failed", error)

    def is_asking(self, item: Item) -> bool:
        """Whether the item is in line for tokens."""
        return item is self._asking

    def grant(self, item: Item) -> None:
        """Let an item have the tokens that it is in line for."""
        assert item is self._asking
        self._asking = None
        item.has_tokens = True
        self._advance()

    def begin(self, item: Item, now: float) -> bool:
        """Note that a worker calls the function now; False when it must not."""
        if item.place != "ready":
            return False
        item.place = "running"
        self._running[item] = None
        if self._timeout is not None:
            item.expires_at = now + self._timeout
        return True

    def finish(
        self, item: Item, status: Status, value: Any = None, error: BaseException | None = None
    ) -> None:
        """Note that the body of an item is over, or that its worker went before it began."""
        if item.place == "astray":
            del self._astray[item]
            item.place = "over"
            self._relieve()
        elif item.place == "expired":
            del self._expired[item]
            self._settle(item)
        elif item.place in {"ready", "running"}:
            self._running.pop(item, None)
            self._free(item)
            self._hand_over(item, Outcome(item.target, status, value, error))
        self._advance()

    def take(self) -> Outcome[Any, Any]:
        """Read the oldest outcome."""
        if not self._unread:
            self._put_down()
        outcome = self._unread.popleft()
        if self._hands and len(self._unread) < self.limits.capacity:
            self._put_down()
        self._advance()
        return outcome

    def tick(self, now: float) -> None:
        """Give up what has run longer than it may; everything, when the deadline has passed."""
        for item in list(self._running):
            if item.expires_at is None or now < item.expires_at:
                break
            self._expire(
                item, f"ran for {self._timeout} s without an end (timeout={self._timeout})"
            )
        is_live = self._running or not self.over
        if is_live and self.deadline is not None and now >= self.deadline:
            self._end()
        self._advance()

    def close(self) -> None:
        """Start nothing more, drop what waits; who runs is counted when it is over."""
        self.over = self.closed = True
        while self._hands:
            self._put_down()
        for item in list(self._expired):
            self._settle(item)
        self._drop_waiting()
        self._unread.clear()

    # Parts of steps

    def _unreported_on_slots(self) -> list[Item]:
        on_slots = (item for item in self._slots if item is not None)
        return [item for item in on_slots if item.place != "expired" or item.outcome is not None]

    def _change(self) -> Effects:
        self.has_effects = True
        return self._effects

    def _advance(self) -> None:
        """Let whoever waits go on: to idle workers, and from the producer's hands to the queue."""
        while not self.over:
            first = self._queue[0] if self._queue else self._held
            if first is None:
                return
            if self._idle and self._may_start(first):
                if self._queue:
                    self._queue.popleft()
                else:
                    self._held = None
                self._start(first)
            elif self._held is not None and len(self._queue) < self.limits.capacity:
                self._held.place = "queued"
                self._queue.append(self._held)
                self._held = None
            else:
                return

    def _may_start(self, item: Item) -> bool:
        if not item.has_tokens and item is not self._asking:
            item.has_tokens = self._take is None or self._take(item)
            if not item.has_tokens:
                self._asking = item
        return item.has_tokens

    def _start(self, item: Item) -> None:
        item.place = "ready"
        item.slot = heapq.heappop(self._idle)
        self._slots[item.slot] = item
        self._change().ready.append(item)

    def _hand_over(self, item: Item, outcome: Outcome[Any, Any]) -> None:
        """Report an outcome, now or when there is room, and then free the slot."""
        if item.place != "expired":
            item.place = "finished"
        if self.over or (len(self._unread) < self.limits.capacity and not self._hands):
            self._report(outcome)
            self._settle(item)
        else:
            item.outcome = outcome
            self._hands.append(item)

    def _put_down(self) -> None:
        """Report the oldest outcome that had found no room."""
        item = self._hands.popleft()
        outcome, item.outcome = item.outcome, None
        assert outcome is not None
        self._report(outcome)
        self._settle(item)

    def _settle(self, item: Item) -> None:
        """Free the slot of an item if it is reported, and its body is over or may go astray."""
        if item.outcome is not None:
            if item.place == "expired" and item not in self._expired:
                item.place = "finished"
            return
        if item in self._expired:
            if len(self._astray) >= self.limits.workers and not self.over:
                return
            self._go_astray(item)
        else:
            item.place = "over"
        self._slots[item.slot] = None
        heapq.heappush(self._idle, item.slot)

    def _go_astray(self, item: Item) -> None:
        self._expired.pop(item, None)
        item.place = "astray"
        self._astray[item] = None
        self._change().astray.append(item)

    def _relieve(self) -> None:
        """Free the slot of an item that could not go astray before."""
        for item in self._expired:
            if item.outcome is None:
                self._settle(item)
                return

    def _expire(self, item: Item, why: str) -> None:
        del self._running[item]
        self._expired[item] = None
        item.place = "expired"
        self._free(item)
        self._hand_over(item, Outcome(item.target, "unknown", None, TimeoutError(why)))

    def _end(self) -> None:
        """Report everything: at the deadline the account is final."""
        self.over = True
        while self._hands:
            self._put_down()
        why = f"was running at the deadline (deadline={self.patience})"
        for item in list(self._running):
            self._expire(item, why)
        for item in list(self._expired):
            self._settle(item)
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._asking = None
        for item in [item for item in self._slots if item and item.place == "ready"]:
            self._slots[item.slot] = None
            self._drop(item, "not_started")
        while self._queue:
            self._drop(self._queue.popleft(), "not_started")
        if self._held is not None:
            item, self._held = self._held, None
            self._drop(item, "not_admitted")

    def _drop(self, item: Item, status: Status) -> None:
        item.place = "over"
        self._free(item)
        self._report(Outcome(item.target, status))

    def _free(self, item: Item) -> None:
        if item.has_tokens:
            item.has_tokens = False
            if self._take is not None:
                self._change().freed.append(item)

    def _refuse(self, item: Item, status: Status, error: BaseException | None) -> Outcome[Any, Any]:
        item.place = "over"
        self._free(item)
        self._unreported -= 1
        self._ends[status] += 1
        return Outcome(item.target, status, None, error)

    def _report(self, outcome: Outcome[Any, Any]) -> None:
        self._unreported -= 1
        self._ends[outcome.status] += 1
        if not self.closed:
            self._unread.append(outcome)
