"""The text of a value is readable, tells its type, and is refused where there is none."""

import collections
import datetime as dt
import io
import math
import struct
import sys
import uuid
from decimal import Decimal, localcontext
from zoneinfo import ZoneInfo

import pytest
from django.utils.functional import SimpleLazyObject

from django_vega.core.keys import build_key
from tests.core.key_examples import (
    ODD,
    Access,
    Celsius,
    Colour,
    Level,
    Model,
    Other,
    Point,
    SafeString,
    Word,
    everything,
    one,
    refusal_of,
    text_of,
)

EXAMPLES = Model.__module__


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (-12, "-12"),
        (True, "True"),
        (False, "False"),
        (None, "None"),
        ("alaska", "alaska"),
        ("south alaska_2.a-b/c@d", "south alaska_2.a-b/c@d"),
        ("東京 é", "東京 é"),
        ("Zürich!", "Zürich!"),
        ("{x}", "{x}"),
        ("", "''"),
        ("1", "'1'"),
        ("-1.5e3", "'-1.5e3'"),
        (" 1_000 ", "' 1_000 '"),
        ("١٢", "'١٢'"),
        ("nan", "'nan'"),
        ("Infinity", "'Infinity'"),
        ("inf ", "'inf '"),
        ("infra", "infra"),
        ("True", "'True'"),
        ("False", "'False'"),
        ("None", "'None'"),
        ("none", "none"),
        ("2024-01-01", "2024-01-01"),
        ("1e-5", "'1e-5'"),
        ("12ab", "12ab"),
        ("u1:home", "u1%3Ahome"),
        ("%:*?[](),'", "%25%3A%2A%3F%5B%5D%28%29%2C%27"),
        ("a\n\x7f\x85b", "a%0A%7F%C2%85b"),
        ("\ud800", "%ED%A0%80"),
        ("\t1", "'%091'"),
    ],
)
def test_rendering__of_what_stands_bare(value, text):
    """int, bool, None and str stand bare; a str is encoded, and quoted where it could mislead."""
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "float(1.0)"),
        (math.inf, "float(inf)"),
        (Celsius(1.5), f"{EXAMPLES}.Celsius(1.5)"),
        (Decimal(1), "Decimal(1)"),
        (Decimal("-Infinity"), "Decimal(-Infinity)"),
        (b"a:b\x00\xff", "bytes(a%3Ab%00ÿ)"),
        (bytearray(b"1"), "bytearray(1)"),
        (uuid.UUID(int=1), "UUID(00000000-0000-0000-0000-000000000001)"),
        (dt.date(2024, 1, 2), "date(2024-01-02)"),
        (dt.datetime(2024, 1, 2, 3, 4), "datetime(2024-01-02T03:04:00)"),  # noqa: DTZ001
        (dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "datetime(2024-01-02T00:00:00+00:00)"),
        (dt.time(3, 4), "time(03:04:00)"),
        (dt.timedelta(days=1, seconds=90), "timedelta(1 day, 0:01:30)"),
        (Colour.RED, f"{EXAMPLES}.Colour(RED)"),
        (Colour.CRIMSON, f"{EXAMPLES}.Colour(RED)"),
        (Level.LOW, f"{EXAMPLES}.Level(LOW)"),
        (Word.LOW, f"{EXAMPLES}.Word(LOW)"),
        (Access.READ | Access.WRITE, f"{EXAMPLES}.Access(READ|WRITE)"),
        (Access(0), f"{EXAMPLES}.Access(0)"),
        (ODD["1"], f"{EXAMPLES}.ODD('1')"),
        (ODD["a)b"], f"{EXAMPLES}.ODD(a%29b)"),
        (ODD["None"], f"{EXAMPLES}.ODD('None')"),
        ((), "tuple()"),
        ((1, "1", ("",)), "tuple(1,'1',tuple(''))"),
        (["a,b", "c"], "list(a%2Cb,c)"),
        ({"b", "a"}, "set(a,b)"),
        (frozenset({2, "1"}), "frozenset('1',2)"),
        ({"b": [1], "a": None}, "dict((a,None),(b,list(1)))"),
        (Point(1, 2), f"{EXAMPLES}.Point(1,2)"),
        (Model(1), "feed.quake(1)"),
        (Model("1"), "feed.quake('1')"),
        (Model((1, "de")), "feed.quake(tuple(1,de))"),
        (Model(Model(3)), "feed.quake(feed.quake(3))"),
        ([Other(1)], "list(feed.other(1))"),
    ],
)
def test_rendering__of_types_with_a_name(value, text):
    """Every other value is shown as its type with its text in parentheses."""
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (SafeString("<b>"), "<b>"),
        (SafeString("1"), "'1'"),
        (type("Port", (int,), {"__repr__": lambda self: "port"})(80), "80"),
    ],
)
def test_rendering__of_subclasses_of_str_and_int(value, text):
    """A str or an int is the same value in whatever class it comes."""
    assert text_of(value) == text


def test_rendering__of_an_int_with_more_digits_than_python_prints():
    """A huge int has a key too, in hexadecimal."""
    huge = 1 << 40_000
    assert huge.bit_length() > 4 * sys.get_int_max_str_digits()
    assert text_of(huge) == f"int({huge:#x})"
    assert text_of([huge]) == f"list(int({huge:#x}))"


def test_rendering__of_a_decimal_in_another_context():
    """The text of a Decimal does not depend on the decimal context of the thread."""
    with localcontext() as context:
        context.capitals = 0
        assert text_of(Decimal("1E+5")) == "Decimal(1E+5)"


def test_rendering__of_class_names_that_contain_structure():
    """The name of a class cannot imitate the structure of a key."""
    kind = type("A(1),B", (float,), {"__module__": "m:n"})
    assert text_of(kind(1)) == "m%3An.A%281%29%2CB(1.0)"


def test_rendering__of_dicts_sets_and_keyword_arguments():
    """Order that carries no meaning leaves no trace in the key."""
    key = build_key(everything, "k:{first}:{second}:{args}:{third}:{kwargs}").render
    assert key(1, 2, third=3, a=1, b=2) == key(1, second=2, b=2, a=1, third=3)
    assert key(1, 2, 5, third=3, b=2, a=1) == "k:1:2:tuple(5):3:dict((a,1),(b,2))"
    words = [str(number) for number in range(50)]
    assert text_of(set(words)) == text_of({str(49 - number) for number in range(50)})
    assert text_of({"a": 1, "a!": 2}) == text_of({"a!": 2, "a": 1}) == "dict((a,1),(a!,2))"


def test_rendering__of_containers_whose_class_shows_less():
    """Containers are read past the methods of their class, as a multi-value dict needs it."""

    class LastValue(dict):
        def items(self):
            return [(key, values[-1]) for key, values in super().items()]

    class Hidden(list):
        def __iter__(self):
            return iter(())

    name = f"{__name__}.{LastValue.__qualname__}"
    assert text_of(LastValue(a=[1, 2])) == f"{name}((a,list(1,2)))"
    assert text_of(Hidden([1, 2])) == f"{__name__}.{Hidden.__qualname__}(1,2)"


def test_rendering__of_time_zones():
    """One instant in two time zones makes two keys; a plain offset adds nothing to the text."""
    naive = dt.datetime(2024, 10, 27, 2, 30)  # noqa: DTZ001
    hour = dt.timedelta(hours=1)
    paris = ZoneInfo("Europe/Paris")
    assert text_of(naive.replace(tzinfo=dt.timezone(hour))) == "datetime(2024-10-27T02:30:00+01:00)"
    assert text_of(naive.replace(tzinfo=dt.timezone(hour, "a,b"))) == (
        "datetime(2024-10-27T02:30:00+01:00,timezone(a%2Cb))"
    )
    assert text_of(naive.replace(tzinfo=paris)) == (
        "datetime(2024-10-27T02:30:00+02:00,Europe/Paris)"
    )
    assert text_of(naive.replace(tzinfo=paris, fold=1)) == (
        "datetime(2024-10-27T02:30:00+01:00,Europe/Paris,fold)"
    )
    assert text_of(naive.replace(fold=1)) == "datetime(2024-10-27T02:30:00,,fold)"
    assert text_of(dt.time(2, 30, tzinfo=paris)) == "time(02:30:00,Europe/Paris)"


class Plain:
    pass


class Keyless(dt.tzinfo):
    pass


class Money(Decimal):
    """A Decimal with an attribute."""


class Slotted(Decimal):
    __slots__ = ("currency",)


class Loose(Decimal):
    """A Decimal with an equality of its own."""

    def __eq__(self, other):
        return True

    __hash__ = None


class LazyText:
    """What Django's lazy translations look like: a str by the methods alone."""

    def __str__(self):
        return "text"


def money(amount, currency):
    value = Money(amount)
    value.currency = currency
    return value


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (object(), "object"),
        (Plain(), f"{__name__}.Plain"),
        (Plain, "type"),
        (Model, "type"),
        (one, "function"),
        (LazyText(), f"{__name__}.LazyText"),
        (1j, "complex"),
        (range(3), "range"),
        (memoryview(b"x"), "memoryview"),
        (collections.deque(), "collections.deque"),
        (iter([1]), "list_iterator"),
        ([Plain()], f"{__name__}.Plain"),
        ({1: Plain()}, f"{__name__}.Plain"),
        (Model(Plain()), f"{__name__}.Plain"),
    ],
)
def test_refusal__of_values_without_a_text(value, type_name):
    """A value whose text would be an address, or a guess, is refused by name of field and type."""
    error = refusal_of(value)
    assert error.type_name == type_name
    assert "no text" in error.reason


@pytest.mark.parametrize("value", [math.nan, Celsius("nan"), Decimal("nan"), Decimal("snan")])
def test_refusal__of_nan(value):
    """NaN has no key: no call could ever be the same work as another."""
    assert "NaN" in refusal_of(value).reason
    assert "NaN" in refusal_of({"a": [value]}).reason


def test_model__behind_a_lazy_object():
    """A lazy object that stands for a saved instance, such as request.user, has its text."""
    assert text_of(SimpleLazyObject(lambda: Model(5))) == text_of(Model(5))


@pytest.mark.parametrize(
    "value", [Model(None), Model(1, adding=True), Model((1, None)), [Model(None)]]
)
def test_refusal__of_unsaved_instances(value):
    """An instance that is not saved, or no longer, is refused."""
    assert "not saved" in refusal_of(value).reason


@pytest.mark.parametrize(
    "value",
    [money("1", "EUR"), Slotted("1"), collections.defaultdict(list)],
)
def test_refusal__of_subclasses_with_attributes(value):
    """1 EUR and 1 USD would have one text: what the base class does not show is not ignored."""
    assert "attributes" in refusal_of(value).reason


@pytest.mark.parametrize("value", [Loose("1"), collections.OrderedDict(a=1)])
def test_refusal__of_subclasses_with_an_equality_of_their_own(value):
    """An ordered dict's order matters to it: the text of its base class does not fit."""
    assert "equality" in refusal_of(value).reason


def test_refusal__of_time_zones_without_a_name():
    """A time zone that only its object, or the content of a file, identifies is refused."""
    nameless = ZoneInfo.from_file(
        io.BytesIO(
            b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\x00"
        )
    )
    for zone, type_name in [(Keyless(), f"{__name__}.Keyless"), (nameless, "zoneinfo.ZoneInfo")]:
        error = refusal_of(dt.time(1, tzinfo=zone))
        assert error.type_name == type_name
        assert "time zone" in error.reason


def test_refusal__of_containers_that_contain_themselves():
    """A cycle is an error about the field, not a RecursionError."""
    cycle = [1]
    cycle.append({"a": (cycle, cycle)})
    assert "contains itself" in refusal_of(cycle).reason
    model = Model(None)
    model.pk = model
    assert "contains itself" in refusal_of(model).reason


def test_refusal__of_nesting_without_end():
    """Nesting that would overflow the stack is an error about the field; repetition is none."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert "levels deep" in refusal_of(deep).reason
    shared = [1]
    assert text_of([shared, shared]) == "list(list(1),list(1))"
    while deep:  # taken apart by hand: deallocation would recurse
        deep = deep.pop()


def test_nesting__up_to_the_limit():
    """A hundred levels have a key, one more has none."""
    deep = 1
    for _ in range(100):
        deep = [deep]
    assert text_of(deep) == "list(" * 100 + "1" + ")" * 100
    assert "100 levels" in refusal_of([deep]).reason
