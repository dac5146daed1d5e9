"""Key templates, taken apart and checked as far as that goes without their function."""

from __future__ import annotations

import keyword
import re
import string
from dataclasses import dataclass
from typing import Final

from django_vega.core.errors import KeyTemplateError

# What neither PostgreSQL nor UTF-8 can hold.
UNSTORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Template:
    """A key template, taken apart.

    Attributes:
        text: The template as it was written.
        namespace: Its literal head.
        literals: What stands before, between and after the fields: one more than there are fields.
        fields: Parameter names and attribute paths, in order.
        encoded: Characters that separate fields and are therefore percent-encoded in every value.
    """

    text: str
    namespace: str
    literals: tuple[str, ...]
    fields: tuple[str, ...]
    encoded: str


def parse_template(template: object) -> Template:
    """Take a template apart.

    Raises:
        KeyTemplateError: It is missing, malformed, or its keys would be ambiguous.
    """
    if not isinstance(template, str) or not template:
        raise KeyTemplateError(
            f"key={template!r} is not a key; pass a template such as 'quakes:{{region}}', or a "
            "callable with the function's parameters"
        )
    if UNSTORABLE.search(template):
        raise KeyTemplateError(f"key {template!r} contains a NUL or a lone surrogate; remove it")
    literals, fields = [""], []
    try:
        for literal, field, spec, conversion in string.Formatter().parse(template):
            literals[-1] += literal
            if field is not None:
                _check_field(template, field, spec, conversion)
                fields.append(field)
                literals.append("")
    except ValueError as error:
        if isinstance(error, KeyTemplateError):
            raise
        raise KeyTemplateError(
            f"key {template!r} is malformed: {error}; literal braces are written {{{{ and }}}}"
        ) from None
    head = _NAMESPACE.match(literals[0])
    if head is None:
        raise KeyTemplateError(
            f"key {template!r} does not start with a namespace; begin with a literal of letters, "
            "digits and _.- as in 'quakes:{region}'"
        )
    separators = zip(fields, literals[1:], fields[1:], strict=False)
    encoded = {_separating_character(template, *separator) for separator in separators}
    return Template(template, head[0], tuple(literals), tuple(fields), "".join(sorted(encoded)))


def _check_field(template: str, field: str, spec: str | None, conversion: str | None) -> None:
    shown = f"key {template!r}: {{{field}}}"
    if spec or conversion:
        raise KeyTemplateError(
            f"{shown} has a format or a conversion, which may give two values one text; name the "
            "parameter alone"
        )
    if not field or field[0].isdigit():
        raise KeyTemplateError(f"{shown} is positional; name a parameter of the function instead")
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in field.split(".")):
        raise KeyTemplateError(
            f"{shown} is neither a parameter nor an attribute of one; write {{region}} or "
            "{user.pk}, not items or expressions"
        )


def _separating_character(template: str, before: str, separator: str, after: str) -> str:
    """Return the character to encode for ``separator``; "" where it separates as it is."""
    outside = re.split(r"[()]", separator, maxsplit=1)[0]
    if re.search(r"[*?\[\]]", separator) or re.search("[:,]", outside):
        return ""
    for character in separator:
        if not character.isalnum() and character not in "()%':,":
            return character
    raise KeyTemplateError(
        f"key {template!r}: {separator!r} between {{{before}}} and {{{after}}} may be part of a "
        "value, so that two calls could share a key; separate them with ':'"
    )
