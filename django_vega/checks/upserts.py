"""Checks of upserts against their models and databases: E005 to E010, and W006."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from django.core import checks
from django.core.checks import CheckMessage
from django.db.models import Model

from django_vega.checks.refreshes import KnownRefresh, known_refreshes, known_writers, listed
from django_vega.writing.faults import Fault
from django_vega.writing.upsert import Upsert

# By the fault's slug. Every other fault is about the model as a whole.
_IDS: Final = {
    "no-unique-constraint": "E005",
    "generation-in-unique-fields": "E005",
    "primary-key-updated": "E006",
    "unique-field-updated": "E006",
    "auto-now-add-updated": "E006",
    "generation-updated": "E006",
    "no-upsert": "E007",
    "no-fence": "E007",
    "no-row-guard": "E007",
    "several-databases": "E007",
    "no-fence-table": "E008",
    "nullable-unique-field": "E009",
    "generated-field-updated": "E009",
}
_NAME_FAULTS: Final = frozenset({"unknown-field", "not-a-column"})
_MODEL_ID: Final = "E010"


def check_upserts(**_: Any) -> list[CheckMessage]:
    """Report upserts that fit neither model nor database, and `write` that fits no database.

    Their first call raises the same.
    """
    users: defaultdict[tuple[str, str, Fault], list[str]] = defaultdict(list)
    for refresh in known_refreshes():
        option = "Upsert" if refresh.upserts else "write="
        for check_id, fault in _faults(refresh):
            users[option, check_id, fault].append(refresh.name)
    return [
        checks.Error(
            f"the {option} of {listed(names)}: {fault.message}",
            hint=fault.hint,
            id=f"django_vega.{check_id}",
        )
        for (option, check_id, fault), names in users.items()
    ]


def check_writers(**_: Any) -> list[CheckMessage]:
    """Report models whose rows several refreshes write without a guard (W006)."""
    # Refreshes with the same keys pass the same fences: those count once.
    writers: defaultdict[type[Model], dict[tuple[str, str], str]] = defaultdict(dict)
    for refresh, _database in known_writers():
        for upsert in refresh.upserts:
            if upsert.target.guard is None:
                model = upsert.target.model._meta.concrete_model
                assert model is not None
                writers[model].setdefault(refresh.keys, refresh.name)
    return [
        checks.Warning(
            f"{model._meta.label} is written by {listed(list(names.values()))}, and has no "
            "GenerationField: each is fenced by its own keys alone, so a late old answer of one "
            "overwrites newer rows of the other",
            hint="Add generation = GenerationField() to the model, or silence this check if they "
            "never write the same rows",
            id="django_vega.W006",
        )
        for model, names in writers.items()
        if len(names) > 1
    ]


def _faults(refresh: KnownRefresh) -> Iterator[tuple[str, Fault]]:
    for upsert in refresh.upserts:
        for fault in upsert.faults():
            yield _id(upsert, fault), fault
    for fault in refresh.faults:
        yield _IDS.get(fault.slug, _MODEL_ID), fault


def _id(upsert: Upsert, fault: Fault) -> str:
    if fault.slug not in _NAME_FAULTS:
        return _IDS.get(fault.slug, _MODEL_ID)
    # What stays without update_fields is about unique_fields.
    return "E005" if fault in replace(upsert, update_fields=None).faults() else "E006"
