"""The decorated object of a refresh: what it can besides other coordinated functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
from django_vega.options import PER_REFRESH_CALL, RefreshCallOptions
from django_vega.refreshing import RefreshPlan
from django_vega.watching.status import StatusWatch

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])


class CoordinatedRefresh(Coordinated[P, Refresh], Generic[P]):
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
            function: Takes the refresh's own arguments and returns what is stored. Its caller gets
                it as ``Refresh(outcome="stale", value=...)``.

        Raises:
            TypeError: It is async, or no function.
            ValueError: There is one already.
        """
        return _register_stale(self, function)

    def status(self, *args: P.args, **kwargs: P.kwargs) -> RefreshStatus:
        """Return how the last refresh with this key ended; starts and joins nothing."""
        return _plan(self).status(self._invocation(args, kwargs))

    def watch_status(self, *args: P.args, **kwargs: P.kwargs) -> StatusWatch:
        """Iterate over the status of this key: the present one first, then each change.

        Use ``async for``, or ``for`` with ``.with_timeout(seconds)``; see `StatusWatch`.
        """
        return _plan(self).watch_status(self._invocation(args, kwargs))


class AsyncCoordinatedRefresh(AsyncCoordinated[P, Refresh], Generic[P]):
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
            function: Takes the refresh's own arguments and returns, or awaits, what is stored. Its
                caller gets it as ``Refresh(outcome="stale", value=...)``.

        Raises:
            TypeError: It is no function.
            ValueError: There is one already.
        """
        return _register_stale(self, function)

    async def status(self, *args: P.args, **kwargs: P.kwargs) -> RefreshStatus:
        """Return how the last refresh with this key ended; starts and joins nothing."""
        return await _plan(self).astatus(self._invocation(args, kwargs))

    def watch_status(self, *args: P.args, **kwargs: P.kwargs) -> StatusWatch:
        """Iterate over the status of this key: the present one first, then each change.

        Use ``async for``, or ``for`` with ``.with_timeout(seconds)``; see `StatusWatch`.
        """
        return _plan(self).watch_status(self._invocation(args, kwargs))


def _register_stale(decorated: Decorated[Any], function: F) -> F:
    plan = decorated.definition.plan
    plain = getattr(function, "__func__", function)
    if not callable(plain) or (
        inspect.iscoroutinefunction(plain) and not isinstance(decorated, AsyncCoordinated)
    ):
        raise TypeError(
            f"{decorated.definition.name}.stale got {function!r}: pass a plain function with the "
            "refresh's own parameters; only an async refresh may have an async one"
        )
    if plan.stale is not None:
        raise ValueError(
            f"{decorated.definition.name} has {plan.stale!r} as its .stale function already"
        )
    plan.stale = plain
    return function


def _plan(decorated: Decorated[Any]) -> RefreshPlan:
    plan = decorated.definition.plan
    assert isinstance(plan, RefreshPlan)
    return plan
