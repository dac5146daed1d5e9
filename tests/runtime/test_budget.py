"""Weighted tokens: first come, first served, on threads and event loops; back on every path."""

import asyncio
import contextvars
import pickle
import threading

import pytest

from django_vega import SynchronousCallError, WaitTimeout
from django_vega.fanout import Budget
from django_vega.runtime.budget import Account, BudgetTimeout, TooHeavy
from tests import threads
from tests.runtime.fans import auntil, until
from tests.runtime.tasks import ends, in_loop


class Line:
    """Threads that wait for tokens one behind the other."""

    def __init__(self, budget):
        self.budget = budget
        self.order = []
        self.running = []

    def join(self, name, weight):
        """Let one more thread wait; return when it stands in line."""

        def wait():
            self.budget.acquire(weight)
            self.order.append(name)

        self.running.append(threads.start(wait))
        stands_in_line(self.budget, len(self.running))

    def end(self):
        threads.results(self.running)


def stands_in_line(budget, count):
    """Return when so many wait."""
    until(lambda: len(budget._account._waiting) + len(budget._account._told) >= count)


def test_tokens__are_taken_and_released_by_weight():
    """What is taken is missing until it comes back."""
    budget = Budget(5)
    budget.acquire(3)
    assert (budget.used, budget.limit) == (3, 5)
    assert not budget.acquire_nowait(3)
    assert budget.acquire_nowait(2)
    budget.release(3)
    budget.release(2)
    assert budget.used == 0
    assert repr(budget) == "<Budget: 0 of 5 taken>"


def test_first_come__first_served():
    """Those in line get their tokens in the order of arrival."""
    budget = Budget(1)
    budget.acquire()
    line = Line(budget)
    for name in "abc":
        line.join(name, 1)
    for _ in range(4):
        taken = len(line.order)
        budget.release()
        until(lambda: not budget.used or len(line.order) > taken)  # noqa: B023
    line.end()
    assert line.order == ["a", "b", "c"]


def test_a_heavy_one_at_the_head__is_not_passed_by_light_ones():
    """One token is free, and the heavy one that waits for two is still the first."""
    budget = Budget(2)
    budget.acquire(1)
    line = Line(budget)
    line.join("heavy", 2)
    assert not budget.acquire_nowait(1)
    line.join("light", 1)
    assert line.order == []
    budget.release(1)
    stands_in_line(budget, 1)
    until(lambda: line.order)
    assert line.order == ["heavy"]
    budget.release(2)
    line.end()
    assert budget.used == 1


def test_several_light_ones__get_what_a_heavy_one_gives_back():
    """One release serves as many as it reaches for."""
    budget = Budget(3)
    budget.acquire(3)
    line = Line(budget)
    for name in "abc":
        line.join(name, 1)
    budget.release(3)
    line.end()
    assert (sorted(line.order), budget.used) == (["a", "b", "c"], 3)


@pytest.mark.parametrize("weight", [4, 100])
def test_a_weight_above_the_limit__fails_at_once(weight):
    """Nobody waits for what never comes; blocking, not blocking, async and as a block."""
    budget = Budget(3)
    budget.acquire(3)
    for take in (budget.acquire, budget.acquire_nowait, lambda w: budget.tokens(w).__enter__()):
        with pytest.raises(TooHeavy) as caught:
            take(weight)
        assert (caught.value.weight, caught.value.limit) == (weight, 3)
        assert f"weighs {weight}, and 3 is allowed" in str(caught.value)
    with pytest.raises(TooHeavy):
        asyncio.run(budget.aacquire(weight))


def test_a_timeout__leaves_the_line_and_holds_nothing():
    """It is a WaitTimeout; whoever stands behind is next."""
    budget = Budget(2)
    budget.acquire(1)
    with pytest.raises(WaitTimeout) as caught:
        budget.acquire(2, timeout=0)
    assert isinstance(caught.value, BudgetTimeout)
    assert "for 2 of 2 tokens of the budget; none is held" in str(caught.value)
    assert budget.acquire_nowait(1)
    assert budget.used == 2


def test_who_leaves_the_line__lets_the_next_one_go_on():
    """A heavy one that gives up was in the way of a light one."""

    class Waiter:
        told = 0

        def wake(self):
            self.told += 1
            return True

    account, heavy, light = Account(2), Waiter(), Waiter()
    account.take_nowait(1)
    assert not account.take_or_wait(heavy, 2)
    assert not account.take_or_wait(light, 1)
    account.stop_waiting(heavy)
    assert (heavy.told, light.told) == (0, 1)
    assert account.confirm(light)


def test_tokens_that_are_handed_over__come_back_from_one_who_leaves():
    """Between being told and taking them they are not lost, and nobody has them twice."""

    class Waiter:
        def __init__(self, is_there):
            self.wake = lambda: is_there

    account, left, gone, last = Account(1), Waiter(True), Waiter(False), Waiter(True)
    account.take_nowait(1)
    for waiter in (left, gone, last):
        account.take_or_wait(waiter, 1)
    account.give_back(1)
    assert account.used == 1
    account.stop_waiting(left)
    assert not account.confirm(left)
    assert not account.confirm(gone)
    assert account.confirm(last)
    account.give_back(1)
    assert account.used == 0


def test_more_than_was_taken__cannot_come_back():
    """A release too much raises, and adds nothing."""
    budget = Budget(3)
    budget.acquire(2)
    with pytest.raises(ValueError, match=r"3 tokens of the budget come back, and 2 of 3 are taken"):
        budget.release(3)
    assert budget.used == 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Budget(0), ValueError, r"limit=0 is below 1"),
        (lambda: Budget("3"), TypeError, r"limit='3' is no int"),
        (lambda: Budget(True), TypeError, r"limit=True is no int"),
        (lambda: Budget(3).acquire(-1), ValueError, r"weight=-1 is below 0"),
        (lambda: Budget(3).acquire_nowait(1.5), TypeError, r"weight=1.5 is no int"),
        (lambda: Budget(3).acquire(timeout=-1), ValueError, r"timeout=-1 is no span of time"),
        (lambda: Budget(3).tokens(timeout="1"), TypeError, r"timeout='1' is no number"),
        (lambda: Budget(3).release(-1), ValueError, r"weight=-1 is below 0"),
    ],
)
def test_bad_arguments__are_refused(call, error, message):
    """The message names the value and what is allowed."""
    with pytest.raises(error, match=message):
        call()


def test_a_block__holds_tokens_and_releases_them_when_it_raises():
    """``with budget.tokens(2)`` is acquire and release on every path."""
    budget = Budget(3)
    with pytest.raises(KeyError, match="2"), budget.tokens(2):
        raise KeyError(budget.used)
    assert budget.used == 0


def test_code_inside_of_a_block__takes_from_what_the_block_holds():
    """So it never waits for itself; beyond that is too heavy, at once."""
    budget = Budget(3)
    with budget.tokens(3):
        with budget.tokens(2), budget.tokens(1):
            assert budget.used == 3
        budget.acquire(2)
        assert not budget.acquire_nowait(2)
        budget.release(2)
        with pytest.raises(TooHeavy):
            budget.acquire(4)
    assert budget.used == 0


def test_code_that_outlives_a_block__takes_from_the_budget_again():
    """A copied context does not hold what went back."""
    budget = Budget(3)
    with budget.tokens(1):
        context = contextvars.copy_context()
        budget.acquire(1)
        inside = contextvars.copy_context()
    context.run(budget.acquire, 3)
    assert budget.used == 3
    inside.run(budget.release, 1)
    assert budget.used == 3
    inside.run(budget.release, 3)
    assert budget.used == 0


@in_loop
async def test_tasks_and_threads__stand_in_one_line():
    """A thread before a task is served before it."""
    budget = Budget(1)
    await budget.aacquire()
    order = []

    def on_thread():
        budget.acquire()
        order.append("thread")
        budget.release()

    async def on_loop():
        async with budget.tokens():
            order.append("task")

    thread = threads.start(on_thread)
    await auntil(lambda: len(budget._account._waiting) == 1)
    task = asyncio.create_task(on_loop())
    await auntil(lambda: len(budget._account._waiting) == 2)
    budget.release()
    await task
    thread.result()
    assert order == ["thread", "task"]
    assert budget.used == 0


@in_loop
async def test_a_cancelled_task__leaves_the_line():
    """It holds nothing, and the next one is served; also when it was told already."""
    budget = Budget(1)
    await budget.aacquire()
    tasks = [asyncio.create_task(budget.aacquire()) for _ in range(3)]
    await auntil(lambda: len(budget._account._waiting) == 3)
    tasks[0].cancel()
    await ends(tasks[0])
    budget.release()
    tasks[1].cancel()  # told, and not back yet
    assert [type(end) for end in await ends(*tasks)] == [
        asyncio.CancelledError,
        asyncio.CancelledError,
        type(None),
    ]
    assert budget.used == 1


@in_loop
async def test_a_task__times_out():
    """As on a thread."""
    budget = Budget(1)
    await budget.aacquire()
    with pytest.raises(BudgetTimeout):
        await budget.aacquire(timeout=0)


@in_loop
async def test_acquire_on_an_event_loop__refuses_to_block_it():
    """What is free is taken; a wait raises, and names the async form."""
    budget = Budget(1)
    budget.acquire()
    with pytest.raises(SynchronousCallError, match="aacquire"):
        budget.acquire()
    assert budget.used == 1


def test_waiters_of_a_closed_loop__are_passed():
    """Their tokens go to the next in line."""
    budget = Budget(1)
    budget.acquire()
    loop = asyncio.new_event_loop()
    coroutine = budget.aacquire()

    async def stand_in_line():
        coroutine.send(None)

    loop.run_until_complete(stand_in_line())
    loop.close()
    budget.release()
    assert budget.acquire_nowait()
    coroutine.close()
    assert budget.used == 1


def test_many_threads__never_hold_more_than_the_limit():
    """Whatever their weights, what is held at once fits, and in the end all is back."""
    budget = Budget(4)
    lock = threading.Lock()
    held, most = [0], [0]

    def work(weight):
        for _ in range(200):
            budget.acquire(weight)
            with lock:
                held[0] += weight
                most[0] = max(most[0], held[0])
            with lock:
                held[0] -= weight
            budget.release(weight)

    threads.run_together(*[lambda w=w: work(w) for w in (1, 1, 2, 3, 4)], timeout=60)
    assert most[0] <= 4
    assert budget.used == 0


@pytest.mark.parametrize(
    "error", [TooHeavy("target 'a'", 12, 10), BudgetTimeout(3, 1.5, 10)], ids=["heavy", "timeout"]
)
def test_errors__are_picklable(error):
    """They travel with an outcome."""
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)
