"""The text of one value: readable, and different for values that differ in anything."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from functools import partial
from types import MemberDescriptorType, NoneType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django_vega.core.errors import UnstableKeyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The structure of keys, the wildcards of patterns over them, and Unicode's category Cc; lone
# surrogates have no UTF-8 of their own.
_ENCODED: Final = re.compile(r"[%:*?\[\](),'\x00-\x1f\x7f-\x9f\ud800-\udfff]")

# A str that needs neither encoding nor quotes: the common case, in one match. Of the texts that
# begin with a letter, float() takes the three below; of those that begin with a digit, none with
# another letter than e, an @ or a /, or with a hyphen that no e precedes.
_PLAIN: Final = re.compile(
    r"(?:(?!(?:True|False|None|(?i:nan|inf|infinity)) *\Z)[^\W\d]"
    r"|(?=[\w.@/ -]*?(?:[A-DF-Za-df-z@/]|[^eE]-))[0-9])"
    r"[\w.@/ -]*\Z"
)

# A limit of its own, well below Python's: the error names the field, and no stack overflows.
_MAX_NESTING: Final = 100


class _RefusedError(Exception):
    """A value without a stable text; `render_value` adds the name of the field."""

    def __init__(self, kind: type, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason


def percent(match: re.Match[str]) -> str:
    """Percent-encode what was matched, byte by byte."""
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def escape(text: str) -> str:
    """Percent-encode what a key must not contain raw."""
    return _ENCODED.sub(percent, text)


def type_name(kind: type) -> str:
    """Name a type: its own name for the types of the language, a dotted one for all others."""
    if kind in _SCALARS or kind.__module__ == "builtins":
        return kind.__name__
    return escape(f"{kind.__module__}.{kind.__qualname__}")


def _str(value: str) -> str:
    if _PLAIN.match(value):
        return value
    if value in {"", "True", "False", "None"}:
        return f"'{value}'"
    try:
        float(value)
    except ValueError:
        return escape(value)
    return f"'{escape(value)}'"


def _int(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # more digits than sys.get_int_max_str_digits() allows
        return f"int({int.__format__(value, '#x')})"


def _enum(value: Enum) -> str:
    name: str | None = value._name_  # a flag's value may have none
    text = _int(value.value) if name is None else _str(name)
    return f"{type_name(type(value))}({text})"


def _bytes(value: bytes | bytearray) -> str:
    return escape(value.decode("latin-1"))


def _float(value: float) -> str:
    if math.isnan(value):
        raise _RefusedError(type(value), "NaN equals nothing, itself included")
    return float.__repr__(value)


def _decimal(value: Decimal) -> str:
    if value.is_nan():
        raise _RefusedError(type(value), "NaN equals nothing, itself included")
    return Decimal.__str__(value).replace("e", "E")  # which of them, the decimal context decides


def _zone(zone: tzinfo | None) -> str:
    """Tell apart what the UTC offset alone does not."""
    if zone is None or zone is UTC:
        return ""
    if type(zone) is ZoneInfo and zone.key is not None:
        return escape(zone.key)
    if type(zone) is timezone:
        name = zone.tzname(None)
        unnamed = timezone(zone.utcoffset(None)).tzname(None)
        return "" if name == unnamed else f"timezone({escape(name)})"
    reason = "this time zone has no name to go by; use zoneinfo.ZoneInfo or datetime.timezone"
    raise _RefusedError(type(zone), reason)


def _moment(isoformat: Callable[[Any], str], value: datetime | time) -> str:
    zone = _zone(value.tzinfo)
    if value.fold:
        return f"{isoformat(value)},{zone},fold"
    return f"{isoformat(value)},{zone}" if zone else isoformat(value)


# Every writer calls the methods of the base class: a subclass may show something else of itself,
# as a multi-value dict shows the last value of each key only.
_SCALARS: Final[dict[type, Callable[[Any], str]]] = {
    bytes: _bytes,
    bytearray: _bytes,
    float: _float,
    Decimal: _decimal,
    UUID: UUID.__str__,
    datetime: partial(_moment, datetime.isoformat),
    date: date.isoformat,
    time: partial(_moment, time.isoformat),
    timedelta: timedelta.__str__,
}


def _dict(value: dict[object, object], depth: int) -> str:
    pairs = [(_text(k, depth), _text(v, depth)) for k, v in dict.items(value)]
    return ",".join([f"({k},{v})" for k, v in sorted(pairs)])


def _ordered(items: Callable[[Any], Iterator[object]], value: object, depth: int) -> str:
    return ",".join([_text(item, depth) for item in items(value)])


def _unordered(items: Callable[[Any], Iterator[object]], value: object, depth: int) -> str:
    return ",".join(sorted([_text(item, depth) for item in items(value)]))


_CONTAINERS: Final[dict[type, Callable[[Any, int], str]]] = {
    tuple: partial(_ordered, tuple.__iter__),
    list: partial(_ordered, list.__iter__),
    set: partial(_unordered, set.__iter__),
    frozenset: partial(_unordered, frozenset.__iter__),
    dict: _dict,
}


def _refuse_hidden_state(value: object, kind: type, base: type) -> None:
    """Refuse an instance that is more than what ``base`` shows of it."""
    added = [vars(cls) for cls in kind.__mro__ if cls not in base.__mro__]
    members = [item for names in added for item in names.values()]
    if any("__eq__" in names for names in added):
        reason = f"its class has an equality of its own; pass a plain {base.__name__}"
        raise _RefusedError(kind, reason)
    slots = any(isinstance(item, MemberDescriptorType) for item in members)
    if slots or getattr(value, "__dict__", None):
        reason = f"it has attributes that the key would not see; pass a plain {base.__name__}"
        raise _RefusedError(kind, reason)


def _model(value: Any, kind: type, depth: int) -> str:
    # Known by what a model instance has: nothing on this floor may import Django. A lazy object,
    # such as request.user, tells by __class__ what it stands for.
    label = getattr(getattr(value.__class__, "_meta", None), "label_lower", None)
    if not isinstance(label, str):
        raise _RefusedError(kind, "such values have no text to go by")
    pk = value.pk
    adding = value._state.adding
    if adding or pk is None or (isinstance(pk, tuple) and None in pk):
        raise _RefusedError(kind, "the instance is not saved, so that nothing identifies it yet")
    return f"{escape(label)}({_text(pk, depth)})"


def _text(value: Any, depth: int = 0) -> str:
    """Render one value, which is part of ``depth`` others."""
    kind = type(value)
    if kind is bool or kind is NoneType:
        return str(value)
    if issubclass(kind, Enum):  # before str and int: many are one of them too
        return _enum(value)
    if issubclass(kind, str):
        return _str(str.__str__(value))
    if issubclass(kind, int):
        return _int(value)
    base = next((cls for cls in kind.__mro__ if cls in _SCALARS or cls in _CONTAINERS), None)
    if base is not None and base is not kind:
        _refuse_hidden_state(value, kind, base)
    if base in _SCALARS:
        return f"{type_name(kind)}({_SCALARS[base](value)})"
    if depth == _MAX_NESTING:
        reason = f"it contains itself, or is nested more than {_MAX_NESTING} levels deep"
        raise _RefusedError(kind, reason)
    if base in _CONTAINERS:
        return f"{type_name(kind)}({_CONTAINERS[base](value, depth + 1)})"
    return _model(value, kind, depth + 1)


def render_value(value: object, field: str) -> str:
    """Render one value as a part of a key.

    Values that differ in type or content give different texts. Equal ones give the same, save where
    the difference shows: ``-0.0`` and ``0.0``, or one instant in two time zones.

    Args:
        value: What to render.
        field: What errors call it.

    Raises:
        UnstableKeyError: The value, or a part of it, has no stable text.
    """
    if type(value) is str and _PLAIN.match(value):
        return value
    if type(value) is int:
        return _int(value)
    try:
        return _text(value)
    except _RefusedError as refusal:
        raise UnstableKeyError(field, type_name(refusal.kind), refusal.reason) from None
