"""The ``DJANGO_VEGA`` setting: read at the first call, never at import, and never changed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast, get_args

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_vega.backends.base import Backend
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.call import Options
from django_vega.core.strategies import FROM_ALIAS, Strategy, WhenFull, strategy_named

DEFAULT_ALIAS: Final = "default"
LOCAL_BACKEND: Final = "django_vega.backends.local.LocalBackend"
POLICY_OPTIONS: Final = ("STRATEGY", "LIMIT", "WHEN_FULL", "CAPACITY", "TIMEOUT")


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


class _Faulty(Exception):
    def __init__(self, fault_id: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.fault = Fault(fault_id, message, hint)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the settings say about one namespace of keys; None is silence."""

    strategy: Strategy | CoordinatorFunction | None = None
    has_timeout: bool = False
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class AliasSettings:
    """One alias of ``DJANGO_VEGA``, with its defaults filled in.

    Attributes:
        given: Names that the project has set itself.
    """

    backend: type[Backend]
    strategy: Strategy | CoordinatorFunction
    timeout: float | None
    key_prefix: str
    on_orphan: str
    workers: int
    capacity: int | None
    sync_waits_for_async: bool
    key_display: Callable[[str], str]
    policies: Mapping[str, Policy]
    options: Mapping[str, Any]
    given: frozenset[str] = field(default=frozenset())

    @property
    def structure(self) -> tuple[object, ...]:
        """What a coordinator is built from; the rest can change while it lives."""
        return (
            self.backend,
            self.on_orphan,
            self.workers,
            self.capacity,
            self.sync_waits_for_async,
            tuple(sorted(self.options.items())),
        )

    def effective(self, namespace: str | None, given: Mapping[str, Mapping[str, Any]]) -> Options:
        """Return the options of a call, each from the first source that names it.

        Args:
            namespace: Names a policy.
            given: ``call`` and ``decorator``, each option name to value.
        """
        policy = self.policies.get(namespace or "", Policy())
        sources: dict[str, Mapping[str, Any]] = {
            "call": given["call"],
            "policy": _stated(policy),
            "decorator": given["decorator"],
            "alias": {
                name: getattr(self, name)
                for name in ("strategy", "timeout")
                if name.upper() in self.given
            },
            "built-in": {
                "strategy": self.strategy,
                "timeout": self.timeout,
                "in_atomic": "refuse",
            },
        }
        origin = {
            name: next(source for source, values in sources.items() if name in values)
            for name in sources["built-in"]
        }
        values = {name: sources[source][name] for name, source in origin.items()}
        strategy = values["strategy"]
        capacity = strategy.capacity if isinstance(strategy, Strategy) else FROM_ALIAS
        return Options(
            strategy=strategy,
            timeout=values["timeout"],
            capacity=self.capacity if capacity is FROM_ALIAS else cast("int | None", capacity),
            in_atomic=values["in_atomic"],
            origin=origin,
        )


def _stated(policy: Policy) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    if policy.strategy is not None:
        stated["strategy"] = policy.strategy
    if policy.has_timeout:
        stated["timeout"] = policy.timeout
    return stated


def read() -> dict[str, AliasSettings]:
    """Return every alias of the setting.

    Raises:
        ImproperlyConfigured: Something is wrong with it; ``manage.py check`` finds the same.
    """
    aliases, faults = examine(getattr(settings, "DJANGO_VEGA", None))
    if faults:
        raise ImproperlyConfigured(
            "; ".join(f"{fault.message}. {fault.hint}" for fault in faults)
            + " (run manage.py check for the whole list)"
        )
    return aliases


def examine(raw: object) -> tuple[dict[str, AliasSettings], list[Fault]]:
    """Return the aliases that are in order and all that is wrong with the others."""
    if raw is None:
        raw = {DEFAULT_ALIAS: {}}
    if not isinstance(raw, Mapping):
        return {}, [
            Fault(
                "E001",
                f"DJANGO_VEGA is a {type(raw).__name__}",
                'Make it a dict of dicts: {"default": {}}',
            )
        ]
    aliases: dict[str, AliasSettings] = {}
    faults: list[Fault] = []
    if DEFAULT_ALIAS not in raw:
        faults.append(
            Fault(
                "E001",
                f"DJANGO_VEGA has no {DEFAULT_ALIAS!r} alias, only {sorted(map(str, raw))}",
                'Add one: {"default": {}}; an empty dict takes every default',
            )
        )
    for alias, given in raw.items():
        if not isinstance(given, Mapping):
            faults.append(
                Fault(
                    "E001",
                    f"DJANGO_VEGA[{alias!r}] is a {type(given).__name__}",
                    "Make it a dict of options; an empty dict takes every default",
                )
            )
            continue
        reader = _Reader(f"DJANGO_VEGA[{alias!r}]", given)
        found = reader.alias()
        faults += reader.faults
        if found is not None and not reader.faults:
            aliases[alias] = found
    return aliases, faults


class _Reader:
    """Reads one alias, and notes all that is wrong instead of stopping at the first."""

    def __init__(self, where: str, given: Mapping[str, Any]) -> None:
        self._where = where
        self._given = given
        self.faults: list[Fault] = []

    def alias(self) -> AliasSettings | None:
        given = self._given
        self._unknown(self._where, given, _ALIAS_OPTIONS)
        backend = self._take(lambda: _backend(self._where, given.get("BACKEND", LOCAL_BACKEND)))
        strategy = self._take(lambda: _strategy(self._where, given.get("STRATEGY", "dedupe")))
        timeout = self._take(lambda: _timeout(self._where, given.get("TIMEOUT", 30)), or_else=30.0)
        if backend is not None:
            options = given.get("OPTIONS", {})
            self._unknown(f"{self._where}['OPTIONS']", options, backend.option_names)
            if backend.is_shared and timeout is None:
                self._note(
                    "E004",
                    f"{self._where}['TIMEOUT'] is None on a backend that processes share",
                    "Set a number of seconds: nothing else ends a wait for another process",
                )
        policies = dict(self._policies(given.get("POLICIES", {})))
        on_orphan = self._choice("ON_ORPHAN", "return", ("return", "raise"))
        waits = self._choice("SYNC_WAITS_FOR_ASYNC", default=False, allowed=(True, False))
        workers = self._count("WORKERS", 4, least=1)
        capacity = self._count("CAPACITY", 100, least=0, none_allowed=True)
        prefix = self._text("KEY_PREFIX", "")
        display = self._take(lambda: _display(self._where, given.get("KEY_DISPLAY")))
        if backend is None or strategy is None or display is None:
            return None
        return AliasSettings(
            backend=backend,
            strategy=strategy,
            timeout=timeout,
            key_prefix=prefix,
            on_orphan=on_orphan,
            workers=workers or 1,
            capacity=capacity,
            sync_waits_for_async=waits,
            key_display=display,
            policies=policies,
            options=given.get("OPTIONS", {}),
            given=frozenset(given),
        )

    def _policies(self, policies: object) -> Iterator[tuple[str, Policy]]:
        if not isinstance(policies, Mapping):
            self._note(
                "E004",
                f"{self._where}['POLICIES'] is a {type(policies).__name__}",
                "Make it a dict: namespace to options",
            )
            return
        for namespace, given in policies.items():
            where = f"{self._where}['POLICIES'][{namespace!r}]"
            if not isinstance(namespace, str) or not namespace or ":" in namespace:
                self._note(
                    "E003",
                    f"{where} names no namespace, so it would never apply",
                    "Use what keys begin with, up to the first ':'",
                )
            if not isinstance(given, Mapping):
                self._note("E004", f"{where} is a {type(given).__name__}", "Make it a dict")
                continue
            self._unknown(where, given, POLICY_OPTIONS)
            strategy = self._take(partial(_policy_strategy, where, given))
            timeout = self._take(partial(_timeout, where, given.get("TIMEOUT")))
            yield namespace, Policy(strategy, "TIMEOUT" in given, timeout)

    def _take(self, read: Callable[[], Any], or_else: Any = None) -> Any:
        try:
            return read()
        except _Faulty as error:
            self.faults.append(error.fault)
            return or_else

    def _note(self, fault_id: str, message: str, hint: str) -> None:
        self.faults.append(Fault(fault_id, message, hint))

    def _unknown(self, where: str, given: object, known: Collection[str]) -> None:
        if not isinstance(given, Mapping):
            self._note("E004", f"{where} is a {type(given).__name__}", "Make it a dict")
            return
        for name in given:
            if name not in known:
                self._note("E003", f"{where} has an unknown option {name!r}", hint(name, known))

    def _choice(self, name: str, default: Any, allowed: tuple[Any, ...]) -> Any:
        value = self._given.get(name, default)
        if type(value) not in map(type, allowed) or value not in allowed:
            listed = " or ".join(map(repr, allowed))
            self._note("E004", f"{self._where}[{name!r}] is {value!r}", f"Use {listed}")
        return value

    def _count(self, name: str, default: int, *, least: int, none_allowed: bool = False) -> Any:
        value = self._given.get(name, default)
        if value is None and none_allowed:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self._note(
                "E004",
                f"{self._where}[{name!r}] is {value!r}",
                f"Use a whole number of at least {least}",
            )
            return default
        return value

    def _text(self, name: str, default: str) -> str:
        value = self._given.get(name, default)
        if not isinstance(value, str):
            self._note("E004", f"{self._where}[{name!r}] is {value!r}", "Use a text")
            return default
        return value


_ALIAS_OPTIONS: Final = (
    "BACKEND",
    "STRATEGY",
    "TIMEOUT",
    "KEY_PREFIX",
    "ON_ORPHAN",
    "WORKERS",
    "CAPACITY",
    "SYNC_WAITS_FOR_ASYNC",
    "KEY_DISPLAY",
    "POLICIES",
    "OPTIONS",
)


def hint(name: object, known: Collection[str]) -> str:
    """Say which known name was probably meant."""
    close = difflib.get_close_matches(str(name), known, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Use one of {', '.join(sorted(known))}" if known else "There are none"


def timeout_fault(value: object) -> str | None:
    """Return what is wrong with a timeout; None when nothing is."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= cast("float", value) < float("inf"):
        return None
    return f"timeout={value!r}: pass seconds of at least 0, or None for no limit"


def _timeout(where: str, value: Any) -> float | None:
    if timeout_fault(value) is not None:
        raise _Faulty(
            "E004", f"{where}['TIMEOUT'] is {value!r}", "Use seconds of at least 0, or None"
        )
    return cast("float | None", value)


def _imported(where: str, name: str, path: str) -> Any:
    try:
        return import_string(path)
    except ImportError as error:
        raise _Faulty(
            "E003" if name != "BACKEND" else "E002",
            f"{where}[{name!r}] is {path!r}, which does not import: {error}",
            "Use the dotted path of something that imports",
        ) from error


def _display(where: str, value: object) -> Callable[[str], str]:
    found = _imported(where, "KEY_DISPLAY", value) if isinstance(value, str) else value
    if found is not None and not callable(found):
        raise _Faulty(
            "E004",
            f"{where}['KEY_DISPLAY'] is {value!r}, which is not callable",
            "Pass a callable of one key, its dotted path, or None",
        )
    return str if found is None else found


def _backend(where: str, path: object) -> type[Backend]:
    found = _imported(where, "BACKEND", path) if isinstance(path, str) else path
    if not isinstance(found, type) or not issubclass(found, Backend):
        raise _Faulty(
            "E002",
            f"{where}['BACKEND'] is {path!r}, which is no backend",
            f"Use a subclass of django_vega.backends.base.Backend, such as {LOCAL_BACKEND!r}",
        )
    return found


def _strategy(where: str, value: object) -> Strategy | CoordinatorFunction:
    if isinstance(value, str) and "." in value:
        value = _imported(where, "STRATEGY", value)
    if isinstance(value, Strategy | CoordinatorFunction):
        return value
    way_out = "Use a name, a Strategy, or the dotted path of one or of a @coordinator"
    if not isinstance(value, str):
        raise _Faulty("E003", f"{where}['STRATEGY'] is {value!r}, which is no strategy", way_out)
    try:
        return strategy_named(value)
    except ValueError as error:
        raise _Faulty("E003", f"{where}['STRATEGY']: {error}", way_out) from None


def _policy_strategy(where: str, given: Mapping[str, Any]) -> Strategy | CoordinatorFunction | None:
    parts = [name for name in ("LIMIT", "WHEN_FULL") if name in given]
    if "STRATEGY" in given and parts:
        raise _Faulty(
            "E004",
            f"{where} names a STRATEGY and {' and '.join(parts)}",
            "Name the strategy, or spell it out with LIMIT and WHEN_FULL",
        )
    if "STRATEGY" in given:
        strategy = _strategy(where, given["STRATEGY"])
    elif parts:
        strategy = _made(where, given.get("LIMIT", 1), given.get("WHEN_FULL", "reuse"), FROM_ALIAS)
    elif "CAPACITY" in given:
        raise _Faulty(
            "E004",
            f"{where} has a CAPACITY and no queue",
            'Add "STRATEGY": "serialize" or "WHEN_FULL": "queue"',
        )
    else:
        return None
    if "CAPACITY" not in given:
        return strategy
    if isinstance(strategy, CoordinatorFunction):
        raise _Faulty("E004", f"{where} has a CAPACITY beside a coordinator", "Leave it out")
    return _made(where, strategy.limit, strategy.when_full, given["CAPACITY"])


def _made(where: str, limit: Any, when_full: WhenFull, capacity: Any) -> Strategy:
    try:
        return Strategy(limit, when_full, capacity)
    except ValueError as error:
        known = when_full in get_args(WhenFull)
        fault_id = "E004" if known else "E003"
        raise _Faulty(fault_id, f"{where}: {error}", "Mend this policy") from None
