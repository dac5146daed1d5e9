"""A wait that would never end is refused before it begins; nobody debugs a hang."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import django_vega
from django_vega import (
    CallCancelled,
    DeadlockError,
    ReentrantCallError,
    Strategy,
    SynchronousCallError,
    WaitTimeout,
    bounded,
    coordinated,
)
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never


@coordinated(key="in:{key}", ignore=["body"])
def fetch(key: str, body: Callable[[], Any]) -> Any:
    return body()


WAITING = ["dedupe", "restart", "serialize", bounded(1), Strategy(limit=1, when_full="queue")]


@pytest.mark.parametrize("strategy", WAITING, ids=str)
def test_call_inside_its_own_flight__raises_at_once(strategy):
    """A call that would wait for, or cancel, the flight that it is part of names the chain."""
    function = fetch.with_options(strategy=strategy)

    def body() -> str:
        with pytest.raises(ReentrantCallError) as caught:
            function("x", never)
        assert caught.value.chain == ("in:x", "in:x")
        assert "in:x -> in:x: this call would wait for or cancel" in str(caught.value)
        return "value"

    with Recorder() as recorder:
        assert function("x", body) == "value"
        assert recorder.states() == [("success", None), ("error", None)]


def test_reentry_is_an_error_of_the_caller__nobody_catches_it():
    """An uncaught ReentrantCallError is the outcome of the flight like any other error."""
    with pytest.raises(ReentrantCallError):
        fetch("x", lambda: fetch("x", never))
    assert fetch("x", lambda: "value") == "value"


@pytest.mark.parametrize("strategy", WAITING, ids=str)
def test_there_and_back__raises_at_once(strategy):
    """X calls y calls x: the innermost call names the whole chain, outermost first."""
    function = fetch.with_options(strategy=strategy)

    def inner() -> str:
        with pytest.raises(ReentrantCallError) as caught:
            function("x", never)
        assert caught.value.chain == ("in:x", "in:y", "in:x")
        return "y"

    assert function("x", lambda: function("y", inner)) == "y"


def test_inner_call_does_not_wait__none_exhaust_and_a_free_slot():
    """Where nothing waits nothing is refused: own runs, dropped calls, slots that are free."""

    def body() -> tuple[Any, ...]:
        with pytest.raises(CallCancelled, match="exhaust-dropped"):
            fetch.with_options(strategy="exhaust")("x", never)
        return (
            fetch.with_options(strategy="none")("x", lambda: "none"),
            fetch.with_options(strategy=bounded(2))("x", lambda: "slot"),
            fetch.raw("x", lambda: "raw"),
            fetch("y", lambda: "other key"),
        )

    assert fetch("x", body) == ("none", "slot", "raw", "other key")


def test_inner_call_of_a_full_key__raises():
    """With limit 2 the third nested call would wait for the first, and raises."""
    function = fetch.with_options(strategy=bounded(2))

    def third() -> str:
        with pytest.raises(ReentrantCallError):
            function("x", never)
        return "value"

    assert function("x", lambda: function("x", third)) == "value"


def test_restart_spares_its_own_flight__nobody_is_cancelled():
    """A restart inside of its own flight raises and leaves every peer as it was."""
    restart = fetch.with_options(strategy="restart")
    none = fetch.with_options(strategy="none")
    gate = Gate("peer")
    peer = threads.start(lambda: none("x", gate))
    assert gate.entered.wait(TIMEOUT)

    def body() -> str:
        with pytest.raises(ReentrantCallError):
            restart("x", never)
        return "own"

    assert none("x", body) == "own"
    gate.open()
    assert peer.result() == "peer"


def run_in_thread(function: Callable[[], Any]) -> Any:
    """Run in a child thread that copied the context."""
    context = contextvars.copy_context()
    return threads.start(lambda: context.run(function)).result()


def run_in_pool(function: Callable[[], Any]) -> Any:
    """Run in an executor's thread that copied the context."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(contextvars.copy_context().run, function).result(TIMEOUT)


@pytest.mark.parametrize("run", [run_in_thread, run_in_pool])
@pytest.mark.parametrize("strategy", WAITING, ids=str)
def test_child_thread_counts_as_inside__copied_context(run, strategy):
    """A thread that copied the context is inside the flight that waits for it."""
    function = fetch.with_options(strategy=strategy)

    def call_again() -> tuple[str, ...]:
        with pytest.raises(ReentrantCallError) as caught:
            function("x", never)
        return caught.value.chain

    assert function("x", lambda: run(call_again)) == ("in:x", "in:x")
    chain = function("x", lambda: run(lambda: function("y", lambda: run(call_again))))
    assert chain == ("in:x", "in:y", "in:x")


def test_child_thread_is_outside__once_the_flight_has_ended():
    """A thread that outlives the flight may call its key like anybody else."""
    contexts: list[contextvars.Context] = []
    fetch("x", lambda: contexts.append(contextvars.copy_context()))
    assert contexts[0].run(fetch, "x", lambda: "value") == "value"


def test_child_thread_without_the_context__timeout_ends_it():
    """A wait that cannot be known to be one's own ends with its timeout."""
    impatient = fetch.with_options(timeout=0.01)

    def body() -> str:
        child = threads.start(lambda: impatient("x", never))
        assert isinstance(child.exception(), WaitTimeout)
        return "value"

    assert fetch("x", body) == "value"


def test_flight_below_on_the_stack__context_is_lost():
    """A thread never waits for a body below it on its own stack: it leads a second flight."""

    def body() -> Any:
        return contextvars.Context().run(fetch, "x", lambda: "second")

    with Recorder() as recorder:
        assert fetch("x", body) == "second"
        assert len(recorder.events("coordination:solo")) == 1
        assert recorder.states() == [("success", None)] * 2


def test_flight_below_on_the_stack__queue_refuses():
    """Under serialize neither waiting nor overlapping is right there, so the call is refused."""
    function = fetch.with_options(strategy="serialize")

    def body() -> str:
        with pytest.raises(SynchronousCallError):
            contextvars.Context().run(function, "x", never)
        return "value"

    assert function("x", body) == "value"


# Cycles between flights


def test_two_flights_wait_for_each_other__who_closes_the_cycle_raises():
    """A holds x and waits for y, B holds y and asks for x: B raises at once, A goes on."""
    y_holds = Gate()

    def holds_y() -> str:
        y_holds()
        with pytest.raises(DeadlockError) as caught:
            fetch("x", never)
        assert caught.value.cycle == ("in:y", "in:x", "in:y")
        assert "the flights wait for each other" in str(caught.value)
        return "y"

    b = threads.start(lambda: fetch("y", holds_y))
    assert y_holds.entered.wait(TIMEOUT)
    with Arrivals(["coordination:reuse"]) as arrivals:
        a = threads.start(lambda: fetch("x", lambda: fetch("y", never)))
        arrivals.wait(1)
    y_holds.open()
    assert threads.results([a, b]) == ["y", "y"]


def test_deadlock_error_is_an_outcome__nobody_catches_it():
    """Uncaught, the error fails the flight that closed the cycle, and those that wait for it."""
    y_holds = Gate()
    b = threads.start(lambda: fetch("y", lambda: (y_holds(), fetch("x", never))))
    assert y_holds.entered.wait(TIMEOUT)
    with Arrivals(["coordination:reuse"]) as arrivals:
        a = threads.start(lambda: fetch("x", lambda: fetch("y", never)))
        arrivals.wait(1)
    y_holds.open()
    own, shared = b.exception(), a.exception()
    assert isinstance(own, DeadlockError)
    assert isinstance(shared, DeadlockError)
    assert shared.__cause__ is own
    assert fetch("x", lambda: fetch("y", lambda: "value")) == "value"


def test_two_queues_wait_for_each_other__who_closes_the_cycle_raises():
    """The same with serialize: a parked call waits for the body that holds its key."""
    function = fetch.with_options(strategy="serialize")
    y_holds = Gate()

    def holds_y() -> str:
        y_holds()
        with pytest.raises(DeadlockError):
            function("x", never)
        return "held"

    b = threads.start(lambda: function("y", holds_y))
    assert y_holds.entered.wait(TIMEOUT)
    with Arrivals(["call:parked"]) as arrivals:
        a = threads.start(lambda: function("x", lambda: function("y", lambda: "own")))
        arrivals.wait(1)
    y_holds.open()
    assert threads.results([a, b]) == ["own", "held"]


def test_three_flights_in_a_ring__the_last_raises():
    """X waits for y, y for z; z asks for x and raises, naming the ring."""
    gates = {key: Gate() for key in "yz"}

    def holds_z() -> str:
        gates["z"]()
        with pytest.raises(DeadlockError) as caught:
            fetch("x", never)
        assert caught.value.cycle == ("in:z", "in:x", "in:y", "in:z")
        return "z"

    def holds_y() -> Any:
        gates["y"]()
        return fetch("z", never)

    c = threads.start(lambda: fetch("z", holds_z))
    assert gates["z"].entered.wait(TIMEOUT)
    b = threads.start(lambda: fetch("y", holds_y))
    assert gates["y"].entered.wait(TIMEOUT)
    with Arrivals(["coordination:reuse"]) as arrivals:
        a = threads.start(lambda: fetch("x", lambda: fetch("y", never)))
        arrivals.wait(1)
        gates["y"].open()
        arrivals.wait(2)
    gates["z"].open()
    assert threads.results([a, b, c]) == ["z", "z", "z"]


def test_ring_through_a_child_thread__raises():
    """The cycle is seen where a child thread of the flight does the waiting."""
    y_holds = Gate()

    def holds_y() -> str:
        y_holds()
        with pytest.raises(DeadlockError):
            run_in_thread(lambda: fetch("x", never))
        return "y"

    b = threads.start(lambda: fetch("y", holds_y))
    assert y_holds.entered.wait(TIMEOUT)
    with Arrivals(["coordination:reuse"]) as arrivals:
        a = threads.start(lambda: fetch("x", lambda: run_in_thread(lambda: fetch("y", never))))
        arrivals.wait(1)
    y_holds.open()
    assert threads.results([a, b]) == ["y", "y"]


def test_common_target_is_no_cycle__two_flights_wait_for_a_third():
    """Flights that wait for the same one, side by side or nested, are not refused."""
    gate = Gate("z")
    c = threads.start(lambda: fetch("z", gate))
    assert gate.entered.wait(TIMEOUT)
    with Arrivals(["coordination:reuse"]) as arrivals:
        a = threads.start(lambda: fetch("x", lambda: fetch("z", never)))
        b = threads.start(lambda: fetch("y", lambda: fetch("z", never)))
        arrivals.wait(2)
        follower = threads.start(lambda: fetch("x", never))
        arrivals.wait(3)
    gate.open()
    assert threads.results([a, b, c, follower]) == ["z"] * 4


def test_cycle_is_refused_through_a_handle__result_inside_flights():
    """result() of a handle is a wait like any other: it closes no cycle."""
    y_holds = Gate()

    def holds_y() -> str:
        y_holds()
        with pytest.raises(DeadlockError):
            handles[0].result()
        return "y"

    handles: list[Any] = []
    b = threads.start(lambda: fetch("y", holds_y))
    assert y_holds.entered.wait(TIMEOUT)
    with Arrivals(["coordination:reuse"]) as arrivals:
        handles.append(fetch.submit("x", lambda: fetch("y", never)))
        arrivals.wait(1)
    y_holds.open()
    assert b.result() == "y"
    assert handles[0].result() == "y"


def test_many_threads_take_two_keys_in_any_order__all_end():
    """Whatever the order, every call ends: with its value or with DeadlockError."""
    ends: list[str] = []
    lock = threading.Lock()

    def caller(first: str, second: str) -> None:
        for _ in range(50):
            try:
                fetch(first, lambda: fetch(second, lambda: "value"))
                end = "value"
            except (DeadlockError, ReentrantCallError) as error:
                end = type(error).__name__
            with lock:
                ends.append(end)

    threads.run_together(
        *[lambda: caller("x", "y")] * 3, *[lambda: caller("y", "x")] * 3, timeout=60
    )
    assert len(ends) == 300
    assert set(ends) <= {"value", "DeadlockError"}
    assert django_vega.in_flight() == ()
