"""Fan-outs that share a budget: tokens before the function, back on every path, no deadlock."""

import asyncio
import threading

import pytest

from django_vega.core.fan import Accounting
from django_vega.fanout import Budget, afan_out, fan_out
from django_vega.runtime.budget import TooHeavy
from tests import threads
from tests.runtime.fans import Bodies, Clock, Targets, afan, auntil, fan, until, worker_threads
from tests.runtime.tasks import Gate, in_loop


class Weighed:
    """A function that checks, at each call, that what runs at once fits into the limit."""

    def __init__(self, limit, weight=int):
        self.limit = limit
        self.weight = weight
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __call__(self, target):
        with self._lock:
            self._now += self.weight(target)
            self.most = max(self.most, self._now)
        with self._lock:
            self._now -= self.weight(target)
        return target


def test_weights__bound_what_runs_at_once():
    """Whatever the number of workers, the weights that run fit into the limit; all are done."""
    budget, work = Budget(5), Weighed(5)
    outcomes = list(
        fan_out(work, [1, 5, 2, 3, 4] * 40, workers=8, capacity=8, budget=budget, weight=int)
    )
    assert {outcome.status for outcome in outcomes} == {"done"}
    assert len(outcomes) == 200
    assert work.most <= 5
    assert budget.used == 0


def test_a_heavy_target__waits_at_the_head_of_the_queue():
    """It takes no worker, nobody passes it, and no more is pulled than without a budget."""
    budget, bodies, targets = Budget(3), Bodies(), Targets([2, 3, 1, 1, 1, 1, 1])
    with fan_out(bodies, targets(), budget=budget, weight=int) as run:
        reading = threads.start(lambda: list(run))
        until(lambda: run.snapshot().held)
        shown = run.snapshot()
        assert (shown.running, shown.queued, shown.held) == ((2,), (3, 1, 1), (1,))
        assert (targets.pulled, budget.used) == (5, 2)
        bodies.open()
        assert len(reading.result()) == 7
    assert bodies.entered[:2] == [2, 3]
    assert budget.used == 0


def test_without_weight__each_target_takes_one_token():
    """A budget of one makes eight workers take turns."""
    bodies = Bodies()
    bodies.open()
    assert len(list(fan_out(bodies, "ABCDEF", workers=8, budget=Budget(1)))) == 6
    assert bodies.most == 1


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"budget": Budget(10), "weight": len}, 10),
        ({"max_weight": 4, "weight": len}, 4),
        ({"budget": Budget(10), "weight": len, "max_weight": 4}, 4),
    ],
)
def test_a_target_above_the_limit__fails_at_once_and_alone(options, limit):
    """Its error names it, its weight and the limit; the function is not called for it."""
    called = []
    outcomes = list(fan_out(called.append, ["ab", "x" * 12, "c"], **options))
    (heavy,) = (one for one in outcomes if one.status == "failed")
    assert isinstance(heavy.error, TooHeavy)
    assert (heavy.target, heavy.error.weight, heavy.error.limit) == ("x" * 12, 12, limit)
    assert f"target 'xxxxxxxxxxxx' weighs 12, and {limit} is allowed" in str(heavy.error)
    assert sorted(called) == ["ab", "c"]


@pytest.mark.parametrize(("weight", "error"), [(-1, ValueError), ("2", TypeError)])
def test_a_weight_of_no_use__fails_its_target(weight, error):
    """So does a weight function that raises; the others go on."""
    outcomes = list(
        fan_out(str, ["A", "B"], budget=Budget(3), weight=lambda t: weight if t == "A" else 1)
    )
    assert [one.status for one in sorted(outcomes, key=lambda one: one.target)] == [
        "failed",
        "done",
    ]
    assert isinstance(next(one for one in outcomes if one.target == "A").error, error)
    (outcome,) = fan_out(str, [object()], budget=Budget(3), weight=len)
    assert isinstance(outcome.error, TypeError)


def test_tokens__come_back_from_targets_that_fail():
    """A budget of one is enough for many failures."""

    def fail(target):
        raise SystemExit

    budget = Budget(1)
    assert {one.status for one in fan_out(fail, range(20), budget=budget)} == {"failed"}
    assert budget.used == 0


def test_tokens__come_back_at_the_timeout():
    """A body that hangs keeps its thread, and not its tokens."""
    clock, bodies, budget = Clock(), Bodies(), Budget(1)
    with fan(bodies, "AB", clock, timeout=5, budget=budget) as run:
        reading = threads.start(lambda: next(run))
        bodies.wait_for("A")
        until(lambda: run.snapshot().queued)
        clock.advance(5, run)
        assert reading.result().status == "unknown"
        bodies.wait_for("B")
        bodies.open()
        assert next(run).status == "done"
        until(lambda: not run.snapshot().overdue)
    assert budget.used == 0


def test_tokens__come_back_at_the_deadline():
    """Also those of a target that was still in line for its own."""
    clock, bodies, budget = Clock(), Bodies(), Budget(2)
    budget.acquire(1)
    run = fan(bodies, "AB", clock, deadline=5, budget=budget)
    reading = threads.start(lambda: list(run))
    bodies.wait_for("A")
    until(lambda: run.snapshot().queued == ("B",))
    clock.advance(5, run)
    assert [one.status for one in reading.result()] == ["unknown", "not_started"]
    assert budget.used == 1
    budget.release(1)
    assert budget.acquire_nowait(2)
    bodies.open()
    until(lambda: not worker_threads())
    assert budget.used == 2


def test_tokens__come_back_when_the_fan_out_is_left():
    """Of the running ones when they end; one in line leaves it."""
    bodies, budget = Bodies(), Budget(2)
    budget.acquire(1)
    run = fan_out(bodies, "ABC", budget=budget)
    reading = threads.start(lambda: list(run))
    bodies.wait_for("A")
    until(lambda: run.snapshot().queued)
    closing = threads.start(run.close)
    until(lambda: run.accounting().not_started)
    bodies.open()
    closing.join()
    reading.join()
    assert budget.used == 1
    assert run.accounting() == Accounting(done=1, not_started=2)
    budget.release()
    assert budget.acquire_nowait(2)


def test_a_target_in_line__is_in_nobodys_way_when_the_fan_out_is_left():
    """It waited for two tokens; the one that is free belongs to who asks next."""
    budget = Budget(2)
    budget.acquire(1)
    run = fan_out(str, [2], budget=budget, weight=int)
    reading = threads.start(lambda: list(run))
    until(lambda: run.snapshot().queued)
    assert not budget.acquire_nowait(1)
    run.close()
    assert budget.acquire_nowait(1)
    assert reading.result() == []


def test_a_rejected_target__leaves_the_line():
    """Without a queue it finds no tokens, is not admitted, and takes none later."""
    budget = Budget(1)
    budget.acquire()
    outcomes = list(fan_out(str, "AB", capacity=0, when_full="reject", budget=budget))
    assert [one.status for one in outcomes] == ["not_admitted", "not_admitted"]
    budget.release()
    assert budget.used == 0


def test_two_stages_of_a_chain__share_a_budget():
    """The first stage's bodies end on their own, so the second stage gets its tokens."""
    budget = Budget(2)
    encoded = fan_out(str.encode, (str(n) for n in range(200)), budget=budget, weight=2)
    written = fan_out(lambda outcome: outcome.value, encoded, budget=budget, weight=1)
    assert len({one.value for one in written}) == 200
    assert budget.used == 0


def test_a_fan_out_inside_of_a_body__takes_from_what_the_body_holds():
    """All tokens are taken by the outer bodies, and nobody waits for them."""
    budget, work = Budget(4), Weighed(4, weight=lambda _: 1)

    def outer(target):
        return len(list(fan_out(work, range(5), workers=4, budget=budget)))

    outcomes = list(fan_out(outer, range(6), workers=2, budget=budget, weight=2))
    assert [one.value for one in outcomes] == [5] * 6
    assert work.most <= 4
    assert budget.used == 0


def test_a_function_inside_of_a_body__takes_from_what_the_body_holds():
    """``acquire`` and ``tokens`` find the same tokens; more than those is too heavy."""
    budget = Budget(2)

    def work(target):
        with budget.tokens(2):
            assert budget.used == 2
        budget.acquire(1)
        budget.release(1)
        with pytest.raises(TooHeavy):
            budget.acquire(3)

    assert [one.status for one in fan_out(work, "AB", budget=budget, weight=2)] == ["done", "done"]
    assert budget.used == 0


def test_fan_outs_and_functions__share_a_budget_in_order_of_arrival():
    """A function that came before a target is served before it."""
    budget, order = Budget(1), []
    budget.acquire()
    taking = threads.start(lambda: (budget.acquire(), order.append("function"), budget.release()))
    until(lambda: budget._account._waiting)
    with fan_out(order.append, "A", budget=budget) as run:
        reading = threads.start(lambda: list(run))
        until(lambda: len(budget._account._waiting) == 2)
        budget.release()
        taking.join()
        reading.join()
    assert order == ["function", "A"]


@in_loop
async def test_tasks_and_threads__share_a_budget():
    """A fan-out of threads and one of tasks never hold more than the limit together."""
    budget, work = Budget(3), Weighed(3)

    async def awork(target):
        return work(target)

    numbers = [1, 2, 3] * 30
    running = threads.start(lambda: list(fan_out(work, numbers, budget=budget, weight=int)))
    async with afan_out(awork, numbers, budget=budget, weight=int) as run:
        outcomes = [outcome async for outcome in run]
    assert len(outcomes) == len(running.result()) == 90
    assert work.most <= 3
    assert budget.used == 0


@in_loop
async def test_tokens_of_tasks__come_back_when_the_fan_out_is_left():
    """Cancelled, in line, or never begun: all are back when the block is."""
    budget, gate = Budget(2), Gate()

    async def work(target):
        await gate.passed()

    async with afan(work, range(100), budget=budget, workers=4, deadline=60) as run:
        step = asyncio.ensure_future(run.__anext__())
        await auntil(lambda: run.snapshot().held)
        assert budget.used == 2
        step.cancel()
    assert budget.used == 0
    assert budget.acquire_nowait(2)
