"""Types, functions and values that the tests of keys share."""

import enum
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from django_vega.core.errors import UnstableKeyError
from django_vega.core.keys import build_key


class Colour(enum.Enum):
    RED = 1
    CRIMSON = RED
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    LOW = "low"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


ODD = enum.Enum("ODD", {"1": 1, "a)b": 2, "None": 3}, module=__name__)


class Celsius(float):
    """A float by another name."""


class Point(NamedTuple):
    x: int
    y: int


class SafeString(str):
    __slots__ = ()


class Model:
    """What a model instance shows of itself, for tests without Django."""

    _meta = SimpleNamespace(label_lower="feed.quake")

    def __init__(self, pk, *, adding=False):
        self.pk = pk
        self._state = SimpleNamespace(adding=adding)


class Other(Model):
    _meta = SimpleNamespace(label_lower="feed.other")


def one(x):
    """Take one argument."""


def two(a, b):
    """Take two arguments."""


def everything(first, /, second, *args, third, **kwargs):
    """Take an argument of every kind."""


class Repository:
    tenant_id = "t1"

    def refresh(self, region, cursor="head"):
        """Take what the examples of the documentation take."""


def text_of(value):
    """Render one value by itself."""
    return build_key(one, "k:{x}").render(value).removeprefix("k:")


def refusal_of(value):
    """Return the error of a value that has no stable text."""
    with pytest.raises(UnstableKeyError) as caught:
        build_key(one, "k:{x}").render(value)
    assert caught.value.field == "x"
    return caught.value
