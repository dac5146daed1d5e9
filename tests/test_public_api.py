"""What the package offers by name, what its import touches, and that errors and records travel."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation

import django_vega
from django_vega import core, signals
from django_vega.core import errors, events
from django_vega.writing.faults import Fault, InvalidUpsertError
from tests import interpreters

# The contract, as far as it works by now.
NAMES = {
    "coordinated",
    "singleflight_refresh",
    "Upsert",
    "Refresh",
    "RefreshStatus",
    "Strategy",
    "NONE",
    "DEDUPE",
    "RESTART",
    "EXHAUST",
    "serialize",
    "bounded",
    "coordinator",
    "CoordinationContext",
    "subscribe",
    "get_event_bus",
    "in_flight",
    "cancel",
    "cancel_all",
    "close",
    "checkpoint",
    "current_call",
    "Call",
    "FlightRecord",
    "VegaError",
    "CallCancelled",
    "QueueFull",
    "NotAdmitted",
    "WaitTimeout",
    "ReentrantCallError",
    "DeadlockError",
    "InAtomicBlockError",
    "DuplicateRowError",
    "EmptyResponseError",
    "GenerationField",
    "LeaderError",
    "LeaseLost",
    "RemoteCallError",
    "IncompleteKeyError",
    "KeyTemplateError",
    "UnstableKeyError",
    "CoordinationProtocolError",
    "OrphanedIntentError",
    "SynchronousCallError",
    "Busy",
    "Budget",
    "BudgetTimeout",
    "TooHeavy",
    "Outcome",
    "afan_out",
    "fan_out",
    "watch",
    "debounce",
    "throttle",
}


def test_names__all() -> None:
    """`__all__` is the contract so far: sorted, complete, and each name is what it says."""
    assert set(django_vega.__all__) == NAMES
    assert len(django_vega.__all__) == len(NAMES)
    namespace: dict[str, Any] = {}
    exec("from django_vega import *", namespace)
    assert namespace.keys() - {"__builtins__"} == NAMES
    for name in NAMES:
        assert not isinstance(namespace[name], ModuleType), f"{name} is a module"


def test_names__coordinator_is_the_decorator() -> None:
    """The module of that name does not stand in its way, in whatever order things are imported."""
    import django_vega.coordinator

    assert django_vega.coordinator("mine")(lambda ctx: None).name == "mine"
    code = "import django_vega.coordinator, django_vega; assert callable(django_vega.coordinator)"
    assert run_python(code) == ""


def test_names__documented() -> None:
    """Every public function, class, method and property has a docstring."""
    for name in NAMES:
        item = getattr(django_vega, name)
        if not (inspect.isclass(item) or inspect.isroutine(item)):
            continue
        assert inspect.getdoc(item), name
        if inspect.isclass(item):
            for attribute, member in vars(item).items():
                if not attribute.startswith("_") and (
                    inspect.isroutine(member) or isinstance(member, property)
                ):
                    assert inspect.getdoc(member), f"{name}.{attribute}"


# Import


def run_python(code: str) -> str:
    """Run code in a fresh interpreter without settings, with warnings as errors."""
    done = interpreters.run_bare(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import__touches_nothing() -> None:
    """Without settings it imports and decorates, having touched no settings, model or thread."""
    code = """
import sys, threading
from django_vega import *
from django_vega import signals

@coordinated(key="k:{x}", strategy="serialize", timeout=3)
def f(x): return x

class C:
    @singleflight_refresh(key="k:{x}", upsert=Upsert("feed.Quake", ["code"]), in_atomic="solo")
    async def refresh(self, x): return []

    @coordinated(key="k:{x}")
    @classmethod
    def make(cls, x): return x

assert f.key_for(1) == "k:1"
assert C().refresh.key_for("a") == "k:a"
f.with_options(strategy=RESTART)

from django.conf import settings
from django.apps import apps
assert not settings.configured
assert not apps.ready and not apps.app_configs
assert "django_vega.models" not in sys.modules
assert threading.enumerate() == [threading.main_thread()]
print("untouched")
"""
    assert run_python(code) == "untouched\n"


def test_import__call_without_settings() -> None:
    """A call without settings raises Django's own error, not one of ours half way."""
    code = """
from django.core.exceptions import ImproperlyConfigured
from django_vega import coordinated

@coordinated(key="k:{x}")
def f(x): return x

try:
    f(1)
except ImproperlyConfigured as error:
    print("ImproperlyConfigured")
"""
    assert run_python(code) == "ImproperlyConfigured\n"


# Errors


ERRORS = {
    errors.CallCancelled: ("abort", "quakes:alaska"),
    errors.QueueFull: ("quakes:alaska", 3, "call 1, running"),
    errors.Busy: ("quakes:alaska", "call 1, running", 7.2, 7.2),
    errors.NotAdmitted: ("quakes:alaska", 4, 100),
    errors.WaitTimeout: ("quakes:alaska", 5.0, "call 1 on web:1, running for 7.2 s"),
    errors.ReentrantCallError: (("a:1", "b:2", "a:1"),),
    errors.DeadlockError: (("a:1", "b:2"),),
    errors.InAtomicBlockError: ("quakes:alaska", "default"),
    errors.EmptyResponseError: ("feed.Quake",),
    errors.DuplicateRowError: ("feed.Quake", (("code", "a"),)),
    errors.RemoteCallError: ("app.UpstreamError", "503", "web:1"),
    django_vega.TooHeavy: ("target 'a'", 5, 3),
    django_vega.BudgetTimeout: (3, 1.5, 2),
    errors.LeaderError: ("app.UpstreamError", "503"),
    errors.LeaseLost: ("quakes:alaska", "taken"),
    errors.IncompleteKeyError: ("feed.refresh", ("user_id",)),
    errors.KeyTemplateError: ("key '' is not a key",),
    errors.UnstableKeyError: ("x", "object", "it has no stable text"),
    errors.CoordinationProtocolError: ("decided twice",),
    errors.OrphanedIntentError: ("quakes:alaska", "forgetful"),
    django_vega.SynchronousCallError: ("would block the loop",),
    InvalidUpsertError: ("feed.Quake", (Fault("unknown-field", "no such field", "Did you mean"),)),
}


def test_errors__complete() -> None:
    """Every error of the package is in the list, and each derives from VegaError."""
    defined = {
        item
        for item in vars(errors).values()
        if inspect.isclass(item) and issubclass(item, errors.VegaError)
    }
    assert defined - {errors.VegaError} <= ERRORS.keys()
    public = {
        getattr(django_vega, name)
        for name in NAMES
        if inspect.isclass(getattr(django_vega, name))
        and issubclass(getattr(django_vega, name), Exception)
    }
    assert public - {errors.VegaError} <= ERRORS.keys()
    assert all(issubclass(kind, errors.VegaError) for kind in ERRORS)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors__travel(kind: type[Exception]) -> None:
    """Each error says what happened, and is the same after pickling and copying."""
    error = kind(*ERRORS[kind])
    assert len(str(error)) >= len(str(ERRORS[kind][0]))
    assert kind.__doc__
    for other in (
        pickle.loads(pickle.dumps(error)),
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert type(other) is kind
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


def test_errors__caught_as_what_they_are() -> None:
    """Errors are of the builtin kinds that callers expect of them."""
    assert issubclass(errors.WaitTimeout, TimeoutError)
    assert issubclass(errors.IncompleteKeyError, ValueError)
    assert issubclass(errors.KeyTemplateError, ValueError)
    assert issubclass(errors.UnstableKeyError, TypeError)
    assert issubclass(errors.DuplicateRowError, ValueError)
    assert issubclass(errors.EmptyResponseError, ValueError)
    assert issubclass(django_vega.SynchronousCallError, SynchronousOnlyOperation)
    assert errors.CallCancelled("abort").reason == "abort"
    assert "call again" in str(errors.CallCancelled("abort"))
    assert "of-its-own" in str(errors.CallCancelled("of-its-own", "a:1"))


# Records


MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
RECORDS: list[Any] = [
    django_vega.Refresh("quakes:alaska", "written", generation=7, rows=2, written=2),
    django_vega.RefreshStatus("ok", MOMENT, MOMENT, 7, None),
    django_vega.FlightRecord(
        1, "quakes:alaska", "feed", "feed.f", "dedupe", "running", None, 7, 0.1, 2, False, "web:1"
    ),
    django_vega.Strategy(limit=4, when_full="queue", capacity=9),
    django_vega.serialize(),
    django_vega.Upsert("feed.Quake", ["code"]),
    events.CallSettled(key="a:1", call_id=3, state="success", duration=0.5),
    events.RefreshWritten(key="a:1", call_id=3, generation=7, rows=2, written=2),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records__frozen_and_picklable(record: Any) -> None:
    """Records compare by value, cannot be changed, and are the same after pickling."""
    assert is_dataclass(record)
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.deepcopy(record) == record
    with pytest.raises(FrozenInstanceError):
        setattr(record, fields(record)[0].name, "other")


def test_records__events_picklable() -> None:
    """Every type of event, so that they can be sent to other processes."""
    for kind in events.EVENT_TYPES.values():
        own = {field.name for field in fields(kind)} - {f.name for f in fields(events.Event)}
        values = dict.fromkeys(own, 1)
        event = kind(key="a:1", **values)
        assert pickle.loads(pickle.dumps(event)) == event


def test_modules__documented() -> None:
    """The modules that users import have a docstring."""
    for module in (django_vega, core, signals, errors, events):
        assert module.__doc__
