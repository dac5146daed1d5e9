"""Deleting what a response no longer has, within the scope that the response speaks for."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import QuerySet

from django_vega.core.errors import EmptyResponseError
from django_vega.writing.rows import Batch
from django_vega.writing.unique import MOST_VARIABLES, chunks, normalised, ordered, stored
from django_vega.writing.upsert import Upsert


def scope_of(
    upsert: Upsert, batch: Batch, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> QuerySet[Any] | None:
    """Ask for the rows that a response speaks for, before anything is written.

    Args:
        upsert: With its ``prune``.
        batch: The response.
        args: The positional arguments of the function.
        kwargs: Its keyword arguments.

    Returns:
        None where nothing is pruned.

    Raises:
        EmptyResponseError: The response has no rows, and may not empty its scope.
        TypeError: ``prune`` returned something else than a queryset of the model.
        Exception: Whatever ``prune`` raises.
    """
    if upsert.prune is None:
        return None
    label = upsert.target.model._meta.label
    if not len(batch) and not upsert.allow_empty:
        raise EmptyResponseError(label)
    scope: object = upsert.prune(*args, **kwargs)
    if not isinstance(scope, QuerySet):
        raise TypeError(
            f"prune returned {scope!r}. Return a queryset of {label}: the rows that this response "
            "speaks for"
        )
    if scope.model._meta.concrete_model is not upsert.target.model._meta.concrete_model:
        raise TypeError(
            f"prune returned a queryset of {scope.model._meta.label}, but the rows are written to "
            f"{label}. Return a queryset of that model"
        )
    if scope.query.is_sliced:
        raise TypeError(
            f"prune returned a slice of {label}, and which rows that is depends on the others. "
            "Return a queryset with a filter"
        )
    return scope


def prune(alias: str, batch: Batch, scope: QuerySet[Any], generation: int) -> int:
    """Delete the rows of a scope that a response does not have; behind the fence, after its rows.

    Args:
        alias: The database of the rows; the scope is read there.
        batch: The response, written.
        scope: From `scope_of`.
        generation: Of the flight. Rows that a newer one has written are spared.

    Returns:
        How many rows were deleted, without cascades.
    """
    target = batch.target
    names = [field.attname for field in target.unique]
    inside = {
        normalised(target.unique, values): pk
        for pk, *values in scope.using(alias).values_list("pk", *names).iterator(chunk_size=2000)
    }
    gone = {key: pk for key, pk in inside.items() if key not in batch.rows}
    if gone:
        # Rows that the database knows by another spelling of their key are not gone.
        elsewhere = [row for key, row in batch.rows.items() if key not in inside]
        for key, _ in stored(alias, target.model, target.unique, (), elsewhere):
            gone.pop(key, None)
    return _delete(alias, batch, [gone[key] for key in ordered(gone)], generation)


def _delete(alias: str, batch: Batch, pks: list[Any], generation: int) -> int:
    target = batch.target
    table = target.model._base_manager.using(alias)
    deleted = 0
    for chunk in chunks(pks, MOST_VARIABLES // len(target.model._meta.pk_fields)):
        rows = table.filter(pk__in=chunk)
        if target.guard is not None:
            rows = rows.filter(**{f"{target.guard.attname}__lt": generation})
        if connections[alias].features.has_select_for_update:
            # Nobody writes them from here on: what is not newer now stays so until they are gone.
            rows = rows.select_for_update()
        found = [pk for (pk,) in rows.values_list("pk")]
        if found:
            table.filter(pk__in=found).delete()
            deleted += len(found)
    return deleted
