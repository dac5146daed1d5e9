"""Reading what is stored under the unique keys of rows, inside the transaction that writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

from django.db import connections
from django.db.models import Model, Q, QuerySet

from django_vega.writing.faults import ColumnField
from django_vega.writing.spelling import latest
from django_vega.writing.unique import MOST_VARIABLES, UniqueKey, chunks, normalised


def stored(
    alias: str,
    model: type[Model],
    unique: Sequence[ColumnField],
    fields: Sequence[ColumnField],
    rows: Mapping[UniqueKey, Model],
) -> Iterator[tuple[UniqueKey, tuple[Any, ...]]]:
    """Read some fields of the rows that are stored under unique keys, each with the key asked for.

    What is stored in another spelling of a key comes with the key that was asked for, too, unless
    nobody can tell which one that is.
    """
    attnames = [field.attname for field in (*unique, *fields)]
    table = locked(alias, model._base_manager.using(alias))
    for chunk in chunks(rows.items(), max(MOST_VARIABLES // len(unique), 1)):
        asked = dict(chunk)
        query = table.filter(_any_of(unique, list(asked.values()))).order_by()
        told = [
            (normalised(unique, values[: len(unique)]), tuple(values[len(unique) :]))
            for values in query.values_list(*attnames)
        ]
        others = [key for key, _ in told if key not in asked]
        same = latest(alias, model, unique, [*others, *asked]) if others else {}
        for key, values in told:
            yield same.get(key, key), values


def locked(alias: str, rows: QuerySet[Model]) -> QuerySet[Model]:
    """Make a query see what is committed now, also in a transaction with an older snapshot.

    At REPEATABLE READ MySQL and MariaDB write to rows that plain reads of the same transaction do
    not see; locking reads do. PostgreSQL raises instead, and SQLite has one writer.
    """
    return rows.select_for_update() if connections[alias].vendor == "mysql" else rows


def _any_of(fields: Sequence[ColumnField], rows: Sequence[Model]) -> Q:
    names = [field.attname for field in fields]
    if len(names) == 1:
        return Q(**{f"{names[0]}__in": [getattr(row, names[0]) for row in rows]})
    return reduce(or_, (Q(**{name: getattr(row, name) for name in names}) for row in rows))
