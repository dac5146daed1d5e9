"""Checks of the setting itself: E001 to E004, and W001 at deployment."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage

from django_vega import conf
from django_vega.backends.local import LocalBackend


def check_setting(**_: Any) -> list[CheckMessage]:
    """Report what is wrong with ``DJANGO_VEGA`` (E001 to E004)."""
    faults = conf.examine(getattr(settings, "DJANGO_VEGA", None))[1]
    return [
        checks.Error(fault.message, hint=fault.hint, id=f"django_vega.{fault.id}")
        for fault in faults
    ]


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
