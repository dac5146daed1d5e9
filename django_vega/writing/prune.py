"""Deleting what a response no longer has, within the scope that the response speaks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from django_vega.core.errors import EmptyResponseError
from django_vega.writing.faults import ColumnField
from django_vega.writing.rows import Batch
from django_vega.writing.stored import stored
from django_vega.writing.unique import MOST_VARIABLES, UniqueKey, chunks, normalised, ordered
from django_vega.writing.upsert import Upsert


def signature_fault(
    prune: Callable[..., object], function_signature: inspect.Signature
) -> str | None:
    """Return why ``prune`` cannot be called as a function is; None where it can, or nobody knows.

    It gets the function's arguments as `inspect.BoundArguments` has them, defaults included:
    ``self`` or ``cls`` too, all that may be positional in their order, the others by name.

    Args:
        prune: That of an `Upsert`.
        function_signature: Of the plain function, with ``self`` or ``cls``.
    """
    try:
        own = inspect.signature(prune)
    except (TypeError, ValueError):
        return None
    given = list(function_signature.parameters.values())
    positional = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: p.name for p in given if p.kind is p.KEYWORD_ONLY}
    try:
        taken = own.bind(*positional, **by_name).arguments
    except TypeError as error:
        why = str(error)
    else:
        kinds = {p.kind for p in own.parameters.values()}
        open_ends = (p for p in given if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        untaken = [_bare(p) for p in open_ends if p.kind not in kinds]
        swapped = [(mine, got) for mine, got in taken.items() if mine != got and mine in positional]
        if untaken:
            why = f"it takes no {untaken[0]}"
        elif swapped:
            why = "its {!r} would get {!r}".format(*swapped[0])
        else:
            return None
    names = ", ".join(map(_bare, given))
    return (
        f"prune={prune!r} cannot be called as the function is, with ({names}): {why}. Give it the "
        "parameters of the function in their order, self or cls included"
    )


def _bare(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=parameter.empty, default=parameter.empty))


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
    pk_fields = target.model._meta.pk_fields
    names = ["pk", *(field.attname for field in target.unique)]
    inside = {
        normalised(target.unique, values): pk
        for pk, *values in scope.using(alias).values_list(*names).iterator(chunk_size=2000)
    }
    gone = {key: pk for key, pk in inside.items() if key not in batch.rows}
    if gone:
        # Rows that the database knows by another spelling of their key are not gone.
        elsewhere = {key: row for key, row in batch.rows.items() if key not in inside}
        kept = {
            normalised(pk_fields, values)
            for _, values in stored(alias, target.model, target.unique, pk_fields, elsewhere)
        }
        gone = {key: pk for key, pk in gone.items() if _parts(pk_fields, pk) not in kept}
    return _delete(alias, batch, [gone[key] for key in ordered(gone)], generation)


def _parts(pk_fields: Sequence[ColumnField], pk: Any) -> UniqueKey:
    return normalised(pk_fields, pk if len(pk_fields) > 1 else (pk,))


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
