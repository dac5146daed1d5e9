"""The renderer of one function's keys, checked against its parameters and built once."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from inspect import Parameter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from django_vega.core.errors import IncompleteKeyError, KeyTemplateError, UnstableKeyError
from django_vega.core.keys.template import UNSTORABLE, Template, parse_template
from django_vega.core.keys.values import escape, percent, render_value, type_name

if sys.version_info >= (3, 14):  # pragma: no cover
    # Annotations are evaluated on demand there, and names imported for types only would fail.
    from annotationlib import Format

    _signature = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _signature = inspect.signature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class KeyRenderer:
    """How one function's arguments become a key.

    Attributes:
        namespace: The template's literal head; None for a callable key.
        template: The template as it was written; None for a callable key.
        render: Takes the function's arguments and returns the key, or None where a callable key
            says that the call is not coordinated. Raises the function's own TypeError for wrong
            arguments, `UnstableKeyError` for values without a stable text.
    """

    namespace: str | None
    template: str | None
    render: Callable[..., str | None]


def build_key(
    function: Callable[..., object],
    template_or_callable: str | Callable[..., str | None] | None,
    *,
    ignore: Sequence[str] = (),
    exempt_first: bool = False,
    vary: Sequence[tuple[str, Callable[[], object]]] = (),
) -> KeyRenderer:
    """Check a key against the function it is for, and build its renderer.

    Args:
        function: The function whose arguments the key is about.
        template_or_callable: A template over its parameters, or a callable that takes the same
            arguments and returns the key.
        ignore: Parameters that take no part in the key, on purpose.
        exempt_first: Whether the first parameter is bound, as ``self`` and ``cls`` always are.
        vary: Names and sources of ambient values; each source is asked at every render, and
            ``:name(value)`` appended. No name begins with a digit.

    Raises:
        KeyTemplateError: The key is missing, malformed, ambiguous, or does not fit the function.
        IncompleteKeyError: A parameter takes no part in the key.
    """
    owner = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        signature = _signature(function)
    except (TypeError, ValueError) as error:
        raise KeyTemplateError(
            f"{owner}: its parameters cannot be read ({error}); decorate a function that calls it"
        ) from None
    _check_ignore(owner, signature.parameters, ignore)
    key = template_or_callable
    if callable(key):
        if ignore:
            raise KeyTemplateError(
                f"{owner}: ignore={ignore!r} does nothing beside a callable key; leave it out"
            )
        return KeyRenderer(None, None, _callable_render(owner, signature, key, tuple(vary)))
    try:
        template = parse_template(key)
    except KeyTemplateError as error:
        raise KeyTemplateError(f"{owner}: {error}") from None
    _check_fields(owner, signature.parameters, template, ignore)
    _check_completeness(owner, signature.parameters, template, ignore, exempt_first=exempt_first)
    render = _template_render(owner, signature, template, tuple(vary))
    return KeyRenderer(template.namespace, template.text, render)


def _unknown(name: str, parameters: Collection[str]) -> str:
    close = get_close_matches(name, parameters, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(parameters) or 'none'}"
    return f"{name!r}, which is no parameter of the function; {hint}"


def _check_ignore(owner: str, parameters: Collection[str], ignore: Sequence[str]) -> None:
    if isinstance(ignore, str):
        raise KeyTemplateError(f"{owner}: ignore={ignore!r} is a str; pass ({ignore!r},)")
    for name in ignore:
        if name not in parameters:
            raise KeyTemplateError(f"{owner}: ignore names {_unknown(name, parameters)}")


def _check_fields(
    owner: str, parameters: Collection[str], template: Template, ignore: Sequence[str]
) -> None:
    for field in template.fields:
        name = field.partition(".")[0]
        if name not in parameters:
            raise KeyTemplateError(
                f"{owner}: key {template.text!r} names {_unknown(name, parameters)}"
            )
        if name in ignore:
            raise KeyTemplateError(
                f"{owner}: key {template.text!r} names {name!r} and ignore does; take one out"
            )


def _check_completeness(
    owner: str,
    parameters: Mapping[str, Parameter],
    template: Template,
    ignore: Sequence[str],
    *,
    exempt_first: bool,
) -> None:
    covered = {field.partition(".")[0] for field in template.fields}.union(ignore)
    first = next(iter(parameters.values()), None)
    if (
        first is not None
        and first.kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
        and (exempt_first or first.name in {"self", "cls"})
    ):
        covered.add(first.name)
    missing = tuple(name for name in parameters if name not in covered)
    if missing:
        raise IncompleteKeyError(owner, missing)


# Note [Generated renderers]
# A renderer is compiled at decoration, as a function with the parameters of the decorated one. So
# Python itself binds the arguments, at a fraction of the cost of Signature.bind, and refuses wrong
# ones in the words that it uses for the function. The source consists of parameter names, checked
# attribute paths and literals as repr() writes them, nothing else.


def _compile(
    owner: str, signature: inspect.Signature, body: str, names: dict[str, Any]
) -> Callable[..., str]:
    """Compile a function with the parameters of ``signature`` that returns ``body``."""
    parameters = signature.parameters.values()
    bare = inspect.Signature([Parameter(each.name, each.kind) for each in parameters])
    module = compile(f"def render{bare}: return {body}", f"<key of {owner}>", "exec")
    code = next(const for const in module.co_consts if isinstance(const, CodeType))
    render = FunctionType(code, names)
    render.__qualname__ = owner  # what Python's TypeError calls it
    given = [each for each in parameters if each.default is not Parameter.empty]
    keyword_only = Parameter.KEYWORD_ONLY
    render.__defaults__ = tuple(each.default for each in given if each.kind is not keyword_only)
    render.__kwdefaults__ = {each.name: each.default for each in given if each.kind is keyword_only}
    return render


def _template_render(
    owner: str,
    signature: inspect.Signature,
    template: Template,
    vary: tuple[tuple[str, Callable[[], object]], ...],
) -> Callable[..., str]:
    text, suffix = "_text", "_suffix"
    while {text, suffix} & signature.parameters.keys():
        text, suffix = text + "_", suffix + "_"
    names = {text: _value_renderer(template.encoded), suffix: partial(_vary_suffix, vary)}
    parts = [repr(template.literals[0])]
    for field, literal in zip(template.fields, template.literals[1:], strict=True):
        parts += [f'f"{{{text}({field}, {field!r})}}"', repr(literal)]
    if vary:
        parts.append(f'f"{{{suffix}()}}"')
    return _compile(owner, signature, " ".join(parts), names)


def _value_renderer(encoded: str) -> Callable[[object, str], str]:
    """Return `render_value`, or one that percent-encodes the characters of ``encoded`` as well."""
    if not encoded:
        return render_value
    substitute = re.compile(f"[{re.escape(encoded)}]").sub
    return lambda value, field: substitute(percent, render_value(value, field))


def _vary_suffix(vary: tuple[tuple[str, Callable[[], object]], ...]) -> str:
    # No value contains ":" before anything but a digit, so that the suffix is found from its end.
    return "".join([f":{escape(name)}({render_value(source(), name)})" for name, source in vary])


def _callable_render(
    owner: str,
    signature: inspect.Signature,
    key: Callable[..., str | None],
    vary: tuple[tuple[str, Callable[[], object]], ...],
) -> Callable[..., str | None]:
    if inspect.iscoroutinefunction(key):
        raise KeyTemplateError(
            f"{owner}: its key is an async function, and a key is needed before anything waits; "
            "pass a plain function"
        )
    name = getattr(key, "__qualname__", type(key).__qualname__)
    bind = _compile(owner, signature, "None", {})

    def render(*args: Any, **kwargs: Any) -> str | None:
        bind(*args, **kwargs)
        text: object = key(*args, **kwargs)
        if text is None:
            return None
        if not isinstance(text, str) or not text:
            reason = "a callable key returns a str that is not empty, or None not to coordinate"
            raise UnstableKeyError(name, type_name(type(text)), reason)
        if UNSTORABLE.search(text):
            reason = "its text contains a NUL or a lone surrogate, which no database takes"
            raise UnstableKeyError(name, type_name(type(text)), reason)
        return str.__str__(text) + _vary_suffix(vary)

    return render
