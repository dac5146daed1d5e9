"""A coordinator sees a frozen picture and records exactly one decision."""

import functools

import pytest

from django_vega.core.admission import (
    CoordinationContext,
    CoordinatorFunction,
    Decision,
    coordinator,
)
from django_vega.core.errors import CoordinationProtocolError
from django_vega.core.events import (
    COORDINATION_EVENTS,
    CallSettled,
    CoordinationDropped,
    CoordinationReuse,
)
from tests.core.stage import Stage

CHOICES = ["proceed", "reuse", "queue", "drop"]


def a_context():
    """Return the context of call 3 with the peers 1 and 2."""
    stage = Stage()
    stage.admit("a", "none")
    stage.admit("b", "none")
    intent = stage.make("c")
    _, peers = stage.table.peers(intent.slot)
    records = [stage.table.record(peer, "host:1") for peer in peers]
    return CoordinationContext(stage.table.record(intent, "host:1"), records, intent.site.options)


def decide(ctx, choice):
    return ctx.reuse(ctx.peers()[0]) if choice == "reuse" else getattr(ctx, choice)()


def test_context__shows_the_call_and_its_peers():
    """The intent is idle and never among its peers, who come oldest first."""
    ctx = a_context()
    assert (ctx.intent.id, ctx.intent.state) == (3, "idle")
    assert (ctx.key, ctx.function) == ("k", "f")
    assert ctx.options.strategy.name == "dedupe"
    assert [(peer.id, peer.state) for peer in ctx.peers()] == [(1, "running"), (2, "running")]


def test_peers__are_a_frozen_snapshot():
    """Neither the tuple nor its records change, and there is no way back to the calls."""
    ctx = a_context()
    peers = ctx.peers()
    assert ctx.peers() is peers
    assert isinstance(peers, tuple)
    with pytest.raises(AttributeError):
        peers[0].state = "success"
    with pytest.raises(AttributeError):
        ctx.intent = None


@pytest.mark.parametrize(
    ("choice", "decision"),
    [
        ("proceed", Decision("proceed")),
        ("reuse", Decision("reuse", peer_id=1)),
        ("queue", Decision("queue")),
        ("drop", Decision("drop")),
    ],
)
def test_decision__is_what_was_recorded(choice, decision):
    """Each method records its choice."""
    ctx = a_context()
    decide(ctx, choice)
    assert ctx.decision() == decision


def test_decision__never_made():
    """Without a decision there is none, whatever else was asked for."""
    ctx = a_context()
    assert ctx.decision() == Decision(None)
    ctx.cancel(ctx.peers()[0])
    ctx.emit(CoordinationDropped())
    assert ctx.decision() == Decision(None, cancel_ids=(1,), events=(CoordinationDropped(),))


@pytest.mark.parametrize("second", CHOICES)
@pytest.mark.parametrize("first", CHOICES)
def test_decide__twice(first, second):
    """A second decision raises, names both, and the first one stands."""
    ctx = a_context()
    decide(ctx, first)
    decision = ctx.decision()
    with pytest.raises(CoordinationProtocolError) as caught:
        decide(ctx, second)
    assert f"{second}() after {first}(): a coordinator decides exactly once" in str(caught.value)
    assert ctx.decision() == decision


def test_drop__with_a_reason():
    """The reason is the coordinator's own."""
    ctx = a_context()
    ctx.drop("too-late")
    assert ctx.decision() == Decision("drop", reason="too-late")


@pytest.mark.parametrize("reason", ["", None, 3, "dedupe", "orphaned-intent"])
def test_drop__with_a_reason_that_says_nothing_or_something_else(reason):
    """An empty reason, or one under which callers do get a value, is refused undecided."""
    ctx = a_context()
    with pytest.raises(CoordinationProtocolError, match="pass a"):
        ctx.drop(reason)
    assert ctx.decision() == Decision(None)


def test_cancel__several_peers():
    """Cancellations come with any decision, before or after it."""
    ctx = a_context()
    first, second = ctx.peers()
    ctx.cancel(second)
    ctx.proceed()
    ctx.cancel(first)
    assert ctx.decision() == Decision("proceed", cancel_ids=(2, 1))


def test_reuse__after_cancel_of_that_peer():
    """A peer that will be cancelled has no value to share; another one has."""
    ctx = a_context()
    first, second = ctx.peers()
    ctx.cancel(first)
    with pytest.raises(CoordinationProtocolError, match=r"reuse\(\) of call 1 after cancel\(\)"):
        ctx.reuse(first)
    ctx.reuse(second)
    assert ctx.decision() == Decision("reuse", peer_id=2, cancel_ids=(1,))


def test_cancel__after_reuse_of_that_peer():
    """A peer whose value is to be shared is not cancelled."""
    ctx = a_context()
    first, second = ctx.peers()
    ctx.reuse(first)
    with pytest.raises(CoordinationProtocolError, match=r"cancel\(\) of call 1 after reuse\(\)"):
        ctx.cancel(first)
    ctx.cancel(second)
    assert ctx.decision() == Decision("reuse", peer_id=1, cancel_ids=(2,))


@pytest.mark.parametrize("method", ["reuse", "cancel"])
def test_peer__of_nobody(method):
    """Only records of `peers` are peers; the intent is none."""
    ctx = a_context()
    for stranger in (ctx.intent, None, "a"):
        with pytest.raises(CoordinationProtocolError, match=r"is not one of peers\(\)"):
            getattr(ctx, method)(stranger)
    assert ctx.decision() == Decision(None)


@pytest.mark.parametrize("kind", COORDINATION_EVENTS)
def test_emit__coordination_events(kind):
    """A coordinator emits any event of coordination, in its order."""
    ctx = a_context()
    ctx.emit(kind())
    ctx.emit(CoordinationReuse(peer_id=1))
    ctx.proceed()
    assert ctx.decision().events == (kind(), CoordinationReuse(peer_id=1))


class Diagnostics:
    type = "coordination:mine"


@pytest.mark.parametrize(
    "event", [CallSettled(state="success"), Diagnostics(), "coordination:reuse"]
)
def test_emit__foreign_event(event):
    """Other events are refused, and the message says where they may go."""
    ctx = a_context()
    with pytest.raises(CoordinationProtocolError, match=r"get_event_bus\(\)\.publish") as caught:
        ctx.emit(event)
    assert "CoordinationReuse" in str(caught.value)
    assert ctx.decision().events == ()


# The decorator


def test_coordinator__keeps_function_and_name():
    """The decorated object can be called with a context and has the given name."""

    @coordinator("newest-two")
    def newest_two(ctx):
        ctx.queue()
        return "ignored"

    ctx = a_context()
    assert isinstance(newest_two, CoordinatorFunction)
    assert newest_two.name == "newest-two"
    assert newest_two(ctx) == "ignored"
    assert ctx.decision() == Decision("queue")


@pytest.mark.parametrize("name", ["", "  ", None, 3, lambda ctx: None])
def test_coordinator__without_a_name(name):
    """An empty name, or the decorator without parentheses, is refused at decoration."""
    with pytest.raises(ValueError, match="pass a name"):
        coordinator(name)


async def waits(ctx):
    ctx.proceed()


async def waits_and_yields(ctx):
    yield ctx


def yields(ctx):
    yield ctx


class Waits:
    async def __call__(self, ctx):
        ctx.proceed()


@pytest.mark.parametrize(
    "function", [waits, waits_and_yields, yields, functools.partial(waits), Waits()]
)
def test_coordinator__that_would_wait(function):
    """Coroutine functions and generators are refused at decoration, also behind an object."""
    with pytest.raises(TypeError, match="must be a plain def"):
        coordinator("waits")(function)


def test_coordinator__of_something_else():
    """What cannot be called is refused at decoration."""
    with pytest.raises(TypeError, match="coordinator 'x': 3 is not callable"):
        coordinator("x")(3)


@pytest.mark.parametrize("function", [functools.partial(decide, choice="proceed"), print])
def test_coordinator__of_any_plain_callable(function):
    """Partial objects and builtins are callables like others."""
    assert coordinator("x")(function).function is function
