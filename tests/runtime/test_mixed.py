"""Threads and event loops on one key: who may wait for whom, and who goes alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_vega import SynchronousCallError, WaitTimeout, coordinated, in_flight
from tests import threads
from tests.gates import TIMEOUT, Recorder
from tests.runtime.tasks import Gate, Witness, in_loop, own_scope, run_loop


class Pair:
    """A sync and an async function of one scope and key, each of which waits for its gate.

    Attributes:
        runs: What ran, in the order in which it began.
    """

    def __init__(self, **options: Any) -> None:
        self.runs: list[str] = []
        self.gates = {"sync": Gate(), "async": Gate()}
        scope = own_scope()

        @coordinated(key="work", scope=scope, **options)
        def in_thread() -> str:
            self.runs.append("sync")
            self.gates["sync"].wait()
            return "sync value"

        @coordinated(key="work", scope=scope, **options)
        async def on_loop() -> str:
            self.runs.append("async")
            await self.gates["async"].passed()
            return "async value"

        self.in_thread = in_thread
        self.on_loop = on_loop

    def start_on_loop(self) -> threads.Running[str]:
        return threads.start(lambda: run_loop(self.on_loop))

    def start_in_thread(self) -> threads.Running[str]:
        return threads.start(self.in_thread)

    def open(self, *names: str) -> None:
        for name in names or self.gates:
            self.gates[name].open()


def test_two_loops_and_a_plain_thread__on_one_key() -> None:
    """Both loops share one flight; the thread leads a second one, which other threads join."""
    pair = Pair()
    with Recorder() as seen:
        leading = pair.start_on_loop()
        seen.wait(1, "call:running")
        following = pair.start_on_loop()
        seen.wait(1, "coordination:reuse")
        alone = pair.start_in_thread()
        seen.wait(1, "coordination:solo")
        joining = [pair.start_in_thread() for _ in range(2)]
        seen.wait(3, "coordination:reuse")
        late = pair.start_on_loop()
        seen.wait(4, "coordination:reuse")
        pair.open("sync")
        assert [one.result() for one in (alone, *joining)] == ["sync value"] * 3
        pair.open("async")
        assert [one.result() for one in (leading, following, late)] == ["async value"] * 3
        assert [event.key for event in seen.events("coordination:solo")] == ["work"]
    assert pair.runs == ["async", "sync"]


def test_tasks_follow_a_flight_of_a_thread() -> None:
    """Async callers follow anyone: two loops get the value of the thread's one run."""
    pair = Pair()
    with Recorder() as seen:
        leading = pair.start_in_thread()
        seen.wait(1, "call:running")
        following = [pair.start_on_loop() for _ in range(2)]
        seen.wait(2, "coordination:reuse")
        pair.open("sync")
        assert [one.result() for one in (leading, *following)] == ["sync value"] * 3
    assert pair.runs == ["sync"]


def test_tasks_take_over_from_a_thread__that_abandons() -> None:
    """The first task runs its own function, the other shares that; the thread keeps its exit."""
    scope, runs = own_scope(), []
    leave, end = Gate(), Gate()

    @coordinated(key="work", scope=scope)
    def in_thread() -> str:
        leave.wait()
        raise SystemExit

    @coordinated(key="work", scope=scope)
    async def on_loop() -> str:
        runs.append(1)
        await end.passed()
        return "async value"

    async def two() -> list[str]:
        return await asyncio.gather(on_loop(), on_loop())

    with Recorder() as seen:
        leading = threads.start(in_thread)
        seen.wait(1, "call:running")
        following = threads.start(lambda: run_loop(two))
        seen.wait(2, "coordination:reuse")
        leave.open()
        seen.wait(3, "coordination:reuse")
        end.open()
        assert following.result() == ["async value"] * 2
        assert isinstance(leading.exception(), SystemExit)
    assert runs == [1]


def test_a_thread_waits_for_a_flight_of_a_loop__where_the_settings_allow_it(
    new_alias: Callable[..., str],
) -> None:
    """`SYNC_WAITS_FOR_ASYNC` makes threads followers like any other."""
    pair = Pair(using=new_alias(SYNC_WAITS_FOR_ASYNC=True))
    with Recorder() as seen:
        leading = pair.start_on_loop()
        seen.wait(1, "call:running")
        following = pair.start_in_thread()
        seen.wait(1, "coordination:reuse")
        pair.open()
        assert (leading.result(), following.result()) == ("async value",) * 2
        assert seen.events("coordination:solo") == []
    assert pair.runs == ["async"]


def test_a_waiting_thread_takes_over__when_the_loop_shuts_down(
    new_alias: Callable[..., str],
) -> None:
    """With `SYNC_WAITS_FOR_ASYNC`, a lost loop's flight goes to the thread that follows it."""
    pair = Pair(using=new_alias(SYNC_WAITS_FOR_ASYNC=True))
    leave = Gate()

    async def short_lived() -> None:
        task = asyncio.create_task(pair.on_loop())
        await leave.passed()
        del task

    with Recorder() as seen:
        loop = threads.start(lambda: asyncio.run(short_lived()))
        seen.wait(1, "call:running")
        following = pair.start_in_thread()
        seen.wait(1, "coordination:reuse")
        leave.open()
        loop.join()
        pair.open("sync")
        assert following.result() == "sync value"
    assert pair.runs == ["async", "sync"]


def test_a_thread_never_parks_behind_a_loop() -> None:
    """Under `serialize` it could neither wait nor overlap: `SynchronousCallError` says so."""
    pair = Pair(strategy="serialize")
    with Recorder() as seen:
        leading = pair.start_on_loop()
        seen.wait(1, "call:running")
        error = pair.start_in_thread().exception()
        assert isinstance(error, SynchronousCallError)
        assert "SYNC_WAITS_FOR_ASYNC" in str(error)
        pair.open()
        assert leading.result() == "async value"
        assert ("error", None) in seen.states()
    assert pair.runs == ["async"]


def test_a_thread_never_parks_behind_a_parked_task() -> None:
    """The flight is a thread's, but a task stands in line: it would run before this thread does."""
    pair = Pair(strategy="serialize")
    with Recorder() as seen:
        leading = pair.start_in_thread()
        seen.wait(1, "call:running")
        parked = pair.start_on_loop()
        seen.wait(1, "call:parked")
        assert isinstance(pair.start_in_thread().exception(), SynchronousCallError)
        pair.open()
        assert (leading.result(), parked.result()) == ("sync value", "async value")
    assert pair.runs == ["sync", "async"]


def test_a_task_parks_behind_a_thread__and_threads_behind_threads() -> None:
    """A queue goes over threads and loops in arrival order, where nobody needs the other's."""
    pair = Pair(strategy="serialize")
    with Recorder() as seen:
        first = pair.start_in_thread()
        seen.wait(1, "call:running")
        second = pair.start_in_thread()
        seen.wait(1, "call:parked")
        third = pair.start_on_loop()
        seen.wait(2, "call:parked")
        pair.open()
        assert [one.result() for one in (first, second, third)] == [
            "sync value",
            "sync value",
            "async value",
        ]
    assert pair.runs == ["sync", "sync", "async"]


def test_a_submitted_sync_call_parks_behind_a_loop__since_nobody_is_blocked() -> None:
    """It takes no thread until it may run; its caller may even wait for it, it is a sync call."""
    pair = Pair(strategy="serialize")
    with Recorder() as seen:
        leading = pair.start_on_loop()
        seen.wait(1, "call:running")
        call = pair.in_thread.submit()
        assert call.state == "parked"
        pair.open()
        assert (leading.result(), call.result(TIMEOUT)) == ("async value", "sync value")
    assert pair.runs == ["async", "sync"]


def test_result_of_an_async_call__is_refused_to_a_thread_until_it_is_settled() -> None:
    """A thread that waited might be the one that the flight needs; a settled call is for anyone."""
    pair = Pair()
    calls: list[Any] = []

    async def submit() -> str:
        calls.append(await pair.on_loop.asubmit())
        return await calls[0]  # type: ignore[no-any-return]

    with Recorder() as seen:
        running = threads.start(lambda: run_loop(submit))
        seen.wait(1, "call:running")
        with pytest.raises(SynchronousCallError, match="is an async flight of this process"):
            calls[0].result()
        pair.open()
        assert running.result() == "async value"
    assert threads.start(calls[0].result).result() == "async value"


def test_restart_crosses_threads_and_loops() -> None:
    """A thread cancels a loop's flight and the other way round: cancelling waits for nobody."""
    pair = Pair(strategy="restart")
    with Recorder() as seen:
        first = pair.start_on_loop()
        seen.wait(1, "call:running")
        second = pair.start_in_thread()
        seen.wait(2, "call:running")
        assert getattr(first.exception(), "reason", None) == "abort"
        pair.open("async")
        third = pair.start_on_loop()
        assert third.result() == "async value"
        pair.open("sync")
        assert getattr(second.exception(), "reason", None) == "abort"
    assert pair.runs == ["async", "sync", "async"]


@in_loop
async def test_a_task_that_follows_a_thread__times_out_alone() -> None:
    """The thread's flight goes on; another task still gets its value."""
    pair = Pair()
    with Witness() as seen:
        leading = asyncio.create_task(asyncio.to_thread(pair.in_thread))
        await seen.sees(1, "call:running")
        with pytest.raises(WaitTimeout):
            await pair.on_loop.with_options(timeout=0.001)()
        patient = asyncio.create_task(pair.on_loop())
        await seen.sees(2, "coordination:reuse")
        pair.open()
        assert await asyncio.gather(leading, patient) == ["sync value"] * 2


@in_loop
async def test_sync_functions_through_sync_to_async__follow_each_other_off_the_loop() -> None:
    """Three worker threads share one run while their loop stays free."""
    pair = Pair()
    call = sync_to_async(pair.in_thread, thread_sensitive=False)
    with Witness() as seen:
        tasks = [asyncio.create_task(call()) for _ in range(3)]
        await seen.sees(2, "coordination:reuse")
        assert [one.is_async for one in in_flight()] == [False]
        pair.open()
        assert await asyncio.gather(*tasks) == ["sync value"] * 3
    assert pair.runs == ["sync"]
