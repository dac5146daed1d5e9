"""The decorated object of a refresh: what it can besides other coordinated functions."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from django_vega.core.outcome import Refresh, RefreshStatus
from django_vega.functions import AsyncCoordinated, Coordinated, Decorated
from django_vega.invocation import Invocation
from django_vega.many import AsyncMany, Many, Stages, spread
from django_vega.options import PER_REFRESH_CALL, RefreshCallOptions
from django_vega.refreshing import RefreshPlan
from django_vega.watching.status import StatusWatch

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])


class DecoratedRefresh(Decorated[P], Generic[P]):
    """What sync and async refreshes have in common."""

    def with_options(self, **options: Unpack[RefreshCallOptions]) -> Self:
        """Return the same refresh with other options for the calls made through it.

        Args:
            **options: As for `coordinated` functions, and ``fresh_for`` as the decorator takes it.
                ``force=True``: a recent success is no reason not to run; a flight is still joined.

        Raises:
            TypeError, ValueError: An option is unknown, or its value is not allowed.
        """
        return self._with_options(options, PER_REFRESH_CALL)

    def stale(self, function: F) -> F:
        """Register what a caller gets at once under ``while_busy="stale"``.

        Args:
            function: Takes the refresh's own arguments and returns what is stored; one of an async
                refresh may be async. Its caller gets it as ``Refresh(outcome="stale", value=...)``.

        Raises:
            TypeError: It is no function, or async where the refresh is not.
            ValueError: There is one already.
        """
        plan, name = self.definition.plan, self.definition.name
        plain = getattr(function, "__func__", function)
        if not callable(plain) or (inspect.iscoroutinefunction(plain) and not self._is_async):
            raise TypeError(
                f"{name}.stale got {function!r}: pass a plain function with the refresh's own "
                "parameters; only an async refresh may have an async one"
            )
        if plan.stale is not None:
            raise ValueError(f"{name} has {plan.stale!r} as its .stale function already")
        plan.stale = plain
        return function

    def watch_status(self, *args: P.args, **kwargs: P.kwargs) -> StatusWatch:
        """Iterate over the status of this key: the present one first, then each change.

        Use ``async for``, or ``for`` with ``.with_timeout(seconds)``; see `StatusWatch`.
        """
        return _plan(self).watch_status(self.invocation(args, kwargs))


class CoordinatedRefresh(DecoratedRefresh[P], Coordinated[P, Refresh], Generic[P]):
    """A sync refresh."""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]  # the same three, each for its own class
        def __get__(
            self: CoordinatedRefresh[Concatenate[type[S], Q]], instance: S | None, owner: type[S]
        ) -> CoordinatedRefresh[Q]: ...
        @overload
        def __get__(self, instance: None, owner: type) -> CoordinatedRefresh[P]: ...
        @overload
        def __get__(
            self: CoordinatedRefresh[Concatenate[S, Q]], instance: S, owner: type | None = None
        ) -> CoordinatedRefresh[Q]: ...
        def __get__(self, instance: Any, owner: type | None = None) -> Any: ...

    def many(  # type: ignore[override]
        self,
        arguments: Iterable[Any],
        *,
        fetch_workers: int = 2,
        write_workers: int = 1,
        capacity: int = 3,
        deadline: float | None = None,
        progress: bool = False,
    ) -> Many[Refresh]:
        """Refresh many keys on a few threads, and yield an `Outcome` for each, as they come.

        Everything is bounded as with `fan_out`; fetches and writes have bounds of their own, so
        that a slow database does not hold up the upstream, nor the other way round. Leaving early
        stops both: what was fetched and not written by then is dropped.

        ::

            with refresh.many([("alaska",), ("hawaii",)], fetch_workers=4) as run:
                for outcome in run:
                    print(outcome.target, outcome.status, outcome.value)

        Args:
            arguments: A tuple is spread over the refresh's parameters, a mapping over its keywords;
                anything else is its one argument. Pulled lazily.
            fetch_workers: How many functions run at once, at least 1.
            write_workers: How many writes run at once, at least 1.
            capacity: How many more arguments are queued.
            deadline: Seconds for all of it; None is no limit.
            progress: Whether to show a bar, on a terminal. Needs the extra ``progress``.

        Returns:
            An iterator of outcomes whose value is the `Refresh`, with ``snapshot()``,
            ``accounting()`` and ``close()``.

        Raises:
            TypeError, ValueError: An argument is of no use; at the call.
        """
        return Many(
            partial(_staged, self),
            arguments,
            Stages(fetch_workers, write_workers, threading.Semaphore),
            progress=progress,
            options={"capacity": capacity, "deadline": deadline},
        )

    def status(self, *args: P.args, **kwargs: P.kwargs) -> RefreshStatus:
        """Return how the last refresh with this key ended; starts and joins nothing."""
        return _plan(self).status(self.invocation(args, kwargs))


class AsyncCoordinatedRefresh(DecoratedRefresh[P], AsyncCoordinated[P, Refresh], Generic[P]):
    """An async refresh."""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]  # the same three, each for its own class
        def __get__(
            self: AsyncCoordinatedRefresh[Concatenate[type[S], Q]],
            instance: S | None,
            owner: type[S],
        ) -> AsyncCoordinatedRefresh[Q]: ...
        @overload
        def __get__(self, instance: None, owner: type) -> AsyncCoordinatedRefresh[P]: ...
        @overload
        def __get__(
            self: AsyncCoordinatedRefresh[Concatenate[S, Q]],
            instance: S,
            owner: type | None = None,
        ) -> AsyncCoordinatedRefresh[Q]: ...
        def __get__(self, instance: Any, owner: type | None = None) -> Any: ...

    def many(  # type: ignore[override]
        self,
        arguments: Iterable[Any] | AsyncIterable[Any],
        *,
        fetch_workers: int = 2,
        write_workers: int = 1,
        capacity: int = 3,
        deadline: float | None = None,
        progress: bool = False,
    ) -> AsyncMany[Refresh]:
        """Refresh many keys as tasks of the running loop; iterate with ``async for``.

        As the sync one; leaving early also cancels the fetches that nobody else waits for.
        """
        return AsyncMany(
            partial(_astaged, self.with_options(on_last_leave="cancel")),
            arguments,
            Stages(fetch_workers, write_workers, asyncio.Semaphore),
            progress=progress,
            options={"capacity": capacity, "deadline": deadline},
        )

    async def status(self, *args: P.args, **kwargs: P.kwargs) -> RefreshStatus:
        """Return how the last refresh with this key ended; starts and joins nothing."""
        return await _plan(self).astatus(self.invocation(args, kwargs))


def _staged(refresh: CoordinatedRefresh[Any], stages: Stages, argument: Any) -> Refresh:
    return _plan(refresh).call(_in_stages(refresh, stages, argument))  # type: ignore[no-any-return]


async def _astaged(refresh: AsyncCoordinatedRefresh[Any], stages: Stages, argument: Any) -> Refresh:
    return await _plan(refresh).acall(_in_stages(refresh, stages, argument))  # type: ignore[no-any-return]


def _in_stages(refresh: Decorated[Any], stages: Stages, argument: Any) -> Invocation:
    return replace(refresh.invocation(*spread(argument)), stages=stages)


def _plan(decorated: Decorated[Any]) -> RefreshPlan:
    plan = decorated.definition.plan
    assert isinstance(plan, RefreshPlan)
    return plan
