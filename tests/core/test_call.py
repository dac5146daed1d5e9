"""The life of a call, step by step, and what a call knows of those that it runs inside of."""

import contextvars
import gc
import weakref
from typing import get_args

import pytest

from django_vega.core.call import (
    SETTLED,
    TRANSITIONS,
    UNSET,
    Call,
    CallSite,
    IllegalStep,
    Options,
    State,
    Step,
    current,
    current_call,
)
from django_vega.core.strategies import DEDUPE
from tests.core.stage import Stage

# The diagram of the docs, as a list. What is not here is illegal.
LEGAL = [
    ("idle", "park", "parked"),
    ("idle", "queue", "queued"),
    ("idle", "run", "running"),
    ("idle", "succeed", "success"),
    ("idle", "fail", "error"),
    ("idle", "drop", "cancelled"),
    ("parked", "queue", "queued"),
    ("parked", "run", "running"),
    ("parked", "cancel", "cancelled"),
    ("queued", "run", "running"),
    ("queued", "cancel", "cancelled"),
    ("queued", "abandon", "cancelled"),
    ("running", "write", "writing"),
    ("running", "succeed", "success"),
    ("running", "fail", "error"),
    ("running", "cancel", "cancelled"),
    ("running", "abandon", "cancelled"),
    ("writing", "succeed", "success"),
    ("writing", "fail", "error"),
    ("writing", "abandon", "cancelled"),
]
ILLEGAL = [
    (state, step)
    for state in get_args(State)
    for step in get_args(Step)
    if (state, step) not in {(before, step) for before, step, _ in LEGAL}
]


class Runtime:
    """Writes down what a call asks of whoever runs it."""

    def result(self, call, timeout):
        return "result", call, timeout

    def wait(self, call):
        yield "waits"
        return call

    def cancel(self, call):
        return "cancel", call


def a_call(state="idle", **more):
    site = CallSite("app.f", "app.f", Options(DEDUPE), display=str.upper)
    call = Call(7, site, "k", print, Runtime(), created_at=1.0, **more)
    call.state = state
    return call


def contents(call):
    """Return everything that a call holds."""
    return {slot: getattr(call, slot) for slot in Call.__slots__ if slot != "__weakref__"}


@pytest.mark.parametrize(("before", "step", "after"), LEGAL)
def test_step__legal(before, step, after):
    """A legal step leads to its state and touches nothing else."""
    call = a_call(before)
    expected = {**contents(call), "state": after}
    assert call.after(step) == after
    assert call.state == before
    call.step(step)
    assert contents(call) == expected


@pytest.mark.parametrize(("state", "step"), ILLEGAL)
def test_step__illegal(state, step):
    """An illegal step raises, says what was asked of which call, and changes nothing."""
    call = a_call(state)
    expected = contents(call)
    with pytest.raises(IllegalStep) as caught:
        call.step(step)
    assert str(caught.value) == f"<Call 7 K {state}> cannot {step}"
    assert contents(call) == expected


def test_transitions__name_every_state():
    """The table is complete: every state is in it, and those that end have no way out."""
    assert set(TRANSITIONS) == set(get_args(State))
    assert len(LEGAL) + len(ILLEGAL) == len(get_args(State)) * len(get_args(Step))
    assert {state for state, steps in TRANSITIONS.items() if not steps} == SETTLED
    reached = {after for steps in TRANSITIONS.values() for after in steps.values()}
    assert reached == set(get_args(State)) - {"idle"}


def test_call__asks_its_runtime():
    """result, await and cancel are the runtime's; result passes the call's own timeout on."""
    call = a_call()
    assert call.result() == ("result", call, UNSET)
    assert call.result(None) == ("result", call, None)
    assert call.result(2.5) == ("result", call, 2.5)
    assert call.cancel() == ("cancel", call)
    waiting = call.__await__()
    assert next(waiting) == "waits"
    with pytest.raises(StopIteration) as stopped:
        next(waiting)
    assert stopped.value.value is call


def test_call__shows_itself():
    """A call shows its key as people may see it, with its state and reason."""
    call = a_call()
    assert (call.slot, call.shown_key) == (("app.f", "k"), "K")
    assert repr(call) == "<Call 7 K idle>"
    call.state, call.reason = "cancelled", "abort"
    assert repr(call) == "<Call 7 K cancelled (abort)>"
    assert call.cancel_reason == "abort"


@pytest.mark.parametrize("state", get_args(State))
def test_settled__is_said_of_ends_only(state):
    """A call is settled once it succeeded, failed or was cancelled."""
    assert a_call(state).settled == (state in {"success", "error", "cancelled"})
    assert a_call(state).done() == a_call(state).settled


def test_done__of_a_follower():
    """A follower is done when its leader is, unless the leader was abandoned."""
    stage = Stage()
    stage.admit("a")
    stage.admit("b")
    a, b = stage.named["a"], stage.named["b"]
    assert (b.settled, b.done(), b.last_leader()) == (True, False, a)
    stage.settle("a")
    assert b.done()


def test_done__of_a_follower_that_was_abandoned():
    """It waits for whoever takes over, and is done with that one."""
    stage = Stage()
    stage.admit("a")
    stage.admit("b")
    stage.settle("a", "abandon", reason="abandoned")
    b = stage.named["b"]
    assert (stage.named["a"].done(), b.done()) == (True, False)
    stage.admit("b again")
    b.leader = stage.named["b again"]
    assert not b.done()
    stage.settle("b again", "fail")
    assert (b.done(), b.last_leader()) == (True, stage.named["b again"])


def test_chain__innermost_first_without_ended_calls():
    """Code counts as inside of a flight while its body runs, whatever its state."""
    stage = Stage()
    stage.admit("a", key="1")
    stage.admit("b", key="2", inside="a")
    stage.admit("c", key="3", inside="b")
    a, b, c = (stage.named[name] for name in "abc")
    assert c.chain() == (c, b, a)
    stage.cancel("b")
    assert c.chain() == (c, b, a)
    stage.settle("b")
    assert c.chain() == (c, a)
    assert b.chain() == (a,)
    stage.settle("a")
    stage.settle("c")
    assert c.chain() == ()


def test_chain__calls_that_start_their_successor_are_not_kept():
    """A flight that starts the next one just before it ends keeps no line of ancestors alive."""
    stage = Stage()
    stage.admit("now", key="0")
    past = []
    for number in range(1, 1_000):
        last = stage.named["now"]
        past.append(weakref.ref(last))
        stage.named["last"] = last
        stage.admit("now", key=str(number), inside="last")
        stage.table.settle(last, "succeed")
    del last, stage.named["last"]
    gc.collect()
    assert sum(ref() is not None for ref in past) <= 2
    assert stage.named["now"].chain() == (stage.named["now"],)


def test_current_call__while_the_body_runs():
    """The call of the flight around, also in copied contexts, until its body has ended."""
    call = a_call("running")

    def inside():
        current.set(call)
        assert current_call() is call
        copy = contextvars.copy_context()
        assert copy.run(current_call) is call
        call.ended = True
        assert copy.run(current_call) is None
        assert current_call() is None

    contextvars.Context().run(inside)
    assert contextvars.Context().run(current_call) is None


def test_options__are_equal_whatever_their_origin():
    """Where a value came from makes no difference to what it says."""
    assert Options(DEDUPE, origin={"strategy": "policy"}) == Options(DEDUPE)
    assert Options(DEDUPE, timeout=1) != Options(DEDUPE)
    with pytest.raises(AttributeError):
        Options(DEDUPE).timeout = 3
