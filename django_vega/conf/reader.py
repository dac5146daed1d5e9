"""Reads one alias of the setting, and notes all that is wrong instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

from django.conf import settings

from django_vega.backends.base import Backend
from django_vega.conf.aliases import AliasSettings, Policy
from django_vega.conf.values import (
    LOCAL_BACKEND,
    Fault,
    FaultyError,
    hint,
    locate_cache,
    read_backend,
    read_codec,
    read_display,
    read_lease,
    read_policy_strategy,
    read_strategy,
    read_timeout,
)

POLICY_OPTIONS: Final = ("STRATEGY", "LIMIT", "WHEN_FULL", "CAPACITY", "TIMEOUT")
# What says something only where processes share a server.
SHARED_OPTIONS: Final = ("LOCATION", "LEASE", "CODEC", "ON_BACKEND_ERROR")
ALIAS_OPTIONS: Final = (
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
    *SHARED_OPTIONS,
)


class AliasReader:
    """Reads one alias.

    Attributes:
        faults: What is wrong with it so far.
    """

    def __init__(self, where: str, given: Mapping[str, Any]) -> None:
        self._where = where
        self._given = given
        self.faults: list[Fault] = []

    def alias(self) -> AliasSettings | None:
        """Return the alias with its defaults filled in; None when something essential is wrong."""
        given = self._given
        self._unknown(self._where, given, ALIAS_OPTIONS)
        backend = self._take(lambda: read_backend(self._where, given.get("BACKEND", LOCAL_BACKEND)))
        strategy = self._take(lambda: read_strategy(self._where, given.get("STRATEGY", "dedupe")))
        timeout = self._take(
            lambda: read_timeout(self._where, given.get("TIMEOUT", 30)), or_else=30.0
        )
        options = given.get("OPTIONS", {})
        location, merged = locate_cache(
            given.get("LOCATION"), options if isinstance(options, Mapping) else {}
        )
        if backend is not None:
            known = options if backend.option_names is None else backend.option_names
            self._unknown(f"{self._where}['OPTIONS']", options, known)
            self._shared(backend, location, merged)
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
        display = self._take(lambda: read_display(self._where, given.get("KEY_DISPLAY")))
        codec = self._take(lambda: read_codec(self._where, given.get("CODEC", "json")))
        on_error = self._choice("ON_BACKEND_ERROR", "local", ("local", "raise", "run"))
        lease = self._take(lambda: read_lease(self._where, given.get("LEASE", 10)), or_else=10.0)
        if backend is None or strategy is None or display is None or codec is None:
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
            options=merged,
            location=location,
            lease=lease,
            codec=codec,
            on_backend_error=on_error,
            given=frozenset(given),
        )

    def _shared(self, backend: type[Backend], location: object, options: Mapping[str, Any]) -> None:
        """Note what is wrong with the options of a backend that processes share."""
        if not backend.is_shared:
            for name in SHARED_OPTIONS:
                if name in self._given:
                    self._note(
                        "E004",
                        f"{self._where}[{name!r}] says nothing to {backend.__name__}, which "
                        "coordinates one process",
                        "Leave it out, or choose a backend that processes share",
                    )
            return
        if (fault := backend.fault(options, location)) is not None:
            message, what_to_do = fault
            if isinstance(location, str) and "://" not in location:
                what_to_do = hint(location, settings.CACHES)
            self._note("E004", f"{self._where}: {message}", what_to_do)

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
            strategy = self._take(partial(read_policy_strategy, where, given))
            timeout = self._take(partial(read_timeout, where, given.get("TIMEOUT")))
            yield namespace, Policy(strategy, "TIMEOUT" in given, timeout)

    def _take(self, read: Callable[[], Any], or_else: Any = None) -> Any:
        try:
            return read()
        except FaultyError as error:
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
