"""Async code that would wait for itself: refused at once, and only where it is true."""

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from django_vega import (
    DeadlockError,
    ReentrantCallError,
    coordinated,
    current_call,
)
from tests import threads
from tests.gates import TIMEOUT
from tests.runtime.tasks import Witness, ends, in_loop, own_scope, run_loop


async def directly(call: Any) -> Any:
    return await call()


async def in_a_task(call: Any) -> Any:
    return await asyncio.create_task(call())


async def in_gather(call: Any) -> Any:
    [value] = await asyncio.gather(call())
    return value


async def in_a_task_group(call: Any) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call())
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
    return task.result()


async def with_a_timeout(call: Any) -> Any:
    return await asyncio.wait_for(call(), TIMEOUT)


async def in_a_copied_context(call: Any) -> Any:
    return await asyncio.create_task(call(), context=contextvars.copy_context())


async def in_a_childs_child(call: Any) -> Any:
    return await asyncio.create_task(in_a_task(call))


async def in_a_threads_loop(call: Any) -> Any:
    return await asyncio.to_thread(asyncio.run, directly(call))


WAYS = [
    directly,
    in_a_task,
    in_gather,
    in_a_task_group,
    with_a_timeout,
    in_a_copied_context,
    in_a_childs_child,
    in_a_threads_loop,
]


@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_a_call_inside_its_own_flight__raises_at_once(way: Any) -> None:
    """However the context travels; the error names the chain and the flight ends normally."""

    @coordinated(key="outer", scope=own_scope())
    async def outer() -> Any:
        with pytest.raises(ReentrantCallError) as caught:
            await way(outer)
        return caught.value.chain

    assert await outer() == ("outer", "outer")


@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_a_call_inside_the_flight_of_its_inner_call__raises_at_once(way: Any) -> None:
    """A calls B, and B calls A: the chain of keys says so."""
    scope = own_scope()

    @coordinated(key="a", scope=scope)
    async def a() -> Any:
        return await way(b)

    @coordinated(key="b", scope=scope)
    async def b() -> Any:
        with pytest.raises(ReentrantCallError) as caught:
            await way(a)
        return caught.value.chain

    assert await a() == ("a", "b", "a")


@in_loop
async def test_a_sync_call_in_a_thread_of_the_flight__raises_at_once() -> None:
    """`to_thread` copies the context, so the thread counts as inside."""
    scope = own_scope()

    @coordinated(key="work", scope=scope)
    def in_thread() -> None:
        raise AssertionError

    @coordinated(key="work", scope=scope)
    async def on_loop() -> Any:
        with pytest.raises(ReentrantCallError):
            await asyncio.to_thread(in_thread)
        return "value"

    assert await on_loop() == "value"


@pytest.mark.parametrize("strategy", ["restart", "serialize"])
@in_loop
async def test_a_call_that_would_cancel_or_queue_behind_its_own_flight__raises(
    strategy: Any,
) -> None:
    """It would end its own caller, or park behind it for ever."""

    @coordinated(key="work", strategy=strategy, scope=own_scope())
    async def work() -> str:
        with pytest.raises(ReentrantCallError):
            await work()
        return "value"

    assert await work() == "value"


@pytest.mark.parametrize("strategy", ["none", "exhaust"])
@in_loop
async def test_a_call_that_waits_for_nobody__is_no_reentry(strategy: Any) -> None:
    """`none` runs beside its own flight, `exhaust` is dropped; neither raises a reentry error."""
    depth = []

    @coordinated(key="work", strategy=strategy, scope=own_scope())
    async def work() -> int:
        depth.append(1)
        if len(depth) == 1:
            await asyncio.gather(work(), return_exceptions=True)
        return len(depth)

    assert await work() == (2 if strategy == "none" else 1)


@in_loop
async def test_awaiting_a_call_of_the_own_chain__raises_at_once() -> None:
    """A flight that awaits its own `Call` would never end."""

    @coordinated(key="work")
    async def work() -> str:
        call = current_call()
        assert call is not None
        with pytest.raises(ReentrantCallError):
            await call
        return "value"

    assert await work() == "value"


@in_loop
async def test_a_task_that_outlives_its_flight__is_outside_of_it() -> None:
    """It carries the flight's context, but nobody waits for it any more: it may call the key."""
    ended = asyncio.Event()
    left_behind: list[asyncio.Task[Any]] = []
    runs = []

    @coordinated(key="work")
    async def work() -> str:
        runs.append(1)
        if len(runs) == 1:
            left_behind.append(asyncio.create_task(later()))
        return "value"

    async def later() -> Any:
        await ended.wait()
        assert current_call() is None
        return await work()

    assert await work() == "value"
    ended.set()
    assert await left_behind[0] == "value"
    assert runs == [1, 1]


@in_loop
async def test_a_task_that_outlives_its_flight__may_follow_the_next_one() -> None:
    """The key's new flight is not the one whose context the task copied."""
    gate, ended = asyncio.Event(), asyncio.Event()
    left_behind: list[asyncio.Task[Any]] = []
    runs = []

    @coordinated(key="work")
    async def work() -> int:
        runs.append(me := len(runs))
        if me == 0:
            left_behind.append(asyncio.create_task(later()))
        else:
            await gate.wait()
        return me

    async def later() -> Any:
        await ended.wait()
        return await work()

    with Witness() as seen:
        assert await work() == 0
        second = asyncio.create_task(work())
        await seen.sees(2, "call:running")
        ended.set()
        await seen.sees(1, "coordination:reuse")
        gate.set()
        assert await asyncio.gather(second, *left_behind) == [1, 1]
    assert runs == [0, 1]


@in_loop
async def test_inner_calls_of_other_keys__are_no_reentry() -> None:
    """Nested flights, and followers of one inner flight from two outer ones, just work."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="inner")
    async def inner() -> str:
        runs.append(1)
        await gate.wait()
        return "value"

    @coordinated(key="outer:{name}")
    async def outer(name: str) -> str:
        return await inner()

    with Witness() as seen:
        tasks = [asyncio.create_task(outer(name)) for name in ("a", "b")]
        await seen.sees(1, "coordination:reuse")
        gate.set()
        assert await asyncio.gather(*tasks) == ["value"] * 2
    assert runs == [1]


@in_loop
async def test_two_tasks_that_wait_for_each_other__are_refused_in_the_one_that_closes_it() -> None:
    """A holds x and waits for y, B holds y and asks for x: B is told, A gets its value."""
    both = asyncio.Barrier(2)
    asked = asyncio.Event()

    @coordinated(key="k:{mine}", ignore=["other"], scope=own_scope())
    async def hold(mine: str, other: str) -> Any:
        await both.wait()
        if mine == "y":
            await asked.wait()
        try:
            return await hold(other, mine)
        except DeadlockError as error:
            return error

    with Witness() as seen:
        x = asyncio.create_task(hold("x", "y"))
        y = asyncio.create_task(hold("y", "x"))
        await seen.sees(1, "coordination:reuse")
        asked.set()
        got_x, got_y = await ends(x, y)
    assert isinstance(got_y, DeadlockError)
    assert got_x is got_y
    assert got_y.cycle == ("k:y", "k:x", "k:y")


def test_a_cycle_over_two_loops__is_refused_too() -> None:
    """The wait-for graph is the process's: the loop that closes the cycle is told at once."""
    both = threading.Barrier(2)

    @coordinated(key="k:{mine}", ignore=["other"], scope=own_scope())
    async def hold(mine: str, other: str) -> str:
        await asyncio.to_thread(both.wait, TIMEOUT)
        try:
            return await hold(other, mine)
        except DeadlockError:
            return f"{mine} was refused"

    one = threads.start(lambda: run_loop(lambda: hold("x", "y")))
    two = threads.start(lambda: run_loop(lambda: hold("y", "x")))
    # Whoever came second was refused, and the other got that one's value.
    assert one.result() == two.result()
    assert one.result() in {"x was refused", "y was refused"}


@in_loop
async def test_a_cycle_that_a_cancelled_wait_opens_again__is_none() -> None:
    """A waiter that left is forgotten by the graph: the same wait the other way is fine then."""
    y_runs, x_waits_no_more = asyncio.Event(), asyncio.Event()

    @coordinated(key="k:{name}")
    async def hold(name: str) -> str:
        if name == "y":
            y_runs.set()
            await x_waits_no_more.wait()
            return await hold("x") + "y"
        await y_runs.wait()
        waiting = asyncio.create_task(hold("y"))
        await seen.sees(1, "coordination:reuse")
        waiting.cancel()
        await ends(waiting)
        x_waits_no_more.set()
        await seen.sees(2, "coordination:reuse")
        return "x"

    with Witness() as seen:
        assert await asyncio.gather(hold("x"), hold("y")) == ["x", "xy"]
