"""Submitted calls on event loops: bounded places, handles that outlive their callers."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import django_vega
from django_vega import (
    CallCancelled,
    NotAdmitted,
    WaitTimeout,
    coordinated,
    current_call,
    serialize,
)
from tests import threads
from tests.gates import TIMEOUT, Recorder
from tests.runtime.tasks import Gate, Witness, ends, in_loop, own_scope, run_loop
from tests.runtime.test_loops import Stoppable


@in_loop
async def test_a_submitted_call__is_a_handle_on_its_outcome() -> None:
    """It can be awaited often, tells its state, and keeps its value for any thread."""
    gate = asyncio.Event()

    @coordinated(key="work:{name}")
    async def work(name: str) -> str:
        await gate.wait()
        return f"{name}'s value"

    call = await work.submit("a")
    assert (call.key, call.state, call.done()) == ("work:a", "queued", False)
    gate.set()
    assert [await call, await call] == ["a's value"] * 2
    assert (call.state, call.cancel_reason, call.done()) == ("success", None, True)
    assert call.generation is not None
    assert await asyncio.to_thread(call.result) == "a's value"
    assert not call.cancel()


@in_loop
async def test_a_sync_function_submitted_from_a_loop__runs_on_the_pool() -> None:
    """The loop stays free while a worker thread runs it."""
    gate = threading.Event()

    @coordinated(key="work")
    def work() -> str:
        assert gate.wait(TIMEOUT)
        return threading.current_thread().name

    call = await work.asubmit()
    gate.set()
    assert (await call).startswith("django-vega")


@pytest.mark.parametrize("is_async", [True, False], ids=["tasks", "threads"])
def test_places_are_bounded__workers_run_and_capacity_queue(
    is_async: bool, new_alias: Callable[..., str]
) -> None:
    """Two run, one is queued, the fourth is not admitted; its function was not called."""
    gate, runs = Gate(), []
    alias = new_alias(WORKERS=2, CAPACITY=1)
    if is_async:

        @coordinated(key="work:{me}", using=alias, scope=own_scope())
        async def work(me: int) -> int:
            runs.append(me)
            await gate.passed()
            return me

    else:

        @coordinated(key="work:{me}", using=alias, scope=own_scope())
        def work(me: int) -> int:
            runs.append(me)
            gate.wait()
            return me

    async def main() -> None:
        with Witness() as seen:
            calls = [work.submit_nowait(me) for me in range(3)]
            await seen.sees(2, "call:running")
            assert [call.state for call in calls] == ["running", "running", "queued"]
            with pytest.raises(NotAdmitted, match="work:3 was not admitted: 2 workers"):
                work.submit_nowait(3)
            waiting = [asyncio.create_task(work.asubmit(me)) for me in (4, 5)]
            await asyncio.sleep(0)
            with pytest.raises(WaitTimeout, match="work:6"):
                await work.with_options(timeout=0.001).asubmit(6)
            assert [task.done() for task in waiting] == [False, False]
            assert len(django_vega.in_flight(using=alias)) == 3
            gate.open()
            calls += await asyncio.gather(*waiting)
            assert await asyncio.gather(*calls) == [0, 1, 2, 4, 5]
        # Every place was given back.
        again = [work.submit_nowait(me) for me in range(3)]
        assert await asyncio.gather(*again) == [0, 1, 2]

    run_loop(main)
    assert sorted(runs) == [0, 0, 1, 1, 2, 2, 4, 5]


@in_loop
async def test_an_asubmit_that_is_cancelled__leaves_the_line(
    new_alias: Callable[..., str],
) -> None:
    """Its function never runs, and its place in line goes to the one behind it."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work:{me}", using=new_alias(WORKERS=1, CAPACITY=0))
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    first = await work.asubmit(0)
    gone, behind = (asyncio.create_task(work.asubmit(me)) for me in (1, 2))
    await asyncio.sleep(0)
    gone.cancel()
    await ends(gone)
    gate.set()
    assert (await first, await (await behind)) == (0, 2)
    assert runs == [0, 2]


@in_loop
async def test_an_asubmit_cancelled_in_the_step_that_hands_it_a_place__passes_it_on(
    new_alias: Callable[..., str],
) -> None:
    """The place was on its way when the caller left: the next in line gets it."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work:{me}", using=new_alias(WORKERS=1, CAPACITY=0))
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    first = await work.asubmit(0)
    gone, behind = (asyncio.create_task(work.asubmit(me)) for me in (1, 2))
    await asyncio.sleep(0)
    unsubscribe = django_vega.subscribe(lambda _: gone.cancel(), ["call:settled"])
    gate.set()
    assert await first == 0
    [left] = await ends(gone)
    unsubscribe()
    assert isinstance(left, asyncio.CancelledError)
    assert await (await behind) == 2
    assert runs == [0, 2]


def test_places_handed_to_a_dead_loop__are_neither_lost_nor_doubled(
    new_alias: Callable[..., str],
) -> None:
    """A closed loop's task stands in line: it is passed over, and its end gives nothing back."""
    gate = Gate()

    @coordinated(key="work:{me}", using=new_alias(WORKERS=1, CAPACITY=0))
    def work(me: int) -> int:
        gate.wait()
        return me

    waits = threading.Event()

    async def wait_for_a_place() -> None:
        task = asyncio.create_task(work.asubmit(1))
        await asyncio.sleep(0)
        waits.set()
        await task

    first = work.submit(0)
    loop = Stoppable(wait_for_a_place)
    assert waits.wait(TIMEOUT)
    loop.close()
    del loop
    gate.open()
    assert first.result(TIMEOUT) == 0
    gc.collect()
    gate = Gate()
    only = work.submit(2)
    with pytest.raises(NotAdmitted):
        work.submit_nowait(3)
    gate.open()
    assert only.result(TIMEOUT) == 2


@pytest.mark.parametrize("workers", [1, 2])
@in_loop
async def test_a_submitted_call_that_awaits_another__starves_nobody(
    workers: int, new_alias: Callable[..., str]
) -> None:
    """Every worker awaits a call that no worker is left for: it is started beyond the bound."""
    alias = new_alias(WORKERS=workers, CAPACITY=0)
    all_run = asyncio.Barrier(workers)

    @coordinated(key="inner:{me}", using=alias, scope=own_scope())
    async def inner(me: int) -> int:
        await asyncio.sleep(0)
        return me

    @coordinated(key="outer:{me}", using=alias, scope=own_scope())
    async def outer(me: int) -> Any:
        await all_run.wait()
        return await (await inner.asubmit(me))

    calls = [await outer.asubmit(me) for me in range(workers)]
    assert await asyncio.gather(*calls) == list(range(workers))


@in_loop
async def test_a_submitted_call_that_awaits_a_queue__starves_nobody(
    new_alias: Callable[..., str],
) -> None:
    """The awaited call is parked behind a queued one of the same pool: that one is started too."""
    alias = new_alias(WORKERS=1, CAPACITY=5)

    @coordinated(key="inner", strategy="serialize", ignore=["me"], using=alias)
    async def inner(me: int) -> int:
        await asyncio.sleep(0)
        return me

    @coordinated(key="outer", using=alias)
    async def outer() -> Any:
        calls = [await inner.asubmit(me) for me in range(3)]
        return [await call for call in reversed(calls)]

    assert await (await outer.asubmit()) == [2, 1, 0]


@in_loop
async def test_a_submitted_call_that_follows__takes_no_place(
    new_alias: Callable[..., str],
) -> None:
    """It is cancelled(dedupe) from the start and its handle returns the leader's value."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work:{me}", using=new_alias(WORKERS=1, CAPACITY=1))
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    leader = await work.asubmit(0)
    followers = [await work.asubmit(0) for _ in range(5)]
    assert {(call.state, call.cancel_reason) for call in followers} == {("cancelled", "dedupe")}
    assert [call.done() for call in followers] == [False] * 5
    other = work.submit_nowait(1)
    gate.set()
    assert await asyncio.gather(leader, *followers, other) == [0] * 6 + [1]
    assert sorted(runs) == [0, 1]


def test_a_handle_whose_leader_abandoned__gets_the_value_of_its_own_function() -> None:
    """The leader's loop shuts down; nobody awaits the handle yet, and its call runs anyway."""
    runs: list[str] = []
    leave = Gate()

    @coordinated(key="work", ignore=["me"])
    async def work(me: str) -> str:
        runs.append(me)
        if me == "lost":
            await asyncio.Event().wait()
        return me

    async def lost() -> None:
        task = asyncio.create_task(work("lost"))
        await leave.passed()
        del task

    async def submit(end: Callable[[], None]) -> list[Any]:
        with Witness() as seen:
            calls = [await work.asubmit(me) for me in ("first", "second")]
            await asyncio.to_thread(end)
            await seen.sees(1, "call:running")
            assert not all(call.done() for call in calls) or runs[-1] != "lost"
            return await asyncio.gather(*calls)

    with Recorder() as seen:
        losing = threads.start(lambda: asyncio.run(lost()))
        seen.wait(1, "call:running")

        def end() -> None:
            leave.open()
            losing.join()

        got = run_loop(lambda: submit(end))
    assert got[0] == runs[1]
    assert set(got) <= {"first", "second"}


@in_loop
async def test_a_queued_call_cancelled__never_runs_and_gives_its_place_back(
    new_alias: Callable[..., str],
) -> None:
    """`cancel()` settles at once; awaiting the handle raises `CallCancelled`."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work:{me}", using=new_alias(WORKERS=1, CAPACITY=1))
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    first, second = await work.asubmit(0), await work.asubmit(1)
    assert second.cancel()
    assert (second.state, second.cancel_reason) == ("cancelled", "abort")
    with pytest.raises(CallCancelled):
        await second
    third = work.submit_nowait(2)
    gate.set()
    assert await asyncio.gather(first, third) == [0, 2]
    assert runs == [0, 2]


@in_loop
async def test_a_running_call_cancelled__keeps_its_place_until_its_body_has_ended(
    new_alias: Callable[..., str],
) -> None:
    """A body that ignores cancellation is still one of the WORKERS."""
    stubborn, told = asyncio.Event(), asyncio.Event()

    @coordinated(key="work:{me}", using=new_alias(WORKERS=1, CAPACITY=0))
    async def work(me: int) -> int:
        try:
            await stubborn.wait()
        except asyncio.CancelledError:
            told.set()
            await stubborn.wait()
        return me

    with Witness() as seen:
        call = await work.asubmit(0)
        await seen.sees(1, "call:running")
        await asyncio.sleep(0)
        assert call.cancel()
        await told.wait()
        with pytest.raises(NotAdmitted):
            work.submit_nowait(1)
        with pytest.raises(CallCancelled):
            await call
        stubborn.set()
        assert await (await work.asubmit(2)) == 2


@in_loop
async def test_awaiting_a_failed_call__raises_a_replica_each_time() -> None:
    """The handle keeps the exception; everybody who awaits gets one of his own, caused by it."""

    @coordinated(key="work")
    async def work() -> None:
        raise ValueError("no")

    call = await work.submit()

    async def wait() -> Any:
        return await call

    errors = await asyncio.gather(wait(), wait(), return_exceptions=True)
    assert [repr(error) for error in errors] == ["ValueError('no')"] * 2
    assert len({id(error) for error in errors}) == 2
    assert len({id(error.__cause__) for error in errors}) == 1


@in_loop
async def test_a_handle_that_nobody_awaits__bothers_nobody() -> None:
    """Its exception is kept, not "never retrieved"."""

    @coordinated(key="work")
    async def work() -> None:
        raise ValueError("no")

    with Witness() as seen:
        await work.submit()
        await seen.sees(1, "call:settled")
        assert seen.states() == [("error", None)]


@in_loop
async def test_awaiting_a_handle_times_out__and_the_flight_goes_on() -> None:
    """The call's own timeout bounds each wait for it."""
    gate = asyncio.Event()

    @coordinated(key="work", timeout=0.001)
    async def work() -> str:
        await gate.wait()
        return "value"

    call = await work.asubmit()
    with pytest.raises(WaitTimeout):
        await call
    gate.set()
    while not call.done():
        await asyncio.sleep(0)
    assert await call == "value"


@in_loop
async def test_a_submitted_call__is_nobodys_inner_call() -> None:
    """Submitted inside a flight, it may follow that flight: whoever awaits it there is told."""
    gate = asyncio.Event()

    @coordinated(key="work")
    async def work() -> Any:
        with Witness(["coordination:reuse"]) as seen:
            handle = await work.asubmit()
            await seen.sees(1)
        with pytest.raises(django_vega.ReentrantCallError):
            await handle
        gate.set()
        return handle

    handle = await work()
    assert await handle is handle
    assert current_call() is None


@in_loop
async def test_close_ends_every_wait__for_places_calls_and_turns(
    new_alias: Callable[..., str],
) -> None:
    """Callers, followers, parked calls and those in line for a place get `CallCancelled`."""
    alias = new_alias(WORKERS=1, CAPACITY=0)

    @coordinated(key="work", using=alias)
    async def work() -> None:
        await asyncio.Event().wait()

    @coordinated(key="queue", strategy=serialize(capacity=5), using=alias)
    async def queue() -> None:
        await asyncio.Event().wait()

    async def submitted() -> Any:
        return await (await queue.asubmit())

    with Witness() as seen:
        tasks = [asyncio.create_task(one()) for one in (work, work, queue, queue)]
        await seen.sees(2, "call:running")
        await seen.sees(1, "coordination:reuse")
        await seen.sees(1, "call:parked")
        tasks += [asyncio.create_task(submitted()) for _ in range(2)]
        await seen.sees(2, "call:parked")
        django_vega.close(alias)
        errors = await ends(*tasks)
        assert {(type(error), error.reason) for error in errors} == {(CallCancelled, "shutdown")}
        with pytest.raises(CallCancelled):
            await work()
