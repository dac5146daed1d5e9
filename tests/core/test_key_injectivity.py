"""Different arguments never share a key, whatever the template and the values are."""

import datetime as dt
import itertools
import unicodedata
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from django_vega.core.errors import KeyTemplateError
from django_vega.core.keys import build_key, parse_template, render_value
from tests.core.key_examples import (
    ODD,
    Access,
    Celsius,
    Colour,
    Level,
    Model,
    Other,
    Point,
    Word,
    text_of,
    two,
)

# One key, one argument list


@pytest.mark.parametrize(
    ("separator", "encoded"),
    [
        (":", ""),
        ("::", ""),
        ("x:", ""),
        (",", ""),
        ("*", ""),
        ("(?", ""),
        ("[", ""),
        (")]", ""),
        ("-", "-"),
        ("/", "/"),
        (".", "."),
        ("_", "_"),
        (" ", " "),
        ("ab-/", "-"),
        ("(-", "-"),
        ("'~", "~"),
        ("(:~", "~"),
        ("·", "·"),
        ("{{", "{"),
    ],
)
def test_separator__that_separates(separator, encoded):
    """Outside of values ':' separates as it is; other separators are encoded in the values."""
    assert parse_template(f"k:{{a}}{separator}{{b}}").encoded == encoded


@pytest.mark.parametrize(
    "separator", ["", "a", "1x", "é", "²", "(", ")", "()", "%", "'", "%2D'", "(:", "),"]
)
def test_separator__that_does_not_separate(separator):
    """A separator that may be a part of a value, at the same depth, is refused at decoration."""
    with pytest.raises(KeyTemplateError) as caught:
        build_key(two, f"k:{{a}}{separator}{{b}}")
    message = str(caught.value)
    assert "separate them with ':'" in message
    assert "between {a} and {b}" in message


def test_separator__is_encoded_in_every_value():
    """With '-' and '/' as separators, no value contains them raw, types and numbers included."""

    def function(a, b, c):
        pass

    vary = [("day", lambda: dt.date(2024, 1, 2))]
    key = build_key(function, "k:{a}-{b}/{c}", vary=vary).render
    day = ":day(date(2024-01-02))"  # what follows the last field is found from its end
    assert key(-5, "x/y-z", 1e-05) == "k:%2D5-x%2Fy%2Dz/float(1e%2D05)" + day
    assert key("%2D5", "·", [-1]) == "k:%252D5-·/list(%2D1)" + day


def identity(value):
    """Return what tells a value from every other: its type, and its content without false order."""
    kind = type(value)
    if isinstance(value, dict):
        return kind, frozenset((identity(k), identity(v)) for k, v in value.items())
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(identity, value))
    if isinstance(value, list | tuple):
        return kind, tuple(map(identity, value))
    if isinstance(value, Model):
        return kind, identity(value.pk)
    return kind, repr(value)


def assert_injective(render, argument_lists):
    """Fail when two argument lists share a key."""
    seen = {}
    for arguments in argument_lists:
        who = identity(tuple(arguments))
        assert seen.setdefault(render(*arguments), who) == who


SEPARATORS = [
    ":",
    "::",
    ",",
    "*",
    "-",
    "/",
    ".",
    "_",
    " ",
    "a-",
    ")-(",
    "x:",
    "(?",
    "%2D:",
    "·",
    "\t",
]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_injectivity__over_all_pairs_of_awkward_values(separator):
    """All pairs from a list of values made to collide have keys of their own."""
    characters = ["", "a", "1", ":", ",", "-", "(", ")", "'", "%", "2D", "%2D", separator]
    texts = {"".join(pair) for pair in itertools.product(characters, repeat=2)}
    texts |= {"None", "True", "''", "tuple(1)", "float(1.0)", "tuple", "1.0", "date(2024-01-02)"}
    values = [
        *texts,
        *(text.encode() for text in texts if len(text) < 2),
        *((text,) for text in texts if len(text) < 2),
        *([text, text] for text in texts if len(text) < 2),
        *(0, 1, -1, True, False, None, 1.0, -1.0, Decimal(1), Decimal("1.0"), Celsius(1)),
        *((), (1,), ("1",), (1, 1), ((1,), 1), ((1, 1),), [1], {1}, frozenset({1}), {1: 1}),
        *(dt.date(2024, 1, 2), dt.datetime(2024, 1, 2), dt.timedelta(1)),  # noqa: DTZ001
        *(Model(1), Model("1"), Other(1), Colour.RED, Level.LOW, Word.LOW, Access(0), ODD["1"]),
    ]
    key = build_key(two, f"k:{{a}}{separator}{{b}}").render
    assert_injective(key, itertools.product(values, repeat=2))


awkward_text = st.one_of(
    st.text(alphabet=":%'(),-/2DaT1e. \t·é\ud800", max_size=4),
    st.text(max_size=6),
    st.sampled_from(["None", "True", "nan", "inf", "1_0", "float(1.0)", "tuple()", "%252D"]),
)
zones = st.none() | st.sampled_from(
    [
        dt.UTC,
        dt.timezone(dt.timedelta(hours=1)),
        dt.timezone(dt.timedelta(hours=1), "Europe/Paris"),
        ZoneInfo("Europe/Paris"),
        ZoneInfo("UTC"),
    ]
)
scalars = st.one_of(
    awkward_text,
    st.integers(-20, 20),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.binary(max_size=3),
    st.binary(max_size=2).map(bytearray),
    st.uuids(),
    st.dates(),
    st.datetimes(timezones=zones),
    st.times(timezones=zones),
    st.timedeltas(),
    st.sampled_from([*Colour, *Level, *Word, *ODD, Access(0), Access(3)]),
    st.builds(Celsius, st.floats(allow_nan=False)),
)
primary_keys = st.integers(-5, 5) | awkward_text | st.uuids()
hashable = st.recursive(
    scalars.filter(lambda value: not isinstance(value, bytearray)),
    lambda inner: st.one_of(
        st.tuples(inner, inner),
        st.frozensets(inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=4,
)
values = st.recursive(
    scalars | hashable,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=3),
        st.sets(hashable, max_size=3),
        st.builds(Model, primary_keys | st.tuples(primary_keys, primary_keys)),
    ),
    max_leaves=6,
)
separators = st.one_of(
    st.sampled_from(SEPARATORS),
    st.text(alphabet=":,*?-/._~a1%'() ·", max_size=3),
    st.text(max_size=2).map(lambda text: text.replace("{", "{{").replace("}", "}}")),
)


@st.composite
def templates(draw):
    """Draw a template of one to three fields that is not refused."""
    between = draw(st.lists(separators, max_size=2))
    fields = [f"{{x{number}}}" for number in range(len(between) + 1)]
    template = "k" + draw(st.sampled_from(["", ":", "-", "("]))
    template += "".join(map(str.__add__, fields, [*between, draw(st.sampled_from(["", ")", "z"]))]))
    try:
        parse_template(template)
    except KeyTemplateError:
        assume(False)
    return template, len(fields)


def x_function(count):
    return [lambda x0: 0, lambda x0, x1: 0, lambda x0, x1, x2: 0][count - 1]


@given(st.data())
def test_injectivity__over_random_templates_and_values(data):
    """Argument lists that differ in type or value never share a key, over random templates."""
    template, count = data.draw(templates())
    pool = data.draw(st.lists(values | awkward_text, min_size=2, max_size=8))
    varied = [None]
    vary = data.draw(st.sampled_from([[], [("language", lambda: varied[0])]]))
    render = build_key(x_function(count), template, vary=vary).render

    def render_varied(*arguments):
        varied[0] = arguments[-1]
        return render(*arguments[:-1])

    width = count + bool(vary)
    drawn = data.draw(st.lists(st.tuples(*[st.sampled_from(pool)] * width), max_size=40))
    assert_injective(render_varied if vary else render, drawn)


@given(st.data())
def test_keys__can_be_taken_apart_again(data):
    """The text of every field is found from the key alone, by the rule that the Note states."""
    template, count = data.draw(templates())
    arguments = data.draw(st.tuples(*[values | awkward_text] * count))
    parsed = parse_template(template)
    key = build_key(x_function(count), template).render(*arguments)
    position = len(parsed.literals[0])
    for value, separator in zip(arguments, parsed.literals[1:-1], strict=False):
        found = first_separator(key, position, separator, parsed.encoded)
        assert percent_decoded(key[position:found], parsed.encoded) == render_value(value, "x")
        position = found + len(separator)
    last = key[position : len(key) - len(parsed.literals[-1])]
    assert percent_decoded(last, parsed.encoded) == render_value(arguments[-1], "x")


def first_separator(key, position, separator, encoded):
    """Return where ``separator`` begins, looking only for the character that separates."""
    outside = separator.partition("(")[0].partition(")")[0]
    mark = next((c for c in separator if c in "*?[]"), None)
    mark = mark or next((c for c in outside if c in ":,"), None)
    mark = mark or next(c for c in separator if c in encoded)
    depth = 0
    for index in range(position, len(key)):
        if key[index] == mark and (depth == 0 or mark not in ":,"):
            return index - separator.index(mark)
        depth += {"(": 1, ")": -1}.get(key[index], 0)
    raise AssertionError(f"{separator!r} is not in {key!r}")


def percent_decoded(text, characters):
    """Undo the encoding of separators, but for controls: each text has them encoded already."""
    for character in characters:
        if unicodedata.category(character) == "Cc":
            continue
        code = "".join(f"%{byte:02X}" for byte in character.encode())
        text = text.replace(code, character)
    return text


@given(values)
def test_texts__keep_what_the_structure_relies_on(value):
    """A text has balanced parentheses, ':' and ',' only within, no wildcards and no controls."""
    text = render_value(value, "x")
    assert text
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        assert depth >= 0
        assert depth or character not in ":,"
        assert character not in "*?[]"
        assert unicodedata.category(character) not in {"Cc", "Cs"}
    assert depth == 0


@given(awkward_text)
def test_texts__of_strings_are_bare_or_quoted(text):
    """A str is quoted exactly when it is empty or reads as a number, True, False or None."""
    try:
        float(text)
        quoted = True
    except ValueError:
        quoted = text in {"", "True", "False", "None"}
    rendered = text_of(text)
    assert rendered.startswith("'") == rendered.endswith("'") == quoted


@given(st.dictionaries(st.text(max_size=3), values, max_size=4))
def test_texts__of_equal_values_are_equal(value):
    """The order in which a dict was filled does not show."""
    assert text_of(dict(reversed(list(value.items())))) == text_of(value)
