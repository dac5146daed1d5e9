"""What can be wrong with an `Upsert` once its model is known.

The system checks report these faults; a server, which runs no checks, raises them at the first
call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, cast

from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db.models import Field, Model, UniqueConstraint

from django_vega.core.errors import VegaError
from django_vega.fields import GenerationField

ColumnField: TypeAlias = "Field[Any, Any]"
Option: TypeAlias = Literal["unique_fields", "update_fields"]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with an `Upsert`.

    Attributes:
        slug: Names the kind of fault.
        message: What is wrong, with which value.
        hint: What to do.
    """

    slug: str
    message: str
    hint: str


class InvalidUpsertError(VegaError, ImproperlyConfigured):
    """An `Upsert` does not fit its model.

    You see this at the first call, before the function runs; ``manage.py check`` finds the same.
    """

    def __init__(self, model: str, faults: tuple[Fault, ...]) -> None:
        super().__init__(model, faults)
        self.model = model
        self.faults = faults

    def __str__(self) -> str:
        listed = "; ".join(f"{fault.message}. {fault.hint}" for fault in self.faults)
        return f"Upsert({self.model}): {listed}"


def model_faults(model: type[Model]) -> list[Fault]:
    """Return why rows of a model cannot be upserted at all."""
    meta = model._meta
    if meta.abstract:
        return [
            Fault(
                "abstract-model",
                f"{meta.label} is abstract and has no table",
                "Name a model that inherits from it",
            )
        ]
    if meta.swapped:
        return [
            Fault(
                "swapped-model",
                f"{meta.label} is swapped out for {meta.swapped}",
                "Name that model, or use get_user_model() and the like",
            )
        ]
    for parent in meta.all_parents:
        if parent._meta.concrete_model is not meta.concrete_model:
            return [
                Fault(
                    "multi-table-child",
                    f"{meta.label} keeps a part of its fields in the table of "
                    f"{parent._meta.label}, and bulk_create() writes one table",
                    "Make the parent abstract, or refresh a model with a table of its own",
                )
            ]
    if len(guards := generation_fields(model)) > 1:
        return [
            Fault(
                "several-generations",
                f"{meta.label} has more than one GenerationField: "
                f"{_listed(field.name for field in guards)}",
                "Keep one of them",
            )
        ]
    return []


def generation_fields(model: type[Model]) -> list[GenerationField]:
    """Return the fields of a model that guard its rows; one at most, in a model without faults."""
    return [field for field in model._meta.concrete_fields if isinstance(field, GenerationField)]


def unknown_names(model: type[Model], option: Option, names: Iterable[str]) -> list[Fault]:
    """Return a fault for each name that is no column of the model."""
    columns = {name for field in model._meta.concrete_fields for name in _names(field)} | {"pk"}
    faults = []
    for name in names:
        if name in columns:
            continue
        try:
            model._meta.get_field(name)
        except FieldDoesNotExist:
            close = get_close_matches(name, sorted(columns), n=1)
            faults.append(
                Fault(
                    "unknown-field",
                    f"{option} name {name!r}, but {model._meta.label} has no such field",
                    f"Did you mean {close[0]!r}?" if close else f"It has {_listed(columns)}",
                )
            )
        else:
            faults.append(
                Fault(
                    "not-a-column",
                    f"{option} name {name!r}, which is no column of {model._meta.label}",
                    "Use fields with a column of their own",
                )
            )
    return faults


def unique_faults(model: type[Model], unique: tuple[ColumnField, ...]) -> list[Fault]:
    """Return why the unique fields do not name one row."""
    label = model._meta.label
    faults = []
    if frozenset(unique) not in (usable := _unique_sets(model)):
        choices = ", ".join(sorted(_listed(field.name for field in key) for key in usable))
        faults.append(
            Fault(
                "no-unique-constraint",
                f"no unique constraint of {label} covers exactly "
                f"{_listed(field.name for field in unique)} (one with a condition, with "
                "expressions, or deferrable is no use: databases ignore or refuse it)",
                f"Add a UniqueConstraint over these fields, or use one of {choices}",
            )
        )
    faults += [
        Fault(
            "generation-in-unique-fields",
            f"unique_fields name {field.name!r} of {label}, which says who wrote a row, not which "
            "row it is",
            "Leave it out of unique_fields",
        )
        for field in unique
        if isinstance(field, GenerationField)
    ]
    faults += [
        Fault(
            "nullable-unique-field",
            f"the unique field {field.name!r} of {label} may be NULL, and NULL equals nothing: "
            "every refresh would insert such rows again",
            "Make it NOT NULL",
        )
        for field in unique
        if field.null
    ]
    return faults


def update_faults(
    model: type[Model], unique: tuple[ColumnField, ...], update: tuple[ColumnField, ...]
) -> list[Fault]:
    """Return why some fields cannot, or must not, be updated on rows that exist."""
    faults = []
    for field in update:
        if field in model._meta.pk_fields:
            slug, why = "primary-key-updated", "is the primary key and names the row"
        elif field in unique:
            slug, why = "unique-field-updated", "is in unique_fields and names the row"
        elif field.generated:
            slug, why = "generated-field-updated", "is computed by the database"
        elif isinstance(field, GenerationField):
            slug, why = "generation-updated", "every refresh sets to its own generation"
        elif getattr(field, "auto_now_add", False):
            slug, why = "auto-now-add-updated", "is auto_now_add: it tells when the row was created"
        else:
            continue
        faults.append(
            Fault(
                slug,
                f"update_fields name {field.name!r} of {model._meta.label}, which {why}",
                "Leave it out of update_fields",
            )
        )
    return faults


def unchanged_faults(model: type[Model]) -> list[Fault]:
    """Return why ``skip_unchanged`` cannot be had: a skipped row would keep its old generation."""
    return [
        Fault(
            "skip-unchanged-with-generation",
            f"skip_unchanged on {model._meta.label}, which has a GenerationField ({field.name!r}): "
            "a row that is skipped keeps its old generation, so an older answer of another key "
            "could overwrite it later",
            "Leave skip_unchanged out, or remove the field where each row belongs to one key",
        )
        for field in generation_fields(model)
    ]


def _unique_sets(model: type[Model]) -> set[frozenset[ColumnField]]:
    # Every set of columns that all databases accept as the target of a conflict. A proxy's own
    # Meta says nothing about the table.
    assert model._meta.concrete_model is not None
    meta = model._meta.concrete_model._meta
    sets = {frozenset({field}) for field in meta.concrete_fields if field.unique}
    sets.add(frozenset(meta.pk_fields))
    constraints = [
        constraint.fields
        for constraint in meta.constraints
        if isinstance(constraint, UniqueConstraint)
        and constraint.condition is None
        and constraint.deferrable is None
        and not constraint.expressions
    ]
    for names in (*meta.unique_together, *constraints):
        sets.add(frozenset(cast("ColumnField", meta.get_field(name)) for name in names))
    return sets


def _names(field: ColumnField) -> set[str]:
    return {field.name, field.attname}


def _listed(names: Iterable[str]) -> str:
    return "(" + ", ".join(sorted(names)) + ")"
