"""The setting: what it may hold, what is said about each fault, and that it is left alone."""

import copy
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_vega import (
    NONE,
    CallCancelled,
    QueueFull,
    ReentrantCallError,
    Strategy,
    Upsert,
    WaitTimeout,
    coordinated,
    coordinator,
    get_event_bus,
    singleflight_refresh,
    subscribe,
)
from django_vega.backends.base import Backend
from django_vega.backends.local import LocalBackend
from django_vega.conf import examine, read
from tests import threads
from tests.gates import Arrivals, Gate
from tests.writing_app.models import Quake


@coordinator("pass")
def let_pass(ctx: Any) -> None:
    """Let every call run."""
    ctx.proceed()


def masked(key: str) -> str:
    """Show the namespace alone."""
    return key.partition(":")[0] + ":***"


class OptionedBackend(LocalBackend):
    """A backend with options."""

    option_names: ClassVar = frozenset({"LEASE"})


class SharedBackend(LocalBackend):
    """As if processes shared it."""

    is_shared: ClassVar = True


not_a_backend = 5


@coordinated(key="conf:{x}")
def function(x: Any) -> Any:
    return x


# What may stand there


@pytest.mark.parametrize("setting", [None, {"default": {}}, MappingProxyType({"default": {}})])
def test_defaults__nothing_said(setting: Any) -> None:
    """No setting at all is the same as an empty default alias."""
    with override_settings(DJANGO_VEGA=setting):
        alias = read()["default"]
    assert alias.backend is LocalBackend
    assert (alias.strategy, alias.timeout, alias.key_prefix) == (Strategy(), 30, "")
    assert (alias.on_orphan, alias.workers, alias.capacity) == ("return", 4, 100)
    assert (alias.sync_waits_for_async, alias.policies, alias.given) == (False, {}, frozenset())
    assert alias.key_display("quakes:alaska") == "quakes:alaska"


def test_defaults__no_setting() -> None:
    """A project without DJANGO_VEGA has the default alias."""
    aliases, faults = examine(None)
    assert (list(aliases), faults) == (["default"], [])


@pytest.mark.parametrize(
    "options",
    [
        {"BACKEND": "django_vega.backends.local.LocalBackend"},
        {"BACKEND": LocalBackend},
        {"BACKEND": f"{__name__}.OptionedBackend", "OPTIONS": {"LEASE": 3}},
        {"STRATEGY": "serialize"},
        {"STRATEGY": NONE},
        {"STRATEGY": let_pass},
        {"STRATEGY": f"{__name__}.let_pass"},
        {"STRATEGY": "django_vega.NONE"},
        {"TIMEOUT": 0},
        {"TIMEOUT": 0.5},
        {"TIMEOUT": None},
        {"KEY_PREFIX": "staging"},
        {"ON_ORPHAN": "raise"},
        {"WORKERS": 1, "CAPACITY": 0},
        {"CAPACITY": None},
        {"SYNC_WAITS_FOR_ASYNC": True},
        {"KEY_DISPLAY": masked},
        {"KEY_DISPLAY": f"{__name__}.masked"},
        {"KEY_DISPLAY": None},
        {"OPTIONS": {}},
        {"POLICIES": {}},
        {"POLICIES": {"a": {"STRATEGY": "restart"}, "b.c-d_e": {"LIMIT": 2, "WHEN_FULL": "queue"}}},
        {"POLICIES": {"a": {"STRATEGY": "serialize", "CAPACITY": 5}, "b": {"TIMEOUT": None}}},
    ],
)
def test_setting__in_order(options: dict[str, Any]) -> None:
    """Everything that the documentation shows is accepted, and calls run under it."""
    with override_settings(DJANGO_VEGA={"default": options}):
        assert examine({"default": options})[1] == []
        assert function(1) == 1


def test_setting__is_not_changed() -> None:
    """Reading and using the setting changes nothing in it."""
    setting = {
        "default": {
            "STRATEGY": "serialize",
            "POLICIES": {"conf": {"LIMIT": 2, "WHEN_FULL": "queue", "CAPACITY": 3}},
            "OPTIONS": {},
        },
        "other": {},
    }
    before = copy.deepcopy(setting)
    with override_settings(DJANGO_VEGA=setting):
        assert function(1) == 1
        assert function.submit(2).result(10) == 2
    assert setting == before


# What may not


FAULTS = [
    (5, "E001", "DJANGO_VEGA is a int", "dict of dicts"),
    ([], "E001", "DJANGO_VEGA is a list", "dict of dicts"),
    ("default", "E001", "DJANGO_VEGA is a str", "dict of dicts"),
    ({}, "E001", "no 'default' alias", "Add one"),
    ({"other": {}}, "E001", r"no 'default' alias, only \['other'\]", "Add one"),
    ({"default": None}, "E001", r"DJANGO_VEGA\['default'\] is a NoneType", "dict of options"),
    ({"default": {}, "x": 3}, "E001", r"DJANGO_VEGA\['x'\] is a int", "dict of options"),
]
OPTION_FAULTS = [
    ({"BACKEND": "django_vega.backends.redis.Nope"}, "E002", "does not import", "dotted path"),
    ({"BACKEND": "nodots"}, "E002", "'nodots'", "dotted path"),
    ({"BACKEND": f"{__name__}.not_a_backend"}, "E002", "no backend", "LocalBackend"),
    ({"BACKEND": dict}, "E002", "no backend", "subclass"),
    ({"BACKEND": None}, "E002", "None", "subclass"),
    ({"TIMOUT": 3}, "E003", "unknown option 'TIMOUT'", "Did you mean 'TIMEOUT'"),
    ({"timeout": 3}, "E003", "unknown option 'timeout'", "Use one of BACKEND, CAPACITY"),
    ({5: 3}, "E003", "unknown option 5", "Use one of"),
    ({"STRATEGY": "dedup"}, "E003", "did you mean 'dedupe'", "dotted path"),
    ({"STRATEGY": "django_vega.Nope"}, "E003", "does not import", "dotted path"),
    ({"STRATEGY": "django_vega.Call"}, "E003", "no strategy", "@coordinator"),
    ({"STRATEGY": 5}, "E003", "is 5, which is no strategy", "Use a name"),
    ({"STRATEGY": None}, "E003", "is None, which is no strategy", "Use a name"),
    ({"STRATEGY": []}, "E003", r"is \[\], which is no", "Use a name"),
    ({"OPTIONS": {"LEASE": 3}}, "E003", r"\['OPTIONS'\] has an unknown option", "There are none"),
    (
        {"BACKEND": OptionedBackend, "OPTIONS": {"LEESE": 3}},
        "E003",
        "unknown option 'LEESE'",
        "Did you mean 'LEASE'",
    ),
    ({"OPTIONS": 3}, "E004", r"\['OPTIONS'\] is a int", "Make it a dict"),
    ({"TIMEOUT": -1}, "E004", r"\['TIMEOUT'\] is -1", "at least 0"),
    ({"TIMEOUT": "5"}, "E004", r"\['TIMEOUT'\] is '5'", "at least 0"),
    ({"TIMEOUT": True}, "E004", r"\['TIMEOUT'\] is True", "at least 0"),
    ({"TIMEOUT": float("inf")}, "E004", "inf", "or None"),
    ({"BACKEND": SharedBackend, "TIMEOUT": None}, "E004", "share", "number of seconds"),
    ({"ON_ORPHAN": "ignore"}, "E004", r"\['ON_ORPHAN'\] is 'ignore'", "'return' or 'raise'"),
    ({"ON_ORPHAN": []}, "E004", r"\['ON_ORPHAN'\] is \[\]", "'return' or 'raise'"),
    ({"SYNC_WAITS_FOR_ASYNC": 1}, "E004", "is 1", "True or False"),
    ({"WORKERS": 0}, "E004", r"\['WORKERS'\] is 0", "at least 1"),
    ({"WORKERS": None}, "E004", "None", "at least 1"),
    ({"WORKERS": True}, "E004", "True", "at least 1"),
    ({"WORKERS": 1.5}, "E004", "1.5", "whole number"),
    ({"CAPACITY": -1}, "E004", r"\['CAPACITY'\] is -1", "at least 0"),
    ({"CAPACITY": "many"}, "E004", "'many'", "at least 0"),
    ({"KEY_PREFIX": 5}, "E004", r"\['KEY_PREFIX'\] is 5", "Use a text"),
    ({"KEY_PREFIX": None}, "E004", "None", "Use a text"),
    ({"KEY_DISPLAY": 5}, "E004", r"\['KEY_DISPLAY'\] is 5", "callable"),
    ({"KEY_DISPLAY": ""}, "E003", "does not import", "dotted path"),
    ({"KEY_DISPLAY": f"{__name__}.nope"}, "E003", "does not import", "dotted path"),
    ({"KEY_DISPLAY": f"{__name__}.not_a_backend"}, "E004", "which is not callable", "of one key"),
    ({"POLICIES": 3}, "E004", r"\['POLICIES'\] is a int", "namespace"),
    ({"POLICIES": {"a": 3}}, "E004", r"\['POLICIES'\]\['a'\] is a int", "Make it a dict"),
    ({"POLICIES": {"a:b": {}}}, "E003", r"\['a:b'\] names no namespace", "up to the first ':'"),
    ({"POLICIES": {"": {}}}, "E003", "names no namespace", "up to the first ':'"),
    ({"POLICIES": {5: {}}}, "E003", "names no namespace", "up to the first ':'"),
    ({"POLICIES": {"a": {"STRATGY": "none"}}}, "E003", "'STRATGY'", "Did you mean 'STRATEGY'"),
    ({"POLICIES": {"a": {"SCOPE": "x"}}}, "E003", "'SCOPE'", "Use one of CAPACITY, LIMIT"),
    ({"POLICIES": {"a": {"STRATEGY": "dedup"}}}, "E003", "did you mean 'dedupe'", "Use a name"),
    ({"POLICIES": {"a": {"WHEN_FULL": "wait"}}}, "E003", "when_full='wait'", "Mend"),
    ({"POLICIES": {"a": {"LIMIT": 0}}}, "E004", "limit=0", "Mend"),
    ({"POLICIES": {"a": {"TIMEOUT": -1}}}, "E004", r"\['TIMEOUT'\] is -1", "at least 0"),
    ({"POLICIES": {"a": {"CAPACITY": 5}}}, "E004", "a CAPACITY and no queue", "serialize"),
    (
        {"POLICIES": {"a": {"STRATEGY": "dedupe", "CAPACITY": 5}}},
        "E004",
        "without a queue",
        "Mend",
    ),
    (
        {"POLICIES": {"a": {"STRATEGY": let_pass, "CAPACITY": 5}}},
        "E004",
        "beside a coordinator",
        "Leave it out",
    ),
    (
        {"POLICIES": {"a": {"LIMIT": 2, "WHEN_FULL": "queue", "CAPACITY": -1}}},
        "E004",
        "capacity=-1",
        "Mend",
    ),
    (
        {"POLICIES": {"a": {"STRATEGY": "serialize", "LIMIT": 2}}},
        "E004",
        "names a STRATEGY and LIMIT",
        "spell it out",
    ),
]
ALL_FAULTS = FAULTS + [({"default": options}, *rest) for options, *rest in OPTION_FAULTS]


@pytest.mark.parametrize(("setting", "fault_id", "message", "hint"), ALL_FAULTS)
def test_fault__found_and_raised(setting: Any, fault_id: str, message: str, hint: str) -> None:
    """Each fault has an id, says the value and a way out; a call raises the same, every time."""
    _, faults = examine(setting)
    assert [fault.id for fault in faults] == [fault_id]
    (fault,) = faults
    with override_settings(DJANGO_VEGA=setting):
        for _ in range(2):
            with pytest.raises(ImproperlyConfigured, match=message) as caught:
                function(1)
            assert fault.message in str(caught.value)
            assert fault.hint in str(caught.value)
            assert "manage.py check" in str(caught.value)
    assert hint in fault.hint
    assert function(1) == 1


def test_fault__several_at_once() -> None:
    """All that is wrong is said at once; the other aliases are read all the same."""
    aliases, faults = examine(
        {"default": {"TIMOUT": 1, "WORKERS": 0}, "good": {}, "bad": {"ON_ORPHAN": 3}}
    )
    assert [fault.id for fault in faults] == ["E003", "E004", "E004"]
    assert list(aliases) == ["good"]


def test_alias__unknown() -> None:
    """A function on an alias that does not exist says so at each call, with what was meant."""

    @coordinated(key="lost:{x}", using="sharde")
    def lost(x: int) -> int:
        return x

    with override_settings(DJANGO_VEGA={"default": {}, "shared": {}}):
        for _ in range(2):
            with pytest.raises(ImproperlyConfigured, match=r"'sharde'. Did you mean 'shared'"):
                lost(1)
        with pytest.raises(ImproperlyConfigured):
            lost.submit(1)
        with pytest.raises(ImproperlyConfigured):
            lost.in_flight(1)
    with override_settings(DJANGO_VEGA={"default": {}, "sharde": {}}):
        assert lost(1) == 1


def test_alias__each_has_its_own() -> None:
    """Options and flights are those of the function's alias."""

    @coordinated(key="aliased:{x}", using="quick")
    def aliased(x: int) -> int:
        return x

    with override_settings(DJANGO_VEGA={"default": {}, "quick": {"TIMEOUT": 1}}):
        assert aliased.effective_options(1).timeout == 1
        assert function.effective_options(1).timeout == 30
        assert aliased(5) == 5


def test_timeout__none_on_a_shared_backend() -> None:
    """Without a timeout nothing ends a wait for another process: refused at the call."""
    with override_settings(DJANGO_VEGA={"default": {"BACKEND": SharedBackend}}):
        assert function(1) == 1
        with pytest.raises(ImproperlyConfigured, match=r"timeout=None on the shared alias"):
            function.with_options(timeout=None)(1)
    assert function.with_options(timeout=None)(1) == 1


def test_backend__is_abstract() -> None:
    """The base class names what a backend has to do."""
    with pytest.raises(TypeError, match="next_generation"):
        Backend({})


# KEY_DISPLAY: keys as people may see them


SECRET = "4111-1111"


@coordinated(key="card:{number}", strategy="serialize", ignore=["body"])
def charge(number: str, body: Any) -> Any:
    return body()


def test_key_display__errors_events_logs(caplog: Any) -> None:
    """Errors, events, logs and `repr` show what KEY_DISPLAY made of the key, nowhere the key."""
    events: list[Any] = []
    unsubscribe = subscribe(events.append)
    gate = Gate()
    try:
        with override_settings(DJANGO_VEGA={"default": {"KEY_DISPLAY": masked, "CAPACITY": 0}}):
            texts = []
            with Arrivals() as arrivals, threads.start(lambda: charge(SECRET, gate)) as running:
                arrivals.wait(1)
                with pytest.raises(QueueFull) as full:
                    charge(SECRET, gate)
                with pytest.raises(CallCancelled) as dropped:
                    charge.with_options(strategy="exhaust")(SECRET, gate)
                for error in (full.value, dropped.value):
                    texts += [str(error), repr(error)]
                with pytest.raises(WaitTimeout) as waited:
                    charge.with_options(strategy="dedupe", timeout=0)(SECRET, gate)
                texts += [str(waited.value), waited.value.key]
                assert charge.cancel(SECRET, gate)
                gate.open()
                cancelled = running.exception()
                assert isinstance(cancelled, CallCancelled)
                texts += [str(cancelled), cancelled.key]
            call = charge.submit(SECRET, lambda: 5)
            assert call.result(10) == 5
            texts.append(repr(call))
            again = charge.with_options(strategy="dedupe")
            with pytest.raises(ReentrantCallError) as reentrant:
                again(SECRET, lambda: again(SECRET, gate))
            texts.append(str(reentrant.value))
            orphan = charge.with_options(strategy=coordinator("forgetful")(lambda ctx: None))
            assert orphan(SECRET, gate) is None
    finally:
        unsubscribe()
    texts += [event.key for event in events]
    assert len(texts) > 20
    assert all("card:***" in text for text in texts), texts
    assert not any(SECRET in repr(event) for event in events)
    assert "card:***" in caplog.text
    assert SECRET not in caplog.text
    # The key itself is for the program: to cancel by it, and in the call.
    assert call.key == f"card:{SECRET}"


def test_key_display__uncoordinated_diagnostics_are_ones_own() -> None:
    """Own diagnostics pass the bus as they are."""

    class Diagnosis:
        type = "diagnosis"

    seen: list[Any] = []
    unsubscribe = subscribe(seen.append, ["diagnosis"])
    get_event_bus().publish(Diagnosis())
    unsubscribe()
    assert len(seen) == 1


def test_key_prefix__changes_the_fence() -> None:
    """Two projects on one database keep their fences apart by KEY_PREFIX."""
    refresh = singleflight_refresh(key="prefixed:{x}", upsert=Upsert(Quake, ["code"]))(lambda x: [])
    plan: Any = refresh.definition.plan

    def identity() -> Any:
        return plan._identity(refresh.invocation((1,), {}))

    bare = identity()
    with override_settings(DJANGO_VEGA={"default": {"KEY_PREFIX": "staging"}}):
        staging = identity()
    assert bare.hash != staging.hash
    assert (bare.key, bare.scope) == (staging.key, staging.scope)
    assert identity().hash == bare.hash
