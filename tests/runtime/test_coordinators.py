"""Coordinators of users' own: one decision, on a snapshot, applied if the key is unchanged."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import django_vega
from django_vega import (
    CallCancelled,
    CoordinationContext,
    CoordinationProtocolError,
    ReentrantCallError,
    WaitTimeout,
    coordinated,
    coordinator,
)
from django_vega.core.events import (
    CallSettled,
    CoordinationDropped,
    CoordinationRestart,
)
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never


@coordinated(key="custom:{region}", ignore=["body"])
def fetch(region: str, body: Callable[[], Any]) -> Any:
    return body()


def start_leader(body: Gate, function: Any = fetch) -> threads.Running[Any]:
    """Start a caller whose body is entered when this returns."""
    leader = threads.start(lambda: function("alaska", body))
    assert body.entered.wait(TIMEOUT)
    return leader


def deciding(name: str = "custom") -> Callable[[Callable[[CoordinationContext], Any]], Any]:
    """Return a decorator that makes `fetch` run under the decorated coordinator."""

    def decorate(function: Callable[[CoordinationContext], Any]) -> Any:
        return fetch.with_options(strategy=coordinator(name)(function))

    return decorate


@coordinator("newest-two")
def newest_two(ctx: CoordinationContext) -> None:
    peers = ctx.peers()
    if len(peers) < 2:
        ctx.proceed()
    else:
        ctx.reuse(peers[-1])


def test_newest_two__four_calls():
    """The example of the documentation: two calls run, later ones share the newer of them."""
    function = fetch.with_options(strategy=newest_two)
    gates = [Gate("first"), Gate("second")]
    with Recorder() as recorder:
        leaders = [start_leader(gate, function) for gate in gates]
        with Arrivals() as arrivals:
            followers = [threads.start(lambda: function("alaska", never)) for _ in range(2)]
            arrivals.wait(2)
        for gate in gates:
            gate.open()
        assert threads.results([*leaders, *followers]) == ["first", "second", "second", "second"]
        assert {event.coordinator for event in recorder.events()} == {"newest-two"}


def test_context_shows_the_call_and_its_peers__oldest_first():
    """A coordinator sees its idle intent, its peers without it, the options, function and key."""
    seen: list[CoordinationContext] = []

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        seen.append(ctx)
        ctx.proceed()

    gates = [Gate(0), Gate(1)]
    leaders = [start_leader(gate, function) for gate in gates]
    function("alaska", lambda: None)
    ctx = seen[-1]
    assert (ctx.intent.state, ctx.intent.key) == ("idle", "custom:alaska")
    assert (ctx.key, ctx.function) == ("custom:alaska", f"{__name__}.fetch")
    assert ctx.options.timeout == 30
    assert [peer.state for peer in ctx.peers()] == ["running", "running"]
    ids = [peer.id for peer in ctx.peers()]
    assert ids == sorted(ids)
    assert ctx.intent.id > ids[-1]
    for gate in gates:
        gate.open()
    threads.results(leaders)


def test_stopping_bodies_are_no_peers__cancelled_leader():
    """A call that was cancelled is nobody's peer, though its body still runs."""
    seen: list[int] = []

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        seen.append(len(ctx.peers()))
        ctx.proceed()

    gate = Gate()
    leader = start_leader(gate, function)
    assert function.cancel("alaska", never)
    assert function("alaska", lambda: "anew") == "anew"
    assert seen == [0, 0]
    gate.open()
    assert isinstance(leader.exception(), CallCancelled)


def test_return_value_is_ignored__after_a_decision():
    """What a coordinator returns matters only when it decided nothing."""

    @deciding()
    def function(ctx: CoordinationContext) -> str:
        ctx.proceed()
        return "the coordinator's"

    assert function("alaska", lambda: "the function's") == "the function's"


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt, SystemExit])
def test_coordinator_raises__its_call_alone(kind):
    """An exception in a coordinator ends that call and goes to that caller; peers go on."""
    error = kind("no idea")

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        raise error

    gate = Gate("value")
    leader = start_leader(gate)
    with Recorder() as recorder, pytest.raises(kind) as caught:
        function("alaska", never)
    assert caught.value is error
    assert recorder.states() == [("error", None)]
    assert [record.state for record in django_vega.in_flight()] == ["running"]
    gate.open()
    assert leader.result() == "value"


@pytest.mark.parametrize("second", ["proceed", "reuse", "queue", "drop"])
def test_second_decision__raises(second):
    """A coordinator that decides twice gets an error, and the call ends with it."""

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        ctx.proceed()
        decide(ctx, second)

    gate = Gate("value")
    leader = start_leader(gate)
    with pytest.raises(CoordinationProtocolError, match=rf"{second}\(\) after proceed\(\)"):
        function("alaska", never)
    assert [record.state for record in django_vega.in_flight()] == ["running"]
    gate.open()
    assert leader.result() == "value"


@pytest.mark.parametrize("second", ["proceed", "reuse", "queue", "drop"])
def test_second_decision__caught_by_the_coordinator(second):
    """If the coordinator catches the error, its first decision stands."""

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        ctx.proceed()
        with pytest.raises(CoordinationProtocolError):
            decide(ctx, second)

    gate = Gate("value")
    leader = start_leader(gate)
    assert function("alaska", lambda: "own") == "own"
    gate.open()
    assert leader.result() == "value"


def decide(ctx: CoordinationContext, choice: str) -> None:
    if choice == "reuse":
        ctx.reuse(ctx.peers()[0])
    else:
        getattr(ctx, choice)()


def test_coordinator_is_asked_again__a_flight_began_meanwhile():
    """A decision on an older picture is void: the coordinator sees the peer that came meanwhile.

    Interleaving: asked (no peers), a peer begins, decided to proceed, asked again, reuses it.
    """
    seen: list[int] = []
    gate = Gate("the peer's")
    began: list[threads.Running[Any]] = []

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        seen.append(len(ctx.peers()))
        if not began:
            began.append(start_leader(gate))
        if ctx.peers():
            ctx.reuse(ctx.peers()[0])
        else:
            ctx.proceed()

    with Arrivals(["coordination:reuse"]) as arrivals:
        caller = threads.start(lambda: function("alaska", never))
        arrivals.wait(1)
    gate.open()
    assert caller.result() == "the peer's"
    assert began[0].result() == "the peer's"
    assert seen == [0, 1]


def test_coordinator_is_asked_again__the_peer_settled_meanwhile():
    """Nobody joins a flight that has settled since the coordinator looked.

    Interleaving: asked (one peer), the peer settles, decided to reuse it, asked again, proceeds.
    """
    seen: list[int] = []
    gate = Gate("the peer's")
    leader = start_leader(gate)

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        seen.append(len(ctx.peers()))
        gate.open()
        leader.join()
        if ctx.peers():
            ctx.reuse(ctx.peers()[0])
        else:
            ctx.proceed()

    assert function("alaska", lambda: "own") == "own"
    assert leader.result() == "the peer's"
    assert seen == [1, 0]


def test_coordinator_is_asked_again__another_call_of_its_kind_won():
    """Of two callers asked at once one leads and the other, asked again, follows."""
    meeting = threading.Barrier(2)
    asked: list[int] = []
    gate = Gate("shared")

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        asked.append(ctx.intent.id)
        if len(asked) <= 2:
            meeting.wait(TIMEOUT)
        if ctx.peers():
            ctx.reuse(ctx.peers()[0])
        else:
            ctx.proceed()

    with Arrivals() as arrivals:
        callers = threads.start_together(*[lambda: function("alaska", gate)] * 2)
        arrivals.wait(2)
    gate.open()
    assert threads.results(callers) == ["shared", "shared"]
    assert gate.runs == 1
    assert len(asked) == 3


def test_coordinator_changes_its_own_key__given_up_in_the_end():
    """A coordinator whose every question changes the key is told so instead of asked for ever."""

    @deciding("restless")
    def function(ctx: CoordinationContext) -> None:
        fetch.with_options(strategy="none")("alaska", gate)
        ctx.proceed()

    gate = Gate()
    gate.open()
    standing = Gate("value")
    # With a flight on the key each call beside it leaves a new version behind.
    leader = start_leader(standing)
    with pytest.raises(CoordinationProtocolError, match="'restless' was asked"):
        function("alaska", never)
    standing.open()
    assert leader.result() == "value"


def test_drop_with_a_reason__called():
    """drop(reason) cancels the call with that reason, at once."""

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        ctx.drop("too late in the day")

    with Recorder() as recorder, pytest.raises(CallCancelled) as caught:
        function("alaska", never)
    assert caught.value.reason == "too late in the day"
    assert recorder.states() == [("cancelled", "too late in the day")]
    assert len(recorder.events("coordination:dropped")) == 1


def test_queue__runs_after_its_peers():
    """queue() parks the call behind its peers; without peers it runs."""

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        ctx.queue()

    assert function("alaska", lambda: "alone") == "alone"
    gate = Gate("head")
    head = start_leader(gate, function)
    ran: list[int] = []
    callers = []
    for number in range(3):
        with Arrivals(["coordination:queued"]) as arrivals:
            callers.append(
                threads.start(lambda n=number: function("alaska", lambda: ran.append(n)))
            )
            arrivals.wait(1)
    assert ran == []
    gate.open()
    threads.results([head, *callers])
    assert ran == [0, 1, 2]


def test_cancel_and_proceed__a_restart_by_hand():
    """A coordinator that cancels its peers restarts; its callers and events say so."""

    @deciding("by hand")
    def function(ctx: CoordinationContext) -> None:
        for peer in ctx.peers():
            ctx.cancel(peer)
        ctx.proceed()

    gates = [Gate(0), Gate(1)]
    none = fetch.with_options(strategy="none")
    leaders = [start_leader(gate, none) for gate in gates]
    ids = tuple(record.id for record in django_vega.in_flight())
    with Recorder() as recorder:
        assert function("alaska", lambda: "newer") == "newer"
        (event,) = recorder.events("coordination:restart")
    assert event.cancelled_call_ids == ids
    for gate in gates:
        gate.open()
    assert [leader.exception().reason for leader in leaders] == ["abort", "abort"]


def test_cancel_one_and_drop__only_that_one():
    """cancel() reaches the named peer alone, whatever becomes of the call itself."""

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        ctx.cancel(ctx.peers()[0])
        ctx.drop("made room")

    gates = [Gate(0), Gate(1)]
    none = fetch.with_options(strategy="none")
    leaders = [start_leader(gate, none) for gate in gates]
    with pytest.raises(CallCancelled, match="made room"):
        function("alaska", never)
    for gate in gates:
        gate.open()
    assert isinstance(leaders[0].exception(), CallCancelled)
    assert leaders[1].result() == 1


def test_cancel_of_the_own_flight__refused():
    """A coordinator cannot cancel the flight that its caller's code runs inside of."""

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        for peer in ctx.peers():
            ctx.cancel(peer)
        ctx.proceed()

    def body() -> str:
        with pytest.raises(ReentrantCallError):
            function("alaska", never)
        return "value"

    assert fetch("alaska", body) == "value"


def test_reuse_of_what_is_cancelled__refused():
    """A peer that is being cancelled has no value to share."""

    @deciding()
    def cancel_then_reuse(ctx: CoordinationContext) -> None:
        ctx.cancel(ctx.peers()[0])
        ctx.reuse(ctx.peers()[0])

    @deciding()
    def reuse_then_cancel(ctx: CoordinationContext) -> None:
        ctx.reuse(ctx.peers()[0])
        ctx.cancel(ctx.peers()[0])

    gate = Gate("value")
    leader = start_leader(gate)
    for function in (cancel_then_reuse, reuse_then_cancel):
        with pytest.raises(CoordinationProtocolError, match="no value"):
            function("alaska", never)
    gate.open()
    assert leader.result() == "value"


def test_peer_of_another_key__refused():
    """reuse() and cancel() take the records that the context gave out, and no others."""
    gate = Gate("value")
    leader = threads.start(lambda: fetch("nevada", gate))
    assert gate.entered.wait(TIMEOUT)
    (foreign,) = django_vega.in_flight()

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        with pytest.raises(CoordinationProtocolError, match="not one of peers"):
            ctx.cancel(foreign)
        ctx.reuse(foreign)

    with pytest.raises(CoordinationProtocolError, match="not one of peers"):
        function("alaska", never)
    gate.open()
    assert leader.result() == "value"


def test_emit__a_coordination_event():
    """An emitted event appears once, with the call's own data filled in."""

    @deciding("telling")
    def function(ctx: CoordinationContext) -> None:
        ctx.emit(CoordinationRestart(cancelled_call_ids=(7,), key="forged", call_id=99))
        ctx.proceed()

    with Recorder() as recorder:
        function("alaska", lambda: None)
        (event,) = recorder.events("coordination:restart")
        (created,) = recorder.events("call:created")
    assert event.cancelled_call_ids == (7,)
    assert (event.key, event.call_id) == ("custom:alaska", created.call_id)
    assert (event.coordinator, event.function) == ("telling", f"{__name__}.fetch")


def test_emit__something_else():
    """Only coordination events can be emitted; diagnostics of one's own go to the bus."""

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        ctx.proceed()
        ctx.emit(CallSettled(state="success"))

    with pytest.raises(CoordinationProtocolError, match="get_event_bus"):
        function("alaska", never)


def test_emitted_events_are_void__asked_again():
    """What was emitted with a decision that did not count is never published."""
    gate = Gate("value")
    leader = start_leader(gate)

    @deciding()
    def function(ctx: CoordinationContext) -> None:
        ctx.emit(CoordinationDropped())
        gate.open()
        leader.join()
        ctx.proceed()

    with Recorder() as recorder:
        function("alaska", lambda: None)
        assert len(recorder.events("coordination:dropped")) == 1
    assert leader.result() == "value"


def test_orphan_is_submitted__result_is_what_the_coordinator_returned():
    """The handle of an undecided call gives what its coordinator returned."""

    @deciding()
    def function(ctx: CoordinationContext) -> str:
        return "no decision"

    call = function.submit("alaska", never)
    assert (call.state, call.cancel_reason, call.done()) == (
        "cancelled",
        "orphaned-intent",
        True,
    )
    assert call.result() == "no decision"


@pytest.mark.parametrize("name", ["", "  ", None])
def test_coordinator_without_a_name__refused(name):
    """A coordinator needs a name, because its events are labelled with it."""
    with pytest.raises(ValueError, match="pass a name"):
        coordinator(name)


def test_coordinator_that_can_wait__refused():
    """A coordinator is neither async nor a generator: it decides on a snapshot."""

    async def waits(ctx: CoordinationContext) -> None:
        ctx.proceed()

    def yields(ctx: CoordinationContext) -> Any:
        yield ctx.proceed()

    for function in (waits, yields):
        with pytest.raises(TypeError, match="must be a plain def"):
            coordinator("waiting")(function)


def test_follower_of_a_parked_call__whose_caller_gives_up():
    """The parked caller's timeout is its own: its follower is asked again and joins the leader."""
    body = Gate("value")
    leader = start_leader(body)

    @deciding("newest")
    def newest(ctx: CoordinationContext) -> None:
        ctx.reuse(ctx.peers()[-1])

    with Recorder() as seen:
        parked = threads.start(
            lambda: fetch.with_options(strategy="serialize", timeout=0.2)("alaska", never)
        )
        seen.wait(1, "call:parked")
        follower = threads.start(lambda: newest("alaska", never))
        seen.wait(2, "coordination:reuse")  # first the parked call, then the one that runs
        assert isinstance(parked.exception(), WaitTimeout)
    body.open()
    assert follower.result() == leader.result() == "value"
