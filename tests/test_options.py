"""Where the options of a call come from, which source wins, and what is said about wrong ones."""

import threading
from typing import Any

import pytest
from django.test import override_settings

from django_vega import (
    DEDUPE,
    EXHAUST,
    NONE,
    RESTART,
    CallCancelled,
    Strategy,
    bounded,
    coordinated,
    coordinator,
    in_flight,
    serialize,
)
from django_vega.options import checked
from tests import threads
from tests.gates import Arrivals, Gate


@coordinated(key="bare:{x}")
def bare(x: int) -> int:
    return x


@coordinated(key="named:{x}", strategy="restart", timeout=5)
def named(x: int) -> int:
    return x


@coordinated(key=lambda x: f"called:{x}")
def called(x: int) -> int:
    return x


@coordinator("first-come")
def first_come(ctx: Any) -> None:
    """Let every call run."""
    ctx.proceed()


def vega(**options: Any) -> Any:
    """Return an override of the default alias."""
    return override_settings(DJANGO_VEGA={"default": options})


def shown(function: Any) -> dict[str, tuple[Any, str]]:
    """Return strategy and timeout of a call, each with its origin."""
    options = function.effective_options(1)
    values = {"strategy": options.strategy.name, "timeout": options.timeout}
    return {name: (value, options.origin[name]) for name, value in values.items()}


# Precedence


def test_precedence__built_in() -> None:
    """With nothing said anywhere the built-in options hold."""
    assert shown(bare) == {"strategy": ("dedupe", "built-in"), "timeout": (30, "built-in")}
    options = bare.effective_options(1)
    assert (options.in_atomic, options.origin["in_atomic"]) == ("refuse", "built-in")
    assert options.capacity == 100


def test_precedence__each_source_over_the_next() -> None:
    """Call over policy over decorator over alias over built-in, option by option."""
    with vega(STRATEGY="exhaust", TIMEOUT=7):
        assert shown(bare) == {"strategy": ("exhaust", "alias"), "timeout": (7, "alias")}
        assert shown(named) == {"strategy": ("restart", "decorator"), "timeout": (5, "decorator")}
    with vega(STRATEGY="exhaust", POLICIES={"named": {"STRATEGY": "serialize"}}):
        assert shown(named) == {"strategy": ("serialize", "policy"), "timeout": (5, "decorator")}
        by_call = named.with_options(strategy="none")
        assert shown(by_call) == {"strategy": ("none", "call"), "timeout": (5, "decorator")}
        assert shown(bare)["strategy"] == ("exhaust", "alias")
    with vega(POLICIES={"named": {"TIMEOUT": None}}):
        assert shown(named) == {"strategy": ("restart", "decorator"), "timeout": (None, "policy")}
        assert shown(named.with_options(timeout=0))["timeout"] == (0, "call")


def test_precedence__options_of_calls_add_up() -> None:
    """`with_options` twice keeps what the second does not name; the function keeps its own."""
    both = named.with_options(strategy="none").with_options(timeout=1)
    assert shown(both) == {"strategy": ("none", "call"), "timeout": (1, "call")}
    assert shown(both.with_options(strategy=RESTART))["strategy"] == ("restart", "call")
    assert shown(named) == {"strategy": ("restart", "decorator"), "timeout": (5, "decorator")}


# Policies


@pytest.mark.parametrize(
    ("policy", "name", "capacity"),
    [
        ({"STRATEGY": "serialize"}, "serialize", 7),
        ({"STRATEGY": "serialize", "CAPACITY": 50}, "serialize", 50),
        ({"STRATEGY": "serialize", "CAPACITY": None}, "serialize", None),
        ({"LIMIT": 2, "WHEN_FULL": "queue"}, "queue(2)", 7),
        ({"LIMIT": 2, "WHEN_FULL": "queue", "CAPACITY": 0}, "queue(2)", 0),
        ({"LIMIT": 3}, "bounded(3)", 7),
        ({"LIMIT": None}, "none", 7),
        ({"WHEN_FULL": "drop"}, "exhaust", 7),
        ({"STRATEGY": bounded(4)}, "bounded(4)", 7),
        ({"STRATEGY": serialize(capacity=9)}, "serialize", 9),
        ({"STRATEGY": first_come}, "first-come", 7),
        ({"STRATEGY": f"{__name__}.first_come"}, "first-come", 7),
        ({"STRATEGY": "django_vega.RESTART"}, "restart", 7),
        ({"TIMEOUT": 3}, "dedupe", 7),
        ({}, "dedupe", 7),
    ],
)
def test_policy__each_option(policy: dict[str, Any], name: str, capacity: int | None) -> None:
    """A policy names a strategy or spells one out; the queue's bound is the alias's unless said."""
    with vega(CAPACITY=7, POLICIES={"bare": policy, "other": {"STRATEGY": "none"}}):
        options = bare.effective_options(1)
        assert (options.strategy.name, options.capacity) == (name, capacity)
        expected = "policy" if policy.keys() - {"TIMEOUT"} else "built-in"
        assert options.origin["strategy"] == expected


def test_policy__namespace_of_a_callable_key() -> None:
    """The namespace of a callable key is its text up to the first colon."""
    with vega(POLICIES={"called": {"STRATEGY": "exhaust"}}):
        assert shown(called)["strategy"] == ("exhaust", "policy")
        assert shown(bare)["strategy"] == ("dedupe", "built-in")


def test_policy__of_a_running_function() -> None:
    """A policy decides what a call does, without a change of code."""
    gate = Gate("value")

    @coordinated(key="policed:{x}", ignore=["body"])
    def policed(x: int, body: Gate) -> Any:
        return body()

    with (
        vega(POLICIES={"policed": {"STRATEGY": "exhaust"}}),
        Arrivals() as arrivals,
        threads.start(lambda: policed(1, gate)) as running,
    ):
        arrivals.wait(1)
        with pytest.raises(CallCancelled) as caught:
            policed(1, gate)
        gate.open()
    assert (running.result(), caught.value.reason) == ("value", "exhaust-dropped")


# override_settings, while something runs


def test_override_settings__takes_effect_at_the_next_call() -> None:
    """Settings count from the next call on, and no longer than they stand."""
    for strategy in ("restart", "none", "restart"):
        with vega(STRATEGY=strategy):
            assert shown(bare)["strategy"] == (strategy, "alias")
        assert shown(bare)["strategy"] == ("dedupe", "built-in")


def test_override_settings__function_that_was_bound_before() -> None:
    """Objects made by `with_options` and bound methods follow the settings as well."""

    class Repository:
        @coordinated(key="bound:{x}")
        def fetch(self, x: int) -> int:
            return x

    bound, by_call = Repository().fetch, bare.with_options(timeout=3)
    assert (bound(1), by_call(1)) == (1, 1)
    with vega(STRATEGY="none"):
        for function in (bound, by_call):
            assert shown(function)["strategy"] == ("none", "alias")


def test_override_settings__running_flight_keeps_its_options() -> None:
    """A flight of before is seen by a call of after; each is under the options of its time."""
    gate = Gate("value")

    @coordinated(key="kept:{x}", ignore=["body"])
    def kept(x: int, body: Gate) -> Any:
        return body()

    with Arrivals() as arrivals, threads.start(lambda: kept(1, gate)) as running:
        arrivals.wait(1)
        with vega(STRATEGY="exhaust", TIMEOUT=3):
            (record,) = kept.in_flight(1, gate)
            assert record.strategy == "dedupe"
            with pytest.raises(CallCancelled, match="exhaust-dropped"):
                kept(1, gate)
        with threads.start(lambda: kept(1, gate)) as follower:
            arrivals.wait(3)
            gate.open()
    assert (running.result(), follower.result(), gate.runs) == ("value", "value", 1)


def test_override_settings__pool_of_another_size() -> None:
    """With other bounds the alias gets a new pool; what runs already is still seen."""
    gate = Gate("value")

    @coordinated(key="resized:{x}", ignore=["body"])
    def resized(x: int, body: Gate) -> Any:
        return body()

    with Arrivals() as arrivals, threads.start(lambda: resized(1, gate)) as running:
        arrivals.wait(1)
        with vega(WORKERS=1):
            assert bare.submit(1).result(10) == 1
            assert [record.key for record in in_flight()] == ["resized:1"]
            gate.open()
    assert running.result() == "value"


def test_override_settings__many_threads() -> None:
    """While settings change under running threads, each call has the options of one of them."""
    stop = threading.Event()

    def ask() -> set[str]:
        seen = set()
        while not stop.is_set():
            seen.add(bare.effective_options(1).strategy.name)
        return seen

    everyone = threads.start_together(ask, ask, ask)
    try:
        for _ in range(200):
            with vega(STRATEGY="restart"):
                assert shown(bare)["strategy"] == ("restart", "alias")
            assert shown(bare)["strategy"] == ("dedupe", "built-in")
    finally:
        stop.set()
    for seen in threads.results(everyone):
        assert seen <= {"dedupe", "restart"}


# Options in Python


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"strategi": "none"}, TypeError, "unknown option 'strategi'. Did you mean 'strategy'"),
        ({"force": True}, TypeError, "unknown option 'force'. Use one of next, on_last_leave, str"),
        ({"fresh_for": 5}, TypeError, "unknown option 'fresh_for'"),
        ({"shaper": None}, TypeError, "unknown option 'shaper'"),
        ({"while_busy": "skip"}, ValueError, "while_busy='skip': use 'wait' or 'raise'"),
        ({"while_busy": "stale"}, ValueError, "while_busy='stale': use 'wait' or 'raise'"),
        ({"next": 1}, ValueError, "next=1: use True or False"),
        ({"on_last_leave": None}, ValueError, "on_last_leave=None: use 'keep' or 'cancel'"),
        ({"in_atomic": "solo"}, TypeError, "unknown option 'in_atomic'"),
        ({"strategy": "serialise"}, ValueError, "did you mean 'serialize'"),
        ({"strategy": first_come.function}, TypeError, "made with @coordinator"),
        ({"timeout": -0.5}, ValueError, "timeout=-0.5"),
    ],
)
def test_with_options__wrong_ones(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A wrong option raises where it is given, not at the call."""
    with pytest.raises(error, match=message):
        bare.with_options(**given)


def test_with_options__nothing() -> None:
    """No options at all are no change."""
    assert shown(named.with_options()) == shown(named)
    assert named.with_options()(1) == 1


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("none", NONE),
        ("dedupe", DEDUPE),
        ("restart", RESTART),
        ("serialize", serialize()),
        ("exhaust", EXHAUST),
        (bounded(3), Strategy(limit=3)),
        (first_come, first_come),
    ],
)
def test_checked__strategies(strategy: Any, expected: Any) -> None:
    """Names stand for points of the algebra; strategies and coordinators for themselves."""
    given = {"strategy": strategy}
    assert checked(given, ["strategy"], returns_values=True) == {"strategy": expected}


@pytest.mark.parametrize("timeout", [None, 0, 0.5, 30, 1e9])
def test_checked__timeouts(timeout: float | None) -> None:
    """Seconds of at least zero, or None for no limit; the mapping given is left alone."""
    given = {"timeout": timeout}
    found = checked(given, ["timeout"], returns_values=True)
    assert found == given
    assert found is not given
