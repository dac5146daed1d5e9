"""What threads and tasks that fan out have in common: options, one short lock, tokens."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from django_vega.core.clock import Clock
from django_vega.core.fan import Accounting, Outcome, Snapshot, WhenFull
from django_vega.core.places import Effects, Fan, Item, Move
from django_vega.runtime.budget import Account, Budget, TooHeavy, check_int, check_seconds
from django_vega.runtime.outcomes import LOOK_AGAIN, wait_slice

R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The function and the bounds of a fan-out; see `django_vega.fan_out`.

    Raises:
        TypeError, ValueError: An option is of no use; at once.
    """

    function: Callable[[Any], Any]
    workers: int
    capacity: int
    when_full: WhenFull
    deadline: float | None
    timeout: float | None
    budget: Budget | None
    weight: Callable[[Any], int] | int | None
    max_weight: int | None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"{self.function!r} cannot be called. Pass a function of one target")
        check_int("workers", self.workers, at_least=1)
        check_int("capacity", self.capacity, at_least=0)
        if self.when_full not in {"wait", "reject"}:
            raise ValueError(
                f'when_full={self.when_full!r} is unknown. Use "wait" to hold the target that '
                'finds no room, or "reject" to report it as not_admitted'
            )
        check_seconds("deadline", self.deadline)
        check_seconds("timeout", self.timeout)
        if not (self.budget is None or isinstance(self.budget, Budget)):
            raise TypeError(f"budget={self.budget!r} is no Budget. Pass Budget(limit)")
        if not (self.weight is None or callable(self.weight)):
            check_int("weight", self.weight, at_least=0)
        if self.max_weight is not None:
            check_int("max_weight", self.max_weight, at_least=0)
            if self.weight is None:
                raise ValueError(
                    f"max_weight={self.max_weight} bounds nothing without weight. Pass weight=, a "
                    "function that says what a target weighs"
                )
        if self.weight is not None and self.budget is None and self.max_weight is None:
            raise ValueError(
                "weight without budget and max_weight bounds nothing. Pass budget=Budget(limit) to "
                "bound what runs at once, or max_weight= to bound each target"
            )

    def weigh(self, target: Any, account: Account | None) -> int:
        """Return what a target takes of the budget.

        Raises:
            TooHeavy: It is more than there is.
            Exception: What the ``weight`` function raised.
        """
        weight = self.weight(target) if callable(self.weight) else self.weight
        if weight is None:
            weight = int(self.budget is not None)
        else:
            check_int(f"weight of {target!r}", weight, at_least=0)
        limits = [account.limit] if account is not None else []
        limits += [self.max_weight] if self.max_weight is not None else []
        if limits and weight > min(limits):
            raise TooHeavy(f"target {target!r}", weight, min(limits))
        return weight


class _InLine:
    """An item whose fan-out waits for its tokens."""

    __slots__ = ("engine", "item")

    def __init__(self, engine: Engine, item: Item) -> None:
        self.engine = engine
        self.item = item

    def wake(self) -> bool:
        """Take the tokens; False when the item is gone."""
        return self.engine.tokens_came(self)


class Engine(ABC):
    """Takes the steps of a `Fan` under one short lock, and then does what they want done.

    Tokens are taken when a worker is there for a target, before the function starts; a fan-out is
    in a budget's line with one target at a time, and nobody blocks for it.

    Args:
        plan: The options.
        clock: The time.
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan = plan
        self.clock = clock
        self.fan = Fan(
            plan.workers,
            plan.capacity,
            plan.when_full,
            timeout=plan.timeout,
            take=None if plan.budget is None else self._take_tokens,
        )
        self._is_timed = plan.timeout is not None or plan.deadline is not None
        # A target was pulled since the last outcome; only the reader knows.
        self._has_pulled = False
        self._lock = threading.Lock()
        #: Where tokens come from; written at the reader's first step.
        self.account: Account | None = None
        # Under the lock.
        self._in_line: _InLine | None = None

    def act(self, step: Callable[..., R], *args: Any) -> R:
        """Take a step of the fan."""
        with self._lock:
            if self._is_timed:
                self.fan.tick(self.clock.monotonic())
            result = step(*args)
            if not self.fan.has_effects and self._in_line is None:
                return result
            all_effects = []
            while self.fan.has_effects:
                effects = self.fan.drain()
                self._staff(effects)
                all_effects.append(effects)
            left = self._in_line
            if left is None or self.fan.is_asking(left.item):
                left = None
            else:
                self._in_line = None
        if left is not None:
            assert self.account is not None
            self.account.stop_waiting(left)
        for effects in all_effects:
            for item in effects.freed:
                self._free(item)
            self._carry_out(effects)
        return result

    def read(self, *, may_pull: bool) -> Outcome[Any, Any] | Move:
        """Return the oldest outcome, or what the reader does instead; see `Fan.read`."""
        found = self.act(self.fan.read, self._has_pulled, may_pull)
        if found is not Move.PULL and found is not Move.WAIT:
            self._has_pulled = False
        return found

    def look(self) -> None:
        """Take no step but what the time demands."""
        self.act(_nothing)

    def start(self) -> None:
        """Begin to count the time, at the reader's first step."""
        if self.plan.budget is not None:
            self.account = self.plan.budget.account()
        if self.plan.deadline is not None:
            self.fan.patience = self.plan.deadline
            self.fan.deadline = self.clock.monotonic() + self.plan.deadline

    def end_with(self, later: Engine) -> None:
        """Take over the deadline of a later stage of the chain, if that is sooner."""
        deadline = later.fan.deadline
        if deadline is not None and (self.fan.deadline is None or deadline < self.fan.deadline):
            self.fan.deadline, self.fan.patience = deadline, later.fan.patience
            self._is_timed = True

    def admit(self, target: Any) -> Outcome[Any, Any] | None:
        """Let a pulled target in; return its outcome when that is certain at once."""
        outcome: Outcome[Any, Any] | None
        try:
            weight = self.plan.weigh(target, self.account)
        except Exception as error:  # noqa: BLE001 - it is this target's
            outcome = self.act(self.fan.refuse, Item(target), error)
        else:
            outcome = self.act(self.fan.offer, Item(target, weight, self._here()))
        if self.fan.closed:
            outcome = None
        self._has_pulled = outcome is None
        return outcome

    def begin(self, item: Item) -> bool:
        """Note that the function is called now, in this context; False when it must not be."""
        if not self.act(self.fan.begin, item, self.clock.monotonic() if self._is_timed else 0.0):
            return False
        if self.account is not None:
            assert self.plan.budget is not None
            item.tokens, _ = self.plan.budget.lend(item.weight, self.account)
            if not item.has_tokens:  # its time is over already
                item.tokens.is_returned = True
        return True

    def tokens_came(self, waiter: _InLine) -> bool:
        """Let the item in line have its tokens; False when it is gone."""
        return self.act(self._grant, waiter)

    def due(self) -> float | None:
        """Return when the time demands a look, by the clock."""
        with self._lock:
            return self.fan.due()

    def wait_at_most(self) -> float:
        """Return for how many seconds to wait before looking again."""
        due = self.due()
        return LOOK_AGAIN if due is None else wait_slice(due, self.clock.monotonic())

    def snapshot(self) -> Snapshot:
        """Return where the targets are."""
        with self._lock:
            return self.fan.snapshot()

    def accounting(self) -> Accounting:
        """Return the count of all pulled targets."""
        with self._lock:
            return self.fan.accounting()

    def _here(self) -> Any:
        """Return what the function finds around it, from the iterating code."""
        return copy_context()

    @abstractmethod
    def _staff(self, effects: Effects) -> None:
        """Give slots to workers, under the lock."""

    @abstractmethod
    def _carry_out(self, effects: Effects) -> None:
        """Do the rest, without the lock."""

    def _grant(self, waiter: _InLine) -> bool:
        assert self.account is not None
        # Whoever is first to confirm has them: this one, or the one who withdraws.
        if not (self.fan.is_asking(waiter.item) and self.account.confirm(waiter)):
            return False
        self.fan.grant(waiter.item)
        return True

    def _take_tokens(self, item: Item) -> bool:
        assert self.account is not None
        waiter = _InLine(self, item)
        if self.account.take_or_wait(waiter, item.weight):
            return True
        self._in_line = waiter
        return False

    def _free(self, item: Item) -> None:
        assert self.account is not None
        if item.tokens is not None:
            item.tokens.is_returned = True
        self.account.give_back(item.weight)


def _nothing() -> None:
    """Be a step that changes nothing."""
