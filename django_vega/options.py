"""Options as developers write them in Python: checked at once, before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, TypeAlias, TypedDict

from django_vega.conf import hint, seconds_fault, timeout_fault
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.call import OnLastLeave, Options, WhileBusy
from django_vega.core.shapers import Debounce, Throttle
from django_vega.core.strategies import Strategy, StrategyName, strategy_named

AnyStrategy: TypeAlias = StrategyName | Strategy | CoordinatorFunction
InAtomic: TypeAlias = Literal["refuse", "solo"]


class CallOptions(TypedDict, total=False):
    """What can be given per call, with ``with_options``."""

    strategy: AnyStrategy
    timeout: float | None
    while_busy: Literal["wait", "raise"]
    on_last_leave: OnLastLeave
    next: bool


class RefreshCallOptions(TypedDict, total=False):
    """What can be given per call of a refresh."""

    strategy: AnyStrategy
    timeout: float | None
    while_busy: WhileBusy
    on_last_leave: OnLastLeave
    next: bool
    fresh_for: float
    force: bool


PER_CALL: Final = frozenset(CallOptions.__annotations__)
PER_REFRESH_CALL: Final = frozenset(RefreshCallOptions.__annotations__)

_ALLOWED: Final[dict[str, tuple[Any, ...]]] = {
    "in_atomic": ("refuse", "solo"),
    "while_busy": ("wait", "raise", "skip", "stale"),
    "on_last_leave": ("keep", "cancel"),
    "force": (True, False),
    "next": (True, False),
}


def checked(
    given: Mapping[str, Any], known: Collection[str], *, returns_values: bool
) -> dict[str, Any]:
    """Return the options with strategies resolved by name.

    Args:
        given: Option name to value.
        known: Names that may be given here.
        returns_values: Whether the function returns a value of its own, which nothing replaces.

    Raises:
        TypeError: An option is unknown.
        ValueError: A value is not allowed.
    """
    options = dict(given)
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"unknown option {name!r}. {hint(name, known)}")
        allowed = _ALLOWED.get(name)
        if name == "while_busy" and returns_values:
            allowed = ("wait", "raise")
        if allowed is not None and not _is_one_of(value, allowed):
            raise ValueError(f"{name}={value!r}: use {' or '.join(map(repr, allowed))}")
    if "strategy" in options:
        options["strategy"] = _strategy(options["strategy"])
    if "timeout" in options and (fault := timeout_fault(options["timeout"])):
        raise ValueError(fault)
    if "fresh_for" in options and (fault := seconds_fault("fresh_for", options["fresh_for"])):
        raise ValueError(fault)
    shaper = options.get("shaper")
    if shaper is not None and not isinstance(shaper, Debounce | Throttle):
        raise TypeError(
            f"shaper={shaper!r}: pass debounce(wait, max_wait), throttle(interval), or None"
        )
    return options


def misfit(options: Options, stale: object) -> tuple[str, str] | None:
    """Return what does not fit together in a call's effective options, with the way out.

    Asked by the checks and at the first call: the settings take part in what is effective.

    Args:
        options: Of the call.
        stale: The function's ``.stale``, or None.
    """
    strategy, while_busy, shaper = options.strategy, options.while_busy, options.shaper
    if (
        isinstance(strategy, Strategy)
        and strategy.when_full in {"cancel", "drop"}
        and while_busy != "wait"
    ):
        return (
            f"while_busy={while_busy!r} under the strategy {strategy.name}, whose calls never wait",
            'Leave while_busy out, or use a strategy that reuses or queues, such as "dedupe"',
        )
    if isinstance(strategy, Strategy) and strategy.when_full == "drop" and options.next:
        return (
            f"next=True under the strategy {strategy.name}, which drops who would wait",
            'Use a strategy that reuses or queues, such as "dedupe"',
        )
    if while_busy == "stale" and stale is None:
        return (
            'while_busy="stale" without anything to answer with',
            "Put @refresh.stale on a function with the same parameters that returns what is stored",
        )
    if (
        isinstance(shaper, Debounce)
        and options.timeout is not None
        and shaper.max_wait >= options.timeout
    ):
        return (
            f"debounce waits up to max_wait={shaper.max_wait!r} s, timeout={options.timeout!r} s",
            "Raise the timeout above max_wait plus the work's p99, or lower max_wait",
        )
    return None


def _is_one_of(value: object, allowed: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in allowed)


def _strategy(strategy: Any) -> Strategy | CoordinatorFunction:
    if isinstance(strategy, Strategy | CoordinatorFunction):
        return strategy
    if not isinstance(strategy, str):
        raise TypeError(
            f"strategy={strategy!r}: pass a name such as 'dedupe', a Strategy, or a "
            "function made with @coordinator(name)"
        )
    return strategy_named(strategy)
