"""The decorated object: a function, method or class method whose calls are coordinated."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from inspect import Parameter
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from asgiref.sync import markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured

from django_vega.coordinator import Coordinator
from django_vega.core.call import Call, CallSite, FlightRecord, Options
from django_vega.fanout import afan_out, fan_out
from django_vega.handler import SynchronousCallError, handler
from django_vega.invocation import Definition, Invocation
from django_vega.many import spread
from django_vega.options import PER_CALL, CallOptions, checked, misfit
from django_vega.refreshing import RefreshPlan
from django_vega.runtime.afanout import AsyncFanOut
from django_vega.runtime.fanout import FanOut

logger = logging.getLogger("django_vega")

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

Site: TypeAlias = tuple[Coordinator, CallSite, str]


class Decorated(Generic[P]):
    """What sync and async decorated functions have in common.

    Attributes:
        definition: What the decorator knows of the function.
    """

    _is_async = False

    def __init__(
        self,
        definition: Definition,
        receiver: tuple[Any, ...] = (),
        overrides: Mapping[str, Any] | None = None,
        unbound: Decorated[Any] | None = None,
    ) -> None:
        self.definition = definition
        self._receiver = receiver
        self._overrides: Mapping[str, Any] = overrides or {}
        self._unbound = unbound or self
        # Sites by scope and namespace, with the version of the settings that they come from.
        # Replaced as a whole, so that no thread keeps a site of old settings among the new ones.
        self._sites: tuple[int, dict[tuple[str, str | None], Site]] = (-1, {})
        if unbound is None:
            functools.update_wrapper(self, definition.function, updated=())  # type: ignore[arg-type]
        else:
            self.__doc__ = definition.function.__doc__
            self.__module__ = definition.function.__module__

    def __repr__(self) -> str:
        bound = f" of {self._receiver[0]!r}" if self._receiver else ""
        return f"<coordinated {self.definition.name}{bound}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._overrides:
            plain = self._unbound
            if self._receiver:
                plain = type(self)(self.definition, self._receiver, None, self._unbound)
            return _with_overrides, (plain, dict(self._overrides))
        name = self.definition.function.__name__
        if self._receiver:
            return getattr, (self._receiver[0], name)
        return self.definition.function.__qualname__

    if not TYPE_CHECKING:  # there an unknown attribute is an error

        def __getattr__(self, name: str) -> Any:
            # As bound methods do: what was set on the function, or by an inner decorator, shows
            # here too, without a copy at every access.
            function = self.definition.function
            if name == "__signature__":
                return _signature(function, bound=bool(self._receiver))
            for source in (vars(self._unbound), vars(function)):
                if name in source:
                    return source[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def _own_sites(self) -> Decorated[Any]:
        """Who keeps the sites: bound objects are made anew at every access."""
        return self if self._overrides else self._unbound

    def key_for(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Return the key that a call with these arguments has; None when it has none."""
        return self.definition.key.render(*self._receiver, *args, **kwargs)

    def cancel(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Cancel the calls with the key of these arguments.

        Returns:
            False when there is none that can be cancelled; one that is writing cannot.
        """
        invocation = self.invocation(args, kwargs)
        slot = invocation.site.scope, invocation.key
        return invocation.coordinator.cancel_where(lambda other: other == slot) > 0

    def in_flight(self, *args: P.args, **kwargs: P.kwargs) -> tuple[FlightRecord, ...]:
        """Return a record of each call with the key of these arguments, oldest first."""
        invocation = self.invocation(args, kwargs)
        if invocation.key is None:
            return ()
        return invocation.coordinator.in_flight((invocation.site.scope, invocation.key))

    def with_options(self, **options: Unpack[CallOptions]) -> Self:
        """Return the same function with other options for the calls made through it.

        Args:
            **options: ``strategy``, ``timeout``, ``while_busy`` and ``on_last_leave`` as the
                decorator takes them. ``next=True``: the caller needs a run that began after it
                asked; it waits for the running one to end, and for the run after it, which it
                shares with all who need the same.

        Raises:
            TypeError, ValueError: An option is unknown, or its value is not allowed.
        """
        return self._with_options(options, PER_CALL)

    def _with_options(self, options: Mapping[str, Any], known: Collection[str]) -> Self:
        returns_values = not isinstance(self.definition.plan, RefreshPlan)
        given = checked(options, known, returns_values=returns_values)
        overrides = {**self._overrides, **given}
        return type(self)(self.definition, self._receiver, overrides, self._unbound)

    def effective_options(self, *args: P.args, **kwargs: P.kwargs) -> Options:
        """Return the options of a call with these arguments, each with where it comes from."""
        return self.invocation(args, kwargs).site.options

    def submit_nowait(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Admit a call for the pool (sync) or the running loop (async), and return at once.

        Raises:
            NotAdmitted: There is no room; the function was not called.
        """
        invocation = self._submission(args, kwargs)
        plan = self.definition.plan
        admit = partial(self._admit, invocation.coordinator.submit_nowait, invocation)
        return plan.submit(invocation, admit)

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Admit a call for the pool (sync) or the running loop (async); await room for it."""
        invocation = self._submission(args, kwargs)
        plan = self.definition.plan
        admit = partial(self._admit, invocation.coordinator.asubmit, invocation)
        return await plan.asubmit(invocation, admit)

    # How a call finds its coordinator

    def _bind(self, instance: Any, owner: type | None) -> Any:
        kind = self.definition.kind
        if kind == "classmethod":
            receiver = owner if owner is not None else type(instance)
        elif instance is None or kind == "staticmethod":
            return self
        else:
            receiver = instance
        return type(self)(self.definition, (receiver,), self._overrides, self._unbound)

    def invocation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Invocation:
        """Return a call with these arguments before it is admitted."""
        definition = self.definition
        everything = (*self._receiver, *args)
        key = definition.key.render(*everything, **kwargs)
        namespace = definition.key.namespace
        if namespace is None and key is not None:
            # Only a head that names a policy: sites are kept, and such keys are anything.
            head = key.partition(":")[0]
            namespace = head if head in handler.settings(definition.using).policies else None
        coordinator, site, prefix = self._own_sites.site(definition.scope_of(everything), namespace)
        run = functools.partial(definition.function, *everything, **kwargs)
        return Invocation(coordinator, site, key, prefix, run)

    def _submission(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Invocation:
        invocation = self.invocation(args, kwargs)
        if invocation.key is None:
            raise ValueError(
                f"{self.definition.name}: its key is None for these arguments, so the call is not "
                "coordinated and cannot be submitted. Call it directly"
            )
        if invocation.site.options.shaper is not None:
            raise ValueError(
                f"{self.definition.name} has a shaper, which holds callers back in front of the "
                "pool; a submission has nobody to hold back. Call it directly"
            )
        return invocation

    def _admit(self, submit: Callable[..., T], invocation: Invocation) -> T:
        work = self.definition.plan.work(invocation)
        return submit(invocation.site, invocation.key, work)

    def site(self, scope: str, namespace: str | None) -> Site:
        """Return the coordinator, the site and the key prefix of a scope and namespace."""
        version, sites = self._sites
        if version != handler.version:
            version, sites = self._sites = handler.version, {}
        known = sites.get((scope, namespace))
        if known is None:
            definition = self.definition
            settings = handler.settings(definition.using)
            options = settings.effective(
                namespace, {"call": self._overrides, "decorator": definition.options}
            )
            if options.timeout is None and settings.backend.is_shared:
                raise ImproperlyConfigured(
                    f"{definition.name} has timeout=None on the shared alias {definition.using!r}: "
                    "nothing else ends a wait for another process. Set seconds"
                )
            plan = definition.plan
            if fault := misfit(options, plan.stale):
                raise ImproperlyConfigured(f"{definition.name}: {fault[0]}. {fault[1]}")
            site = CallSite(
                function=definition.name,
                scope=scope,
                options=options,
                is_async=self._is_async,
                source=self._unbound,
                display=_guarded(settings.key_display),
                for_follower=plan.for_follower,
                answer=plan.answer if isinstance(plan, RefreshPlan) else None,
                epilogue=plan.epilogue,
            )
            known = handler.coordinator(definition.using), site, settings.key_prefix
            sites[scope, namespace] = known
        return known


class Coordinated(Decorated[P], Generic[P, R]):
    """A sync function whose calls are coordinated."""

    @overload
    def __get__(
        self: Coordinated[Concatenate[type[S], Q], R], instance: S | None, owner: type[S]
    ) -> Coordinated[Q, R]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Coordinated[P, R]: ...
    @overload
    def __get__(
        self: Coordinated[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> Coordinated[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._bind(instance, owner)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, coordinated by its key."""
        self._refuse_running_loop("call it through sync_to_async, or decorate an async def")
        return self.definition.plan.call(self.invocation(args, kwargs))  # type: ignore[no-any-return]

    def raw(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself: uncoordinated, and nothing is written for it."""
        return self.definition.function(*self._receiver, *args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Admit a call for the alias's pool; wait while the pool is full.

        Raises:
            SynchronousCallError: On a running event loop; await ``asubmit`` there.
            WaitTimeout: There was no room within the call's timeout.
        """
        self._refuse_running_loop("await asubmit(...)")
        invocation = self._submission(args, kwargs)
        plan = self.definition.plan
        admit = partial(self._admit, invocation.coordinator.submit, invocation)
        return plan.submit(invocation, admit)

    def many(
        self,
        arguments: Iterable[Any],
        *,
        workers: int = 2,
        capacity: int = 3,
        deadline: float | None = None,
    ) -> FanOut[Any, R]:
        """Call the function with many arguments on a few threads; see `fan_out`.

        Args:
            arguments: A tuple is spread over the function's parameters, a mapping over its
                keywords; anything else is its one argument. Pulled lazily.
            workers: How many calls run at once, at least 1.
            capacity: How many more arguments are queued.
            deadline: Seconds for all of it; None is no limit.
        """
        call = partial(_spread_call, self)
        return fan_out(call, arguments, workers=workers, capacity=capacity, deadline=deadline)

    def _refuse_running_loop(self, way_out: str) -> None:
        if asyncio._get_running_loop() is not None:
            raise SynchronousCallError(
                f"{self.definition.name} is a sync function and was called on a thread with a "
                f"running event loop, which it would block: {way_out}"
            )


class AsyncCoordinated(Decorated[P], Generic[P, R]):
    """An ``async def`` whose calls are coordinated."""

    _is_async = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        markcoroutinefunction(self)

    @overload
    def __get__(
        self: AsyncCoordinated[Concatenate[type[S], Q], R], instance: S | None, owner: type[S]
    ) -> AsyncCoordinated[Q, R]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> AsyncCoordinated[P, R]: ...
    @overload
    def __get__(
        self: AsyncCoordinated[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> AsyncCoordinated[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._bind(instance, owner)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, coordinated by its key."""
        return await self.definition.plan.acall(self.invocation(args, kwargs))  # type: ignore[no-any-return]

    def raw(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself: uncoordinated, and nothing is written for it."""
        return self.definition.function(*self._receiver, *args, **kwargs)

    def many(
        self,
        arguments: Iterable[Any] | AsyncIterable[Any],
        *,
        workers: int = 2,
        capacity: int = 3,
        deadline: float | None = None,
    ) -> AsyncFanOut[Any, R]:
        """Call the function with many arguments, on a few tasks of the loop; see `afan_out`."""
        call: Callable[[Any], Awaitable[R]] = partial(_spread_acall, self)
        return afan_out(call, arguments, workers=workers, capacity=capacity, deadline=deadline)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Admit a call as a task of the running loop; await room for it, as ``asubmit``."""
        return await self.asubmit(*args, **kwargs)


def _spread_call(function: Coordinated[Any, R], argument: Any) -> R:
    args, kwargs = spread(argument)
    return function(*args, **kwargs)


async def _spread_acall(function: AsyncCoordinated[Any, R], argument: Any) -> R:
    args, kwargs = spread(argument)
    return await function(*args, **kwargs)


def _guarded(display: Callable[[str], str]) -> Callable[[str], str]:
    """Keep a ``KEY_DISPLAY`` that fails from the calls whose keys it was to show."""
    if display is str:
        return str

    def shown(key: str) -> str:
        try:
            return str(display(key))
        except Exception:
            logger.exception("KEY_DISPLAY %r raised; the key is not shown", display)
            return "(not shown)"

    return shown


def _with_overrides(plain: Any, overrides: Mapping[str, Any]) -> Any:
    return plain.with_options(**overrides)


def _signature(function: Callable[..., Any], *, bound: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    if not bound:
        return signature
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
        return signature
    return signature.replace(parameters=[*signature.parameters.values()][1:])
