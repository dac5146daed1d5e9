"""The unique keys of rows: what makes two rows one, and their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

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


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut items into lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
