"""Checks of the setting itself: E001 to E004, W003, W010; at deployment W001, W007."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage

from django_vega import conf
from django_vega.backends.base import BackendUnavailableError, SharedBackend
from django_vega.backends.local import LocalBackend
from django_vega.conf import AliasSettings

# A process stands still for some seconds now and then: to collect garbage, or for lack of memory.
_SHORTEST_LEASE: Final = 3.0


def check_setting(**_: Any) -> list[CheckMessage]:
    """Report what is wrong with ``DJANGO_VEGA`` (E001 to E004), or unwise (W003, W010)."""
    aliases, faults = conf.examine(getattr(settings, "DJANGO_VEGA", None))
    found: list[CheckMessage] = [
        checks.Error(fault.message, hint=fault.hint, id=f"django_vega.{fault.id}")
        for fault in faults
    ]
    for alias, one in aliases.items():
        found += _unwise(f"DJANGO_VEGA[{alias!r}]", one)
    return found


def _unwise(where: str, alias: AliasSettings) -> Iterator[CheckMessage]:
    if alias.backend.is_shared and alias.lease < _SHORTEST_LEASE:
        yield checks.Warning(
            f"{where} has a LEASE of {alias.lease:g} s: a leader that stands still for longer is "
            "taken for dead, and its work is done twice",
            hint="Set at least 3, above the longest pause of a process",
            id="django_vega.W003",
        )
    if not alias.codec.is_safe:
        yield checks.Warning(
            f"{where} has the CODEC {alias.codec.name!r}: whoever can write to its server can run "
            "code in every process that reads",
            hint='Use "json", or silence this check where only trusted processes write there',
            id="django_vega.W010",
        )
    if alias.capacity is None:
        yield checks.Warning(
            f"{where} has CAPACITY=None: its queues take as many calls as come",
            hint="Set a number that the memory of a process holds, or silence this check",
            id="django_vega.W010",
        )


def check_deployment(**_: Any) -> list[CheckMessage]:
    """Say which aliases coordinate one process only (W001)."""
    aliases = conf.examine(getattr(settings, "DJANGO_VEGA", None))[0]
    return [
        checks.Warning(
            f"DJANGO_VEGA[{alias!r}] is a LocalBackend: several worker processes coordinate "
            "nothing among each other, though the fence protects the rows from all of them",
            hint="Run one process, or silence this check if one execution per process is enough",
            id="django_vega.W001",
        )
        for alias, found in aliases.items()
        if issubclass(found.backend, LocalBackend)
    ]


def check_servers(**_: Any) -> list[CheckMessage]:
    """Say which servers may throw keys away (W007); one that does not answer is not judged."""
    aliases = conf.examine(getattr(settings, "DJANGO_VEGA", None))[0]
    found: list[CheckMessage] = []
    for alias, one in aliases.items():
        if not issubclass(one.backend, SharedBackend):
            continue
        backend = one.backend(one.options, one.location)
        try:
            policy = backend.eviction_policy()
        except BackendUnavailableError:
            continue
        finally:
            backend.close()
        if policy is not None:
            found.append(
                checks.Warning(
                    f"the server of DJANGO_VEGA[{alias!r}] evicts keys when its memory is full "
                    f"({policy}): a key that is thrown away is led twice",
                    hint="Set maxmemory-policy to noeviction, or use a server of its own",
                    id="django_vega.W007",
                )
            )
    return found
