"""What travels between processes comes back as it went, or is refused with a way out."""

import json
import pickle
from collections import OrderedDict
from enum import IntEnum, StrEnum
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_vega.backends.codecs import (
    JsonCodec,
    PickleCodec,
    UnfitValueError,
    cancelled_outcome,
    codec_named,
    error_of,
    error_outcome,
    reason_of,
    value_of,
    value_outcome,
)
from django_vega.backends.protocol import Outcome
from django_vega.core.errors import LeaderError, RemoteCallError
from django_vega.core.outcome import Refresh

JSON = JsonCodec()
PICKLE = PickleCodec()


class Text(str):
    __slots__ = ()


class Number(int):
    __slots__ = ()


class Share(float):
    __slots__ = ()


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"


class Items(list):
    __slots__ = ()


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


class Point(NamedTuple):
    x: int
    y: int


CIRCLE: list = []
CIRCLE.append(CIRCLE)
DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]


def twin(value, codec=JSON):
    return value_of(value_outcome(value, codec), codec)


def same(one, other):
    """Whether both are equal and of the same types, by their representation."""
    return repr(one) == repr(other)


EXACT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(EXACT)
def test_json__comes_back_unchanged(value):
    """Every value of JSON's own types, in every depth, -0.0 and large integers included."""
    assert same(JSON.decode(JSON.encode(value)), value)


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ((1, 2), "the value", "is of type tuple"),
        ({"rows": [{"at": (1, 2)}]}, "the value['rows'][0]['at']", "is of type tuple"),
        ({1: "a"}, "the value", "has the key 1 of type int"),
        ([{"a": {None: 1}}], "the value[0]['a']", "has the key None of type NoneType"),
        ({True: 1}, "the value", "has the key True of type bool"),
        ({Text("a"): 1}, "the value", f"has the key 'a' of type {__name__}.Text"),
        ([1.0, float("nan")], "the value[1]", "is no number for JSON"),
        ({"a": float("-inf")}, "the value['a']", "is no number for JSON"),
        pytest.param(10**5000, "the value", "is no number for JSON", id="10**5000"),
        (["\ud83d\ude00"], "the value[0]", "is a text with surrogates"),
        (
            {"\ud83d\ude00": 1},
            r"the key '\ud83d\ude00' of the value",
            "is a text with surrogates",
        ),
        ([Text("a")], "the value[0]", f"is of type {__name__}.Text"),
        (Number(1), "the value", f"is of type {__name__}.Number"),
        (Share(1.5), "the value", f"is of type {__name__}.Share"),
        ([Level.HIGH], "the value[0]", f"is of type {__name__}.Level"),
        ({"a": Word.YES}, "the value['a']", f"is of type {__name__}.Word"),
        (Items([1]), "the value", f"is of type {__name__}.Items"),
        (OrderedDict(a=1), "the value", "is of type collections.OrderedDict"),
        (Point(1, 2), "the value", f"is of type {__name__}.Point"),
        ({1, 2}, "the value", "is of type set"),
        (b"bytes", "the value", "is of type bytes"),
        (object, "the value", "is of type type"),
        (CIRCLE, "the value", "contains itself, or is nested too deeply"),
        (DEEP, "the value", "contains itself, or is nested too deeply"),
    ],
)
def test_json__refuses__what_would_come_back_different(value, path, reason):
    """With the path to it, what it is, and the way out."""
    with pytest.raises(UnfitValueError) as caught:
        JSON.encode(value)
    error = caught.value
    assert error.path == path
    assert error.reason.startswith(reason)
    assert str(error).startswith(f"{path} {error.reason}, so it cannot travel by the codec 'json'")
    assert 'choose CODEC = "pickle"' in str(error)
    twin_error = pickle.loads(pickle.dumps(error))
    assert (str(twin_error), vars(twin_error)) == (str(error), vars(error))


def test_json__tells_bool_from_int():
    """They are equal, and not the same."""
    assert same(twin([True, 1, 1.0, False, 0, -0.0]), [True, 1, 1.0, False, 0, -0.0])


def test_pickle__carries_what_can_be_pickled():
    """Tuples, keys of any type, instances."""
    value = {1: (1, 2), "point": Point(1, 2), "level": Level.HIGH}
    assert same(twin(value, PICKLE), value)


def test_pickle__refuses__what_cannot_be_pickled():
    """A lambda has no name to find it by."""
    with pytest.raises(UnfitValueError, match="the value cannot be pickled"):
        PICKLE.encode(lambda: None)


def test_codecs__say_whether_they_are_safe():
    """A check names each alias whose codec runs what others wrote."""
    assert (JSON.is_safe, PICKLE.is_safe) == (True, False)


def test_value__is_never_unpickled__codec_is_json():
    """Whatever the header says: the reader's own codec decides, and a difference is told."""
    outcome = value_outcome({"a": 1}, PICKLE)
    with pytest.raises(UnfitValueError, match="was written by a leader whose codec is 'pickle'"):
        value_of(outcome, JSON)
    with pytest.raises(UnfitValueError, match="whose codec is 'json'"):
        value_of(value_outcome({"a": 1}, JSON), PICKLE)


@pytest.mark.parametrize("codec", [JSON, PICKLE], ids=["json", "pickle"])
@pytest.mark.parametrize("value", [None, 0, "", [], {}, False, "text\nwith lines"])
def test_value__comes_back(value, codec):
    """None and other empty values are values."""
    assert same(twin(value, codec), value)


def refresh(**more):
    return Refresh("quakes:alaska", "written", 5, 3, 2, 1, None, duration=0.25, **more)


@pytest.mark.parametrize("codec", [JSON, PICKLE], ids=["json", "pickle"])
def test_refresh__comes_back(codec):
    """The record of an upsert always does, and what `write` returned where the codec carries it."""
    assert twin(refresh(), codec) == refresh()
    assert twin(refresh(value=[1, "two"]), codec) == refresh(value=[1, "two"])


def test_refresh__refused__value_of_write():
    """The fault lies in the value, not in the record."""
    with pytest.raises(UnfitValueError, match=r"^the value is of type tuple"):
        value_outcome(refresh(value=(1, 2)), JSON)


def test_error__arrives_as_remote_call_error():
    """Type name, message and process of the leader; a `LeaderError`; nothing is unpickled."""
    error = error_of(error_outcome(UnfitValueError("a", "b", "c"), "web-2:4188"))
    assert type(error) is RemoteCallError
    assert isinstance(error, LeaderError)
    assert error.type_name == "django_vega.backends.codecs.UnfitValueError"
    assert error.message == str(UnfitValueError("a", "b", "c"))
    assert error.process == "web-2:4188"
    for part in ("web-2:4188", error.type_name, error.message):
        assert part in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.args, vars(copy), str(copy)) == (error.args, vars(error), str(error))


@pytest.mark.parametrize(
    ("raised", "type_name", "message"),
    [
        (ValueError("503 \ud800"), "ValueError", "503 \ud800"),
        (Unprintable(), f"{__name__}.Unprintable", "its message cannot be shown"),
    ],
)
def test_error__always_works(raised, type_name, message):
    """A builtin has no module in its name; a broken message hides nothing else."""
    error = error_of(error_outcome(raised, "p"))
    assert (error.type_name, error.message) == (type_name, message)


def test_error__payload_is_json():
    """Errors are the same for every codec."""
    outcome = error_outcome(KeyError("k"), "p")
    assert outcome.kind == "error"
    assert json.loads(outcome.payload) == {"type": "KeyError", "message": "'k'", "process": "p"}


def test_cancelled__as_the_scripts_write_it():
    """A reason, whoever cancelled."""
    assert cancelled_outcome("abort") == Outcome("cancelled", b"abort")
    assert reason_of(Outcome("cancelled", b"abort")) == "abort"


def test_codec_named__names():
    """Two come with the package; a typing error is met with what was probably meant."""
    assert [type(codec_named(name)) for name in ("json", "pickle")] == [JsonCodec, PickleCodec]
    with pytest.raises(ValueError, match="unknown codec 'jsn': did you mean 'json'"):
        codec_named("jsn")
    with pytest.raises(ValueError, match="Use one of json, pickle"):
        codec_named("msgpack")
