"""Single values of the setting: what each may be, and what is said when it is not."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from django.conf import settings
from django.utils.module_loading import import_string

from django_vega.backends.base import Backend
from django_vega.backends.codecs import Codec, codec_named
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.strategies import FROM_ALIAS, Strategy, WhenFull, strategy_named

LOCAL_BACKEND: Final = "django_vega.backends.local.LocalBackend"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with the setting.

    Attributes:
        id: The check that reports it, ``E001`` to ``E004``.
        message: What is wrong, with which value.
        hint: What to do.
    """

    id: str
    message: str
    hint: str


class FaultyError(Exception):
    """Carries the fault of one value to the reader, which goes on with the next."""

    def __init__(self, fault_id: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.fault = Fault(fault_id, message, hint)


def hint(name: object, known: Collection[str]) -> str:
    """Say which known name was probably meant."""
    close = difflib.get_close_matches(str(name), known, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Use one of {', '.join(sorted(known))}" if known else "There are none"


def timeout_fault(value: object) -> str | None:
    """Return what is wrong with a timeout; None when nothing is."""
    if value is None or seconds_fault("timeout", value) is None:
        return None
    return f"timeout={value!r}: pass seconds of at least 0, or None for no limit"


def seconds_fault(name: str, value: object) -> str | None:
    """Return what is wrong with a number of seconds; None when nothing is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= cast("float", value) < float("inf"):
        return None
    return f"{name}={value!r}: pass seconds of at least 0"


def read_timeout(where: str, value: Any) -> float | None:
    """Return a TIMEOUT in seconds, or None for no limit."""
    if timeout_fault(value) is not None:
        raise FaultyError(
            "E004", f"{where}['TIMEOUT'] is {value!r}", "Use seconds of at least 0, or None"
        )
    return cast("float | None", value)


def read_lease(where: str, value: object) -> float:
    """Return a LEASE in seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 1 <= cast("float", value) < float("inf"):
        raise FaultyError(
            "E004",
            f"{where}['LEASE'] is {value!r}",
            "Use seconds of at least 1, above the longest pause of a process",
        )
    return float(cast("float", value))


def read_codec(where: str, name: Any) -> Codec:
    """Return the codec that CODEC names."""
    try:
        return codec_named(name)
    except (TypeError, ValueError) as error:
        raise FaultyError("E004", f"{where}['CODEC']: {error}", 'Use "json"') from None


def locate_cache(location: object, options: Mapping[str, Any]) -> tuple[object, Mapping[str, Any]]:
    """Return the LOCATION and the OPTIONS of a cache that a LOCATION names, or both as they are."""
    if not isinstance(location, str) or location not in settings.CACHES:
        return location, options
    cache = settings.CACHES[location]
    return cache.get("LOCATION"), {**cache.get("OPTIONS", {}), **options}


def _imported(where: str, name: str, path: str) -> Any:
    try:
        return import_string(path)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "redis":
            raise FaultyError(
                "E002",
                f"{where}[{name!r}] is {path!r}, which needs the package redis",
                'Install it with the extra: pip install "django-vega-singleflight[redis]"',
            ) from error
        raise FaultyError(
            "E003" if name != "BACKEND" else "E002",
            f"{where}[{name!r}] is {path!r}, which does not import: {error}",
            "Use the dotted path of something that imports",
        ) from error


def read_display(where: str, value: object) -> Callable[[str], str]:
    """Return what turns a key into the text that people may see."""
    found = _imported(where, "KEY_DISPLAY", value) if isinstance(value, str) else value
    if found is not None and not callable(found):
        raise FaultyError(
            "E004",
            f"{where}['KEY_DISPLAY'] is {value!r}, which is not callable",
            "Pass a callable of one key, its dotted path, or None",
        )
    return str if found is None else found


def read_backend(where: str, path: object) -> type[Backend]:
    """Return the class of a BACKEND."""
    found = _imported(where, "BACKEND", path) if isinstance(path, str) else path
    if not isinstance(found, type) or not issubclass(found, Backend):
        raise FaultyError(
            "E002",
            f"{where}['BACKEND'] is {path!r}, which is no backend",
            f"Use a subclass of django_vega.backends.base.Backend, such as {LOCAL_BACKEND!r}",
        )
    return found


def read_strategy(where: str, value: object) -> Strategy | CoordinatorFunction:
    """Return the strategy, or the coordinator, that STRATEGY names."""
    if isinstance(value, str) and "." in value:
        value = _imported(where, "STRATEGY", value)
    if isinstance(value, Strategy | CoordinatorFunction):
        return value
    way_out = "Use a name, a Strategy, or the dotted path of one or of a @coordinator"
    if not isinstance(value, str):
        raise FaultyError(
            "E003", f"{where}['STRATEGY'] is {value!r}, which is no strategy", way_out
        )
    try:
        return strategy_named(value)
    except ValueError as error:
        raise FaultyError("E003", f"{where}['STRATEGY']: {error}", way_out) from None


def read_policy_strategy(
    where: str, given: Mapping[str, Any]
) -> Strategy | CoordinatorFunction | None:
    """Return the strategy of a policy, by its name or spelt out; None when it names none."""
    parts = [name for name in ("LIMIT", "WHEN_FULL") if name in given]
    if "STRATEGY" in given and parts:
        raise FaultyError(
            "E004",
            f"{where} names a STRATEGY and {' and '.join(parts)}",
            "Name the strategy, or spell it out with LIMIT and WHEN_FULL",
        )
    if "STRATEGY" in given:
        strategy = read_strategy(where, given["STRATEGY"])
    elif parts:
        strategy = _made(where, given.get("LIMIT", 1), given.get("WHEN_FULL", "reuse"), FROM_ALIAS)
    elif "CAPACITY" in given:
        raise FaultyError(
            "E004",
            f"{where} has a CAPACITY and no queue",
            'Add "STRATEGY": "serialize" or "WHEN_FULL": "queue"',
        )
    else:
        return None
    if "CAPACITY" not in given:
        return strategy
    if isinstance(strategy, CoordinatorFunction):
        raise FaultyError("E004", f"{where} has a CAPACITY beside a coordinator", "Leave it out")
    return _made(where, strategy.limit, strategy.when_full, given["CAPACITY"])


def _made(where: str, limit: Any, when_full: WhenFull, capacity: Any) -> Strategy:
    try:
        return Strategy(limit, when_full, capacity)
    except ValueError as error:
        known = when_full in get_args(WhenFull)
        fault_id = "E004" if known else "E003"
        raise FaultyError(fault_id, f"{where}: {error}", "Mend this policy") from None
