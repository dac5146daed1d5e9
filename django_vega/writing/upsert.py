"""The declaration of how rows are written, and what it means for its model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal, cast

from django.apps import apps
from django.db import router
from django.db.models import Model

from django_vega.writing.faults import (
    ColumnField,
    Fault,
    InvalidUpsertError,
    model_faults,
    unique_faults,
    unknown_names,
    update_faults,
)


@dataclass(frozen=True)
class Upsert:
    """How the rows of a refresh are written: inserted, or updated where they exist.

    Touches no settings and no app registry before the first call, so it can stand in a decorator.

    Args:
        model: A model class or ``"app.Model"``.
        unique_fields: The names of the fields that tell which row is meant; exactly those of a
            primary key, a unique field or a unique constraint that is unconditional, not
            deferrable, and made of fields that are NOT NULL.
        update_fields: The names of the fields that an existing row takes over. Default: all with a
            column, except the primary key, the unique, the ``auto_now_add`` and the generated ones.
            ``auto_now`` fields always belong to them.
        batch_size: Rows per statement, at least 1. Default: as many as the database takes.
        duplicates: What becomes of two rows of one response with the same unique key:
            ``"last"`` keeps the last, ``"error"`` raises `DuplicateRowError`.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option has a value that is not allowed.
    """

    model: type[Model] | str
    unique_fields: Sequence[str]
    _: KW_ONLY
    update_fields: Sequence[str] | None = None
    batch_size: int | None = None
    duplicates: Literal["last", "error"] = "last"

    def __post_init__(self) -> None:
        _require_model(self.model)
        unique_fields = _field_names("unique_fields", self.unique_fields)
        if not unique_fields:
            raise ValueError(
                "unique_fields is empty, so no row could be recognised. Name the fields of a "
                'unique constraint, e.g. unique_fields=["usgs_id"]'
            )
        object.__setattr__(self, "unique_fields", unique_fields)
        if self.update_fields is not None:
            update_fields = _field_names("update_fields", self.update_fields)
            if not update_fields:
                raise ValueError(
                    "update_fields is empty, so a row that exists would never change. Name the "
                    "fields that may, or leave update_fields out to update all"
                )
            object.__setattr__(self, "update_fields", update_fields)
        if self.batch_size is not None:
            if not isinstance(self.batch_size, int) or isinstance(self.batch_size, bool):
                raise TypeError(
                    f"batch_size={self.batch_size!r} is no number of rows. Use an int of at "
                    "least 1, or None for as many as the database takes"
                )
            if self.batch_size < 1:
                raise ValueError(
                    f"batch_size={self.batch_size!r} would write nothing. Use at least 1, or None "
                    "for as many as the database takes"
                )
        if self.duplicates not in ("last", "error"):
            raise ValueError(
                f'duplicates={self.duplicates!r} is unknown. Use "last" to keep the last of two '
                'rows with the same unique key, or "error" to refuse such a response'
            )

    def faults(self) -> list[Fault]:
        """Return what is wrong with the options, given the model; empty when all is well.

        Needs the app registry to be ready.
        """
        try:
            model = self._model
        except LookupError as error:
            return [
                Fault(
                    "unknown-model",
                    f"there is no model {self.model!r}: {error}",
                    'Write "app_label.ModelName" of an app in INSTALLED_APPS',
                )
            ]
        if faults := model_faults(model):
            return faults
        faults = unknown_names(model, "unique_fields", self.unique_fields)
        if not faults:
            faults += unique_faults(model, self._unique)
        if self.update_fields is not None:
            if unknown := unknown_names(model, "update_fields", self.update_fields):
                faults += unknown
            elif not faults:
                update = _fields(model, self.update_fields)
                faults += update_faults(model, self._unique, update)
        return faults

    @cached_property
    def target(self) -> Target:
        """What the options mean for the model.

        Raises:
            InvalidUpsertError: They do not fit it.
        """
        if faults := self.faults():
            name = self.model if isinstance(self.model, str) else self.model._meta.label
            raise InvalidUpsertError(name, tuple(faults))
        meta, unique = self._model._meta, self._unique
        return Target(
            model=self._model,
            unique=unique,
            update=tuple(field for field in meta.concrete_fields if self._updates(field)),
            unknown=tuple(field for field in meta.pk_fields if field not in unique),
        )

    def database(self) -> str:
        """Return the alias of the database that the rows are written to.

        Raises:
            InvalidUpsertError: See `target`.
        """
        return router.db_for_write(self.target.model)

    @property
    def _model(self) -> type[Model]:
        if isinstance(self.model, str):
            return cast("type[Model]", apps.get_model(self.model))
        return self.model

    @property
    def _unique(self) -> tuple[ColumnField, ...]:
        return _fields(self._model, self.unique_fields)

    def _updates(self, field: ColumnField) -> bool:
        if getattr(field, "auto_now", False):
            # bulk_create sets the new time on the object, and leaves it out of the UPDATE.
            return field not in self._unique
        if self.update_fields is not None:
            return field.name in self.update_fields or field.attname in self.update_fields
        return not (
            field in self._model._meta.pk_fields
            or field in self._unique
            or field.generated
            or getattr(field, "auto_now_add", False)
        )


@dataclass(frozen=True)
class Target:
    """What an `Upsert` means for its model.

    Attributes:
        model: Whose rows.
        unique: The fields that tell which row is meant, in the order of the model. All writers use
            that order, so that they lock rows in the same order.
        update: The fields that an existing row takes over.
        unknown: Those of the primary key that the unique fields leave open: only the database can
            tell them for a row that exists.
    """

    model: type[Model]
    unique: tuple[ColumnField, ...]
    update: tuple[ColumnField, ...]
    unknown: tuple[ColumnField, ...]


def _fields(model: type[Model], names: Collection[str]) -> tuple[ColumnField, ...]:
    wanted = {*names, *(field.name for field in model._meta.pk_fields if "pk" in names)}
    return tuple(
        field
        for field in model._meta.concrete_fields
        if field.name in wanted or field.attname in wanted
    )


def _require_model(model: object) -> None:
    if isinstance(model, str):
        if model.count(".") != 1 or not all(model.split(".")):
            raise ValueError(f'model={model!r} names no model. Write "app_label.ModelName"')
    elif not (isinstance(model, type) and issubclass(model, Model)):
        raise TypeError(
            f'model={model!r} is neither a model class nor a name like "app_label.ModelName"'
        )


def _field_names(option: str, names: Iterable[Any]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"{option}={names!r} is one str. Write a list of names: [{names!r}]")
    try:
        listed = tuple(names)
    except TypeError:
        raise TypeError(f"{option}={names!r} is no list of field names") from None
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(f"{option} holds {name!r}. Use the names of fields, as str")
    if repeated := sorted({name for name in listed if listed.count(name) > 1}):
        raise ValueError(f"{option} names {repeated[0]!r} twice. Name each field once")
    return listed
