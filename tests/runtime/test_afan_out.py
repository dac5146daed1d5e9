"""`afan_out`: the same bounds and the same account, with tasks of the running loop."""

import asyncio
import gc
import weakref

import pytest

from django_vega.core.fan import Accounting, Limits, Outcome, Snapshot
from django_vega.fanout import Budget, afan_out, fan_out
from tests import threads
from tests.runtime.fans import Clock, Targets, afan, auntil, until
from tests.runtime.tasks import in_loop, run_loop


class AsyncBodies:
    """An async function whose calls wait until the test lets them end."""

    def __init__(self):
        self.gates = {}
        self.all_open = False
        self.entered = []
        self.left = []
        self.most = 0
        self.stubborn = False

    def __call__(self, target):
        return self.work(target)

    async def work(self, target):
        self.entered.append(target)
        self.most = max(self.most, len(self.entered) - len(self.left))
        try:
            while not (self.all_open or self.gate(target).is_set()):
                try:
                    await self.gate(target).wait()
                except asyncio.CancelledError:
                    if not self.stubborn:
                        raise
        finally:
            self.left.append(target)
        return f"{target}!"

    def gate(self, target):
        return self.gates.setdefault(target, asyncio.Event())

    def open(self, *targets):
        self.all_open |= not targets
        for target in targets or list(self.gates):
            self.gate(target).set()

    async def wait_for(self, *targets):
        await auntil(lambda: set(targets) <= set(self.entered))


async def upper(target):
    return target.upper()


def others():
    """Return the tasks of the loop but this one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def statuses(outcomes):
    return {outcome.target: outcome.status for outcome in outcomes}


async def collect(run):
    return [outcome async for outcome in run]


@in_loop
async def test_six_targets__two_workers_and_a_queue_of_three():
    """A B run, C D E are queued, F is held; A ends: worker 1 has C, worker 2 B, D E F queued."""
    bodies = AsyncBodies()
    async with afan_out(bodies.work, "ABCDEF", workers=2, capacity=3) as run:
        step = asyncio.ensure_future(run.__anext__())
        await auntil(lambda: run.snapshot().held)
        assert run.snapshot() == Snapshot(
            running=("A", "B"),
            queued=("C", "D", "E"),
            held=("F",),
            unread=(),
            limits=Limits(workers=2, capacity=3),
        )
        bodies.open("A")
        assert await step == Outcome("A", "done", "A!")
        assert run.snapshot() == Snapshot(
            running=("C", "B"),
            queued=("D", "E", "F"),
            held=(),
            unread=(),
            limits=Limits(workers=2, capacity=3),
        )
        bodies.open()
        assert len(await collect(run)) == 5
    assert run.accounting() == Accounting(done=6)
    assert repr(run) == f"<afan_out: {run.accounting()}>"


@in_loop
async def test_ten_thousand_targets__are_pulled_as_there_is_room():
    """Sync or async, never more than six are pulled and not finished."""
    for is_async in (False, True):
        finished, most = 0, 0

        async def work(target):
            nonlocal finished
            await asyncio.sleep(0)
            finished += 1

        def generate():
            nonlocal most
            for number in range(10_000):
                most = max(most, number + 1 - finished)  # noqa: B023
                yield number

        targets = Targets(generate())
        run = afan_out(work, targets.astream() if is_async else targets())
        assert targets.pulled == 0
        read = 0
        async for _ in run:
            read += 1
            assert targets.pulled <= read + 3 + 6
        assert (read, targets.closed, most) == (10_000, True, 6)


@in_loop
async def test_reject__never_calls_the_function():
    """The sixth target comes back at once, not admitted."""
    bodies = AsyncBodies()
    async with afan_out(bodies.work, "ABCDEF", when_full="reject") as run:
        assert await anext(run) == Outcome("F", "not_admitted")
        bodies.open()
        assert statuses(await collect(run)) == dict.fromkeys("ABCDE", "done")
    assert "F" not in bodies.entered


@in_loop
async def test_a_slow_reader__slows_the_workers():
    """Three unread outcomes, two in the workers' hands: then nothing starts."""
    bodies, targets = AsyncBodies(), Targets(range(100))
    async with afan_out(bodies.work, targets()) as run:
        step = asyncio.ensure_future(run.__anext__())
        await auntil(lambda: run.snapshot().held)
        bodies.open()
        await step
        await auntil(lambda: len(bodies.left) == 6)
        assert [len(run.snapshot().unread), len(run.snapshot().running)] == [3, 2]
        assert targets.pulled == 6


@in_loop
async def test_failures__are_their_targets_own():
    """Exceptions, SystemExit, and a CancelledError that nobody asked for are failures."""
    errors = {
        "A": ValueError("A"),
        "B": SystemExit(3),
        "C": asyncio.CancelledError("of its own"),
    }

    async def work(target):
        if target in errors:
            raise errors[target]
        return target

    outcomes = {outcome.target: outcome for outcome in await collect(afan_out(work, "ABCD"))}
    for target, error in errors.items():
        assert (outcomes[target].status, outcomes[target].error) == ("failed", error)
    assert outcomes["D"].status == "done"


def test_a_keyboard_interrupt__is_failed_and_stops_the_loop():
    """It is somebody's Ctrl-C: the account has it, and it goes on."""

    async def work(target):
        raise KeyboardInterrupt

    runs = []

    async def main():
        async with afan_out(work, "A") as run:
            runs.append(run)
            await collect(run)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert runs[0].accounting() == Accounting(failed=1)


@in_loop
async def test_targets_that_raise__end_the_iteration_after_the_account():
    """Sync or async: what was pulled comes first, then the error, once."""
    for kind in (Targets.__call__, Targets.astream):
        run = afan_out(upper, kind(Targets("ABCD", OSError("broke off"))))
        assert statuses([await anext(run) for _ in "ABCD"]) == dict.fromkeys("ABCD", "done")
        with pytest.raises(OSError, match="broke off"):
            await anext(run)
        assert await collect(run) == []
        assert run.accounting() == Accounting(done=4)


@in_loop
async def test_a_timeout_of_the_targets_own__is_their_error():
    """A TimeoutError of the source is not taken for the deadline."""

    async def generate():
        yield "A"
        raise TimeoutError("of the source")

    run = afan_out(upper, generate(), deadline=60)
    assert (await anext(run)).status == "done"
    with pytest.raises(TimeoutError, match="of the source"):
        await anext(run)


# Time


@in_loop
async def test_the_deadline__accounts_for_everything_and_cancels_what_runs():
    """Running is unknown, queued not started, held not admitted; no task is left."""
    clock, bodies, targets = Clock(), AsyncBodies(), Targets("ABCDEFGH")
    run = afan(bodies.work, targets(), clock, deadline=10)
    reading = asyncio.ensure_future(collect(run))
    await auntil(lambda: run.snapshot().held)
    bodies.open("A")
    await auntil(lambda: run.snapshot().held == ("G",))
    await bodies.wait_for("B", "C")
    clock.advance(10, run)
    assert statuses(await reading) == {
        "A": "done",
        "B": "unknown",
        "C": "unknown",
        "D": "not_started",
        "E": "not_started",
        "F": "not_started",
        "G": "not_admitted",
    }
    assert bodies.left == ["A", "B", "C"]
    assert (targets.closed, others()) == (True, set())
    assert run.snapshot().overdue == ()


@in_loop
async def test_the_deadline__passes_though_nobody_reads():
    """Bodies are cancelled on time, and the outcomes wait."""
    bodies = AsyncBodies()
    async with afan_out(bodies.work, "AB", deadline=0.05) as run:
        bodies.open("A")
        assert (await anext(run)).target == "A"
        await auntil(lambda: run.accounting().unknown or run.accounting().pulled == 1)
        await collect(run)


@in_loop
async def test_the_deadline__ends_a_wait_for_targets():
    """A source that gives nothing is cancelled; what was pulled is accounted for."""
    ended = []

    async def generate():
        try:
            yield "A"
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    outcomes = await collect(afan_out(upper, generate(), deadline=0.05))
    assert statuses(outcomes) == {"A": "done"}
    assert ended == [True]


@in_loop
async def test_a_timeout__cancels_one_target_and_another_takes_its_place():
    """The body is cancelled at its await; its target is unknown, with the seconds."""
    bodies = AsyncBodies()
    bodies.open("B", "C")
    async with afan_out(bodies.work, "ABC", workers=1, timeout=0.01) as run:
        outcomes = await collect(run)
    assert statuses(outcomes) == {"A": "unknown", "B": "done", "C": "done"}
    assert isinstance(outcomes[0].error, TimeoutError)
    assert bodies.left == ["A", "B", "C"]
    assert others() == set()


@in_loop
async def test_a_body_that_ignores_its_timeout__is_overdue_until_it_ends():
    """Never more than twice the workers run, and what it returns then is nothing."""
    clock, bodies = Clock(), AsyncBodies()
    bodies.stubborn = True
    async with afan(bodies.work, "ABCDE", clock, workers=1, timeout=5) as run:
        reading = asyncio.ensure_future(collect(run))
        for so_far in ("A", "AB"):
            await bodies.wait_for(*so_far)
            clock.advance(5, run)
        clock.advance(5, run)
        await auntil(lambda: len(run.snapshot().overdue) == 2)
        assert (bodies.entered, bodies.most) == (["A", "B"], 2)
        bodies.open()
        assert statuses(await reading) == {
            "A": "unknown",
            "B": "unknown",
            **dict.fromkeys("CDE", "done"),
        }
    assert others() == set()


@in_loop
async def test_a_timer_that_fires_early__is_set_again():
    """Clocks differ by a little; the timeout is not forgotten for that."""
    bodies = AsyncBodies()
    async with afan(bodies.work, "A", Clock(), timeout=5) as run:
        reading = asyncio.ensure_future(collect(run))
        await bodies.wait_for("A")
        run._crew._time_is_up()
        assert run._crew._timer is not None
        bodies.open()
        assert statuses(await reading) == {"A": "done"}


# Leaving early


@in_loop
async def test_leaving__cancels_what_runs_and_drops_what_is_queued():
    """No task is left; the account is complete."""
    bodies, targets = AsyncBodies(), Targets(range(10_000))
    async with afan_out(bodies.work, targets()) as run:
        step = asyncio.ensure_future(run.__anext__())
        await auntil(lambda: run.snapshot().held)
        bodies.open(0)
        assert (await step).target == 0
        await bodies.wait_for(1, 2)
    assert (bodies.entered, bodies.left) == ([0, 1, 2], [0, 1, 2])
    assert run.accounting() == Accounting(done=1, unknown=2, not_started=3)
    assert (targets.closed, others()) == (True, set())
    assert await collect(run) == []


@in_loop
async def test_a_step_that_is_cancelled__ends_the_fan_out():
    """Without a block, too: when the CancelledError goes on, no task is left."""
    bodies = AsyncBodies()
    run = afan_out(bodies.work, range(100))
    reading = asyncio.ensure_future(collect(run))
    await bodies.wait_for(0, 1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert others() == set()
    assert run.accounting().unknown == 2


@in_loop
async def test_a_step_whose_coroutine_is_closed__ends_the_fan_out():
    """It must not wait then; the loop closes the rest."""
    bodies = AsyncBodies()
    run = afan_out(bodies.work, range(100))
    step = run.__anext__()
    step.send(None)
    step.close()
    await auntil(lambda: run._crew.fan.closed and not others())
    assert bodies.entered == bodies.left


@in_loop
async def test_a_body_that_makes_something_of_its_cancellation__is_done():
    """There is evidence, so it is not unknown."""

    async def work(target):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "tidied up"

    run = afan_out(work, "A")
    reading = asyncio.ensure_future(collect(run))
    await auntil(lambda: run.snapshot().running)
    await asyncio.sleep(0)
    await run.aclose()
    assert await reading == []
    assert run.accounting() == Accounting(done=1)


@in_loop
async def test_leaving_a_loop_without_a_block__ends_its_tasks():
    """``break`` drops the last reference; the tasks end in the next turns of the loop."""
    bodies = AsyncBodies()
    bodies.open(0)
    async for _ in afan_out(bodies.work, range(100)):
        break
    await auntil(lambda: not others())
    assert bodies.entered == bodies.left


def test_a_loop_that_goes_away__gives_its_tokens_back():
    """Also without a close, and with a task that nobody can reach any more."""
    budget = Budget(3)

    async def work(target):
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)

    async def begin():
        run = afan_out(work, range(9), budget=budget)
        step = asyncio.ensure_future(run.__anext__())
        await auntil(lambda: run.snapshot().held)
        await asyncio.sleep(0)
        return run, step

    begun = loop.run_until_complete(begin())
    assert budget.used == 2
    loop.close()
    del begun
    gc.collect()
    until(lambda: not budget.used)


@in_loop
async def test_closing_from_a_body__does_not_wait_for_itself():
    """It stops the others; the body ends as it likes."""

    async def work(target):
        await run.aclose()
        return target

    run = afan_out(work, range(100))
    assert await collect(run) == []
    await auntil(lambda: not others())
    assert run.accounting().done + run.accounting().not_started >= 1


@in_loop
async def test_closing_while_the_source_is_asked__counts_what_it_still_gives():
    """A running generator cannot be closed; its step does it."""
    asked, gate = asyncio.Event(), asyncio.Event()
    closed = []

    async def generate():
        try:
            asked.set()
            await gate.wait()
            yield "A"
        finally:
            closed.append(True)

    run = afan_out(upper, generate())
    reading = asyncio.ensure_future(collect(run))
    await asked.wait()
    await run.aclose()
    gate.set()
    assert await reading == []
    assert (closed, run.accounting()) == ([True], Accounting(not_admitted=1))


@in_loop
async def test_two_tasks__cannot_iterate_at_the_same_time():
    """The second one is told, and the first one goes on."""
    bodies = AsyncBodies()
    async with afan_out(bodies.work, "AB") as run:
        step = asyncio.ensure_future(run.__anext__())
        await bodies.wait_for("A")
        with pytest.raises(RuntimeError, match="another task waits"):
            await anext(run)
        bodies.open()
        assert (await step).status == "done"


def test_another_loop__cannot_go_on_with_it():
    """Its tasks live on the first one."""
    run = afan_out(upper, "AB")

    async def step():
        return await anext(run)

    run_loop(step)
    with pytest.raises(RuntimeError, match="another event loop"):
        run_loop(step)


@in_loop
async def test_tasks_cancelled_from_outside__are_unknown_or_not_started():
    """Whoever cancels all tasks of the loop leaves no evidence of what they did."""
    bodies = AsyncBodies()
    async with afan_out(bodies.work, "AB", workers=2) as run:
        reading = asyncio.ensure_future(collect(run))
        await bodies.wait_for("A", "B")
        for task in others() - {reading}:
            task.cancel()
        assert statuses(await reading) == {"A": "unknown", "B": "unknown"}


# Chains


@in_loop
async def test_a_chain_of_three__stops_upstream_when_the_last_one_is_left():
    """Leaving the last closes each upstream one: nothing is pulled any more, no task is left."""

    async def value(outcome):
        return outcome.value

    targets = Targets("A" * 10_000)
    first = afan_out(upper, targets.astream())
    second = afan_out(value, first)
    async with afan_out(value, second) as third:
        assert (await anext(third)).value == "A"
    assert (targets.closed, others()) == (True, set())
    for run in (first, second, third):
        count = run.accounting()
        assert (count.running, count.queued, count.held) == (0, 0, 0)
        assert await collect(run) == []
    assert first.accounting().pulled == targets.pulled <= 3 * 9 + 1


@in_loop
async def test_a_chain__hands_all_outcomes_on_and_the_error_of_the_first_targets():
    """Each stage accounts for what it was given, and then raises it."""

    async def value(outcome):
        return outcome.value

    run = afan_out(value, afan_out(upper, Targets("abc" * 50, OSError("broke off"))()))
    assert sorted([(await anext(run)).value for _ in range(150)]) == sorted("ABC" * 50)
    with pytest.raises(OSError, match="broke off"):
        await anext(run)


@in_loop
async def test_a_chain__ends_at_the_deadline_of_its_last_stage():
    """Nobody waits longer for the stage before; its bodies are cancelled."""
    bodies = AsyncBodies()
    first = afan_out(bodies.work, "AB")
    assert await collect(afan_out(bodies.work, first, deadline=0.05)) == []
    assert first.accounting() == Accounting(unknown=2)
    assert others() == set()


# Threads and what is refused


@in_loop
async def test_a_snapshot__can_be_taken_from_any_thread():
    """Reading starts nothing."""
    bodies = AsyncBodies()
    async with afan_out(bodies.work, "ABC", workers=1) as run:
        step = asyncio.ensure_future(run.__anext__())
        await bodies.wait_for("A")
        await auntil(lambda: len(run.snapshot().queued) == 2)
        seen = await asyncio.to_thread(lambda: (run.snapshot(), run.accounting()))
        assert seen == (run.snapshot(), run.accounting())
        bodies.open()
        await step


@in_loop
async def test_tokens_that_a_thread_gives_back__start_the_next_target():
    """The loop is told from there."""
    budget = Budget(1)
    budget.acquire()
    run = afan_out(upper, "A", budget=budget)
    reading = asyncio.ensure_future(collect(run))
    await auntil(lambda: run.snapshot().queued)
    threads.start(budget.release).join()
    assert statuses(await reading) == {"A": "done"}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None, "AB"), {}, TypeError, r"None cannot be called"),
        ((str.upper, "AB"), {}, TypeError, r"is not async.*Use fan_out"),
        ((upper, 3), {}, TypeError, r"3 cannot be iterated"),
        ((upper, fan_out(str, "A")), {}, TypeError, r"Chain afan_out with afan_out"),
        ((upper, "AB"), {"workers": 0}, ValueError, r"workers=0 is below 1"),
        ((upper, "AB"), {"timeout": -1}, ValueError, r"timeout=-1 is no span of time"),
    ],
)
def test_a_useless_argument__is_refused_at_the_call(arguments, options, error, message):
    """No loop is needed to be told."""
    with pytest.raises(error, match=message):
        afan_out(*arguments, **options)


@in_loop
async def test_a_finished_fan_out__is_freed():
    """Nothing keeps it alive: neither the loop nor its tasks."""
    run = afan_out(upper, "ABC", timeout=60, deadline=60)
    await collect(run)
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None
