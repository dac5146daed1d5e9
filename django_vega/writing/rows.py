"""From what a function returned to rows in the database.

Before the transaction: `prepare` consumes the response, drops duplicates (which spellings of a key
are one the database says), and sorts. Inside it: `Batch.write` writes, and finds out the primary
keys that the database gave. Callers keep their instances, so each ends with the primary key of its
row, or with none where the database cannot tell; a write that was rolled back leaves them as they
were.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Any, Final

from django.db import IntegrityError, connections
from django.db.models import Model

from django_vega.core.errors import DuplicateRowError
from django_vega.writing.counts import Counts
from django_vega.writing.faults import ColumnField
from django_vega.writing.guard import guarded
from django_vega.writing.spelling import latest
from django_vega.writing.stored import stored
from django_vega.writing.unchanged import unchanged
from django_vega.writing.unique import (
    MISSING,
    UniqueKey,
    is_set,
    normalised,
    ordered,
)
from django_vega.writing.upsert import Target, Upsert

# Per statement, unless the upsert says otherwise. One statement for everything would be 10 % faster
# at best, holds all rows once more as SQL, and is too long for MySQL's max_allowed_packet.
MOST_ROWS: Final = 2000


class Batch:
    """The distinct rows of one response, in the order of their unique key.

    Attributes:
        duplicates: How many rows were dropped because a later one has the same unique key.
    """

    def __init__(
        self, upsert: Upsert, rows: dict[UniqueKey, Model], dropped: list[tuple[UniqueKey, Model]]
    ) -> None:
        self._upsert = upsert
        self._target = target = upsert.target
        self._rows = {key: rows[key] for key in ordered(rows)}
        self._dropped = dropped
        self.duplicates = len(dropped)
        fields = (*target.unknown, *target.model._meta.db_returning_fields)
        # What a write changes on instances, apart from what pre_save sets.
        self._attnames = tuple({f.attname: None for f in fields if not f.generated})
        self._before = {key: self._attributes(row) for key, row in self._rows.items()}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def target(self) -> Target:
        """What the upsert means for its model."""
        return self._target

    @property
    def rows(self) -> Mapping[UniqueKey, Model]:
        """The distinct rows by unique key, in its order."""
        return self._rows

    def write(self, alias: str, generation: int) -> Counts:
        """Insert or update every row; inside a transaction, and again after it was rolled back.

        Args:
            alias: The database.
            generation: Of the flight; rows with a newer one stay as they are.

        Returns:
            What became of the rows.

        Raises:
            RowGuardError, DatabaseError: Nothing was written, once the transaction is rolled back.
        """
        self.restore()
        same = unchanged(alias, self._target, self._rows) if self._upsert.skip_unchanged else {}
        changed = {key: row for key, row in self._rows.items() if key not in same}
        if changed:
            self._upsert_all(alias, changed, generation)
            self._find_primary_keys(alias, changed)
        for key, values in same.items():
            _assign(self._rows[key], self._target.unknown, values)
        for row in self._rows.values():
            row._state.adding, row._state.db = False, alias
        newer = self._count_guarded(alias, changed, generation)
        return Counts(
            rows=len(self._rows),
            written=len(changed) - newer,
            guarded=newer,
            unchanged=len(same),
            duplicates=self.duplicates,
        )

    def restore(self) -> None:
        """Give the instances back what a write that was rolled back has changed on them."""
        for key, row in self._rows.items():
            values, adding, db = self._before[key]
            for attname, value in zip(self._attnames, values, strict=True):
                if value is not MISSING:
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
        values = tuple(row.__dict__.get(attname, MISSING) for attname in self._attnames)
        return values, row._state.adding, row._state.db

    def _upsert_all(self, alias: str, rows: dict[UniqueKey, Model], generation: int) -> None:
        target, batch_size = self._target, self._upsert.batch_size or MOST_ROWS
        table = target.model._base_manager.using(alias)
        update = list(target.update)
        if target.guard is not None:
            update.append(target.guard)
            for row in rows.values():
                setattr(row, target.guard.attname, generation)
        listed = list(rows.values())
        if not (update := update or self._untouched()):
            table.bulk_create(listed, batch_size=batch_size, ignore_conflicts=True)
            self._require_stored(alias, rows)
            return
        self._keep_order(alias, rows)
        by_unique_fields = connections[alias].features.supports_update_conflicts_with_target
        with guarded(alias, target.model, target.unique, update, target.guard):
            table.bulk_create(
                listed,
                batch_size=batch_size,
                update_conflicts=True,
                update_fields=[field.name for field in update],
                unique_fields=[f.name for f in target.unique] if by_unique_fields else None,
            )

    def _keep_order(self, alias: str, rows: dict[UniqueKey, Model]) -> None:
        # bulk_create() writes the rows with an auto key first, then those without. A row that
        # exists keeps its key whatever the caller brought; without one it stays in its place.
        pk = self._target.model._meta.pk
        if pk not in self._target.unknown or not pk.db_returning:
            return
        given = {key: row for key, row in rows.items() if is_set(row.pk)}
        if 0 < len(given) < len(rows):
            for key, _ in self._stored(alias, given, ()):
                if key in given:
                    given[key].pk = None

    def _count_guarded(self, alias: str, rows: dict[UniqueKey, Model], generation: int) -> int:
        guard = self._target.guard
        if guard is None:
            return 0
        if not connections[alias].features.can_return_rows_from_bulk_insert:
            for key, (newest,) in self._stored(alias, rows, (guard,)):
                if key in rows:
                    setattr(rows[key], guard.attname, newest)
        return sum(getattr(row, guard.attname) > generation for row in rows.values())

    def _untouched(self) -> list[ColumnField]:
        # With nothing to update, a unique field takes over its own value: unlike ignoring
        # conflicts, that returns primary keys and hides no other error. Not for primary keys.
        pk_fields = self._target.model._meta.pk_fields
        return [field for field in self._target.unique if field not in pk_fields][:1]

    def _require_stored(self, alias: str, rows: dict[UniqueKey, Model]) -> None:
        # INSERT IGNORE turns every error into a missing row, a broken foreign key for instance.
        there = {key for key, _ in self._stored(alias, rows, ())}
        for key in rows:
            if key not in there:
                names = ", ".join(field.name for field in self._target.unique)
                raise IntegrityError(
                    f"the database took no row of {self._target.model._meta.label} with "
                    f"({names}) = {key!r}; look for a foreign key that leads nowhere"
                )

    def _find_primary_keys(self, alias: str, rows: dict[UniqueKey, Model]) -> None:
        unknown = self._target.unknown
        if not unknown:
            return
        generated = all(field.db_returning for field in unknown)
        returned = connections[alias].features.can_return_rows_from_bulk_insert
        guesses: dict[UniqueKey, Model] = {}
        for key, row in rows.items():
            values = self._before[key][0]
            left_to_database = generated and not any(map(is_set, values[: len(unknown)]))
            if not left_to_database:
                # A value of the caller's, or a default such as uuid4: right for a new row only.
                guesses[key] = row
            elif not returned:
                _assign(row, unknown, (None,) * len(unknown))
        told = dict(self._stored(alias, guesses, unknown))
        for key, row in guesses.items():
            _assign(row, unknown, told.get(key, (None,) * len(unknown)))

    def _stored(
        self, alias: str, rows: Mapping[UniqueKey, Model], fields: tuple[ColumnField, ...]
    ) -> Iterator[tuple[UniqueKey, tuple[Any, ...]]]:
        return stored(alias, self._target.model, self._target.unique, fields, rows)


def prepare(alias: str, upsert: Upsert, rows: object) -> Batch:
    """Consume what a function returned and make it ready to be written.

    Args:
        alias: The database, which is asked about keys that look alike.
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
    for index, row in enumerate(iterable(target.model._meta.label, rows)):
        instance = _instance(target, index, row)
        key = _unique_key(target, index, instance)
        if key in kept:
            _accept_duplicate(upsert, instance)
            dropped.append((key, kept.pop(key)))
        kept[key] = instance
    if same := latest(alias, target.model, target.unique, kept):
        for key, last in same.items():
            _accept_duplicate(upsert, kept[last])
            dropped.append((key, kept.pop(key)))
        dropped = [(same.get(key, key), row) for key, row in dropped]
    return Batch(upsert, kept, dropped)


def iterable(label: str, rows: object) -> Iterable[object]:
    """Return rows that can be consumed.

    Raises:
        TypeError: They cannot, or are one row.
    """
    allowed = f"Return an iterable of {label} instances or dicts; [] when there is nothing"
    if rows is None:
        raise TypeError(f"the refresh returned None instead of rows. {allowed}")
    if isinstance(rows, Model | Mapping):
        raise TypeError(f"the refresh returned one row, {shown(rows)}. {allowed}")
    if isinstance(rows, AsyncIterable):
        raise TypeError(
            f"the refresh returned an async iterable, {shown(rows)}. Collect it first: "
            "[row async for row in ...]"
        )
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise TypeError(f"the refresh returned {shown(rows)}. {allowed}")
    return rows


def _instance(target: Target, index: int, row: object) -> Model:
    model = target.model
    if isinstance(row, Model) and row._meta.concrete_model is model._meta.concrete_model:
        return row
    if not isinstance(row, Mapping):
        raise TypeError(
            f"row {index} is {shown(row)}. Rows are instances of {model._meta.label} or dicts "
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
        if not is_set(value):
            raise ValueError(
                f"row {index} has no value for {field.name!r}, one of the unique fields of "
                f"{target.model._meta.label}. Give every row one; save related objects before "
                "you assign them"
            )
    try:
        return normalised(target.unique, values)
    except Exception as error:
        error.add_note(f"in row {index} of the response")
        raise


def _accept_duplicate(upsert: Upsert, later: Model) -> None:
    if upsert.duplicates == "error":
        names = (field.attname for field in upsert.target.unique)
        unique_key = tuple((name, getattr(later, name)) for name in names)
        raise DuplicateRowError(upsert.target.model._meta.label, unique_key)


def _assign(row: Model, fields: tuple[ColumnField, ...], values: tuple[Any, ...]) -> None:
    for field, value in zip(fields, values, strict=True):
        setattr(row, field.attname, value)


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    text = repr(value)
    return f"{text[:80]}… of type {type(value).__name__}" if len(text) > 80 else text
