"""Options as developers write them in Python: checked at once, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, TypedDict

from django_vega.conf import hint, timeout_fault
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.strategies import Strategy, StrategyName, strategy_named

AnyStrategy: TypeAlias = StrategyName | Strategy | CoordinatorFunction
InAtomic: TypeAlias = Literal["refuse", "solo"]


class CallOptions(TypedDict, total=False):
    """What can be given per call, with ``with_options``."""

    strategy: AnyStrategy
    timeout: float | None


PER_CALL: Final = ("strategy", "timeout")


def checked(given: Mapping[str, Any], known: tuple[str, ...] = PER_CALL) -> dict[str, Any]:
    """Return the options with strategies resolved by name.

    Raises:
        TypeError: An option is unknown.
        ValueError: A value is not allowed.
    """
    options = dict(given)
    for name in options:
        if name not in known:
            raise TypeError(f"unknown option {name!r}. {hint(name, known)}")
    if "strategy" in options:
        strategy = options["strategy"]
        if not isinstance(strategy, Strategy | CoordinatorFunction):
            if not isinstance(strategy, str):
                raise TypeError(
                    f"strategy={strategy!r}: pass a name such as 'dedupe', a Strategy, or a "
                    "function made with @coordinator(name)"
                )
            options["strategy"] = strategy_named(strategy)
    if "timeout" in options and (fault := timeout_fault(options["timeout"])):
        raise ValueError(fault)
    if options.get("in_atomic", "refuse") not in ("refuse", "solo"):
        raise ValueError(f"in_atomic={options['in_atomic']!r}: use 'refuse' or 'solo'")
    return options
