"""From what a function returned to rows in the database.

Before the transaction: `prepare` consumes the response, drops duplicates, and sorts. Inside it:
`Batch.write` writes, and finds out the primary keys that the database gave. Callers keep their
instances, so each ends with the primary key of its row, or with none where the database cannot
tell; a write that was rolled back leaves them as they were.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, TypeAlias

from django.db import IntegrityError, connections
from django.db.models import Model, Q

from django_vega.core.errors import DuplicateRowError
from django_vega.writing.faults import ColumnField
from django_vega.writing.upsert import Target, Upsert

UniqueKey: TypeAlias = tuple[Any, ...]

# Below the variables of one SQLite statement (999) and the depth of its expressions (1,000).
_READ_VARIABLES: Final = 500
_MISSING: Final = object()


class Batch:
    """The distinct rows of one response, in the order of their unique key.

    Attributes:
        duplicates: How many rows were dropped because a later one has the same unique key.
    """

    def __init__(
        self, target: Target, rows: dict[UniqueKey, Model], dropped: list[tuple[UniqueKey, Model]]
    ) -> None:
        self._target = target
        self._rows = {key: rows[key] for key in _ordered(rows)}
        self._dropped = dropped
        self.duplicates = len(dropped)
        fields = (*target.unknown, *target.model._meta.db_returning_fields)
        # What a write changes on instances, apart from what pre_save sets.
        self._attnames = tuple({f.attname: None for f in fields if not f.generated})
        self._before = [self._attributes(row) for row in self._rows.values()]

    def __len__(self) -> int:
        return len(self._rows)

    def write(self, alias: str, batch_size: int | None) -> None:
        """Insert or update every row; inside a transaction, and again after it was rolled back."""
        if not self._rows:
            return
        self.restore()
        rows = list(self._rows.values())
        table = self._target.model._base_manager.using(alias)
        updated = [field.name for field in self._target.update or self._untouched()]
        if updated:
            by_unique_fields = connections[alias].features.supports_update_conflicts_with_target
            table.bulk_create(
                rows,
                batch_size=batch_size,
                update_conflicts=True,
                update_fields=updated,
                unique_fields=(
                    [field.name for field in self._target.unique] if by_unique_fields else None
                ),
            )
        else:
            table.bulk_create(rows, batch_size=batch_size, ignore_conflicts=True)
            self._require_stored(alias)
        self._find_primary_keys(alias)
        for row in rows:
            row._state.adding, row._state.db = False, alias

    def restore(self) -> None:
        """Give the instances back what a write that was rolled back has changed on them."""
        for row, (values, adding, db) in zip(self._rows.values(), self._before, strict=True):
            for attname, value in zip(self._attnames, values, strict=True):
                if value is not _MISSING:
                    setattr(row, attname, value)
                else:
                    row.__dict__.pop(attname, None)
            row._state.adding, row._state.db = adding, db

    def share_primary_keys(self) -> None:
        """Give the dropped instances the primary key of the row that was kept for them."""
        for key, row in self._dropped:
            kept = self._rows[key]
            for field in self._target.unknown:
                setattr(row, field.attname, getattr(kept, field.attname))
            row._state.adding, row._state.db = kept._state.adding, kept._state.db

    def _attributes(self, row: Model) -> tuple[tuple[Any, ...], bool, str | None]:
        # From __dict__: reading a deferred field would query.
        values = tuple(row.__dict__.get(attname, _MISSING) for attname in self._attnames)
        return values, row._state.adding, row._state.db

    def _untouched(self) -> tuple[ColumnField, ...]:
        # With nothing to update, a unique field takes over its own value: unlike ignoring
        # conflicts, that returns primary keys and hides no other error. Not for primary keys.
        pk_fields = self._target.model._meta.pk_fields
        return tuple(field for field in self._target.unique if field not in pk_fields)[:1]

    def _require_stored(self, alias: str) -> None:
        # INSERT IGNORE turns every error into a missing row, a broken foreign key for instance.
        stored = self._stored(alias, list(self._rows.items()))
        for key in self._rows:
            if key not in stored:
                names = ", ".join(field.name for field in self._target.unique)
                raise IntegrityError(
                    f"the database took no row of {self._target.model._meta.label} with "
                    f"({names}) = {key!r}; look for a foreign key that leads nowhere"
                )

    def _find_primary_keys(self, alias: str) -> None:
        unknown = self._target.unknown
        if not unknown:
            return
        generated = all(field.db_returning for field in unknown)
        returned = connections[alias].features.can_return_rows_from_bulk_insert
        guesses: list[tuple[UniqueKey, Model]] = []
        for (key, row), (values, *_) in zip(self._rows.items(), self._before, strict=True):
            left_to_database = generated and not any(map(_is_set, values[: len(unknown)]))
            if not left_to_database:
                # A value of the caller's, or a default such as uuid4: right for a new row only.
                guesses.append((key, row))
            elif not returned:
                _assign(row, unknown, (None,) * len(unknown))
        stored = self._stored(alias, guesses)
        for key, row in guesses:
            _assign(row, unknown, stored.get(key, (None,) * len(unknown)))

    def _stored(
        self, alias: str, rows: Sequence[tuple[UniqueKey, Model]]
    ) -> dict[UniqueKey, tuple[Any, ...]]:
        # Unique key to what the database says about the rest of the primary key.
        unique, unknown = self._target.unique, self._target.unknown
        table = self._target.model._base_manager.using(alias)
        attnames = [field.attname for field in (*unique, *unknown)]
        stored = {}
        for chunk in _chunks(rows, max(_READ_VARIABLES // len(unique), 1)):
            condition = _any_of(unique, [row for _, row in chunk])
            for values in table.filter(condition).order_by().values_list(*attnames):
                key = _normalised(unique, values[: len(unique)])
                stored[key] = tuple(values[len(unique) :])
        return stored


def prepare(upsert: Upsert, rows: object) -> Batch:
    """Consume what a function returned and make it ready to be written.

    Args:
        upsert: How it will be written.
        rows: An iterable of instances of the model, or dicts of its fields.

    Raises:
        InvalidUpsertError: The upsert does not fit its model.
        TypeError: ``rows`` is no such iterable, or a row is neither, or does not fit the model.
        ValueError: A row has no value for a unique field, or one that the field does not take.
        DuplicateRowError: Two rows have the same unique key, and the upsert says ``"error"``.
        Exception: Whatever the iterable raises.
    """
    target = upsert.target
    kept: dict[UniqueKey, Model] = {}
    dropped: list[tuple[UniqueKey, Model]] = []
    for index, row in enumerate(_iterable(target, rows)):
        instance = _instance(target, index, row)
        key = _unique_key(target, index, instance)
        if key in kept:
            if upsert.duplicates == "error":
                names = (field.attname for field in target.unique)
                unique_key = tuple((name, getattr(instance, name)) for name in names)
                raise DuplicateRowError(target.model._meta.label, unique_key)
            dropped.append((key, kept[key]))
        kept[key] = instance
    return Batch(target, kept, dropped)


def _iterable(target: Target, rows: object) -> Iterable[object]:
    label = target.model._meta.label
    allowed = f"Return an iterable of {label} instances or dicts; [] when there is nothing"
    if rows is None:
        raise TypeError(f"the refresh returned None instead of rows. {allowed}")
    if isinstance(rows, Model | Mapping):
        raise TypeError(f"the refresh returned one row, {_shown(rows)}. {allowed}")
    if isinstance(rows, AsyncIterable):
        raise TypeError(
            f"the refresh returned an async iterable, {_shown(rows)}. Collect it first: "
            "[row async for row in ...]"
        )
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise TypeError(f"the refresh returned {_shown(rows)}. {allowed}")
    return rows


def _instance(target: Target, index: int, row: object) -> Model:
    model = target.model
    if isinstance(row, Model) and row._meta.concrete_model is model._meta.concrete_model:
        return row
    if not isinstance(row, Mapping):
        raise TypeError(
            f"row {index} is {_shown(row)}. Rows are instances of {model._meta.label} or dicts "
            "of its fields"
        )
    try:
        return model(**row)
    except TypeError as error:
        raise TypeError(f"row {index} makes no {model._meta.label}: {error}") from error
    except Exception as error:
        error.add_note(f"in row {index} of the response")
        raise


def _unique_key(target: Target, index: int, instance: Model) -> UniqueKey:
    values = tuple(getattr(instance, field.attname) for field in target.unique)
    for field, value in zip(target.unique, values, strict=True):
        if not _is_set(value):
            raise ValueError(
                f"row {index} has no value for {field.name!r}, one of the unique fields of "
                f"{target.model._meta.label}. Give every row one; save related objects before "
                "you assign them"
            )
    try:
        return _normalised(target.unique, values)
    except Exception as error:
        error.add_note(f"in row {index} of the response")
        raise


def _is_set(value: object) -> bool:
    # An expression, such as a default of the database, is computed there.
    return value is not None and value is not _MISSING and not hasattr(value, "resolve_expression")


def _normalised(fields: tuple[ColumnField, ...], values: Sequence[Any]) -> UniqueKey:
    # "1" and 1 are one integer, a UUID and its text one UUID.
    return tuple(
        _frozen(field.get_prep_value(value)) for field, value in zip(fields, values, strict=True)
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value


def _ordered(keys: Iterable[UniqueKey]) -> list[UniqueKey]:
    # Two writers with the same keys must come to the same order, whatever the values are.
    listed = list(keys)
    try:
        return sorted(listed)
    except TypeError:
        pass
    return sorted(listed, key=lambda key: [(type(part).__qualname__, repr(part)) for part in key])


def _any_of(fields: tuple[ColumnField, ...], rows: Iterable[Model]) -> Q:
    if len(fields) == 1:
        name = fields[0].attname
        return Q(**{f"{name}__in": [getattr(row, name) for row in rows]})
    names = [field.attname for field in fields]
    return reduce(or_, (Q(**{name: getattr(row, name) for name in names}) for row in rows))


def _chunks(
    rows: Sequence[tuple[UniqueKey, Model]], size: int
) -> Iterator[Sequence[tuple[UniqueKey, Model]]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _assign(row: Model, fields: tuple[ColumnField, ...], values: tuple[Any, ...]) -> None:
    for field, value in zip(fields, values, strict=True):
        setattr(row, field.attname, value)


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text[:80]}… of type {type(value).__name__}" if len(text) > 80 else text
