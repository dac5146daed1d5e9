"""Watching the result of a query."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterable
from typing import Any, Final, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db.models import Manager, Model, QuerySet

from django_vega.changes import listen, tables_in, tables_of
from django_vega.watching.iteration import Source, Watch

M = TypeVar("M", bound=Model)
R = TypeVar("R")

# Attributes of a queryset that its statement contains, or that do not show in its rows.
_IN_THE_STATEMENT: Final = frozenset(
    {
        "_db",
        "_defer_next_filter",
        "_deferred_filter",
        "_for_write",
        "_hints",
        "_known_related_objects",
        "_prefetch_done",
        "_query",
        "_result_cache",
        "_sticky_filter",
    }
)


def watch(queryset: QuerySet[M, R], *, timeout: float | None = None) -> Watch[list[R]]:
    """Iterate over the result of a query: at once, and again after each committed change.

        async for rows in watch(Quake.objects.filter(region="alaska")):
            await send(rows)

    Works with ``for`` as well. Each turn gets a list of its own; its rows are shared with everybody
    in this process who watches the same: treat them as read-only.

    - A change is a refresh of ours, a ``save``, a ``delete`` (of a queryset too), or a many-to-many
      change, of a model whose table the query names: its own, joined ones, those of subqueries;
      on whichever database. Raw SQL, `update`, `bulk_create`, what the database does by itself, and
      models of ``prefetch_related`` are not seen, nor is a transaction that had written before
      anybody in this process first watched the model. `django_vega.changes.announce` tells of them.
    - Nothing is told before the commit or after a rollback. In a TestCase commits are told inside
      ``captureOnCommitCallbacks(execute=True)``.
    - A change that leaves the result as it was gives it again. Changes that come while the query
      runs, or while a watcher is busy, are one change.
    - One query at a time answers all watchers of the same statement, on threads and event loops. A
      failed refresh changes nothing, so it gives nothing.
    - The result is kept for 5 s when the last watcher has left; who comes back by then needs no
      query, unless something has changed.

    Args:
        queryset: What is watched; it is not evaluated here. Sliced, combined, ``values()``: any.
        timeout: See `Watch.with_timeout`.

    Raises:
        TypeError: ``queryset`` is no queryset, or ``timeout`` no number.
        ValueError: ``timeout`` is below 0.
    """
    if not isinstance(queryset, QuerySet):
        raise TypeError(f"watch({queryset!r}): {_way_out(queryset)}")
    return Watch(QuerySource(queryset), timeout)


class QuerySource(Source["list[Any]"]):
    """The rows of a queryset, read from the database that it chooses."""

    def __init__(self, queryset: QuerySet[Any, Any]) -> None:
        # Pinned: a router may choose another replica each time.
        self.alias = queryset.db
        self._queryset = queryset.using(self.alias)
        self.label = queryset.model._meta.label
        self._tables = tables_of(queryset.model)

    def identify(self) -> tuple[Hashable, Iterable[Hashable]]:
        """Compile the query; the same statement with the same parameters is the same set."""
        queryset = self._queryset.all()
        try:
            sql, parameters = queryset.query.get_compiler(self.alias).as_sql()
        except EmptyResultSet:
            sql, parameters = "", ()
        self._tables |= tables_in(sql, self.alias)
        values = tuple(map(_comparable, parameters))
        return (self.alias, sql, values, _shape(queryset)), self._tables

    def listen(self) -> None:
        """Hear of changes of every model in the query."""
        listen(self._tables)

    def read(self) -> list[Any]:
        """Run the query."""
        return list(self._queryset.all())

    def is_worth_keeping(self) -> bool:
        """Keep it for who comes back."""
        return True

    def for_watcher(self, value: list[Any]) -> list[Any]:
        """Return a list that its watcher may sort or cut."""
        return value.copy()


def _way_out(given: object) -> str:
    if isinstance(given, Manager):
        return "that is a manager. Pass its .all(), or a filter of it"
    if isinstance(given, type) and issubclass(given, Model):
        return f"that is a model. Pass {given.__name__}.objects.all(), or a filter of it"
    return (
        "pass a queryset, such as Model.objects.filter(...). Lists do not change, and of raw "
        "queries nobody knows when they do"
    )


def _shape(queryset: QuerySet[Any, Any]) -> Hashable:
    """Return what makes two querysets with one statement give different rows.

    The model (a proxy has its own), what rows are made of, prefetches, attributes of a subclass,
    which related objects rows come with, and what annotations are converted to.
    """
    attributes = tuple(
        (name, _comparable(value))
        for name, value in sorted(vars(queryset).items())
        if name not in _IN_THE_STATEMENT
    )
    related = tuple(map(str, vars(queryset)["_known_related_objects"]))
    annotations = tuple(
        (name, type(field), getattr(field, "decimal_places", None))
        for name, annotation in queryset.query.annotation_select.items()
        for field in [annotation.output_field]
    )
    return type(queryset), attributes, related, annotations


def _comparable(value: Any) -> Hashable:
    """Return the value's type and content, or the value where it has an identity of its own.

    Not its equality: 1 equals True, and prefetches are equal when their names are.
    """
    if isinstance(value, type):
        return value
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever stands in the way, then it equals itself only
        return _Itself(value)


class _Itself:
    """Stands for one object, and keeps it from being replaced by another of the same id."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)
