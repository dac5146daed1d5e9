"""The two decorators: what they accept, checked when they are applied and not at the first call."""

from __future__ import annotations

import gc
import inspect
import threading
import warnings
import weakref
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from django.utils import timezone, translation

from django_vega.core.call import UNSET, OnLastLeave, Unset, WhileBusy
from django_vega.core.errors import KeyTemplateError
from django_vega.core.keys import KeyRenderer, build_key
from django_vega.core.shapers import Shaper
from django_vega.functions import AsyncCoordinated, Coordinated, Decorated
from django_vega.invocation import Definition, Kind, ValuePlan
from django_vega.options import AnyStrategy, InAtomic, checked
from django_vega.refreshes import AsyncCoordinatedRefresh, CoordinatedRefresh
from django_vega.refreshing import RefreshPlan
from django_vega.writing.destination import Destination
from django_vega.writing.prune import signature_fault
from django_vega.writing.upsert import Upsert

P = ParamSpec("P")
R = TypeVar("R")

Key: TypeAlias = str | Callable[..., str | None]
Vary: TypeAlias = Sequence[str | Callable[[], Any]]

_AMBIENT: Final[dict[str, Callable[[], object]]] = {
    "language": translation.get_language,
    "timezone": timezone.get_current_timezone_name,
}


class CoordinatedDecorator(Protocol):
    """What `coordinated` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is not meant as sync
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncCoordinated[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Coordinated[P, R]: ...


class RefreshDecorator(Protocol):
    """What `singleflight_refresh` returns."""

    @overload
    def __call__(
        self, function: Callable[P, Awaitable[Iterable[Any]]], /
    ) -> AsyncCoordinatedRefresh[P]: ...
    @overload
    def __call__(
        self, function: Callable[P, AsyncIterable[Any]], /
    ) -> AsyncCoordinatedRefresh[P]: ...
    @overload
    def __call__(self, function: Callable[P, Iterable[Any]], /) -> CoordinatedRefresh[P]: ...


class WritingDecorator(Protocol):
    """What `singleflight_refresh` returns where the value is for a function of the user's own."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[Any]], /) -> AsyncCoordinatedRefresh[P]: ...
    @overload
    def __call__(
        self, function: Callable[P, AsyncIterable[Any]], /
    ) -> AsyncCoordinatedRefresh[P]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> CoordinatedRefresh[P]: ...


def coordinated(
    *,
    key: Key,
    strategy: AnyStrategy | Unset = UNSET,
    scope: str | None = None,
    vary: Vary = (),
    ignore: Sequence[str] = (),
    timeout: float | None | Unset = UNSET,
    while_busy: Literal["wait", "raise"] | Unset = UNSET,
    on_last_leave: OnLastLeave | Unset = UNSET,
    shaper: Shaper | Unset = UNSET,
    using: str = "default",
) -> CoordinatedDecorator:
    """Coordinate the calls of a function by key; each caller gets the function's own value.

    Values are shared by reference: followers get the leader's object. Goes outermost, above
    ``classmethod`` and ``staticmethod``.

    Args:
        key: Template over the parameters (``"oauth:{account_id}"``, attributes allowed), or a
            callable with the same signature; None from it means that this call is not coordinated.
        strategy: What a call does while same-key calls are in flight. Default: ``"dedupe"``.
        scope: Shares keys with other functions that name the same scope. Default: the function's
            dotted name, for methods that of the object's own class.
        vary: Ambient values that belong to the key: ``"language"``, ``"timezone"``, callables.
        ignore: Parameters that deliberately take no part in the key.
        timeout: Seconds that a follower or a parked caller waits; None is without limit.
            Default: 30.
        while_busy: What a caller does that meets a flight it would have to wait for: ``"wait"``,
            or ``"raise"`` `Busy` at once. Default: ``"wait"``.
        on_last_leave: What becomes of an async flight whose caller and followers have all gone
            away: ``"keep"`` lets it run to its end, ``"cancel"`` cancels it. Default: ``"keep"``.
        shaper: Holds calls back before they are made: `debounce` or `throttle`.
        using: An alias of ``DJANGO_VEGA``.

    Raises:
        KeyTemplateError: The key is missing, empty, malformed or ambiguous.
        IncompleteKeyError: A parameter takes no part in the key.
        TypeError, ValueError: An option is not allowed, or the function is a generator.
    """
    options = _options(
        returns_values=True,
        strategy=strategy,
        timeout=timeout,
        while_busy=while_busy,
        on_last_leave=on_last_leave,
        shaper=shaper,
    )
    renderer = _key_builder(key, vary, ignore)
    _check_names(scope, using)

    def decorate(function: Any) -> Any:
        plain, kind = _unwrap(function)
        if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
            raise TypeError(
                f"{plain.__qualname__} is a generator: its callers would share one iterator, and "
                "each would get a part of it. Return a list"
            )
        definition = Definition(
            plain, kind, renderer(plain, kind), ValuePlan(), using, options, scope
        )
        is_async = inspect.iscoroutinefunction(plain)
        return _registered((AsyncCoordinated if is_async else Coordinated)(definition))

    return decorate


@overload
def singleflight_refresh(
    *,
    key: Key,
    upsert: Upsert | Sequence[Upsert],
    strategy: AnyStrategy | Unset = UNSET,
    scope: str | None = None,
    vary: Vary = (),
    ignore: Sequence[str] = (),
    timeout: float | None | Unset = UNSET,
    fresh_for: float | Unset = UNSET,
    while_busy: WhileBusy | Unset = UNSET,
    on_last_leave: OnLastLeave | Unset = UNSET,
    shaper: Shaper | Unset = UNSET,
    in_atomic: InAtomic | Unset = UNSET,
    using: str = "default",
) -> RefreshDecorator: ...
@overload
def singleflight_refresh(
    *,
    key: Key,
    write: Callable[[Any, int], Any],
    strategy: AnyStrategy | Unset = UNSET,
    scope: str | None = None,
    vary: Vary = (),
    ignore: Sequence[str] = (),
    timeout: float | None | Unset = UNSET,
    fresh_for: float | Unset = UNSET,
    while_busy: WhileBusy | Unset = UNSET,
    on_last_leave: OnLastLeave | Unset = UNSET,
    shaper: Shaper | Unset = UNSET,
    in_atomic: InAtomic | Unset = UNSET,
    using: str = "default",
) -> WritingDecorator: ...
def singleflight_refresh(
    *,
    key: Key,
    upsert: Upsert | Sequence[Upsert] | None = None,
    write: Callable[[Any, int], Any] | None = None,
    strategy: AnyStrategy | Unset = UNSET,
    scope: str | None = None,
    vary: Vary = (),
    ignore: Sequence[str] = (),
    timeout: float | None | Unset = UNSET,
    fresh_for: float | Unset = UNSET,
    while_busy: WhileBusy | Unset = UNSET,
    on_last_leave: OnLastLeave | Unset = UNSET,
    shaper: Shaper | Unset = UNSET,
    in_atomic: InAtomic | Unset = UNSET,
    using: str = "default",
) -> RefreshDecorator | WritingDecorator:
    """Coordinate the calls of a function that fetches rows, and write them; callers get `Refresh`.

    The function runs outside any transaction and returns rows: instances or dicts, any iterable,
    a generator too. They are written in one transaction behind the key's fence: a stale response
    never overwrites a newer one. A follower is told after the commit.

    Args:
        key: As for `coordinated`.
        upsert: How the rows are written. A list for rows of several models: then they are instances
            and go by their class, all in one transaction on one database, in the order of the list.
        write: Instead of ``upsert`` a function of one's own, ``write(value, generation)``. It runs
            in the fenced transaction, on the database that the router writes `RefreshState` to,
            and again after a deadlock; what it returns is `Refresh.value`. An iterator is read to
            its end before.
        strategy: As for `coordinated`.
        scope: As for `coordinated`.
        vary: As for `coordinated`.
        ignore: As for `coordinated`.
        timeout: As for `coordinated`.
        fresh_for: Seconds after a success of the key in which the function is not called: its
            callers get ``Refresh(outcome="fresh")``. Default: 0.
        while_busy: As for `coordinated`; besides ``"skip"``: its caller gets
            ``Refresh(outcome="skipped")``, and ``"stale"``: what ``@refresh.stale`` gives.
        on_last_leave: As for `coordinated`.
        shaper: As for `coordinated`.
        in_atomic: What happens inside the caller's own transaction: ``"refuse"`` raises
            `InAtomicBlockError` before the function runs, ``"solo"`` writes in that transaction,
            uncoordinated but fenced. Default: ``"refuse"``.
        using: An alias of ``DJANGO_VEGA``.

    Raises:
        KeyTemplateError, IncompleteKeyError, TypeError, ValueError: As for `coordinated`.
    """
    destination = Destination.given(upsert, write)
    options = _options(
        returns_values=False,
        strategy=strategy,
        timeout=timeout,
        fresh_for=fresh_for,
        while_busy=while_busy,
        on_last_leave=on_last_leave,
        shaper=shaper,
        in_atomic=in_atomic,
    )
    renderer = _key_builder(key, vary, ignore)
    _check_names(scope, using)

    def decorate(function: Any) -> Any:
        plain, kind = _unwrap(function)
        for one in destination.upserts:
            if one.prune and (fault := signature_fault(one.prune, inspect.signature(plain))):
                raise TypeError(f"{plain.__qualname__}: {fault}")
        is_async = inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain)
        plan = RefreshPlan(destination, is_async=is_async)
        definition = Definition(plain, kind, renderer(plain, kind), plan, using, options, scope)
        made = AsyncCoordinatedRefresh if is_async else CoordinatedRefresh
        return _registered(made(definition))

    return decorate


def _options(*, returns_values: bool, **given: Any) -> dict[str, Any]:
    stated = {name: value for name, value in given.items() if value is not UNSET}
    return checked(stated, tuple(given), returns_values=returns_values)


def _unwrap(function: Any) -> tuple[Callable[..., Any], Kind]:
    """Return the plain function and how it is called."""
    if isinstance(function, Decorated):
        raise TypeError(f"{function!r} is coordinated already: one decorator per function")
    if isinstance(function, classmethod):
        return function.__func__, "classmethod"
    if isinstance(function, staticmethod):
        return function.__func__, "staticmethod"
    if not callable(function) or not hasattr(function, "__qualname__") or inspect.isclass(function):
        raise TypeError(f"{function!r} is not a function: decorate a def, an async def or a method")
    parent, _, _ = function.__qualname__.rpartition(".")
    return function, "method" if parent and not parent.endswith("<locals>") else "function"


def _key_builder(
    key: Key, vary: Vary, ignore: Sequence[str]
) -> Callable[[Callable[..., Any], Kind], KeyRenderer]:
    """Return what builds the key's renderer for a function of some kind."""
    ambient = tuple(map(_ambient, _listed("vary", vary)))
    ignored = _listed("ignore", ignore)

    def build(function: Callable[..., Any], kind: Kind) -> KeyRenderer:
        exempt = kind in {"method", "classmethod"}
        return build_key(function, key, ignore=ignored, exempt_first=exempt, vary=ambient)

    return build


def _listed(option: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str):
        return (given,)
    try:
        return tuple(given)
    except TypeError:
        raise KeyTemplateError(f"{option}={given!r} is no list: pass ({given!r},)") from None


def _check_names(scope: str | None, using: str) -> None:
    if scope is not None and (not isinstance(scope, str) or not scope):
        raise ValueError(f"scope={scope!r}: pass a non-empty name, or leave it out")
    if not isinstance(using, str):
        raise TypeError(f"using={using!r}: pass an alias of DJANGO_VEGA")


def _ambient(source: Any) -> tuple[str, Callable[[], object]]:
    if isinstance(source, str) and source in _AMBIENT:
        return source, _AMBIENT[source]
    name = getattr(source, "__name__", "")
    if not callable(source) or not name.isidentifier():
        raise KeyTemplateError(
            f"vary={source!r}: use {', '.join(map(repr, _AMBIENT))}, or a named function without "
            "arguments"
        )
    return name, source


# Every live decorated function, for the checks. Written at decoration, under the lock.
_known: weakref.WeakSet[Decorated[Any]] = weakref.WeakSet()
_known_lock = threading.Lock()


def known_functions() -> list[Decorated[Any]]:
    """Return every live decorated function, by name."""
    with _known_lock:
        return sorted(_known, key=lambda one: one.definition.name)


def share_keys_by_accident(one: Definition, other: Definition) -> bool:
    """Whether two functions answer each other's calls without having asked for it.

    Closures of one factory do: they have one dotted name, hence one scope.
    """
    return (
        one is not other
        and one.scope is None
        and other.scope is None
        and one.name == other.name
        and one.key.template == other.key.template
    )


def _has_twin(definition: Definition) -> bool:
    code = getattr(definition.function, "__code__", None)
    with _known_lock:
        return any(
            share_keys_by_accident(one.definition, definition)
            and getattr(one.definition.function, "__code__", None) is code
            for one in _known
        )


def _registered(decorated: Decorated[Any]) -> Decorated[Any]:
    definition = decorated.definition
    if _has_twin(definition):
        gc.collect()  # one that nobody holds any more is not alive, but may still be there
    is_ambiguous = _has_twin(definition)
    with _known_lock:
        _known.add(decorated)
    if is_ambiguous:
        warnings.warn(
            f"two live functions are named {definition.name} and have the key "
            f"{definition.key.template!r}: they would answer each other's calls. Pass scope= with "
            "a name that tells them apart",
            RuntimeWarning,
            stacklevel=3,
        )
    return decorated
