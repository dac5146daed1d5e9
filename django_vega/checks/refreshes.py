"""What the checks see of the refreshes that are alive: who writes what, and where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings

from django_vega import conf
from django_vega.decorators import known_functions
from django_vega.refreshing import RefreshPlan
from django_vega.writing.faults import Fault, InvalidUpsertError
from django_vega.writing.upsert import Upsert


@dataclass(frozen=True)
class KnownRefresh:
    """A decorated refresh, in so far as it concerns models and databases.

    Attributes:
        name: Dotted name of its function.
        keys: Stands for the keys it may have: refreshes with equal ones have each other's fences.
        upserts: How it writes.
        faults: What is wrong with all of them together; empty where one by itself is wrong.
        database: The alias that it writes to; None where something is wrong, so nobody can tell.
        in_atomic: What happens inside its caller's transaction, as the settings leave it.
    """

    name: str
    keys: tuple[str, str]
    upserts: tuple[Upsert, ...]
    faults: tuple[Fault, ...]
    database: str | None
    in_atomic: str


def known_refreshes() -> Iterator[KnownRefresh]:
    """Yield every live refresh by name; none where the setting is wrong: that is told alone."""
    aliases, faults = conf.examine(getattr(settings, "DJANGO_VEGA", None))
    if faults:
        return
    for one in known_functions():
        definition = one.definition
        plan, alias = definition.plan, aliases.get(definition.using)
        if alias is None or not isinstance(plan, RefreshPlan):
            continue
        database, together = _database(plan)
        given = {"call": {}, "decorator": definition.options}
        yield KnownRefresh(
            name=definition.name,
            keys=(definition.scope or definition.name, definition.key.template or definition.name),
            upserts=plan.destination.upserts,
            faults=together,
            database=database,
            in_atomic=alias.effective(definition.key.namespace, given).in_atomic,
        )


def known_writers() -> Iterator[tuple[KnownRefresh, str]]:
    """Yield every live refresh in which nothing is wrong, and the database that it writes to."""
    for refresh in known_refreshes():
        if refresh.database is not None:
            yield refresh, refresh.database


def listed(names: list[str]) -> str:
    """Return names as one text, each once."""
    *others, last = dict.fromkeys(names)
    return f"{', '.join(others)} and {last}" if others else last


def _database(plan: RefreshPlan) -> tuple[str | None, tuple[Fault, ...]]:
    if any(upsert.faults() for upsert in plan.destination.upserts):
        return None, ()
    try:
        return plan.destination.database(), ()
    except InvalidUpsertError as error:
        return None, error.faults
