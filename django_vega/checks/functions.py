"""Checks of decorated functions, whatever they do: E003, E004, W003, W005."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage

from django_vega import conf
from django_vega.decorators import known_functions, share_keys_by_accident
from django_vega.options import misfit


def check_functions(**_: Any) -> list[CheckMessage]:
    """Report functions whose alias does not exist, whose callers wait forever, or that collide."""
    aliases, faults = conf.examine(getattr(settings, "DJANGO_VEGA", None))
    if faults:
        return []
    found: list[CheckMessage] = []
    functions = known_functions()
    for one in functions:
        definition = one.definition
        alias = aliases.get(definition.using)
        if alias is None:
            found.append(
                checks.Error(
                    f"{definition.name} uses the alias {definition.using!r}, which DJANGO_VEGA "
                    "does not have",
                    hint=conf.hint(definition.using, aliases),
                    id="django_vega.E003",
                )
            )
            continue
        given = {"call": {}, "decorator": definition.options}
        options = alias.effective(definition.key.namespace, given)
        if fault := misfit(options, definition.plan.stale):
            found.append(
                checks.Error(f"{definition.name}: {fault[0]}", hint=fault[1], id="django_vega.E004")
            )
        if options.timeout is not None:
            continue
        if alias.backend.is_shared:
            found.append(
                checks.Error(
                    f"{definition.name} has timeout=None on the shared alias {definition.using!r}",
                    hint="Set seconds: nothing else ends a wait for another process",
                    id="django_vega.E004",
                )
            )
        else:
            found.append(
                checks.Warning(
                    f"{definition.name} has timeout=None: its callers wait as long as the leader "
                    "takes",
                    hint="Set seconds above the work's p99, or silence this check",
                    id="django_vega.W003",
                )
            )
    names = [
        one.definition
        for position, one in enumerate(functions)
        if any(
            share_keys_by_accident(one.definition, other.definition)
            for other in functions[:position]
        )
    ]
    found += [
        checks.Warning(
            f"two functions are named {definition.name} and have the key "
            f"{definition.key.template!r}: they answer each other's calls",
            hint="Pass scope= with a name that tells them apart",
            id="django_vega.W005",
        )
        for definition in names
    ]
    return found
