"""The rules under the table of strategies, for callers on threads."""

import asyncio
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import django_vega
from django_vega import (
    CallCancelled,
    LeaderError,
    Strategy,
    WaitTimeout,
    coordinated,
    subscribe,
)
from django_vega.signals import call_created
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, interrupt, never, raising


@coordinated(key="rules:{region}", ignore=["body"])
def fetch(region: str, body: Callable[[], Any]) -> Any:
    return body()


def start_leader(body: Gate, region: str = "alaska", function: Any = fetch) -> threads.Running[Any]:
    """Start a caller whose body is entered when this returns."""
    leader = threads.start(lambda: function(region, body))
    assert body.entered.wait(TIMEOUT)
    return leader


def start_callers(
    count: int, body: Callable[[], Any], function: Any = fetch
) -> list[threads.Running[Any]]:
    """Start callers that have all joined, are parked or run when this returns."""
    with Arrivals() as arrivals:
        callers = [threads.start(lambda: function("alaska", body)) for _ in range(count)]
        arrivals.wait(count)
    return callers


# Sharing


def test_dedupe_is_no_cache__next_call_after_the_settle():
    """A call that begins when the flight has settled runs the function again."""
    values = iter([1, 2])
    assert fetch("alaska", lambda: next(values)) == 1
    assert fetch("alaska", lambda: next(values)) == 2


def test_settle_and_removal_are_one_step__asked_at_the_settled_event():
    """Whoever hears that a flight settled finds the key free, and cannot join any more."""
    seen = []
    unsubscribe = subscribe(
        lambda event: seen.append(fetch.in_flight(region="alaska", body=None)), ["call:settled"]
    )
    try:
        fetch("alaska", lambda: "value")
    finally:
        unsubscribe()
    assert seen == [()]


def test_value_is_none__shared():
    """None is a value like any other: followers get it, their functions do not run."""
    gate = Gate(None)
    leader = start_leader(gate)
    followers = start_callers(3, never)
    gate.open()
    assert threads.results([leader, *followers]) == [None] * 4
    assert gate.runs == 1


def test_value_is_shared_by_reference__followers_get_the_leaders_object():
    """In one process there is one value object for all."""
    value = object()
    gate = Gate(value)
    leader = start_leader(gate)
    followers = start_callers(3, never)
    gate.open()
    assert all(got is value for got in threads.results([leader, *followers]))


def test_different_keys_run_in_parallel__under_serialize():
    """Two bodies of different keys meet inside."""
    meeting = threading.Barrier(2)
    function = fetch.with_options(strategy="serialize")

    def body() -> int:
        return meeting.wait(TIMEOUT)

    got = threads.run_together(lambda: function("alaska", body), lambda: function("nevada", body))
    assert sorted(got) == [0, 1]


def test_different_functions_have_different_keys__same_text():
    """Two functions with keys of the same text never get each other's results."""

    @coordinated(key="rules:{region}")
    def other(region: str) -> str:
        return f"other {region}"

    gate = Gate("fetched")
    leader = start_leader(gate)
    assert other("alaska") == "other alaska"
    gate.open()
    assert leader.result() == "fetched"


# Failure


class Refused(Exception):
    """An exception whose constructor cannot be called with its arguments."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"refused with {code}")
        self.code = code
        self.hint = hint


def test_failure_reaches_every_follower__each_its_own_instance():
    """Followers raise the leader's type, arguments and attributes, each an object of its own."""
    error = Refused(403, hint="ask the admin")
    gate = Gate(error)
    leader = start_leader(gate)
    followers = start_callers(5, never)
    gate.open()
    assert leader.exception() is error
    got = [follower.exception() for follower in followers]
    assert len({id(one) for one in (error, *got)}) == 6
    for one in got:
        assert type(one) is Refused
        assert (one.args, one.code, one.hint) == (error.args, 403, "ask the admin")
        assert one.__cause__ is error
    assert gate.runs == 1


def test_failure_is_not_remembered__next_call():
    """After a failure the next call runs the function again."""
    with pytest.raises(LookupError, match="no answer"):
        fetch("alaska", raising(LookupError("no answer")))
    assert fetch("alaska", lambda: "value") == "value"


def test_tracebacks_do_not_grow__with_100_followers():
    """The leader's traceback is the same whether one or a hundred callers followed it."""

    def frames(followers: int) -> tuple[int, set[int]]:
        error = LookupError("no answer")
        gate = Gate(error)
        leader = start_leader(gate)
        everyone = start_callers(followers, never)
        gate.open()
        caught = [one.exception() for one in everyone]
        assert leader.exception() is error
        assert error.__context__ is None
        return (
            len(traceback.extract_tb(error.__traceback__)),
            {len(traceback.extract_tb(one.__traceback__)) for one in caught},
        )

    one, hundred = frames(1), frames(100)
    assert one == hundred
    assert len(hundred[1]) == 1


class Unbuildable(Exception):
    """An exception of which no copy says the same."""

    def __str__(self) -> str:
        return f"only I am {id(self)}"


def test_failure_that_cannot_be_rebuilt__leader_error():
    """Where no instance can be made, followers get a LeaderError with the original as its cause."""
    error = Unbuildable("x")
    gate = Gate(error)
    leader = start_leader(gate)
    (follower,) = start_callers(1, never)
    gate.open()
    assert leader.exception() is error
    caught = follower.exception()
    assert isinstance(caught, LeaderError)
    assert caught.type_name.endswith("Unbuildable")
    assert caught.__cause__ is error


def test_exhausted_callers_do_not_learn_of_the_failure__leader_raises():
    """Under exhaust a dropped caller knows that it was dropped, and nothing of its peer's end."""
    function = fetch.with_options(strategy="exhaust")
    gate = Gate(LookupError("no answer"))
    leader = start_leader(gate, function=function)
    with pytest.raises(CallCancelled) as caught:
        function("alaska", never)
    assert (caught.value.reason, caught.value.key) == ("exhaust-dropped", "rules:alaska")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    gate.open()
    assert isinstance(leader.exception(), LookupError)


# Abandoned leaders


class Interrupt(BaseException):
    """Neither an Exception nor one of Python's own."""


INTERRUPTS = [KeyboardInterrupt, SystemExit, GeneratorExit, Interrupt]


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_leader_is_interrupted__followers_take_over(kind):
    """The leader's caller sees its own exception; a follower's own function runs for the others.

    The leader abandons, so nobody gets its interrupt, nobody hangs, and nobody gets a value that
    no function returned.
    """
    error = kind("stop")
    gate, second = Gate(error), Gate("second")
    leader = start_leader(gate)
    with Recorder() as recorder:
        followers = start_callers(4, second)
        gate.open()
        assert leader.exception() is error
        # The four that joined the first leader; of them, three have now joined the second.
        recorder.wait(7, "coordination:reuse")
        assert len(fetch.in_flight("alaska", None)) == 1
        second.open()
        assert threads.results(followers) == ["second"] * 4
        states = recorder.states()
    assert second.runs == 1
    assert states.count(("cancelled", "abandoned")) == 1
    assert states.count(("success", None)) == 1
    assert states.count(("cancelled", "dedupe")) == 7


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_leader_is_interrupted__key_works_at_once(kind):
    """Without followers the key is simply free again."""
    error = kind("stop")
    with Recorder() as recorder, pytest.raises(kind) as caught:
        fetch("alaska", raising(error))
    assert caught.value is error
    assert recorder.states() == [("cancelled", "abandoned")]
    assert fetch("alaska", lambda: "value") == "value"


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_every_leader_is_interrupted__each_caller_sees_its_own(kind):
    """When each function that takes over is interrupted too, each caller sees its own interrupt.

    One after the other leads, until nobody is left; nobody hangs.
    """
    gate = Gate(kind("first"))
    leader = start_leader(gate)
    errors = [kind(f"own {number}") for number in range(3)]
    with Arrivals() as arrivals:
        followers = [
            threads.start(lambda error=error: fetch("alaska", raising(error))) for error in errors
        ]
        arrivals.wait(3)
    gate.open()
    assert leader.exception().args == ("first",)
    assert [follower.exception() for follower in followers] == errors
    assert fetch("alaska", lambda: "value") == "value"


def test_function_raises_cancelled_error__cancelled_for_all():
    """A CancelledError that nobody asked for ends as CallCancelled for all, and is no value."""
    error = asyncio.CancelledError("stray")
    gate = Gate(error)
    with Recorder() as recorder:
        leader = start_leader(gate)
        followers = start_callers(3, never)
        gate.open()
        own = leader.exception()
        others = [follower.exception() for follower in followers]
        assert recorder.states() == [("cancelled", "abort")] + [("cancelled", "dedupe")] * 3
    assert isinstance(own, CallCancelled)
    assert own.reason == "abort"
    assert own.__cause__ is error
    assert [(type(one), one.reason) for one in others] == [(CallCancelled, "abort")] * 3
    assert fetch("alaska", lambda: "value") == "value"


@pytest.mark.parametrize("strategy", ["none", "restart", "serialize", "exhaust"])
@pytest.mark.parametrize("kind", [LookupError, *INTERRUPTS])
def test_key_works_at_once__whatever_the_strategy(kind, strategy):
    """Whatever a body raises and whatever the strategy, the caller sees it and the key is free."""
    function = fetch.with_options(strategy=strategy)
    error = kind("stop")
    with pytest.raises(kind) as caught:
        function("alaska", raising(error))
    assert caught.value is error
    assert function("alaska", lambda: "value") == "value"


def test_follower_is_interrupted__flight_and_others_go_on():
    """A follower's own interrupt takes that follower away, and nobody else."""
    gate = Gate("value")
    leader = start_leader(gate)
    gone, staying = start_callers(1, never)[0], start_callers(1, never)[0]
    interrupt(gone)
    assert isinstance(gone.exception(), KeyboardInterrupt)
    (record,) = fetch.in_flight("alaska", None)
    assert (record.state, record.joined) == ("running", 1)
    gate.open()
    assert threads.results([leader, staying]) == ["value", "value"]


def test_caller_is_interrupted_between_admission_and_body__key_works_at_once():
    """An interrupt while receivers hear of the created call leaves no flight without a body."""
    interrupts = iter([KeyboardInterrupt()])

    def receiver(**_: Any) -> None:
        for error in interrupts:
            raise error

    call_created.connect(receiver)
    try:
        with Recorder() as recorder, pytest.raises(KeyboardInterrupt):
            fetch("alaska", never)
    finally:
        call_created.disconnect(receiver)
    assert recorder.states() == [("cancelled", "abandoned")]
    assert fetch("alaska", lambda: "value") == "value"


# Timeouts


def test_follower_times_out__flight_goes_on():
    """A follower's timeout is its own, and its text says who holds the key and what to do."""
    gate = Gate("value")
    leader = start_leader(gate)
    (record,) = fetch.in_flight("alaska", None)
    (staying,) = start_callers(1, never)
    with pytest.raises(WaitTimeout) as caught:
        fetch.with_options(timeout=0.01)("alaska", never)
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert error.key == "rules:alaska"
    assert error.waited >= 0.01
    text = str(error)
    assert text.startswith("waited 0.")
    assert f"s for rules:alaska (call {record.id} on {record.process}, running for" in text
    assert "the flight continues. Raise timeout above the work's p99" in text
    gate.open()
    assert threads.results([leader, staying]) == ["value", "value"]


def test_outcome_that_is_there_wins__timeout_has_passed():
    """A follower whose timeout passed while it could not look gets the outcome that is there."""
    gate = Gate("value")
    leader = start_leader(gate)

    def outlast_the_leader(event: Any) -> None:
        gate.open()
        leader.join()

    # In the follower's own thread, after it has joined and before it first looks.
    unsubscribe = subscribe(outlast_the_leader, ["coordination:reuse"])
    try:
        assert fetch.with_options(timeout=1e-9)("alaska", never) == "value"
    finally:
        unsubscribe()


# Limits above one


def test_restart_with_a_limit__the_oldest_go_until_a_slot_is_free():
    """With limit 2 the third call cancels the first, the fourth the second; two run at a time."""
    function = fetch.with_options(strategy=Strategy(limit=2, when_full="cancel"))
    gates = [Gate(number) for number in range(4)]
    with Recorder() as recorder:
        callers = [start_leader(gate, function=function) for gate in gates]
        running = [r.id for r in django_vega.in_flight() if r.state == "running"]
        for gate in gates:
            gate.open()
        ends = [caller.exception() for caller in callers]
        restarts = recorder.events("coordination:restart")
        ids = [event.call_id for event in recorder.events("call:created")]
    assert [event.cancelled_call_ids for event in restarts] == [(ids[0],), (ids[1],)]
    assert running == ids[2:]
    assert [getattr(end, "reason", None) for end in ends] == ["abort", "abort", None, None]
    assert [callers[2].result(), callers[3].result()] == [2, 3]


def test_drop_with_a_limit__third_call():
    """With limit 2 two calls run and the third is dropped."""
    function = fetch.with_options(strategy=Strategy(limit=2, when_full="drop"))
    gates = [Gate(0), Gate(1)]
    callers = [start_leader(gate, function=function) for gate in gates]
    with pytest.raises(CallCancelled, match="exhaust-dropped"):
        function("alaska", never)
    for gate in gates:
        gate.open()
    assert threads.results(callers) == [0, 1]


def test_bulkhead__four_at_a_time():
    """Strategy(limit=4, "queue") lets four bodies run together, and never five."""
    function = fetch.with_options(strategy=Strategy(limit=4, when_full="queue", capacity=100))
    meeting, lock = threading.Barrier(4), threading.Lock()
    inside, most = 0, 0

    def body() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        meeting.wait(TIMEOUT)
        with lock:
            inside -= 1

    threads.run_together(*[lambda: function("alaska", body)] * 20)
    assert most == 4
