"""`with_options(next=True)`: for callers who must see a run that began after they asked."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_vega import ReentrantCallError, WaitTimeout, bounded, coordinated
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never, raising
from tests.runtime.tasks import Witness, in_loop, own_scope


@coordinated(key="work:{x}", ignore=["body"])
def work(x: int, body: Callable[[], Any]) -> Any:
    return body()


after = work.with_options(next=True)


def start(end: Any = "first") -> tuple[Gate, threads.Running[Any]]:
    """Start a caller whose body waits at the gate."""
    gate = Gate(end)
    running = threads.start(lambda: work(1, gate))
    assert gate.entered.wait(TIMEOUT)
    return gate, running


def arrive(kind: str, call: Callable[[], Any]) -> threads.Running[Any]:
    """Start a caller that is parked, or follows, when this returns."""
    with Arrivals([kind]) as arrivals:
        running = threads.start(call)
        arrivals.wait(1)
    return running


def test_next__one_running_and_one_waiting_run_shared_by_all_later_callers():
    """Ten callers who need a newer run share one, which begins when the running one has ended."""
    gate, first = start()
    second_gate = Gate("second")
    waiting = arrive("call:parked", lambda: after(1, second_gate))
    sharing = [arrive("coordination:reuse", lambda: after(1, never)) for _ in range(9)]
    content = arrive("coordination:reuse", lambda: work(1, never))
    assert not second_gate.entered.is_set()
    gate.open()
    assert second_gate.entered.wait(TIMEOUT)
    late = arrive("coordination:reuse", lambda: work(1, never))
    second_gate.open()
    assert threads.results([first, content]) == ["first"] * 2
    assert threads.results([waiting, *sharing, late]) == ["second"] * 11
    assert (gate.runs, second_gate.runs) == (1, 1)


def test_next__on_a_free_key_runs_at_once():
    """A run that begins now began after the question."""
    assert after(1, lambda: "mine") == "mine"


def test_next__the_running_one_fails():
    """What ends the running one is not the concern of those who wait for the next."""
    gate, first = start(ValueError("no"))
    waiting = arrive("call:parked", lambda: after(1, lambda: "second"))
    gate.open()
    assert isinstance(first.exception(), ValueError)
    assert threads.results([waiting]) == ["second"]


def test_next__its_own_error_reaches_those_who_share_it():
    """The next run is a flight like any other."""
    gate, first = start()
    waiting = arrive("call:parked", lambda: after(1, raising(ValueError("no"))))
    sharing = arrive("coordination:reuse", lambda: after(1, never))
    gate.open()
    assert threads.results([first]) == ["first"]
    assert isinstance(waiting.exception(), ValueError)
    assert isinstance(sharing.exception(), ValueError)


def test_next__whoever_waits_to_run_gives_up():
    """Its timeout is its own: one of those who share the next run runs in its place."""
    gate, first = start()
    with Recorder() as seen:
        waiting = threads.start(lambda: after.with_options(timeout=0.05)(1, never))
        seen.wait(1, "call:parked")
        sharing = [
            threads.start(lambda: after.with_options(timeout=30)(1, lambda: "second"))
            for _ in range(3)
        ]
        assert isinstance(waiting.exception(), WaitTimeout)
        seen.wait(2, "call:parked")
        gate.open()
        assert threads.results([first, *sharing]) == ["first", "second", "second", "second"]
        assert len(seen.events("call:running")) == 1


def test_next__inside_of_the_flight_it_would_wait_for():
    """It would wait for itself, so it raises."""
    with pytest.raises(ReentrantCallError):
        work(1, lambda: after(1, never))


def test_next__under_a_strategy_that_drops():
    """Who would be dropped gets no next run: refused, with the way out."""
    with pytest.raises(ImproperlyConfigured, match="next=True under the strategy exhaust"):
        after.with_options(strategy="exhaust")(1, never)


def test_next__beside_a_free_slot():
    """With a limit of two the second runs at once and the third waits for a slot."""
    two, two_after = work.with_options(strategy=bounded(2)), None
    two_after = two.with_options(next=True)
    gates = [Gate(1), Gate(2)]
    running = [threads.start(lambda gate=gate: two_after(1, gate)) for gate in gates]
    assert all(gate.entered.wait(TIMEOUT) for gate in gates)
    third = arrive("call:parked", lambda: two_after(1, lambda: 3))
    gates[1].open()
    assert threads.results([third]) == [3]
    gates[0].open()
    assert threads.results(running) == [1, 2]


@in_loop
async def test_next__async():
    """The same on a loop, the one who waits to run being cancelled."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work", scope=own_scope())
    async def awaited() -> int:
        runs.append(len(runs) + 1)
        number = runs[-1]
        await gate.wait()
        return number

    later = awaited.with_options(next=True)
    with Witness() as seen:
        first = asyncio.create_task(awaited())
        await seen.sees(1, "call:running")
        parked = asyncio.create_task(later())
        await seen.sees(1, "call:parked")
        sharing = [asyncio.create_task(later()) for _ in range(5)]
        await seen.sees(5, "coordination:reuse")
        parked.cancel()
        await seen.sees(2, "call:parked")
        gate.set()
        assert await first == 1
        assert await asyncio.gather(*sharing) == [2] * 5
        assert parked.cancelled()
    assert runs == [1, 2]


def test_next__threads_beside_an_async_flight():
    """Of eight threads one runs beside it and the others share the run after that one."""

    async def flight(entered: Any, gate: asyncio.Event) -> None:
        entered.set()
        await gate.wait()

    @coordinated(key="mixed", ignore=["entered", "gate"], scope="tests.next-mixed")
    async def awaited(entered: Any, gate: asyncio.Event) -> None:
        await flight(entered, gate)

    @coordinated(key="mixed", ignore=["body"], scope="tests.next-mixed")
    def threaded(body: Callable[[], Any]) -> Any:
        return body()

    needy = threaded.with_options(next=True)

    @in_loop
    async def story() -> None:
        gate = asyncio.Event()
        with Witness() as seen:
            task = asyncio.create_task(awaited(asyncio.Event(), gate))
            await seen.sees(1, "call:running")
            first, second = Gate("first"), Gate("second")
            callers = [threads.start(lambda: needy(first))]
            await seen.sees(2, "call:running")
            callers.append(threads.start(lambda: needy(second)))
            await seen.sees(1, "call:parked")
            callers += [threads.start(lambda: needy(never)) for _ in range(6)]
            await seen.sees(6, "coordination:reuse")
            first.open()
            second.open()
            results = await asyncio.to_thread(threads.results, callers)
            assert results == ["first", *["second"] * 7]
            gate.set()
            await task

    story()
