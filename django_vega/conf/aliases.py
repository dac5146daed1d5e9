"""What the setting says about one alias, and which source decides on each option of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from django_vega.backends.base import Backend
from django_vega.backends.codecs import Codec, JsonCodec
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.call import Options
from django_vega.core.strategies import FROM_ALIAS, Strategy
from django_vega.runtime.link import OnBackendError


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
    location: object = None
    lease: float = 10.0
    codec: Codec = field(default_factory=JsonCodec)
    on_backend_error: OnBackendError = "local"
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
            dict(self.options),
            self.location,
            self.lease,
            self.codec.name,
            self.on_backend_error,
            self.key_prefix if self.backend.is_shared else "",
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
                "fresh_for": 0.0,
                "while_busy": "wait",
                "on_last_leave": "keep",
                "shaper": None,
                "force": False,
                "next": False,
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
            **values,
            capacity=self.capacity if capacity is FROM_ALIAS else cast("int | None", capacity),
            origin=origin,
        )


def _stated(policy: Policy) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    if policy.strategy is not None:
        stated["strategy"] = policy.strategy
    if policy.has_timeout:
        stated["timeout"] = policy.timeout
    return stated
