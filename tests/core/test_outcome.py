"""Records say what a refresh came to; every follower raises an exception of its own."""

import asyncio
import dataclasses
import datetime as dt
import email.message
import errno
import io
import json
import os
import pickle
import sqlite3
import subprocess
import traceback
import urllib.error
import weakref

import pytest
from django.core.exceptions import ObjectDoesNotExist, ValidationError

from django_vega.core.errors import CallCancelled, LeaderError, VegaError, WaitTimeout
from django_vega.core.outcome import Refresh, RefreshStatus, replica

# Records

WRITTEN = Refresh("quakes:alaska", "written", 7, rows=5, written=3, guarded=1, unchanged=1)


def test_refresh__by_default():
    """Counts are 0 unless said otherwise, and the caller who gets the record led."""
    refresh = Refresh("k", "fresh")
    assert dataclasses.asdict(refresh) == {
        "key": "k",
        "outcome": "fresh",
        "generation": None,
        "rows": 0,
        "written": 0,
        "guarded": 0,
        "unchanged": 0,
        "duplicates": 0,
        "pruned": 0,
        "led": True,
        "duration": 0.0,
        "value": None,
    }


def test_refresh__as_a_follower_gets_it():
    """A follower's record differs in `led` alone, and the leader's stays as it is."""
    shared = WRITTEN.as_follower()
    assert shared == dataclasses.replace(WRITTEN, led=False)
    assert WRITTEN.led
    assert shared.as_follower() == shared


def test_status__by_default():
    """A key that was never refreshed has a state and nothing else."""
    status = RefreshStatus("idle")
    assert dataclasses.astuple(status) == ("idle", None, None, None, None)


@pytest.mark.parametrize(
    "record",
    [
        WRITTEN,
        dataclasses.replace(WRITTEN, guarded=None, value={"pages": [1]}),
        RefreshStatus("failed", dt.datetime.now(dt.UTC), dt.datetime.now(dt.UTC), 7, "OSError: x"),
    ],
)
def test_records__are_picklable_and_frozen(record):
    """Records cross processes unchanged, and nobody changes what others hold."""
    assert pickle.loads(pickle.dumps(record)) == record
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.generation = 1
    assert not hasattr(record, "__dict__")


# Replicas: kinds of exceptions


class Required(Exception):
    """A constructor with required arguments that says nothing to its base."""

    def __init__(self, code, *, detail):
        self.code = code
        self.detail = detail

    def __str__(self):
        return f"{self.code}: {self.detail}"


class Composed(Exception):
    """A constructor whose arguments are not those of the exception."""

    def __init__(self, user, reason):
        super().__init__(f"{user} may not: {reason}")
        self.user = user


class Slots(Exception):
    __slots__ = ("code", "never_set")

    def __init__(self, code):
        super().__init__("slots")
        self.code = code


class MoreSlots(Slots):
    __slots__ = ("__private",)

    def __init__(self, code):
        super().__init__(code)
        self.__private = code + 1

    def __str__(self):
        return f"{self.code} {self.__private}"


class OnlyOnce(Exception):
    """A class of which nobody can make a second instance."""

    made = False

    def __new__(cls, *args):
        if cls.made:
            raise RuntimeError("there is one already")
        cls.made = True
        return super().__new__(cls, *args)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class ReadOnly(Exception):
    """A class that refuses changes, copies and pickles."""

    def __setattr__(self, name, value):
        raise TypeError("read-only")

    def __reduce__(self):
        raise TypeError("not to be copied")

    def __reduce_ex__(self, protocol):
        raise TypeError("not to be copied")

    def __copy__(self):
        raise TypeError("not to be copied")


class UpstreamError(OSError):
    """An OSError with arguments of its own."""

    def __init__(self, url, status):
        self.url = url
        self.status = status

    def __str__(self):
        return f"{self.url} answered {self.status}"


class Mixed(ValueError, OSError):
    """The second base decides the layout, the first one comes first."""


class Problems(ExceptionGroup):
    """A group with a constructor of its own."""

    def __new__(cls, exceptions):
        return super().__new__(cls, "problems", exceptions)


class Quota(KeyError):
    def __init__(self, name):
        super().__init__(name)
        self.name = name


def raised(function, *args, **kwargs):
    """Return what a call raises, with the attributes that only raising sets."""
    try:
        function(*args, **kwargs)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def sqlite_error():
    connection = sqlite3.connect(":memory:")
    try:
        return raised(connection.execute, "no sql")
    finally:
        connection.close()


def changed(error, **attributes):
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


KINDS = {
    "no arguments": ValueError(),
    "arguments of any kind": RuntimeError("text", 3, [object()]),
    "KeyError": raised({}.__getitem__, "k"),
    "IndexError": raised([].__getitem__, 3),
    "ZeroDivisionError": raised(divmod, 1, 0),
    "FileNotFoundError": raised(os.stat, "/no such file"),
    "OSError with two names": raised(os.rename, "/no such file", "/no such place"),
    "OSError without a name": OSError(errno.EPIPE, "broken"),
    "OSError of a text": OSError("text"),
    "OSError with a name set later": changed(OSError(errno.EIO, "io"), filename="later"),
    "BlockingIOError": BlockingIOError(errno.EAGAIN, "later", 17),
    "TimeoutError": TimeoutError("late"),
    "UnicodeDecodeError": raised(b"\xff".decode),
    "UnicodeEncodeError": raised("\u20ac".encode, "ascii"),
    "UnicodeTranslateError": UnicodeTranslateError("text", 0, 2, "reason"),
    "UnicodeDecodeError changed": changed(raised(b"a\xff".decode), reason="another", start=0),
    "AttributeError": raised(getattr, WRITTEN, "writen"),
    "NameError": raised(eval, "missing"),
    "ImportError": ImportError("no", name="module", path="/path"),
    "ModuleNotFoundError": raised(__import__, "no_such_module"),
    "StopIteration": StopIteration("value"),
    "StopAsyncIteration": StopAsyncIteration(),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "CancelledError": asyncio.CancelledError("why"),
    "SyntaxError": raised(compile, "a b", "file.py", "exec"),
    "SyntaxError changed": changed(raised(compile, "a b", "file.py", "exec"), filename="other.py"),
    "IndentationError": raised(compile, " a\nb", "file.py", "exec"),
    "ExceptionGroup": ExceptionGroup("several", [ValueError(1), KeyError("k")]),
    "BaseExceptionGroup": BaseExceptionGroup("several", (KeyboardInterrupt(),)),
    "group with arguments set later": changed(ExceptionGroup("g", [ValueError()]), args=("g", 3)),
    "group with a constructor": Problems([ValueError(1)]),
    "required arguments": Required(7, detail="seven"),
    "other arguments": Composed("ann", "locked"),
    "slots": Slots(1),
    "slots of two classes": MoreSlots(1),
    "a refusing __new__": OnlyOnce("once"),
    "frozen dataclass": Frozen(3),
    "refuses copies": ReadOnly("same"),
    "OSError with a constructor": UpstreamError("http://127.0.0.1", 503),
    "two builtin bases": Mixed(errno.EACCES, "denied", "/file"),
    "KeyError with an attribute": Quota("daily"),
    "arguments set later": changed(Composed("ann", "locked"), args=("other",)),
    "JSONDecodeError": raised(json.loads, "{"),
    "CalledProcessError": subprocess.CalledProcessError(3, ["false"], b"out", b"err"),
    "HTTPError": urllib.error.HTTPError(
        "http://127.0.0.1", 503, "busy", email.message.Message(), io.BytesIO(b"body")
    ),
    "sqlite3": sqlite_error(),
    "Django's ValidationError": ValidationError("%(n)s is wrong", code="wrong", params={"n": 3}),
    "Django's ValidationError of fields": ValidationError({"name": ["too long", "too odd"]}),
    "Django's ObjectDoesNotExist": ObjectDoesNotExist("no quake"),
    "CallCancelled": CallCancelled("abort", "quakes:alaska"),
    "WaitTimeout": WaitTimeout("quakes:alaska", 5.0, "pid 4121"),
}


def attributes_of(error):
    """Return every attribute that is not a method, C fields and slots included."""
    found = {}
    for name in dir(error):
        if name.startswith("__") and name.endswith("__"):
            continue
        try:
            value = getattr(error, name)
        except AttributeError:  # an unset slot
            continue
        if not callable(value):
            found[name] = value
    return found


@pytest.mark.parametrize("original", KINDS.values(), ids=KINDS.keys())
def test_replica__of_every_kind(original):
    """A replica has type, arguments, attributes and text of the original, which is its cause."""
    copy = replica(original)
    assert copy is not original
    assert type(copy) is type(original)
    assert all(mine is theirs for mine, theirs in zip(copy.args, original.args, strict=True))
    assert attributes_of(copy) == attributes_of(original)
    assert vars(copy) == vars(original)
    assert vars(copy) is not vars(original)
    assert str(copy) == str(original)
    assert repr(copy) == repr(original) or "0x" in repr(original)
    assert copy.__cause__ is original
    assert copy.__suppress_context__
    assert copy.__traceback__ is None
    assert copy.__context__ is None


def test_replica__has_notes_of_its_own():
    """A note that one follower adds is seen by nobody else."""
    original = ValueError("x")
    original.add_note("from the leader")
    first, second = replica(original), replica(original)
    first.add_note("from the follower")
    assert first.__notes__ == ["from the leader", "from the follower"]
    assert second.__notes__ == original.__notes__ == ["from the leader"]


def test_replica__of_odd_notes():
    """Notes that are no list are kept as they are: Python shows them too."""
    original = changed(ValueError("x"), __notes__="odd")
    assert replica(original).__notes__ == "odd"


def test_replica__runs_no_constructor_of_the_user():
    """A constructor with an effect has it once, for the leader."""
    made = []

    class Counted(Exception):
        def __new__(cls, *args):
            made.append("new")
            return super().__new__(cls, *args)

        def __init__(self, *args):
            made.append("init")
            super().__init__(*args)

    original = Counted("x")
    assert type(replica(original)) is Counted
    assert made == ["new", "init"]


def test_replica__of_a_replica():
    """A follower's exception may itself be a leader's further up; the chain leads back."""
    original = Required(1, detail="x")
    second = replica(replica(original))
    assert type(second) is Required
    assert second.__cause__.__cause__ is original


def test_traceback__does_not_grow_with_followers():
    """A hundred followers raise while they handle something else; the original stays as it is."""
    original = raised(os.stat, "/no such file")
    frames = traceback.format_tb(original.__traceback__)

    def follow(copy):
        try:
            raise KeyError("the follower's own")
        except KeyError:
            raise copy  # noqa: B904

    copies = [raised(follow, replica(original)) for _ in range(100)]
    assert traceback.format_tb(original.__traceback__) == frames
    assert original.__context__ is None
    assert original.__cause__ is None
    assert {len(traceback.format_tb(copy.__traceback__)) for copy in copies} == {2}
    assert len({id(copy.__context__) for copy in copies}) == 100


# Replicas: where none can be made


TEXTS = weakref.WeakKeyDictionary()


class Elsewhere(Exception):
    """Keeps its text where no copy can find it."""

    def __init__(self, text):
        super().__init__()
        TEXTS[self] = text

    def __str__(self):
        return TEXTS.get(self, "lost")


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


IMPOSSIBLE = {
    "a text from elsewhere": (Elsewhere("kept"), "kept"),
    "a text that cannot be made": (Speechless("x"), "its message cannot be shown"),
    "arguments that do not fit": (changed(raised(b"\xff".decode), args=()), None),
    "arguments of another class": (
        changed(OSError("x"), args=(errno.ENOENT, "x"), errno=errno.ENOENT, strerror="x"),
        "[Errno 2] x",
    ),
    "arguments that are cut": (changed(UpstreamError("u", 1), args=(1, "x", "f")), "u answered 1"),
}


@pytest.mark.parametrize(("original", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_replica__that_is_impossible(original, message):
    """The follower gets a LeaderError that names type and message, with the original as cause."""
    error = replica(original)
    assert type(error) is LeaderError
    assert isinstance(error, VegaError)
    assert error.type_name.endswith(type(original).__qualname__)
    assert error.message == (str(original) if message is None else message)
    assert error.__cause__ is original
    assert error.__traceback__ is None


def test_leader_error__names_types_in_full():
    """Builtin types go by their name, others by their dotted one."""
    assert replica(IMPOSSIBLE["a text from elsewhere"][0]).type_name == f"{__name__}.Elsewhere"
    assert replica(IMPOSSIBLE["arguments of another class"][0]).type_name == "OSError"


def test_replica__lets_an_interrupt_through():
    """Whoever presses Ctrl-C while a text is made is not answered with a LeaderError."""

    class Interrupting(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replica(Interrupting())
