"""`while_busy="raise"`: a caller that would have to wait for a flight is told so at once."""

import asyncio
import os
import platform
from collections.abc import Callable
from typing import Any

import pytest

from django_vega import Busy, CallCancelled, Strategy, coordinated, coordinator
from django_vega.signals import call_skipped
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never
from tests.runtime.tasks import Witness, in_loop, own_scope


@coordinated(key="work:{x}", ignore=["body"], while_busy="raise")
def work(x: int, body: Callable[[], Any]) -> Any:
    return body()


def start(function: Any = work, end: Any = "value") -> tuple[Gate, threads.Running[Any]]:
    """Start a caller whose body waits at the gate."""
    gate = Gate(end)
    running = threads.start(lambda: function(1, gate))
    assert gate.entered.wait(TIMEOUT)
    return gate, running


def test_busy__says_who_is_in_the_way():
    """Key, owner, age and when to try again; the function does not run, the flight goes on."""
    gate, leader = start()
    with Recorder() as seen, pytest.raises(Busy) as caught:
        work(1, never)
    assert caught.value.key == "work:1"
    assert caught.value.owner == f"{platform.node()}:{os.getpid()}"
    assert caught.value.age >= 0
    assert caught.value.retry_after == max(1.0, caught.value.age)
    assert [event.type for event in seen.events()] == [
        "call:created",
        "call:skipped",
        "call:settled",
    ]
    assert [event.answer for event in seen.events("call:skipped")] == ["raise"]
    assert seen.states() == [("cancelled", "busy")]
    gate.open()
    assert threads.results([leader]) == ["value"]
    assert work(1, lambda: "free again") == "free again"


def test_busy__another_key_is_not():
    """A flight is in the way of its own key only."""
    gate, leader = start()
    assert work(2, lambda: "mine") == "mine"
    gate.open()
    threads.results([leader])


@pytest.mark.parametrize("strategy", ["serialize", Strategy(1, "queue", capacity=0)])
def test_busy__instead_of_a_queue(strategy: Any):
    """Where the call would be parked, or the queue is full, it is busy too."""
    function = work.with_options(strategy=strategy)
    gate, leader = start(function)
    with pytest.raises(Busy):
        function(1, never)
    gate.open()
    threads.results([leader])


def test_busy__a_stopping_body_is_in_the_way_of_a_queue():
    """Under serialize a cancelled body keeps its slot until it has returned."""
    function = work.with_options(strategy="serialize")
    gate, leader = start(function)
    assert function.cancel(1, never)
    with pytest.raises(Busy, match="in flight on"):
        function(1, never)
    gate.open()
    assert isinstance(leader.exception(), CallCancelled)


def test_busy__of_a_coordinator_that_reuses():
    """A coordinator of one's own that would make the caller wait has the same end."""

    @coordinator("share")
    def share(ctx: Any) -> None:
        peers = ctx.peers()
        if peers:
            ctx.reuse(peers[0])
        else:
            ctx.proceed()

    function = work.with_options(strategy=share)
    gate, leader = start(function)
    with pytest.raises(Busy):
        function(1, never)
    gate.open()
    threads.results([leader])


def test_busy__a_coordinator_that_cancels_first():
    """Whoever is turned away cancels nobody: the submitted call in its way runs and settles."""

    @coordinator("replace")
    def replace(ctx: Any) -> None:
        for peer in ctx.peers():
            ctx.cancel(peer)
        ctx.queue()

    gates = [Gate(number) for number in range(5)]
    with Arrivals(["call:running", "call:queued"]) as arrivals:
        blockers = [work.submit(10 + number, gate) for number, gate in enumerate(gates[:4])]
        queued = work.submit(1, gates[4])
        arrivals.wait(9)
    with pytest.raises(Busy):
        work.with_options(strategy=replace)(1, never)
    assert queued.state == "queued"
    for gate in gates:
        gate.open()
    assert [call.result() for call in (*blockers, queued)] == [0, 1, 2, 3, 4]


def test_busy__a_nested_one_is_an_error_of_the_body():
    """A Busy that the function itself raises reaches its followers like any other error."""
    inner_gate, inner = start()

    @coordinated(key="outer", scope=own_scope())
    def outer() -> Any:
        return work(1, never)

    with pytest.raises(Busy, match="work:1"):
        outer()
    inner_gate.open()
    threads.results([inner])


def test_busy__submitted():
    """A submitted call that meets a flight is over at once; its result says Busy, to each asker."""
    gate, leader = start()
    call = work.submit(1, never)
    assert (call.state, call.cancel_reason, call.done()) == ("cancelled", "busy", True)
    errors = []
    for _ in range(2):
        with pytest.raises(Busy) as caught:
            call.result()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    gate.open()
    threads.results([leader])


def test_busy__signal():
    """The event is a signal too, sent for the decorated function."""
    heard = []

    def receiver(sender: Any, event: Any, **_: Any) -> None:
        heard.append((sender, event.answer))

    gate, leader = start()
    call_skipped.connect(receiver, sender=work)
    try:
        with pytest.raises(Busy):
            work(1, never)
    finally:
        call_skipped.disconnect(receiver, sender=work)
    assert heard == [(work, "raise")]
    gate.open()
    threads.results([leader])


@in_loop
async def test_busy__async():
    """An async caller is told as well, and the one who leads is not disturbed."""
    gate = asyncio.Event()

    @coordinated(key="work", while_busy="raise", scope=own_scope())
    async def awaited() -> str:
        await gate.wait()
        return "value"

    with Witness() as seen:
        leader = asyncio.create_task(awaited())
        await seen.sees(1, "call:running")
        with pytest.raises(Busy):
            await awaited()
        call = await awaited.asubmit()
        with pytest.raises(Busy):
            await call
        waiting = asyncio.create_task(awaited.with_options(while_busy="wait")())
        await seen.sees(1, "coordination:reuse")
        gate.set()
        assert await asyncio.gather(leader, waiting) == ["value", "value"]
