"""The declaration of how rows are written, and what it means for its model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from inspect import iscoroutinefunction
from typing import Any, Literal, cast

from django.apps import apps
from django.db import router
from django.db.models import Model, QuerySet

from django_vega.fields import GenerationField
from django_vega.writing.faults import (
    ColumnField,
    Fault,
    InvalidUpsertError,
    generation_fields,
    model_faults,
    unchanged_faults,
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
        batch_size: Rows per statement, at least 1. Default: 2,000. Fewer where the database takes
            fewer.
        prune: A callable with the function's parameters that returns a queryset of the model: the
            scope of the response. Its rows that the response no longer has are deleted, in the
            same transaction, with what their ``on_delete`` and signals say; rows that a newer
            generation wrote are spared where the model has a `GenerationField`.
        allow_empty: Whether a response without rows may delete all of that scope. Default: it
            raises `EmptyResponseError`, for an empty answer is more often a failure.
        duplicates: What becomes of two rows of one response with the same unique key, as the
            collation of its columns has it: ``"last"`` keeps the last, ``"error"`` raises
            `DuplicateRowError`.
        skip_unchanged: Whether rows are read and compared first, and only what differs is written;
            what does not keeps its timestamps. Sound where a row belongs to one key, so not
            together with a `GenerationField`.
        fence: What voids an older flight of the key: ``"written"``, a newer one that has written;
            ``"started"``, a newer one that has merely started, whatever becomes of it.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option has a value that is not allowed.
    """

    model: type[Model] | str
    unique_fields: Sequence[str]
    _: KW_ONLY
    update_fields: Sequence[str] | None = None
    batch_size: int | None = None
    prune: Callable[..., QuerySet[Any]] | None = None
    allow_empty: bool = False
    duplicates: Literal["last", "error"] = "last"
    skip_unchanged: bool = False
    fence: Literal["written", "started"] = "written"

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
        _require_batch_size(self.batch_size)
        if self.duplicates not in ("last", "error"):
            raise ValueError(
                f'duplicates={self.duplicates!r} is unknown. Use "last" to keep the last of two '
                'rows with the same unique key, or "error" to refuse such a response'
            )
        _require_prune(self.prune, self.allow_empty)
        if not isinstance(self.skip_unchanged, bool):
            raise TypeError(f"skip_unchanged={self.skip_unchanged!r}: use True or False")
        if self.fence not in ("written", "started"):
            raise ValueError(
                f'fence={self.fence!r} is unknown. Use "written" to let a newer write void an '
                'older one, or "started" to let a newer start do so'
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
        if self.skip_unchanged:
            faults += unchanged_faults(model)
        return faults

    @cached_property
    def target(self) -> Target:
        """What the options mean for the model.

        Raises:
            InvalidUpsertError: They do not fit it.
        """
        if faults := self.faults():
            raise InvalidUpsertError(self.label, tuple(faults))
        meta, unique = self._model._meta, self._unique
        return Target(
            model=self._model,
            unique=unique,
            update=tuple(field for field in meta.concrete_fields if self._updates(field)),
            unknown=tuple(field for field in meta.pk_fields if field not in unique),
            guard=next(iter(generation_fields(self._model)), None),
        )

    def database(self) -> str:
        """Return the alias of the database that the rows are written to.

        Raises:
            InvalidUpsertError: See `target`.
        """
        return router.db_for_write(self.target.model)

    @property
    def label(self) -> str:
        """The model as the app registry names it."""
        return self.model if isinstance(self.model, str) else self.model._meta.label

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
            or isinstance(field, GenerationField)
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
        guard: The field with the generation that wrote a row; None where rows are not guarded.
    """

    model: type[Model]
    unique: tuple[ColumnField, ...]
    update: tuple[ColumnField, ...]
    unknown: tuple[ColumnField, ...]
    guard: GenerationField | None


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


def _require_batch_size(size: object) -> None:
    if size is None:
        return
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(
            f"batch_size={size!r} is no number of rows. Use an int of at least 1, or None for 2,000"
        )
    if size < 1:
        raise ValueError(
            f"batch_size={size!r} would write nothing. Use at least 1, or None for 2,000"
        )


def _require_prune(prune: object, allow_empty: object) -> None:
    if prune is not None and (not callable(prune) or iscoroutinefunction(prune)):
        raise TypeError(
            f"prune={prune!r}: pass a plain function with the refresh's parameters that returns a "
            "queryset"
        )
    if not isinstance(allow_empty, bool):
        raise TypeError(f"allow_empty={allow_empty!r}: use True or False")
    if allow_empty and prune is None:
        raise ValueError(
            "allow_empty=True says that an empty response may prune everything, but there is no "
            "prune. Leave it out"
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
