"""`serialize`: calls of one key one after another, in arrival order, within a bound."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import django_vega
from django_vega import CallCancelled, QueueFull, WaitTimeout, coordinated, serialize, subscribe
from django_vega.handler import handler
from django_vega.signals import call_parked
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, interrupt, never, raising


@coordinated(key="save:{document}", ignore=["body"], strategy="serialize")
def save(document: str, body: Callable[[], Any]) -> Any:
    return body()


def start_head(function: Any = save, end: Any = "head") -> tuple[Gate, threads.Running[Any]]:
    """Start a caller whose body waits at the gate."""
    gate = Gate(end)
    head = threads.start(lambda: function("a", gate))
    assert gate.entered.wait(TIMEOUT)
    return gate, head


def park(body: Callable[[], Any], function: Any = save) -> threads.Running[Any]:
    """Start a caller that is parked when this returns."""
    with Arrivals(["call:parked"]) as arrivals:
        caller = threads.start(lambda: function("a", body))
        arrivals.wait(1)
    return caller


def states() -> list[str]:
    return [record.state for record in django_vega.in_flight()]


def test_order_is_kept__200_calls():
    """200 parked calls run in the order in which they arrived, one at a time."""
    function = save.with_options(strategy=serialize(capacity=200))
    ran: list[int] = []
    inside = threading.Lock()

    def body(number: int) -> int:
        assert inside.acquire(blocking=False), "two bodies at once"
        ran.append(number)
        inside.release()
        return number

    gate, head = start_head(function)
    callers = [park(lambda number=number: body(number), function) for number in range(200)]
    assert states() == ["running"] + ["parked"] * 200
    gate.open()
    assert threads.results([head, *callers]) == ["head", *range(200)]
    assert ran == list(range(200))


def test_bodies_never_overlap__callers_come_and_go_freely():
    """Threads that call again and again never meet another body inside."""
    inside = threading.Lock()
    total = 0

    def body() -> None:
        nonlocal total
        assert inside.acquire(blocking=False), "two bodies at once"
        total += 1
        inside.release()

    def caller() -> None:
        for _ in range(50):
            save("a", body)

    threads.run_together(*[caller] * 8)
    assert total == 400


def test_queue_is_full__at_capacity():
    """Beyond the capacity a call raises QueueFull at once, naming key, capacity and holder."""
    function = save.with_options(strategy=serialize(capacity=2))
    gate, head = start_head(function)
    (record,) = django_vega.in_flight()
    parked = [park(lambda: "parked", function) for _ in range(2)]
    with Recorder() as recorder, pytest.raises(QueueFull) as caught:
        function("a", never)
    error = caught.value
    assert (error.key, error.capacity) == ("save:a", 2)
    assert error.holder == f"call {record.id}, running"
    assert "2 calls already wait for save:a" in str(error)
    assert recorder.states() == [("cancelled", "queue-full")]
    gate.open()
    assert threads.results([head, *parked]) == ["head", "parked", "parked"]
    assert function("a", lambda: "next") == "next"


def test_queue_of_no_capacity__second_call():
    """With capacity 0 nothing is ever parked."""
    function = save.with_options(strategy=serialize(capacity=0))
    gate, head = start_head(function)
    with pytest.raises(QueueFull):
        function("a", never)
    gate.open()
    assert head.result() == "head"


def test_capacity_of_the_alias__strategy_names_none(new_alias):
    """A strategy without a capacity of its own takes that of the alias."""
    alias = new_alias(CAPACITY=1)

    @coordinated(key="save:{d}", ignore=["body"], strategy="serialize", using=alias, scope=alias)
    def bounded_save(d: str, body: Callable[[], Any]) -> Any:
        return body()

    gate, head = start_head(bounded_save)
    parked = park(lambda: "parked", bounded_save)
    with pytest.raises(QueueFull):
        bounded_save("a", never)
    gate.open()
    assert threads.results([head, parked]) == ["head", "parked"]


def test_heads_error_is_its_own__next_runs():
    """What the head raises reaches its caller alone and releases the next call."""
    error = LookupError("no answer")
    gate, head = start_head(end=error)
    parked = park(lambda: "parked")
    gate.open()
    assert head.exception() is error
    assert parked.result() == "parked"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_head_is_interrupted__next_runs(kind):
    """An interrupted head releases the next call, which has no part in it."""
    gate, head = start_head(end=kind("stop"))
    parked = [park(raising(kind("own"))), park(lambda: "parked")]
    gate.open()
    assert head.exception().args == ("stop",)
    assert parked[0].exception().args == ("own",)
    assert parked[1].result() == "parked"


def test_parked_caller_times_out__gives_up_its_place():
    """A parked caller that times out never runs, and the order of the others is kept."""
    ran: list[int] = []
    gate, head = start_head()
    (holder,) = django_vega.in_flight()
    first = park(lambda: ran.append(1))
    with Recorder() as recorder, pytest.raises(WaitTimeout) as caught:
        save.with_options(timeout=0.01)("a", never)
    assert f"s for save:a (call {holder.id} on {holder.process}, running for" in str(caught.value)
    assert recorder.states() == [("cancelled", "wait-timeout")]
    last = park(lambda: ran.append(2))
    assert states() == ["running", "parked", "parked"]
    gate.open()
    threads.results([head, first, last])
    assert ran == [1, 2]


def test_parked_caller_is_interrupted__gives_up_its_place():
    """A parked caller that is interrupted never runs, and the order of the others is kept."""
    ran: list[int] = []
    gate, head = start_head()
    with Recorder() as recorder:
        first, gone, last = park(lambda: ran.append(1)), park(never), park(lambda: ran.append(2))
        interrupt(gone)
        assert isinstance(gone.exception(), KeyboardInterrupt)
        assert recorder.states() == [("cancelled", "caller-gone")]
    assert states() == ["running", "parked", "parked"]
    gate.open()
    threads.results([head, first, last])
    assert ran == [1, 2]


def test_caller_is_interrupted_while_its_parking_is_told__gives_up_its_place():
    """An interrupt between parking and waiting leaves no place that nobody will take.

    Interleaving: parked, KeyboardInterrupt in a receiver of the signal, head returns.
    """
    interrupts = iter([KeyboardInterrupt()])

    def receiver(**_: Any) -> None:
        for error in interrupts:
            raise error

    gate, head = start_head()
    call_parked.connect(receiver)
    try:
        with pytest.raises(KeyboardInterrupt):
            save("a", never)
    finally:
        call_parked.disconnect(receiver)
    last = park(lambda: "last")
    gate.open()
    assert threads.results([head, last]) == ["head", "last"]


def test_timeout_loses__turn_has_come():
    """A parked caller whose timeout passed, but whose turn has come, runs.

    Interleaving: parked, head returns and releases it, only then it looks at the clock.
    """
    gate, head = start_head()

    def outlast_the_head(event: Any) -> None:
        gate.open()
        head.join()

    # In the parked caller's own thread, before it first looks.
    unsubscribe = subscribe(outlast_the_head, ["call:parked"])
    try:
        assert save.with_options(timeout=1e-9)("a", lambda: "ran") == "ran"
    finally:
        unsubscribe()
    assert head.result() == "head"


def test_timeout_and_release_cross__key_works_at_once():
    """A caller that times out in the moment of its release leaves no body that never ends.

    Interleaving: the caller finds its timeout passed, the head returns and releases it, the
    caller gives up. It runs then; giving it up as one that runs would block the key for good.
    """
    gate, head = start_head()
    flights = handler.coordinator("default").flights
    describe_holder = flights.describe_holder

    def outlast_the_head(call: Any) -> str:
        gate.open()
        head.join()
        return describe_holder(call)

    # The step between finding the timeout passed and giving up.
    flights.describe_holder = outlast_the_head
    try:
        assert save.with_options(timeout=1e-9)("a", lambda: "ran") == "ran"
    finally:
        del flights.describe_holder
    assert head.result() == "head"
    assert save("a", lambda: "next") == "next"


@pytest.mark.parametrize("cancel", [django_vega.cancel_all, lambda: save.cancel("a", None)])
def test_cancel_and_release_cross__key_works_at_once(cancel):
    """A call that is cancelled between its release and its first step never runs, and is gone.

    Interleaving: the head returns and releases the parked call, somebody cancels the key, only
    then the parked call's thread wakes.
    """
    gate, head = start_head()

    def outlast_the_head(event: Any) -> None:
        gate.open()
        head.join()
        assert cancel()

    unsubscribe = subscribe(outlast_the_head, ["call:parked"])
    try:
        with pytest.raises(CallCancelled, match="abort"):
            save("a", never)
    finally:
        unsubscribe()
    assert head.result() == "head"
    assert django_vega.in_flight() == ()
    assert save("a", lambda: "next") == "next"


def test_cancel_all__voids_the_queue_before_the_head():
    """No parked function starts, whatever the head does; later calls begin a new queue."""
    ran: list[str] = []
    gate, head = start_head()
    with Recorder() as recorder:
        parked = [park(never) for _ in range(3)]
        assert django_vega.cancel_all() == 4
        reasons = [one.exception().reason for one in parked]
        settled = [event.reason for event in recorder.events("call:settled")]
    assert reasons == ["admission-reset"] * 3
    assert settled == ["admission-reset"] * 3 + ["abort"]
    assert states() == ["stopping"]
    later = [park(lambda: ran.append("first")), park(lambda: ran.append("second"))]
    assert ran == []
    gate.open()
    assert head.exception().reason == "abort"
    threads.results(later)
    assert ran == ["first", "second"]


def test_cancelled_head_keeps_its_slot__until_its_body_returned():
    """Cancelling the head settles it at once, but bodies never overlap."""
    gate, head = start_head()
    parked = park(lambda: gate.returned)
    with Recorder() as recorder:
        (running, _) = save.in_flight("a", None)
        call = current_of(running.id)
        assert call.cancel()
        assert recorder.states() == [("cancelled", "abort")]
    assert states() == ["stopping", "parked"]
    assert parked.is_running
    gate.open()
    assert head.exception().reason == "abort"
    assert parked.result() is True


def test_cancelled_parked_call__others_move_up():
    """A parked call that is cancelled is gone at once; the order of the others is kept."""
    ran: list[int] = []
    gate, head = start_head()
    first, cancelled, last = park(lambda: ran.append(1)), park(never), park(lambda: ran.append(2))
    assert current_of(save.in_flight("a", None)[2].id).cancel()
    assert cancelled.exception().reason == "abort"
    gate.open()
    threads.results([head, first, last])
    assert ran == [1, 2]


def current_of(call_id: int) -> Any:
    """Return the Call with this id, as the page would find it."""
    table = handler.coordinator("default").flights.table
    return next(call for call in table.calls() if call.id == call_id)
