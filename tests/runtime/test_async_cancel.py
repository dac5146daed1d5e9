"""Async callers that go away: each takes nobody with it, and the flight is not theirs to end."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

import django_vega
from django_vega import CallCancelled, coordinated, subscribe
from tests.runtime.tasks import Witness, ends, in_loop, own_scope

CANCELLED = asyncio.CancelledError


async def turns(count: int) -> None:
    """Let the loop run so many rounds; for tests that name the very step."""
    for _ in range(count):
        await asyncio.sleep(0)


@in_loop
async def test_the_first_caller_is_cancelled__and_the_others_get_the_value_of_its_run() -> None:
    """Its own caller alone gets the CancelledError, at once; 49 others the value of one run."""
    gate = asyncio.Event()
    runs = []

    @coordinated(key="work")
    async def work() -> str:
        runs.append(1)
        await gate.wait()
        return "value"

    with Witness() as seen:
        first, *others = [asyncio.create_task(work()) for _ in range(50)]
        await seen.sees(49, "coordination:reuse")
        first.cancel()
        assert [type(end) for end in await ends(first)] == [CANCELLED]
        gate.set()
        assert await asyncio.gather(*others) == ["value"] * 49
        assert seen.states()[0] == ("success", None)
    assert runs == [1]


@in_loop
async def test_everybody_is_cancelled__and_the_flight_ends_all_the_same() -> None:
    """The flight belongs to the coordinator: it runs to its end with nobody waiting for it."""
    gate, finished = asyncio.Event(), asyncio.Event()

    @coordinated(key="work")
    async def work() -> str:
        await gate.wait()
        finished.set()
        return "value"

    with Witness() as seen:
        tasks = [asyncio.create_task(work()) for _ in range(50)]
        await seen.sees(49, "coordination:reuse")
        for task in tasks:
            task.cancel()
        assert {type(end) for end in await ends(*tasks)} == {CANCELLED}
        assert [one.joined for one in work.in_flight()] == [0]
        gate.set()
        await finished.wait()
        await seen.sees(50, "call:settled")
        assert seen.states()[0] == ("success", None)


@pytest.mark.parametrize("error", [ValueError, KeyError])
@in_loop
async def test_a_flight_that_fails_with_nobody_waiting__bothers_nobody(
    error: type[Exception],
) -> None:
    """Its exception is settled, not "never retrieved"; the key works at once."""
    gate = asyncio.Event()

    @coordinated(key="work", ignore=["fails"], scope=own_scope())
    async def work(fails: bool) -> str:
        if fails:
            await gate.wait()
            raise error("nobody asked")
        return "value"

    with Witness() as seen:
        task = asyncio.create_task(work(True))
        await seen.sees(1, "call:running")
        task.cancel()
        await ends(task)
        gate.set()
        await seen.sees(1, "call:settled")
        assert seen.states() == [("error", None)]
    assert await work(False) == "value"


@in_loop
async def test_a_cancelled_follower_leaves_alone() -> None:
    """The flight counts one follower less, and everybody else is served."""
    gate = asyncio.Event()

    @coordinated(key="work")
    async def work() -> str:
        await gate.wait()
        return "value"

    with Witness() as seen:
        tasks = [asyncio.create_task(work()) for _ in range(5)]
        await seen.sees(4, "coordination:reuse")
        tasks[2].cancel()
        assert [type(end) for end in await ends(tasks[2])] == [CANCELLED]
        assert [one.joined for one in work.in_flight()] == [3]
        gate.set()
        del tasks[2]
        assert await asyncio.gather(*tasks) == ["value"] * 4


@in_loop
async def test_a_caller_cancelled_before_its_first_step__was_never_there() -> None:
    """A task that never began calls nothing and leaves nothing."""

    @coordinated(key="work")
    async def work() -> None:
        raise AssertionError

    with Witness() as seen:
        task = asyncio.create_task(work())
        task.cancel()
        await ends(task)
        assert seen.events() == []


@in_loop
async def test_a_caller_cancelled_before_its_flights_first_step__ends_no_flight() -> None:
    """Before Python 3.12 the flight's task begins after its caller waits; it does begin."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work")
    async def work() -> str:
        runs.append(1)
        await gate.wait()
        return "value"

    with Witness() as seen:
        first = asyncio.create_task(work())
        unsubscribe = subscribe(lambda _: first.cancel(), ["call:created"])
        assert [type(end) for end in await ends(first)] == [CANCELLED]
        unsubscribe()
        second = asyncio.create_task(work())
        await seen.sees(1, "coordination:reuse")
        gate.set()
        assert await second == "value"
    assert runs == [1]


@in_loop
async def test_a_flight_restarted_before_its_first_step__begins_all_the_same() -> None:
    """It gets as far as its first await, on every Python; its caller gets `CallCancelled`."""
    runs = []

    @coordinated(key="work", strategy="restart", ignore=["me"])
    async def work(me: int) -> int:
        runs.append(me)
        await asyncio.sleep(0)
        return me

    first, second = await ends(*[asyncio.create_task(work(me)) for me in range(2)])
    assert (type(first), second) == (CallCancelled, 1)
    assert runs == [0, 1]
    while work.in_flight(0):
        await asyncio.sleep(0)


@in_loop
async def test_a_parked_caller_cancelled__gives_up_its_place() -> None:
    """Its function never runs; those behind it keep their order."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work", strategy="serialize", ignore=["me"])
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    with Witness() as seen:
        tasks = [asyncio.create_task(work(me)) for me in range(5)]
        await seen.sees(4, "call:parked")
        for gone in (1, 3):
            tasks[gone].cancel()
            assert [type(end) for end in await ends(tasks[gone])] == [CANCELLED]
        gate.set()
        assert await asyncio.gather(tasks[0], tasks[2], tasks[4]) == [0, 2, 4]
        assert [state for state in seen.states() if state[0] == "cancelled"] == [
            ("cancelled", "caller-gone")
        ] * 2
    assert runs == [0, 2, 4]


def when_settled(action: Callable[[], object]) -> Callable[[], None]:
    """Run ``action`` at the first settled event: its step has released the next call already."""
    done = []

    def receive(event: Any) -> None:
        if not done:
            done.append(event)
            action()

    return subscribe(receive, ["call:settled"])


@in_loop
async def test_a_parked_caller_cancelled_in_the_step_that_lets_it_run__frees_the_key() -> None:
    """Released by the head's settle, cancelled before it resumes: it never runs, the next does."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work", strategy="serialize", ignore=["me"])
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    with Witness() as seen:
        tasks = [asyncio.create_task(work(me)) for me in range(3)]
        await seen.sees(2, "call:parked")
        unsubscribe = when_settled(tasks[1].cancel)
        gate.set()
        first, gone, last = await ends(*tasks)
        unsubscribe()
    assert (first, type(gone), last) == (0, CANCELLED, 2)
    assert runs == [0, 2]
    assert django_vega.in_flight() == ()


@in_loop
async def test_a_call_cancelled_in_the_step_that_lets_it_run__frees_the_key() -> None:
    """Released by the head's settle, aborted before its caller resumes: it keeps no slot."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work", strategy="serialize", ignore=["me"])
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    with Witness() as seen:
        tasks = [asyncio.create_task(work(me)) for me in range(2)]
        await seen.sees(1, "call:parked")
        unsubscribe = when_settled(lambda: work.cancel(1))
        gate.set()
        first, aborted = await ends(*tasks)
        unsubscribe()
        assert (first, type(aborted)) == (0, CallCancelled)
        assert await work(2) == 2
    assert runs == [0, 2]


@in_loop
async def test_a_timeout_around_the_call__leaves_the_flight_alone() -> None:
    """`asyncio.timeout` and `wait_for` cancel their caller; the next caller joins the same run."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work")
    async def work() -> str:
        runs.append(1)
        await gate.wait()
        return "value"

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work(), 0.001)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await work()
    task = asyncio.create_task(work())
    await turns(2)
    gate.set()
    assert await task == "value"
    assert runs == [1]


@in_loop
async def test_a_task_group_that_fails__leaves_the_flight_alone() -> None:
    """A sibling's error cancels the caller inside the group; a caller outside gets the value."""
    gate = asyncio.Event()

    @coordinated(key="work")
    async def work() -> str:
        await gate.wait()
        return "value"

    async def sibling(seen: Witness) -> None:
        await seen.sees(1, "coordination:reuse")
        raise ValueError("sibling")

    with Witness() as seen:
        with pytest.raises(ExceptionGroup):  # noqa: PT012 - the group raises at its end
            async with asyncio.TaskGroup() as group:
                group.create_task(work())
                await seen.sees(1, "call:running")
                outside = asyncio.create_task(work())
                group.create_task(sibling(seen))
        gate.set()
        assert await outside == "value"


@in_loop
async def test_a_caller_that_left_is_not_told__but_the_loop_is_when_its_function_exits() -> None:
    """With nobody there to see it, KeyboardInterrupt reaches the loop, not the followers."""
    # The loop itself would end, so it is one of its own.
    gate_opened = []

    def exiting() -> None:
        async def main() -> None:
            gate = asyncio.Event()

            @coordinated(key="work", scope=own_scope())
            async def work() -> str:
                await gate.wait()
                raise KeyboardInterrupt

            task = asyncio.create_task(work())
            await turns(3)
            task.cancel()
            await ends(task)
            gate.set()
            gate_opened.append(1)
            await turns(3)

        asyncio.run(main())

    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(exiting)
    assert gate_opened == [1]


def test_eager_flights__where_python_can() -> None:
    """On 3.12 a flight that never suspends has ended when its caller resumes; before, later."""
    order = []

    @coordinated(key="work")
    async def work() -> None:
        order.append("body")

    async def main() -> None:
        task = asyncio.create_task(work())
        asyncio.get_running_loop().call_soon(order.append, "next")
        await task

    asyncio.run(main())
    assert order == (["body", "next"] if sys.version_info >= (3, 12) else ["next", "body"])
