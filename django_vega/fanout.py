"""One function over many targets, with everything bounded: `fan_out` and `afan_out`.

Source: the seed "concurrency-composition".
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from datetime import tzinfo
from functools import partial
from typing import Any, TypeVar

from django.db import connections
from django.utils import timezone, translation

from django_vega.core.fan import WhenFull
from django_vega.handler import DjangoHost, SynchronousCallError
from django_vega.runtime import budget as budgets
from django_vega.runtime.afanout import AsyncFanOut
from django_vega.runtime.fan import Plan
from django_vega.runtime.fanout import FanOut

T = TypeVar("T")
R = TypeVar("R")


class Budget(budgets.Budget):
    """Weighted tokens for what costs differently much: bytes, connections, requests to one host.

    Shared by any number of fan-outs (``fan_out(…, budget=budget, weight=len)``) and functions, on
    threads and event loops alike; it belongs to one process. First come, first served: a heavy one
    at the head of the line is not passed by light ones.

    Code inside of a body, or of a ``tokens`` block, that holds tokens takes from those (fan-outs
    inside of it, too), so that it never waits for itself.

    Args:
        limit: How many tokens there are, at least 1.

    Example::

        budget = Budget(10)
        with budget.tokens(3):
            upload(large_file)

    Raises:
        TypeError: The limit is no int.
        ValueError: The limit is below 1.
    """

    def blocking_error(self, message: str) -> Exception:
        """Return Django's kind of error for a wait that would block a running event loop."""
        return SynchronousCallError(message)


class _DjangoFrame(DjangoHost):
    """What worker threads of a fan-out need of Django."""

    def capture(self) -> Callable[[], AbstractContextManager[None]]:
        """Remember the language and the time zone of the iterating thread.

        A copied context does not bring them along: they belong to a thread (asgiref 3.13).
        """
        return partial(self._around, translation.get_language(), timezone.get_current_timezone())

    def thread_ends(self) -> None:
        """Close the connections of a thread: nobody else could."""
        connections.close_all()

    @contextmanager
    def _around(self, language: str | None, time_zone: tzinfo) -> Generator[None, None, None]:
        with self.pool_item():
            if language is None:
                translation.deactivate_all()
            else:
                translation.activate(language)
            timezone.activate(time_zone)
            yield


def fan_out(
    function: Callable[[T], R],
    targets: Iterable[T],
    *,
    workers: int = 2,
    capacity: int = 3,
    when_full: WhenFull = "wait",
    deadline: float | None = None,
    timeout: float | None = None,
    budget: budgets.Budget | None = None,
    weight: Callable[[T], int] | int | None = None,
    max_weight: int | None = None,
) -> FanOut[T, R]:
    """Call a function for each target on a few threads, and yield an `Outcome` for each.

    Outcomes come in the order of completion and carry their target. Nothing begins before the first
    step of the iteration, and everything is bounded, however many targets there are: ``workers``
    targets run, ``capacity`` are queued, one more is held by the iterating thread until there is
    room, and ``capacity`` outcomes are unread, so that a slow reader slows the workers. Outcomes
    that are there come before a further target is waited for, but for one target per step.

    ::

        with fan_out(send, members.iterator(), workers=2, capacity=3, deadline=10) as run:
            for outcome in run:
                report(outcome.target, outcome.status, outcome.error)
        run.accounting()  # Accounting(done=…, failed=…, unknown=…, …), the sum is what was pulled

    With six targets, A to F, ``.snapshot()`` shows (``held`` is pulled, and not admitted)::

                            running   queued    held
        before A has ended  A B       C D E     F
        after A has ended   C B       D E F

    - ``targets`` is iterated on the iterating thread alone, one at a time. What it raises ends the
      iteration with that error, after the outcomes of all that was pulled. It is closed on every
      exit, if it has a ``close``, as generators and fan-outs have.
    - The function is called in a copy of the iterating code's context (language, time zone, the
      flights around it), and leaves no stale database connection behind. Whatever it raises,
      SystemExit included, makes its target ``failed``, and ends nothing.
    - The end of the ``with`` block, ``close()``, an exception in the iterating thread and the loss
      of the last reference stop pulling, drop what is queued and join the threads: bodies that run
      are waited for, and not undone. In a ``with`` block that is certain.
    - At ``timeout`` and ``deadline`` a body that still runs is reported ``unknown``. Threads cannot
      be stopped: it is not waited for, and its thread ends with it. After a timeout another worker
      takes over its place, as long as no more than ``workers`` bodies are overdue, so that never
      more than twice ``workers`` run; they stand in ``.snapshot().overdue``. Beyond that places
      become free as bodies return: give ``deadline`` where they may never do so. Work that takes
      its own timeout, such as an HTTP client's, should be given one.
    - The targets themselves may block: then the step does, also beyond the deadline; only another
      fan-out as ``targets`` is never waited for longer.
    - Fan-outs chain: ``fan_out(write, fan_out(encode, members))``. The targets of ``write`` are
      then the outcomes of ``encode``. Leaving the last one closes all of them, and its deadline
      holds for all of them.

    Args:
        function: Takes a target; sync. A coordinated function is fine.
        targets: Any iterable; a generator of ten thousand is pulled as far as there is room.
        workers: How many targets run at once, at least 1; threads are started as needed.
        capacity: How many more are queued, and how many outcomes may be unread, at least 0.
        when_full: What becomes of a target that finds no room: ``"wait"`` holds it until there is,
            ``"reject"`` reports it ``not_admitted`` at once; the function is not called for it.
        deadline: Seconds from the first step; then no body starts, and what is not over is reported
            ``unknown``, ``not_started`` or ``not_admitted``. None: no limit.
        timeout: Seconds that each target may take, from its start. None: no limit.
        budget: Tokens that other fan-outs and functions take from, too. A target's are taken when a
            worker is there for it, before the function starts, and go back on every path, also at
            its timeout and at the deadline. Targets start in order: a heavy one waits for its
            tokens at the head of the queue, and takes no worker meanwhile. Inside of a body that
            holds tokens of the same budget they are taken from those.
        weight: How many tokens a target takes: a number, or a function of the target. Default 1.
        max_weight: What a single target may weigh at most; with or without a budget.

    Returns:
        An iterator with ``snapshot()``, ``accounting()`` and ``close()``. A target heavier than the
        budget's limit or ``max_weight`` is ``failed`` at once, with `TooHeavy` as its error; so is
        one whose ``weight`` raises.

    Raises:
        TypeError, ValueError: An argument is of no use; at the call.
        SynchronousCallError: Called, or stepped, on a running event loop, which it would block.
    """
    if _is_async(function):
        raise TypeError(
            f"{function!r} is async: a thread cannot run it. Use afan_out, or wrap it in "
            "async_to_sync"
        )
    _check_targets(targets)
    if asyncio._get_running_loop() is not None:
        raise SynchronousCallError(
            "fan_out() would block the running event loop; use `async for outcome in afan_out(…)` "
            "with an async function"
        )
    plan = Plan(
        function, workers, capacity, when_full, deadline, timeout, budget, weight, max_weight
    )
    return FanOut(plan, targets, _DjangoFrame())


def afan_out(
    function: Callable[[T], Awaitable[R]],
    targets: AsyncIterable[T] | Iterable[T],
    *,
    workers: int = 2,
    capacity: int = 3,
    when_full: WhenFull = "wait",
    deadline: float | None = None,
    timeout: float | None = None,
    budget: budgets.Budget | None = None,
    weight: Callable[[T], int] | int | None = None,
    max_weight: int | None = None,
) -> AsyncFanOut[T, R]:
    """Call an async function for each target in a few tasks, and yield an `Outcome` for each.

    As `fan_out`, on the running event loop: iterate with ``async for``, close with ``aclose()``.

    ::

        async with afan_out(send, members, workers=20, timeout=5) as run:
            async for outcome in run:
                report(outcome.target, outcome.status, outcome.error)

    - ``targets`` may be async, too. A source that is waited for at the deadline is cancelled.
    - A body is cancelled at its ``await``, by its timeout, at the deadline and on leaving; its
      target is ``unknown``. One that ignores its cancellation is waited for no longer than a
      second after its timeout or the deadline, and until then counts as overdue.
    - Cancelling the iterating task ends the fan-out; no task of it is left.

    Args:
        function: Takes a target; ``async def``.
        targets: Any iterable, sync or async.
        workers: How many targets run at once, at least 1.
        capacity: As of `fan_out`, like all others.
        when_full: ``"wait"`` or ``"reject"``.
        deadline: Seconds from the first step.
        timeout: Seconds that each target may take.
        budget: Tokens; threads and event loops may share one.
        weight: How many of them a target takes.
        max_weight: What a single target may weigh at most.

    Raises:
        TypeError, ValueError: An argument is of no use; at the call.
    """
    if callable(function) and not _is_async(function):
        raise TypeError(
            f"{function!r} is not async: it would block the event loop. Use fan_out on a thread, "
            "or pass an async def; sync_to_async makes one of a sync function"
        )
    if isinstance(targets, FanOut):
        raise TypeError(
            "the targets of afan_out are a fan_out, which would block the event loop. Chain "
            "afan_out with afan_out"
        )
    if not isinstance(targets, AsyncIterable):
        _check_targets(targets)
    plan = Plan(
        function, workers, capacity, when_full, deadline, timeout, budget, weight, max_weight
    )
    return AsyncFanOut(plan, targets)


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - of an instance, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _check_targets(targets: object) -> None:
    kind = type(targets)
    if not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
        hint = ". Use afan_out for an async one" if hasattr(kind, "__aiter__") else ""
        raise TypeError(f"{targets!r} cannot be iterated. Pass the targets as an iterable{hint}")
