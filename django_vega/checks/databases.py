"""Checks of the databases that refreshes write to: E008, W004, W008, W009."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.core import checks
from django.core.checks import CheckMessage
from django.db import DatabaseError, connections
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import UniqueConstraint

from django_vega.checks.refreshes import KnownRefresh, known_writers, listed
from django_vega.writing.upsert import Target, Upsert

# What Python's sqlite3 takes when nothing is said, and the least that serves a crowd of writers.
_SQLITE_TIMEOUT: Final = 5.0
_FIRST_MIGRATION: Final = ("django_vega", "0001_initial")


def check_databases(**_: Any) -> list[CheckMessage]:
    """Report databases that refreshes do not get on with; opens no connection."""
    found: list[CheckMessage] = []
    upserts: defaultdict[tuple[str, Upsert], list[str]] = defaultdict(list)
    for refresh, alias in known_writers():
        found += _transactions(refresh, alias)
        for upsert in refresh.upserts:
            upserts[alias, upsert].append(refresh.name)
    for (alias, upsert), names in upserts.items():
        found += _collisions(alias, upsert.target, names)
    for alias, names in _writers().items():
        found += _patience(alias, names)
    return found


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Report databases that refreshes write to and that have no table for fences (E008).

    Only of those that are asked about (``check --database other``), and that answer. While
    ``migrate`` can still create the table this is a warning: ``migrate`` runs the checks first,
    and an error would keep it from doing so.
    """
    writers = _writers()
    return [
        message
        for alias in databases or ()
        if alias in writers
        for message in _fence_table(alias, writers[alias])
    ]


def _writers() -> dict[str, list[str]]:
    writers: defaultdict[str, list[str]] = defaultdict(list)
    for refresh, alias in known_writers():
        writers[alias].append(refresh.name)
    return writers


def _transactions(refresh: KnownRefresh, alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    if refresh.in_atomic == "refuse" and connection.settings_dict["ATOMIC_REQUESTS"]:
        yield checks.Warning(
            f"{refresh.name} writes to the database {alias!r}, whose ATOMIC_REQUESTS put every "
            "view into a transaction, and has in_atomic='refuse': called from a view it raises "
            "InAtomicBlockError",
            hint="Put @transaction.non_atomic_requests on the views that call it, or pass "
            "in_atomic='solo'",
            id="django_vega.W004",
        )
    mode = str(connection.settings_dict["OPTIONS"].get("transaction_mode", "")).upper()
    is_deferred = connection.vendor == "sqlite" and mode not in {"IMMEDIATE", "EXCLUSIVE"}
    if refresh.in_atomic == "solo" and is_deferred:
        yield checks.Warning(
            f"{refresh.name} has in_atomic='solo', and transactions of the SQLite database "
            f"{alias!r} are deferred: one that has read before it writes fails with 'database is "
            "locked' as soon as somebody else has written",
            hint='Set "transaction_mode": "IMMEDIATE" in the OPTIONS of this database',
            id="django_vega.W009",
        )


def _collisions(alias: str, target: Target, names: list[str]) -> Iterator[CheckMessage]:
    if connections[alias].vendor != "mysql":
        return
    for columns in _other_unique_keys(target):
        yield checks.Warning(
            f"{listed(names)} write {target.model._meta.label} to the database {alias!r}, where "
            "every unique key can be met and not only unique_fields: a row that meets another one "
            f"by {columns} would update that one, and fails the refresh",
            hint="Drop the other key, or silence this check if its value never moves from one row "
            "to another",
            id="django_vega.W008",
        )


def _other_unique_keys(target: Target) -> Iterator[str]:
    assert target.model._meta.concrete_model is not None
    meta = target.model._meta.concrete_model._meta
    unique = {field.name for field in target.unique}
    keys: list[tuple[str, ...]] = [(field.name,) for field in meta.concrete_fields if field.unique]
    keys += [tuple(field.name for field in meta.pk_fields), *map(tuple, meta.unique_together)]
    for constraint in meta.constraints:
        # With a condition, or deferrable, it does not exist on this database.
        if (
            isinstance(constraint, UniqueConstraint)
            and constraint.condition is None
            and constraint.deferrable is None
        ):
            keys.append(tuple(constraint.fields) or (constraint.name,))
    made = {field.name for field in meta.pk_fields if field.has_default() or field.db_returning}
    for key in dict.fromkeys(keys):
        # A primary key that is made up meets nobody.
        if set(key) != unique and not made.intersection(key):
            yield f"({', '.join(key)})"


def _patience(alias: str, names: list[str]) -> Iterator[CheckMessage]:
    connection = connections[alias]
    timeout = connection.settings_dict["OPTIONS"].get("timeout", _SQLITE_TIMEOUT)
    if connection.vendor == "sqlite" and timeout < _SQLITE_TIMEOUT:
        yield checks.Warning(
            f"writers of the SQLite database {alias!r} wait {timeout} s for each other, then fail "
            f"with 'database is locked'; {listed(names)} write to it",
            hint='Set "timeout": 20 in the OPTIONS of this database',
            id="django_vega.W009",
        )


def _fence_table(alias: str, names: list[str]) -> Iterator[CheckMessage]:
    from django_vega.models import RefreshState

    connection = connections[alias]
    try:
        with connection.cursor() as cursor:
            tables = connection.introspection.table_names(cursor)
        if RefreshState._meta.db_table in tables:
            return
        is_applied = _FIRST_MIGRATION in MigrationRecorder(connection).applied_migrations()
    except DatabaseError:
        # It does not answer, which is somebody else's message.
        return
    told = (
        f"{listed(names)} write to the database {alias!r}, which has no table "
        f"{RefreshState._meta.db_table} for their fences: their first call fails"
    )
    if is_applied:
        yield checks.Error(
            told,
            hint="It was there, or the migration was faked. Run manage.py migrate django_vega zero "
            f"--fake --database {alias}, then the same without zero and --fake",
            id="django_vega.E008",
        )
    else:
        yield checks.Warning(
            told,
            hint=f"Run manage.py migrate django_vega --database {alias}",
            id="django_vega.E008",
        )
