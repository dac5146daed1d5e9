"""Cancelling settles at once; the body stops at its next point, and touches nothing any more."""

import contextvars
import os
import platform
import threading
from collections.abc import Callable
from typing import Any

import pytest

import django_vega
from django_vega import CallCancelled, FlightRecord, checkpoint, coordinated, current_call
from django_vega.handler import handler
from django_vega.signals import call_created
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never


@coordinated(key="cancel:{region}", ignore=["body"])
def fetch(region: str, body: Callable[[], Any]) -> Any:
    return body()


@coordinated(key="cancel:{region}", ignore=["body"])
def fetch_elsewhere(region: str, body: Callable[[], Any]) -> Any:
    return body()


def start_leader(body: Gate, function: Any = fetch, region: str = "alaska") -> threads.Running[Any]:
    """Start a caller whose body is entered when this returns."""
    leader = threads.start(lambda: function(region, body))
    assert body.entered.wait(TIMEOUT)
    return leader


def join(count: int = 1, function: Any = fetch) -> list[threads.Running[Any]]:
    """Start callers that have joined the flight when this returns."""
    with Arrivals(["coordination:reuse"]) as arrivals:
        callers = [threads.start(lambda: function("alaska", never)) for _ in range(count)]
        arrivals.wait(count)
    return callers


def shown() -> list[tuple[str, str | None]]:
    return [(record.state, record.reason) for record in django_vega.in_flight()]


def cancel_by_arguments() -> bool:
    return fetch.cancel("alaska", never)


def cancel_by_key() -> bool:
    return django_vega.cancel("cancel:alaska") == 1


def cancel_everything() -> bool:
    return django_vega.cancel_all() == 1


EVERY_CANCEL = [cancel_by_arguments, cancel_by_key, cancel_everything]


class Stopping(Gate):
    """A body that gets to its next checkpoint when the gate opens."""

    def __call__(self) -> Any:
        super().__call__()
        try:
            checkpoint()
        except CallCancelled as error:
            self.stopped_by = error
            raise
        return "not stopped"


@pytest.mark.parametrize("cancel", EVERY_CANCEL)
def test_cancel_settles_at_once__body_still_runs(cancel):
    """Followers are told and the key is free while the body is still inside, listed as stopping."""
    body = Stopping()
    with Recorder() as recorder:
        leader = start_leader(body)
        followers = join(3)
        assert cancel()
        assert [one.exception().reason for one in followers] == ["abort"] * 3
        assert recorder.states() == [("cancelled", "abort")] + [("cancelled", "dedupe")] * 3
    assert leader.is_running
    assert shown() == [("stopping", "abort")]
    assert fetch("alaska", lambda: "anew") == "anew"
    body.open()
    own = leader.exception()
    assert isinstance(own, CallCancelled)
    assert (own.reason, own.key) == ("abort", "cancel:alaska")
    assert own.__cause__ is body.stopped_by
    assert shown() == []


def test_followers_are_cancelled_each_by_its_own__many_followers():
    """Each follower raises a CallCancelled of its own, without a cause that others could see."""
    body = Stopping()
    leader = start_leader(body)
    followers = join(3)
    assert cancel_by_key()
    caught = [one.exception() for one in followers]
    assert len({id(error) for error in caught}) == 3
    assert [error.__cause__ for error in caught] == [None] * 3
    body.open()
    assert isinstance(leader.exception(), CallCancelled)


def test_value_is_discarded__returned_after_the_cancellation():
    """A value that the body returns afterwards reaches nobody."""
    gate = Gate("too late")
    leader = start_leader(gate)
    assert cancel_by_key()
    gate.open()
    own = leader.exception()
    assert isinstance(own, CallCancelled)
    assert own.__cause__ is None


def test_error_is_the_cause__raised_after_the_cancellation():
    """What the body raises afterwards is the cause of its own caller's CallCancelled."""
    error = LookupError("torn off")
    gate = Gate(error)
    leader = start_leader(gate)
    assert cancel_by_key()
    gate.open()
    own = leader.exception()
    assert isinstance(own, CallCancelled)
    assert own.__cause__ is error


def test_interrupt_is_seen__raised_after_the_cancellation():
    """An interrupt of the caller's thread stays what it is, cancelled or not."""
    error = KeyboardInterrupt("stop")
    gate = Gate(error)
    leader = start_leader(gate)
    assert cancel_by_key()
    gate.open()
    assert leader.exception() is error


def test_cancel_finds_nothing__no_flight():
    """Cancelling an idle key says so and changes nothing."""
    with Recorder() as recorder:
        assert fetch.cancel("alaska", never) is False
        assert django_vega.cancel("cancel:alaska") == 0
        assert django_vega.cancel_all() == 0
    assert recorder.events() == []


def test_cancel_twice__second_finds_nothing():
    """A body that is stopping is nobody's peer and cannot be cancelled again."""
    gate = Gate()
    leader = start_leader(gate)
    assert cancel_by_key()
    assert fetch.cancel("alaska", never) is False
    assert django_vega.cancel_all() == 0
    gate.open()
    assert isinstance(leader.exception(), CallCancelled)


def test_cancel_of_a_key__scopes_and_aliases(new_alias):
    """A key is cancelled in all scopes and aliases unless one of them is named."""
    using = new_alias()

    @coordinated(key="cancel:{region}", ignore=["body"], using=using)
    def fetch_there(region: str, body: Callable[[], Any]) -> Any:
        return body()

    gates = {function: Gate() for function in (fetch, fetch_elsewhere, fetch_there)}
    callers = {function: start_leader(gate, function) for function, gate in gates.items()}
    assert len(django_vega.in_flight()) == 3
    assert [record.scope for record in django_vega.in_flight(using=using)] == [
        fetch_there.definition.name
    ]
    assert django_vega.cancel("cancel:alaska", scope="unknown") == 0
    assert django_vega.cancel("cancel:nevada") == 0
    assert django_vega.cancel("cancel:alaska", scope=f"{__name__}.fetch") == 1
    assert django_vega.cancel("cancel:alaska", using=using) == 1
    assert shown().count(("stopping", "abort")) == 2
    assert django_vega.cancel("cancel:alaska") == 1
    for function, gate in gates.items():
        gate.open()
        assert callers[function].exception().reason == "abort"


def test_cancel_all_of_an_alias__others_go_on(new_alias):
    """cancel_all(using=...) leaves the flights of other aliases alone."""
    using = new_alias()

    @coordinated(key="cancel:{region}", ignore=["body"], using=using)
    def fetch_there(region: str, body: Callable[[], Any]) -> Any:
        return body()

    here, there = Gate("here"), Gate("there")
    callers = [start_leader(here), start_leader(there, fetch_there)]
    assert django_vega.cancel_all(using=using) == 1
    here.open()
    there.open()
    assert callers[0].result() == "here"
    assert callers[1].exception().reason == "abort"


def test_checkpoint_does_nothing__outside_of_a_flight():
    """checkpoint() is for code that may run in a flight or not."""
    checkpoint()
    assert fetch("alaska", lambda: checkpoint() or "value") == "value"


def test_checkpoint_stops_a_child_thread__with_the_copied_context():
    """Threads that copied the context stop with the flight that they work for."""

    def body() -> Any:
        context = contextvars.copy_context()
        child = threads.start(lambda: context.run(Stopping.__call__, inner))
        assert inner.entered.wait(TIMEOUT)
        assert cancel_by_key()
        inner.open()
        return child.exception()

    inner = Stopping()
    with pytest.raises(CallCancelled) as caught:
        fetch("alaska", body)
    assert caught.value.__cause__ is None
    assert inner.stopped_by.reason == "abort"


# Writing


class Writing(Gate):
    """A body that goes over to writing before it waits at the gate."""

    def __call__(self) -> Any:
        call = current_call()
        assert call is not None
        handler.coordinator("default").begin_writing(call)
        return super().__call__()


@pytest.mark.parametrize(
    "cancel",
    [
        lambda: fetch.cancel("alaska", never),
        lambda: django_vega.cancel("cancel:alaska"),
        django_vega.cancel_all,
    ],
)
def test_writing_is_not_cancelled__by_anybody(cancel):
    """What is being written ends as success: its caller and its followers get the value."""
    body = Writing("written")
    with Recorder() as recorder:
        leader = start_leader(body)
        followers = join(2)
        assert not cancel()
        assert shown() == [("writing", None)]
        body.open()
        assert threads.results([leader, *followers]) == ["written"] * 3
        assert recorder.states()[0] == ("success", None)


def test_writing_is_not_cancelled__by_a_restart():
    """A restart runs beside a peer that is writing, and cancels nothing."""
    body = Writing("written")
    leader = start_leader(body)
    with Recorder() as recorder:
        assert fetch.with_options(strategy="restart")("alaska", lambda: "newer") == "newer"
        assert recorder.events("coordination:restart") == []
    body.open()
    assert leader.result() == "written"


def test_writing_never_begins__cancelled_before():
    """A call that was cancelled before the step to writing never takes it."""
    gate = Gate()

    def body() -> Any:
        gate()
        call = current_call()
        assert call is not None
        handler.coordinator("default").begin_writing(call)
        raise AssertionError("not reached")

    leader = threads.start(lambda: fetch("alaska", body))
    assert gate.entered.wait(TIMEOUT)
    assert cancel_by_key()
    gate.open()
    own = leader.exception()
    assert isinstance(own, CallCancelled)
    assert isinstance(own.__cause__, CallCancelled)


# The late end of what was cancelled


def restart() -> Any:
    """Cancel by a restart; the successor's own caller is returned."""
    gate = Gate("newer")
    return gate, start_leader(gate, fetch.with_options(strategy="restart"))


def cancel_and_call(cancel: Callable[[], bool]) -> Callable[[], Any]:
    def step() -> Any:
        assert cancel()
        gate = Gate("newer")
        return gate, start_leader(gate)

    return step


@pytest.mark.parametrize(
    "replace",
    [
        pytest.param(cancel_and_call(cancel_by_key), id="cancel"),
        pytest.param(cancel_and_call(cancel_everything), id="cancel_all"),
        pytest.param(restart, id="restart"),
    ],
)
@pytest.mark.parametrize("end", ["old", LookupError("old"), KeyboardInterrupt("old")], ids=repr)
def test_late_end_touches_nothing__a_newer_flight_has_the_key(replace, end):
    """The end of a cancelled body neither settles nor removes the flight that came after it.

    Interleaving: flight 1 runs, is cancelled, flight 2 begins and is joined, body 1 ends, somebody
    else joins, body 2 ends.
    """
    old_gate = Gate(end)
    old = start_leader(old_gate)
    new_gate, new = replace()
    early = join(2)
    old_gate.open()
    assert isinstance(old.exception(), CallCancelled | KeyboardInterrupt)
    assert shown() == [("running", None)]
    late = join(2)
    new_gate.open()
    assert threads.results([new, *early, *late]) == ["newer"] * 5
    assert shown() == []


def test_late_ends_in_any_order__twenty_restarts():
    """Twenty bodies that were restarted end in reverse order; the last flight stands untouched."""
    function = fetch.with_options(strategy="restart")
    gates = [Gate(number) for number in range(20)]
    callers = [start_leader(gate, function) for gate in gates]
    assert shown() == [("stopping", "abort")] * 19 + [("running", None)]
    follower = join(1)[0]
    for gate, caller in reversed([*zip(gates, callers, strict=True)][:-1]):
        gate.open()
        assert caller.exception().reason == "abort"
    assert shown() == [("running", None)]
    gates[-1].open()
    assert (callers[-1].result(), follower.result()) == (19, 19)


def test_restart_cancels_every_unsettled_peer__parked_ones_too():
    """A restart cancels the running and the parked calls of its key, which then never run."""
    queued = fetch.with_options(strategy="serialize")
    gate = Gate()
    head = start_leader(gate, queued)
    with Arrivals(["call:parked"]) as arrivals:
        parked = [threads.start(lambda: queued("alaska", never)) for _ in range(2)]
        arrivals.wait(2)
    with Recorder() as recorder:
        assert fetch.with_options(strategy="restart")("alaska", lambda: "newer") == "newer"
        (event,) = recorder.events("coordination:restart")
    assert len(event.cancelled_call_ids) == 3
    assert [one.exception().reason for one in parked] == ["abort", "abort"]
    gate.open()
    assert head.exception().reason == "abort"


def test_call_is_cancelled_before_its_first_step__key_works_at_once():
    """A call that is cancelled between its admission and its body never runs, and is gone.

    Interleaving: admitted, cancelled by a receiver of its created event, its caller goes on.
    """

    def cancel(**_: Any) -> None:
        assert cancel_by_key()

    call_created.connect(cancel)
    try:
        with pytest.raises(CallCancelled, match="abort"):
            fetch("alaska", never)
    finally:
        call_created.disconnect(cancel)
    assert shown() == []
    assert fetch("alaska", lambda: "value") == "value"


# Records


def test_record_of_a_flight__running_with_followers():
    """in_flight() shows a frozen picture of each call, oldest first."""
    gate = Gate("value")
    leader = start_leader(gate)
    followers = join(2)
    (record,) = fetch.in_flight("alaska", never)
    assert record == FlightRecord(
        id=record.id,
        key="cancel:alaska",
        scope=f"{__name__}.fetch",
        function=f"{__name__}.fetch",
        strategy="dedupe",
        state="running",
        reason=None,
        generation=record.generation,
        age=record.age,
        joined=2,
        is_async=False,
        process=f"{platform.node()}:{os.getpid()}",
    )
    assert [one.id for one in django_vega.in_flight()] == [record.id]
    assert record.age >= 0
    assert record.generation > 0
    assert fetch.in_flight("nevada", never) == ()
    with pytest.raises(AttributeError):
        record.state = "success"
    gate.open()
    threads.results([leader, *followers])


def test_current_call__inside_and_outside():
    """current_call() is the Call of the flight that this code runs in, innermost first, or None."""
    seen: list[Any] = []

    def inner() -> None:
        seen.append(current_call())

    def outer() -> None:
        seen.append(current_call())
        fetch_elsewhere("alaska", inner)
        seen.append(current_call())

    assert current_call() is None
    fetch("alaska", outer)
    assert current_call() is None
    first, second, third = seen
    assert first is third
    assert (first.key, first.site.function) == ("cancel:alaska", f"{__name__}.fetch")
    assert second.site.function == f"{__name__}.fetch_elsewhere"
    assert (first.state, first.cancel_reason, first.done()) == ("success", None, True)
    assert first.generation < second.generation


def test_current_call_is_none__the_flight_has_ended():
    """Code that copied the context is outside once the flight's body has ended."""
    contexts: list[contextvars.Context] = []
    fetch("alaska", lambda: contexts.append(contextvars.copy_context()))
    assert contexts[0].run(current_call) is None


def test_concurrent_cancels__exactly_one_succeeds():
    """Of many that cancel one call at once, one is told that it did."""
    gate = Gate()
    leader = start_leader(gate)
    got = threads.run_together(*[lambda: fetch.cancel("alaska", never)] * 8)
    assert sorted(got) == [False] * 7 + [True]
    gate.open()
    assert isinstance(leader.exception(), CallCancelled)


def test_cancel_and_settle_cross__one_outcome():
    """Whether the cancel or the return comes first, everybody gets the same outcome."""
    for _ in range(200):
        gate = Gate("value")
        leader = start_leader(gate)
        (follower,) = join(1)
        begin = threading.Barrier(2)

        def cancel(begin: threading.Barrier = begin) -> bool:
            begin.wait(TIMEOUT)
            return fetch.cancel("alaska", never)

        canceller = threads.start(cancel)
        begin.wait(TIMEOUT)
        gate.open()
        if canceller.result():
            assert leader.exception().reason == "abort"
            assert follower.exception().reason == "abort"
        else:
            assert (leader.result(), follower.result()) == ("value", "value")
