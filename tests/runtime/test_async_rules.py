"""The rules of async flights: who runs, who shares, who learns of which error."""

import asyncio
import traceback
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.utils import timezone, translation

from django_vega import (
    CallCancelled,
    QueueFull,
    SynchronousCallError,
    WaitTimeout,
    checkpoint,
    coordinated,
    current_call,
    serialize,
    signals,
)
from tests.runtime.tasks import Witness, ends, in_loop, own_scope
from tests.writing_app.models import Quake


@in_loop
async def test_one_run_serves_everybody__who_was_in_flight_with_it() -> None:
    """Fifty callers get the one object of one run; the call after the settle runs anew."""
    gate = asyncio.Event()
    runs = []

    @coordinated(key="work:{name}")
    async def work(name: str) -> object:
        runs.append(name)
        await gate.wait()
        return object()

    with Witness() as seen:
        tasks = [asyncio.create_task(work("a")) for _ in range(50)]
        await seen.sees(49, "coordination:reuse")
        gate.set()
        values = await asyncio.gather(*tasks)
    assert len(runs) == 1
    assert len(set(map(id, values))) == 1
    assert await work("a") is not values[0]
    assert len(runs) == 2


@in_loop
async def test_different_keys_run_in_parallel() -> None:
    """Two flights of different keys are in the air at the same time."""
    both = asyncio.Barrier(2)

    @coordinated(key="work:{name}")
    async def work(name: str) -> str:
        await both.wait()
        return name

    assert await asyncio.gather(work("a"), work("b")) == ["a", "b"]


@in_loop
async def test_ten_thousand_followers_of_one_flight__on_one_loop() -> None:
    """Every one of 10,000 followers gets the value of the one run."""
    gate = asyncio.Event()
    runs = []

    @coordinated(key="work")
    async def work() -> str:
        runs.append(1)
        await gate.wait()
        return "value"

    with Witness(["coordination:reuse"]) as seen:
        tasks = [asyncio.create_task(work()) for _ in range(10_001)]
        await seen.sees(10_000)
        assert work.in_flight()[0].joined == 10_000
        gate.set()
        assert set(await asyncio.gather(*tasks)) == {"value"}
    assert runs == [1]


@in_loop
async def test_none_is_a_value__like_any_other() -> None:
    """Followers of a run that returns None get None, and cause no second run."""
    gate = asyncio.Event()
    runs = []

    @coordinated(key="work")
    async def work() -> None:
        runs.append(1)
        await gate.wait()

    with Witness() as seen:
        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await seen.sees(2, "coordination:reuse")
        gate.set()
        assert await asyncio.gather(*tasks) == [None] * 3
    assert runs == [1]


# Failure


class Refused(Exception):
    """An exception with a constructor that nobody can call again."""

    def __init__(self, status: int, *, retry_after: float) -> None:
        super().__init__(f"status {status}")
        self.retry_after = retry_after


@in_loop
async def test_each_follower_raises_an_instance_of_its_own__when_the_leader_fails() -> None:
    """The leader's caller gets the exception itself, 100 followers replicas caused by it."""
    gate = asyncio.Event()

    @coordinated(key="work")
    async def work() -> None:
        await gate.wait()
        raise Refused(503, retry_after=2.5)

    with Witness() as seen:
        tasks = [asyncio.create_task(work()) for _ in range(101)]
        await seen.sees(100, "coordination:reuse")
        gate.set()
        leader, *followers = await ends(*tasks)
    assert type(leader) is Refused
    assert leader.__cause__ is None
    assert len(set(map(id, followers))) == 100
    for error in followers:
        assert type(error) is Refused
        assert error.__cause__ is leader
        assert (error.args, error.retry_after) == (("status 503",), 2.5)


@pytest.mark.parametrize("callers", [2, 101])
@in_loop
async def test_no_traceback_grows__with_the_number_of_followers(callers: int) -> None:
    """Every traceback has the few frames of its own caller, for one follower as for a hundred."""
    gate = asyncio.Event()

    @coordinated(key="work", scope=own_scope())
    async def work() -> None:
        await gate.wait()
        raise ValueError("no")

    with Witness() as seen:
        tasks = [asyncio.create_task(work()) for _ in range(callers)]
        await seen.sees(callers - 1, "coordination:reuse")
        gate.set()
        errors = await ends(*tasks)
    assert {len(list(traceback.walk_tb(error.__traceback__))) < 12 for error in errors} == {True}


@in_loop
async def test_failure_is_not_remembered() -> None:
    """The call after a failed one runs the function again."""
    answers = [ValueError("first"), "second"]

    @coordinated(key="work")
    async def work() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="first"):
        await work()
    assert await work() == "second"


class Departure(BaseException):
    """An exit of an application's own."""


@pytest.mark.parametrize("suspended", [False, True], ids=["at-once", "suspended"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, Departure])
@in_loop
async def test_a_leader_that_leaves_abandons__and_followers_take_over(
    kind: type[BaseException], suspended: bool
) -> None:
    """Its own caller sees its exception, the next follower runs, the rest share that run."""
    gate = asyncio.Event()
    runs: list[str] = []

    @coordinated(key="work", ignore=["me"], scope=own_scope())
    async def work(me: int) -> str:
        runs.append(f"{me} begins")
        if len(runs) > 1:
            return "value"
        if suspended:
            await gate.wait()
        raise kind

    async def caller(me: int) -> Any:
        # A task that lets KeyboardInterrupt or SystemExit out ends the whole loop.
        try:
            return await work(me)
        except BaseException as error:
            return error

    with Witness() as seen:
        tasks = [asyncio.create_task(caller(me)) for me in range(4)]
        if suspended:
            await seen.sees(3, "coordination:reuse")
        gate.set()
        first, *others = await asyncio.gather(*tasks)
        assert type(first) is kind
        assert others == ["value"] * 3
        assert seen.states()[0] == ("cancelled", "abandoned")
    assert await work(5) == "value"


@pytest.mark.parametrize("suspended", [False, True], ids=["at-once", "suspended"])
@in_loop
async def test_a_cancelled_error_of_the_functions_own__cancels_the_call_for_all(
    suspended: bool,
) -> None:
    """Nobody asked for it, so nobody takes over; the loop's tasks are not cancelled by it."""
    gate = asyncio.Event()

    @coordinated(key="work", scope=own_scope())
    async def work() -> None:
        if suspended:
            await gate.wait()
        raise asyncio.CancelledError("mine")

    with Witness() as seen:
        tasks = [asyncio.create_task(work()) for _ in range(3 if suspended else 1)]
        await seen.sees(len(tasks) - 1, "coordination:reuse")
        gate.set()
        leader, *followers = await ends(*tasks)
        assert seen.states()[0] == ("cancelled", "abort")
    assert type(leader) is CallCancelled
    assert leader.reason == "abort"
    assert type(leader.__cause__) is asyncio.CancelledError
    assert [(type(error), error.reason) for error in followers] == [(CallCancelled, "abort")] * (
        len(tasks) - 1
    )


@in_loop
async def test_an_inner_timeout__is_an_error_like_any_other() -> None:
    """`asyncio.timeout` in the function cancels its task for a moment; that abandons nothing."""

    @coordinated(key="work")
    async def work() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await work()


# Cancelling flights


@in_loop
async def test_restart_cancels_at_the_await__and_the_body_cleans_up() -> None:
    """The older caller gets `CallCancelled`, caused by what its body let out, after its cleanup."""
    began, cleaned = asyncio.Event(), asyncio.Event()

    @coordinated(key="work", strategy="restart", ignore=["me"])
    async def work(me: int) -> int:
        if me == 2:
            return me
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # a cleanup may await
            cleaned.set()
        raise AssertionError

    with Witness() as seen:
        first = asyncio.create_task(work(1))
        await began.wait()
        assert await work(2) == 2
        [error] = await ends(first)
        assert seen.states() == [("cancelled", "abort"), ("success", None)]
        await cleaned.wait()
    assert (type(error), error.reason) == (CallCancelled, "abort")


@in_loop
async def test_what_a_cancelled_body_raised__is_the_cause_for_its_own_caller() -> None:
    """The cause is the body's own exception; followers learn of the cancellation alone."""
    began = asyncio.Event()

    @coordinated(key="work")
    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("on the way out") from None

    with Witness() as seen:
        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await seen.sees(1, "coordination:reuse")
        assert work.cancel()
        leader, follower = await ends(*tasks)
    assert (type(leader), leader.reason) == (CallCancelled, "abort")
    assert repr(leader.__cause__) == "ValueError('on the way out')"
    assert (type(follower), follower.reason) == (CallCancelled, "abort")
    assert follower.__cause__ is None


async def ignoring_cancellation(gate: asyncio.Event) -> None:
    try:
        await gate.wait()
    except asyncio.CancelledError:
        await gate.wait()


@in_loop
async def test_a_body_that_ignores_cancellation__is_listed_as_stopping() -> None:
    """It is nobody's peer and its value is discarded; the next call of the key has its own."""
    stubborn = asyncio.Event()
    runs = []

    @coordinated(key="work")
    async def work() -> int:
        runs.append(me := len(runs))
        if me == 0:
            await ignoring_cancellation(stubborn)
        return me

    first = asyncio.create_task(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert work.cancel()
    assert not work.cancel()
    [error] = await ends(first)
    assert type(error) is CallCancelled
    assert [(one.state, one.reason) for one in work.in_flight()] == [("stopping", "abort")]
    assert await work() == 1
    stubborn.set()
    while work.in_flight():
        await asyncio.sleep(0)
    assert await work() == 2


@in_loop
async def test_a_stopping_body_keeps_its_slot__under_serialize() -> None:
    """The next call waits until the cancelled body has returned, so bodies never overlap."""
    stubborn, order = asyncio.Event(), []

    @coordinated(key="work", strategy="serialize", ignore=["me"])
    async def work(me: int) -> int:
        order.append(f"{me} begins")
        if me == 0:
            await ignoring_cancellation(stubborn)
        order.append(f"{me} ends")
        return me

    with Witness() as seen:
        first = asyncio.create_task(work(0))
        await seen.sees(1, "call:running")
        second = asyncio.create_task(work(1))
        await seen.sees(1, "call:parked")
        assert work.cancel(0)
        assert [type(end) for end in await ends(first, second)] == [CallCancelled] * 2
        third = asyncio.create_task(work(2))
        await seen.sees(2, "call:parked")
        stubborn.set()
        assert await third == 2
    assert order == ["0 begins", "0 ends", "2 begins", "2 ends"]


@in_loop
async def test_checkpoint_raises_in_a_cancelled_body__and_does_nothing_elsewhere() -> None:
    """Async code may stop at a checkpoint as sync code does."""
    checkpoint()
    stopped = asyncio.Event()

    @coordinated(key="work")
    async def work() -> None:
        checkpoint()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                checkpoint()
            except CallCancelled:
                stopped.set()
            raise

    with Witness() as seen:
        task = asyncio.create_task(work())
        await seen.sees(1, "call:running")
        await asyncio.sleep(0)
        work.cancel()
        await ends(task)
    await stopped.wait()


# Queues


@in_loop
async def test_serialize_runs_in_arrival_order__one_at_a_time() -> None:
    """Two hundred calls of one key run in the order in which they came, never two at once."""
    inside, order = [], []

    @coordinated(key="work", strategy=serialize(capacity=200), ignore=["me"])
    async def work(me: int) -> int:
        assert not inside
        inside.append(me)
        await asyncio.sleep(0)
        order.append(inside.pop())
        return me

    assert await asyncio.gather(*map(work, range(200))) == list(range(200))
    assert order == list(range(200))


@in_loop
async def test_a_full_queue_refuses__at_once() -> None:
    """The call beyond the capacity raises `QueueFull`; it never runs."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work", strategy=serialize(capacity=1), ignore=["me"])
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    with Witness() as seen:
        tasks = [asyncio.create_task(work(me)) for me in range(2)]
        await seen.sees(1, "call:parked")
        with pytest.raises(QueueFull, match="1 calls already wait for work"):
            await work(2)
        gate.set()
        assert await asyncio.gather(*tasks) == [0, 1]
    assert runs == [0, 1]


@in_loop
async def test_an_error_of_the_head__is_its_callers_alone() -> None:
    """The call that was parked behind a failing one runs."""

    @coordinated(key="work", strategy="serialize", ignore=["me"])
    async def work(me: int) -> int:
        await asyncio.sleep(0)
        if me == 0:
            raise ValueError("head")
        return me

    first, second = await ends(*[asyncio.create_task(work(me)) for me in range(2)])
    assert repr(first) == "ValueError('head')"
    assert second == 1


# Timeouts


@in_loop
async def test_a_follower_times_out_alone__and_the_flight_goes_on() -> None:
    """The follower gets `WaitTimeout` with key and holder, everybody else the value."""
    gate = asyncio.Event()

    @coordinated(key="work")
    async def work() -> str:
        await gate.wait()
        return "value"

    with Witness() as seen:
        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await seen.sees(1, "coordination:reuse")
        with pytest.raises(WaitTimeout, match=r"for work .*the flight continues") as caught:
            await work.with_options(timeout=0.001)()
        assert isinstance(caught.value, TimeoutError)
        assert work.in_flight()[0].joined == 1
        gate.set()
        assert await asyncio.gather(*tasks) == ["value"] * 2


@in_loop
async def test_a_parked_caller_times_out__and_its_function_never_runs() -> None:
    """It gives up its place; those behind it keep their order."""
    gate, runs = asyncio.Event(), []

    @coordinated(key="work", strategy="serialize", ignore=["me"])
    async def work(me: int) -> int:
        runs.append(me)
        await gate.wait()
        return me

    with Witness() as seen:
        head = asyncio.create_task(work(0))
        await seen.sees(1, "call:running")
        impatient = asyncio.create_task(work.with_options(timeout=0.001)(1))
        others = [asyncio.create_task(work(me)) for me in (2, 3)]
        [error] = await ends(impatient)
        assert type(error) is WaitTimeout
        gate.set()
        assert await asyncio.gather(head, *others) == [0, 2, 3]
        assert seen.states()[1] == ("cancelled", "wait-timeout")
    assert runs == [0, 2, 3]


# Sync code on a loop


@in_loop
async def test_a_sync_function_on_a_running_loop__raises_at_once() -> None:
    """The error names the function and is the one Django raises for sync code in async code."""

    @coordinated(key="work")
    def work() -> None:
        raise AssertionError

    for attempt in (work, work.submit):
        with pytest.raises(SynchronousCallError, match=r"<locals>\.work is a sync function") as got:
            attempt()
        assert isinstance(got.value, SynchronousOnlyOperation)


@in_loop
async def test_result_on_a_running_loop__raises() -> None:
    """Blocking the loop that has to run the call is refused; awaiting it works."""

    @coordinated(key="work")
    async def work() -> str:
        return "value"

    call = await work.submit()
    with pytest.raises(SynchronousCallError, match="would block the running event loop"):
        call.result()
    assert await call == "value"
    assert call.result() == "value"


# What the body sees


@in_loop
async def test_current_call__is_the_flight_inside_and_none_outside() -> None:
    """Body, its tasks and its threads see the call; the caller's own context is left alone."""

    @coordinated(key="work")
    async def work() -> list[Any]:
        async def task() -> Any:
            return current_call()

        return [
            current_call(),
            await asyncio.create_task(task()),
            await asyncio.to_thread(current_call),
            await sync_to_async(current_call)(),
        ]

    assert current_call() is None
    calls = await work()
    assert {call.key for call in calls} == {"work"}
    assert len(set(calls)) == 1
    assert current_call() is None


@in_loop
async def test_language_and_time_zone__are_the_leading_callers() -> None:
    """The body sees what its caller activated, in coroutines as in sync code, however late."""

    @coordinated(key="work:{name}")
    async def work(name: str) -> list[str]:
        await asyncio.sleep(0)
        return [
            str(translation.get_language()),
            timezone.get_current_timezone_name(),
            await sync_to_async(timezone.get_current_timezone_name)(),
        ]

    async def caller(name: str, language: str, zone: str) -> list[str]:
        with translation.override(language), timezone.override(zone):
            return await work(name)

    got = await asyncio.gather(
        caller("a", "de", "Europe/Berlin"), caller("b", "pt-br", "America/Belem")
    )
    assert got == [
        ["de", "Europe/Berlin", "Europe/Berlin"],
        ["pt-br", "America/Belem", "America/Belem"],
    ]


# Signals


@pytest.mark.django_db(transaction=True)
@in_loop
async def test_signals_of_async_flights__reach_async_and_sync_receivers() -> None:
    """Async receivers are awaited; sync ones may use the ORM, outside the event loop."""
    told: list[Any] = []

    @coordinated(key="work")
    async def work() -> str:
        await asyncio.sleep(0)
        return "value"

    async def on_running(sender: Any, event: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        told.append((sender, event.type))

    def on_settled(sender: Any, event: Any, **kwargs: Any) -> None:
        Quake.objects.create(code=f"{event.type} {event.state} {event.reason}")

    signals.call_running.connect(on_running, sender=work)
    signals.call_settled.connect(on_settled, sender=work)
    with Witness(["coordination:reuse"]) as seen:
        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await seen.sees(1)
        assert await asyncio.gather(*tasks) == ["value"] * 2
    assert told == [(work, "call:running")]
    codes = {quake.code async for quake in Quake.objects.all()}
    await sync_to_async(connections.close_all)()
    assert codes == {"call:settled success None", "call:settled cancelled dedupe"}


@in_loop
async def test_a_receiver_that_raises__changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, the value arrives, and the receivers after it are told."""
    told = []

    @coordinated(key="work")
    async def work() -> str:
        return "value"

    async def broken(sender: Any, **kwargs: Any) -> None:
        raise ValueError("a broken receiver")

    async def healthy(sender: Any, event: Any, **kwargs: Any) -> None:
        told.append(event.type)

    signals.call_settled.connect(broken, sender=work)
    signals.call_settled.connect(healthy, sender=work)
    assert await work() == "value"
    assert told == ["call:settled"]
    assert "broken" in caplog.text
