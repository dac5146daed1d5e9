"""Which rows of a response are stored as they are: compared by their fields' own values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from django.db.backends.utils import format_number
from django.db.models import DecimalField, JSONField, Model

from django_vega.writing.faults import ColumnField
from django_vega.writing.stored import stored
from django_vega.writing.unique import UniqueKey, frozen, is_set
from django_vega.writing.upsert import Target


def unchanged(
    alias: str, target: Target, rows: Mapping[UniqueKey, Model]
) -> dict[UniqueKey, tuple[Any, ...]]:
    """Return the keys of the rows that a write would not change, behind the fence of their key.

    Whatever cannot be compared, an expression for instance, counts as changed.

    Returns:
        By unique key what the database says about the rest of the primary key.
    """
    # A timestamp is no news of its own.
    fields = [field for field in target.update if not getattr(field, "auto_now", False)]
    same = {}
    told = stored(alias, target.model, target.unique, (*target.unknown, *fields), rows)
    for key, values in told:
        rest, old = values[: len(target.unknown)], values[len(target.unknown) :]
        if key in rows and _holds(rows[key], fields, old):
            same[key] = rest
    return same


def _holds(row: Model, fields: Sequence[ColumnField], values: Sequence[Any]) -> bool:
    for field, old in zip(fields, values, strict=True):
        # A related object that was saved meanwhile tells its key only on the way to the database.
        new = getattr(row, field.attname)
        if new is None or old is None:
            if new is not old:
                return False
        elif not is_set(new) or not _same(_comparable(field, new), _comparable(field, old)):
            return False
    return True


def _comparable(field: ColumnField, value: Any) -> Any:
    if isinstance(field, JSONField):
        # As text: true is not 1 there, and keys have no order.
        return json.dumps(value, cls=field.encoder, sort_keys=True)
    value = field.get_prep_value(value)
    if isinstance(field, DecimalField) and isinstance(value, Decimal) and value.is_finite():
        # Digits beyond the column's are not stored.
        return Decimal(cast("str", format_number(value, field.max_digits, field.decimal_places)))
    return frozen(value)


def _same(new: Any, old: Any) -> bool:
    if isinstance(new, tuple) and isinstance(old, tuple):
        return len(new) == len(old) and all(map(_same, new, old))
    if isinstance(new, float) and isinstance(old, float):
        return repr(new) == repr(old)  # so that NaN is NaN
    return isinstance(new, bool) == isinstance(old, bool) and bool(new == old)
