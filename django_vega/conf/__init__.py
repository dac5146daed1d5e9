"""The ``DJANGO_VEGA`` setting: read at the first call, never at import, and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_vega.conf.aliases import AliasSettings, Policy
from django_vega.conf.reader import AliasReader
from django_vega.conf.values import Fault, hint, seconds_fault, timeout_fault

__all__ = [
    "AliasSettings",
    "Fault",
    "Policy",
    "examine",
    "hint",
    "read",
    "seconds_fault",
    "timeout_fault",
]

DEFAULT_ALIAS: Final = "default"


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
        reader = AliasReader(f"DJANGO_VEGA[{alias!r}]", given)
        found = reader.alias()
        faults += reader.faults
        if found is not None and not reader.faults:
            aliases[alias] = found
    return aliases, faults
