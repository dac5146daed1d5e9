"""The unique keys of rows: what makes two rows one, their order, and how to find them stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any, Final, TypeAlias, TypeVar

from django.db import connections
from django.db.models import Model, Q, QuerySet

from django_vega.writing.faults import ColumnField

T = TypeVar("T")

UniqueKey: TypeAlias = tuple[Any, ...]

# Below the variables of one SQLite statement (999) and the depth of its expressions (1,000).
MOST_VARIABLES: Final = 500
MISSING: Final = object()


def is_set(value: object) -> bool:
    """Whether a value is there already: an expression is computed by the database."""
    return value is not None and value is not MISSING and not hasattr(value, "resolve_expression")


def normalised(fields: Sequence[ColumnField], values: Sequence[Any]) -> UniqueKey:
    """Return values as one key, hashable: "1" and 1 are one integer, a UUID and its text one."""
    return tuple(
        frozen(field.get_prep_value(value)) for field, value in zip(fields, values, strict=True)
    )


def frozen(value: Any) -> Any:
    """Return a value, or what stands for it where it cannot be hashed."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return tuple(sorted((name, frozen(item)) for name, item in value.items()))
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value


def ordered(keys: Iterable[UniqueKey]) -> list[UniqueKey]:
    """Sort keys; two writers with the same keys come to the same order, whatever the values are."""
    listed = list(keys)
    try:
        return sorted(listed)
    except TypeError:
        pass
    return sorted(listed, key=lambda key: [(type(part).__qualname__, repr(part)) for part in key])


def stored(
    alias: str,
    model: type[Model],
    unique: Sequence[ColumnField],
    fields: Sequence[ColumnField],
    rows: Iterable[Model],
) -> Iterator[tuple[UniqueKey, tuple[Any, ...]]]:
    """Read what is stored under the unique keys of rows: of each the key, and some fields' values.

    Inside the transaction that writes. What the database takes for the same key, in another case
    for instance, is yielded with the key that is stored.
    """
    attnames = [field.attname for field in (*unique, *fields)]
    table = locked(alias, model._base_manager.using(alias))
    for chunk in chunks(rows, max(MOST_VARIABLES // len(unique), 1)):
        for values in table.filter(_any_of(unique, chunk)).order_by().values_list(*attnames):
            yield normalised(unique, values[: len(unique)]), tuple(values[len(unique) :])


def locked(alias: str, rows: QuerySet[Model]) -> QuerySet[Model]:
    """Make a query see what is committed now, also in a transaction with an older snapshot.

    At REPEATABLE READ MySQL and MariaDB write to rows that plain reads of the same transaction do
    not see; locking reads do. PostgreSQL raises instead, and SQLite has one writer.
    """
    return rows.select_for_update() if connections[alias].vendor == "mysql" else rows


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut items into lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _any_of(fields: Sequence[ColumnField], rows: Sequence[Model]) -> Q:
    names = [field.attname for field in fields]
    if len(names) == 1:
        return Q(**{f"{names[0]}__in": [getattr(row, names[0]) for row in rows]})
    return reduce(or_, (Q(**{name: getattr(row, name) for name in names}) for row in rows))
