"""Keys: templates over a function's parameters, checked at decoration, rendered at every call.

Note [One key, one argument list]
    Two argument lists of one function never give one key, except where they differ in ignored
    parameters alone. Three rules hold that up:

    - The text of a value tells its type. What stands bare is an int, a bool, None or a str; a str
      that could be read as one of the others is quoted. Everything else is ``type(text)``.
    - Outside the parentheses of ``type(…)`` no text contains ``:`` or ``,``; nowhere does one
      contain ``*``, ``?``, ``[`` or ``]``; parentheses are balanced. A str has none of them raw.
    - So the first such character of a separator shows where the field before it ends. A separator
      without one has another character for that, which is percent-encoded in every value of its
      template. Where there is none either, the template is refused.
"""

from django_vega.core.keys.hashing import key_hash
from django_vega.core.keys.renderer import KeyRenderer, build_key
from django_vega.core.keys.template import Template, parse_template
from django_vega.core.keys.values import render_value

__all__ = [
    "KeyRenderer",
    "Template",
    "build_key",
    "key_hash",
    "parse_template",
    "render_value",
]
