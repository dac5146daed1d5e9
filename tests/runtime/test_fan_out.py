"""`fan_out`: everything bounded, every target accounted for, nothing left behind."""

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from django_vega import SynchronousCallError
from django_vega.core.fan import Accounting, Limits, Outcome, Snapshot
from django_vega.fanout import fan_out
from tests import threads
from tests.gates import interrupt
from tests.runtime.fans import Bodies, Clock, Targets, fan, until, worker_threads
from tests.runtime.tasks import in_loop

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Fail the test after which a worker lives."""
    yield
    until(lambda: not worker_threads())


def upper(target: str) -> str:
    return target.upper()


def statuses(outcomes: list[Outcome]) -> dict:
    return {outcome.target: outcome.status for outcome in outcomes}


def first_of(run, bodies, target):
    """Return the outcome of this target, read when all places were taken."""
    reading = threads.start(lambda: next(run))
    until(lambda: run.snapshot().held or run._crew.fan.exhausted)
    bodies.open(target)
    return reading.result()


# The table of the seed


def test_six_targets__two_workers_and_a_queue_of_three():
    """A B run, C D E are queued, F is held; A ends: worker 1 has C, worker 2 B, D E F queued."""
    bodies = Bodies()
    with fan_out(bodies, "ABCDEF", workers=2, capacity=3) as run:
        reading = threads.start(lambda: next(run))
        until(lambda: run.snapshot().held)
        assert run.snapshot() == Snapshot(
            running=("A", "B"),
            queued=("C", "D", "E"),
            held=("F",),
            unread=(),
            limits=Limits(workers=2, capacity=3),
        )
        assert run.accounting() == Accounting(running=2, queued=3, held=1)

        bodies.open("A")
        assert reading.result() == Outcome("A", "done", "A!")
        assert run.snapshot() == Snapshot(
            running=("C", "B"),
            queued=("D", "E", "F"),
            held=(),
            unread=(),
            limits=Limits(workers=2, capacity=3),
        )
        assert run.accounting() == Accounting(done=1, running=2, queued=3)
        bodies.open()
        assert len(list(run)) == 5
        assert run.accounting() == Accounting(done=6)


def test_outcomes_carry_their_target__in_the_order_of_completion():
    """B ends before A, and its outcome says that it is B's."""
    bodies = Bodies()
    with fan_out(bodies, "AB") as run:
        bodies.open("B")
        assert next(run) == Outcome("B", "done", "B!")
        bodies.open("A")
        assert next(run) == Outcome("A", "done", "A!")
        with pytest.raises(StopIteration):
            next(run)


def test_reject__never_calls_the_function():
    """The sixth target comes back at once, not admitted; only five are ever called."""
    bodies = Bodies()
    with fan_out(bodies, "ABCDEF", when_full="reject") as run:
        assert next(run) == Outcome("F", "not_admitted")
        bodies.open()
        rest = list(run)
    assert statuses(rest) == dict.fromkeys("ABCDE", "done")
    assert sorted(bodies.entered) == list("ABCDE")
    assert run.accounting() == Accounting(done=5, not_admitted=1)


# Bounds


def test_ten_thousand_targets__are_pulled_as_there_is_room():
    """Nothing before the first step; then never more than six pulled and not finished."""
    finished, most = [0], [0]
    lock = threading.Lock()

    def count(_):
        with lock:
            finished[0] += 1

    def generate():
        for number in range(10_000):
            with lock:
                most[0] = max(most[0], number + 1 - finished[0])
            yield number

    targets = Targets(generate())
    run = fan_out(count, targets())
    assert targets.pulled == 0
    read = 0
    for outcome in run:
        read += 1
        assert outcome.status == "done"
        # Unread ones and what is not finished, and the one that this step brought.
        assert targets.pulled <= read + 3 + 6
    assert (read, targets.closed, most[0] <= 6) == (10_000, True, True)
    assert targets.thread == threading.get_ident()


def test_a_generator_that_is_never_read__is_never_pulled():
    """Neither making nor closing a fan-out takes a target; closing closes them."""
    targets = Targets("ABC")
    source = targets()
    run = fan_out(upper, source)
    run.close()
    assert (targets.pulled, list(source), list(run)) == (0, [], [])


def test_an_iterable__is_not_asked_for_its_iterator_before_the_first_step():
    """Of a queryset that would be the query."""

    class Query(list):
        asked = 0

        def __iter__(self):
            self.asked += 1
            return super().__iter__()

    query = Query("AB")
    run = fan_out(upper, query)
    assert query.asked == 0
    assert sorted(outcome.value for outcome in run) == ["A", "B"]
    assert query.asked == 1


@pytest.mark.once
def test_memory__does_not_grow_with_the_number_of_targets():
    """A hundred times the targets leave the number of allocated blocks where it was."""

    def most_blocks(targets):
        most = 0
        gc.collect()
        before = sys.getallocatedblocks()
        for outcome in fan_out(bytes, (200 for _ in range(targets))):
            if not outcome.target % 200:
                most = max(most, sys.getallocatedblocks() - before)
        return most

    most_blocks(1_000)
    assert most_blocks(20_000) < most_blocks(200) + 2_000


def test_a_slow_reader__slows_the_workers():
    """Three unread outcomes, two in the workers' hands, three queued: then nothing moves."""
    targets = Targets(range(100))
    bodies = Bodies()
    with fan_out(bodies, targets()) as run:
        reading = threads.start(lambda: next(run))
        until(lambda: run.snapshot().held)
        bodies.open()
        reading.result()
        until(lambda: len(bodies.left) == 6)
        assert len(run.snapshot().unread) == 3
        assert len(run.snapshot().running) == 2
        for _ in range(20):
            next(run)
            assert len(run.snapshot().unread) <= 3
            assert targets.pulled - run.accounting().done <= 6


def test_threads__are_never_more_than_targets():
    """A hundred workers for three targets are three threads."""
    bodies = Bodies()
    with fan_out(bodies, "ABC", workers=100) as run:
        reading = threads.start(lambda: next(run))
        bodies.wait_for(*"ABC")
        assert len(worker_threads()) == 3
        bodies.open()
        reading.result()


# Failures


def test_a_target_that_raises__is_failed_and_ends_nothing():
    """The others are done; the error is the one that was raised."""
    error = ValueError("B is broken")

    def work(target):
        if target == "B":
            raise error
        return target

    outcomes = list(fan_out(work, "ABC"))
    assert statuses(outcomes) == {"A": "done", "B": "failed", "C": "done"}
    assert next(one for one in outcomes if one.target == "B").error is error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_worker_that_is_told_to_die__ends_nothing(error):
    """Whatever the function raises, its target is failed, and the next one runs."""

    def work(target):
        if target == "A":
            raise error
        return target

    outcomes = list(fan_out(work, "ABC", workers=1))
    assert [one.status for one in outcomes] == ["failed", "done", "done"]
    assert outcomes[0].error is error


def test_a_worker_that_dies_while_idle__is_replaced_when_it_is_needed():
    """Its slot has no target, so nothing is lost."""
    bodies = Bodies()
    with fan_out(bodies, "AB", workers=1) as run:
        assert first_of(run, bodies, "A").target == "A"
        bodies.wait_for("B")
        (dying,) = worker_threads()
        crew = run._crew
        worker = crew._workers[0]
        bodies.open("B")
        until(lambda: run.snapshot().unread)
        crew.act(crew._bury, worker, None, SystemExit())
        assert crew._workers == {}
        worker.is_dismissed = True
        worker.waiter.wake()
        dying.join(10)
        assert next(run) == Outcome("B", "done", "B!")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_before_its_target_began__is_replaced():
    """The next worker begins it: the function was not called, so nothing is unknown."""
    run = fan(upper, "ABC", workers=1)
    original, died = run._crew.begin, []

    def begin(item):
        if not died:
            died.append(item.target)
            raise SystemExit
        return original(item)

    run._crew.begin = begin
    assert [one.value for one in run] == ["A", "B", "C"]
    assert died == ["A"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_with_its_target__reports_it_and_is_replaced():
    """Something raised into the thread outside of the function leaves no evidence: unknown."""
    bodies = Bodies()

    class Frame:
        def capture(self):
            return threading.Lock

        def thread_ends(self):
            raise RuntimeError("cannot clean up")

    def begin(item):
        begun = original(item)
        if item.target == "A":
            raise SystemExit
        return begun

    run = fan(bodies, "ABC", workers=1)
    run._crew._frame = Frame()
    original, run._crew.begin = run._crew.begin, begin
    bodies.open()
    with run:
        outcomes = list(run)
    assert statuses(outcomes) == {"A": "unknown", "B": "done", "C": "done"}
    assert isinstance(outcomes[0].error, SystemExit)
    assert run.accounting() == Accounting(done=2, unknown=1)


def test_no_more_threads__fails_the_target(monkeypatch):
    """Where a thread cannot be started, the target says so, and nobody waits for it."""

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    outcomes = list(fan_out(upper, "ABCDEFGH"))
    assert statuses(outcomes) == dict.fromkeys("ABCDEFGH", "failed")
    assert str(outcomes[0].error) == "can't start new thread"


def test_targets_that_raise__end_the_iteration_after_the_account():
    """What was pulled comes first, all of it; then the error, once."""
    error = OSError("the list broke off")
    targets = Targets("ABCDEFGH", error)
    run = fan_out(upper, targets())
    assert statuses([next(run) for _ in range(8)]) == dict.fromkeys("ABCDEFGH", "done")
    with pytest.raises(OSError, match="broke off") as caught:
        next(run)
    assert caught.value is error
    assert run.accounting() == Accounting(done=8)
    assert list(run) == []


def test_a_coroutine_as_value__is_a_mistake():
    """A lambda around an async function would never run; the target says so."""

    async def work(target):
        return target

    (outcome,) = fan_out(lambda target: work(target + "!"), "A")
    assert outcome.status == "failed"
    assert "Use afan_out" in str(outcome.error)


# Time


def test_the_deadline__accounts_for_everything():
    """Running is unknown, queued not started, held not admitted; nobody waits for the blocked."""
    clock, bodies, targets = Clock(), Bodies(), Targets("ABCDEFGH")
    run = fan(bodies, targets(), clock, deadline=10)
    reading = threads.start(lambda: list(run))
    until(lambda: run.snapshot().held)
    bodies.open("A")
    until(lambda: run.snapshot().held == ("G",))
    bodies.wait_for("B", "C")
    clock.advance(10, run)
    outcomes = reading.result()
    assert statuses(outcomes) == {
        "A": "done",
        "B": "unknown",
        "C": "unknown",
        "D": "not_started",
        "E": "not_started",
        "F": "not_started",
        "G": "not_admitted",
    }
    assert str(next(one for one in outcomes if one.target == "B").error) == (
        "was running at the deadline (deadline=10)"
    )
    assert run.accounting() == Accounting(done=1, unknown=2, not_started=3, not_admitted=1)
    assert (targets.pulled, targets.closed) == (7, True)
    assert set(run.snapshot().overdue) == {"B", "C"}
    assert len(worker_threads()) == 2
    bodies.open()
    until(lambda: not worker_threads())
    assert sorted(bodies.entered) == ["A", "B", "C"]
    assert run.snapshot().overdue == ()


def test_the_deadline__counts_from_the_first_step():
    """Time that passes before does not count; then no time left means no target."""
    clock = Clock()
    run = fan(upper, "AB", clock, deadline=10)
    clock.now += 100
    assert next(run).status == "done"
    clock.now += 9
    assert next(run).status == "done"
    assert list(fan_out(upper, "AB", deadline=0)) == []


def test_a_timeout__makes_one_target_unknown_and_another_takes_its_place():
    """A hangs, C and D get their turn; the thread of A ends with its body."""
    clock, bodies = Clock(), Bodies()
    with fan(bodies, "ABCD", clock, workers=1, timeout=5) as run:
        reading = threads.start(lambda: next(run))
        bodies.wait_for("A")
        until(lambda: run.snapshot().queued)
        clock.advance(5, run)
        outcome = reading.result()
        assert (outcome.target, outcome.status) == ("A", "unknown")
        assert isinstance(outcome.error, TimeoutError)
        bodies.wait_for("B")
        assert run.snapshot().overdue == ("A",)
        bodies.open("B", "C", "D")
        assert [one.target for one in run] == ["B", "C", "D"]
        assert run.accounting() == Accounting(done=3, unknown=1)
        assert [thread.name for thread in worker_threads()] == ["django-vega fan-out, worker 1"]
        bodies.open("A")


def test_timeouts_of_all__never_let_more_than_twice_the_workers_run():
    """When every body hangs, four run of two workers, and the others wait."""
    clock, bodies = Clock(), Bodies()
    with fan(bodies, "ABCDEFGH", clock, timeout=5, deadline=100) as run:
        reading = threads.start(lambda: list(run))
        for so_far in ("AB", "ABCD"):
            bodies.wait_for(*so_far)
            clock.advance(5, run)
        until(lambda: run.accounting().unknown == 4)
        for _ in range(3):
            clock.advance(5, run)
        assert (sorted(bodies.entered), bodies.most) == (list("ABCD"), 4)
        assert sorted(run.snapshot().overdue) == list("ABCD")
        bodies.open("A")
        bodies.wait_for("E")
        bodies.open()
        assert statuses(reading.result()) == {
            **dict.fromkeys("ABCD", "unknown"),
            **dict.fromkeys("EFGH", "done"),
        }
    assert bodies.most == 4


def test_a_body_that_is_late__is_unknown_whatever_the_reader_does():
    """The time decides, and not whether somebody has looked yet."""
    clock, bodies = Clock(), Bodies()
    with fan(bodies, "A", clock, timeout=5) as run:
        reading = threads.start(lambda: next(run))
        bodies.wait_for("A")
        clock.now += 5
        bodies.open("A")
        assert reading.result().status == "unknown"


def test_closing__waits_for_bodies_until_their_time_is_over():
    """A blocked body holds up the end of the block until its timeout, and no longer."""
    clock, bodies = Clock(), Bodies()
    run = fan(bodies, "ABC", clock, workers=1, timeout=5)
    first_of(run, bodies, "A")
    bodies.wait_for("B")
    closing = threads.start(run.close)
    until(lambda: run.accounting().not_started == 1)
    until(lambda: "in join" in closing.stack())
    clock.advance(5, run)
    closing.join()
    assert run.accounting() == Accounting(done=1, unknown=1, not_started=1)
    bodies.open()


# Leaving early


def test_leaving__stops_pulling_drops_what_is_queued_and_joins():
    """What runs comes to its end, what waits never starts, no thread is left."""
    bodies, targets = Bodies(), Targets(range(10_000))
    with fan_out(bodies, targets()) as run:
        first_of(run, bodies, 0)
        bodies.wait_for(1, 2)
        leaving = threads.start(run.close)
        until(lambda: run.accounting().not_started)
        until(lambda: "in join" in leaving.stack())
        bodies.open()
        leaving.join()
        assert worker_threads() == []
    assert sorted(bodies.entered) == sorted(bodies.left) == [0, 1, 2]
    count = run.accounting()
    assert (count.done, count.running, count.queued, count.held) == (3, 0, 0, 0)
    assert count.not_started + count.not_admitted == targets.pulled - 3
    assert targets.closed
    assert list(run) == []
    run.close()


def test_an_exception_in_the_block__closes_it():
    """The error goes on, and nothing is left."""
    targets = Targets(range(100))
    with pytest.raises(KeyError), fan_out(str, targets()) as run:
        raise KeyError(next(run))
    assert (targets.closed, worker_threads()) == (True, [])


def test_leaving_a_loop_without_a_block__closes_it_too():
    """``break`` drops the last reference; threads are joined and the targets closed."""
    targets = Targets(range(10_000))
    for _ in fan_out(str, targets()):
        break
    assert (targets.closed, worker_threads()) == (True, [])


def test_a_lost_fan_out__ends_its_threads_wherever_it_is_collected():
    """On another thread nobody waits for the bodies, and they are the last."""
    bodies = Bodies()
    run = [fan_out(bodies, range(100))]
    threads.start(lambda: bodies.wait_for(0, 1) or bodies.open(0))
    next(run[0])
    fan = run[0]._crew.fan
    threads.start(run.clear).join()
    until(lambda: fan.closed)
    entered = len(bodies.entered)
    bodies.open()
    until(lambda: not worker_threads())
    assert len(bodies.left) == fan.accounting().done <= entered + 1


def test_a_lost_fan_out__that_is_collected_inside_of_its_own_lock():
    """The collector may come anywhere: nothing blocks for good, and its threads end after it."""
    bodies = Bodies()
    run = fan_out(bodies, range(100))
    assert first_of(run, bodies, 0).target == 0
    bodies.wait_for(1, 2)
    with run._crew._lock:
        run.__del__()
    until(lambda: run._crew.fan.closed)
    bodies.open()
    until(lambda: not worker_threads())
    assert sorted(bodies.entered) == [0, 1, 2]


def test_a_lost_fan_out__that_was_never_begun():
    """There is nothing to end."""
    run = fan_out(upper, "ABC")
    del run
    gc.collect()
    assert worker_threads() == []


def test_a_ctrl_c_in_the_iterating_thread__closes_everything():
    """It goes on to the caller when the bodies have ended."""
    bodies, targets = Bodies(), Targets(range(100))
    run = fan_out(bodies, targets())
    reading = threads.start(lambda: next(run))
    until(lambda: run.snapshot().held)
    bodies.wait_for(0, 1)
    interrupt(reading)
    run._crew.reader.wake()
    until(lambda: run.accounting().not_started)
    bodies.open()
    assert isinstance(reading.exception(), KeyboardInterrupt)
    assert run.accounting() == Accounting(done=2, not_started=3, not_admitted=1)
    assert (targets.closed, worker_threads()) == (True, [])


def test_closing_from_another_thread__ends_the_iteration():
    """Who waits for an outcome gets no more of them."""
    bodies = Bodies()
    run = fan_out(bodies, range(100))
    reading = threads.start(lambda: list(run))
    bodies.wait_for(0, 1)
    until(lambda: run.snapshot().held)
    closing = threads.start(run.close)
    until(lambda: run.accounting().not_started)
    bodies.open()
    closing.join()
    assert reading.result() == []


def test_closing_from_a_body__does_not_wait_for_itself():
    """It stops the others; the body ends as it likes."""
    run = None

    def work(target):
        run.close()
        return target

    run = fan_out(work, range(100), workers=1)
    assert list(run) == []
    assert run.accounting().done == 1


def test_closing_from_the_targets__counts_what_they_still_give():
    """A generator cannot be closed while it runs; its step does it, and nothing is lost."""
    closed = []

    def generate():
        try:
            run.close()
            yield "A"
        finally:
            closed.append(True)

    run = fan_out(upper, generate())
    assert list(run) == []
    assert closed == [True]
    assert run.accounting() == Accounting(not_admitted=1)


def test_targets_that_cannot_be_closed_cleanly__leave_no_thread():
    """Their error is raised when all is joined."""

    def generate():
        try:
            yield from range(100)
        finally:
            raise OSError("cannot close")

    run = fan_out(str, generate())
    next(run)
    with pytest.raises(OSError, match="cannot close"):
        run.close()
    assert worker_threads() == []


def test_two_threads__cannot_iterate_at_the_same_time():
    """The second one is told, and the first one goes on."""
    bodies = Bodies()
    with fan_out(bodies, "AB") as run:
        reading = threads.start(lambda: next(run))
        bodies.wait_for("A", "B")
        with pytest.raises(RuntimeError, match="another thread waits"):
            next(run)
        bodies.open()
        assert reading.result().status == "done"


# Chains


def test_a_chain_of_three__hands_outcomes_on():
    """Each stage's targets are the outcomes of the one before."""
    encoded = fan_out(str.encode, (str(number) for number in range(100)))
    measured = fan_out(lambda outcome: len(outcome.value), encoded)
    values = [one.value for one in fan_out(lambda outcome: outcome.value * 2, measured)]
    assert sorted(values) == [2] * 10 + [4] * 90


def test_a_chain_of_three__stops_upstream_when_the_last_one_is_left():
    """Leaving the last closes each upstream one: nothing is pulled any more, no thread is left."""
    targets = Targets(range(10_000))
    first = fan_out(str, targets())
    second = fan_out(lambda outcome: outcome.value, first)
    with fan_out(lambda outcome: outcome.value, second) as third:
        next(third)
    assert worker_threads() == []
    assert targets.closed
    for run in (first, second, third):
        count = run.accounting()
        assert (count.running, count.queued, count.held) == (0, 0, 0)
        assert list(run) == []
    # Of each stage: two at work, three queued, one held, three unread; one was read.
    assert targets.pulled <= 3 * (2 + 3 + 1 + 3) + 1
    pulled = targets.pulled
    assert first.accounting().pulled == pulled


def test_a_chain__is_stopped_while_the_last_stage_stands_still():
    """Backpressure reaches the source; then leaving ends all of it."""
    bodies, targets = Bodies(), Targets(range(10_000))
    first = fan_out(str, targets())
    run = fan_out(bodies, fan_out(lambda outcome: outcome, first))
    reading = threads.start(lambda: next(run))
    until(lambda: run.snapshot().held)
    assert targets.pulled <= 6 + 9 + 9
    closing = threads.start(run.close)
    until(lambda: run.accounting().not_started)
    bodies.open()
    closing.join()
    assert isinstance(reading.exception(), StopIteration)
    assert (targets.closed, worker_threads()) == (True, [])


def test_a_chain__yields_what_is_there_while_the_stage_before_works():
    """The first target comes out of the last stage though the second is still being encoded."""
    bodies = Bodies()
    with fan_out(lambda outcome: outcome.value, fan_out(bodies, "AB")) as run:
        bodies.open("A")
        assert next(run).value == "A!"
        assert bodies.left == ["A"]
        bodies.open()


def test_a_chain__has_one_reader_who_is_told_by_every_stage():
    """News of the first stage wakes who waits for the last one, without another look."""
    first = fan_out(str.encode, "AB")
    second = fan_out(lambda outcome: outcome, first)
    with fan_out(lambda outcome: outcome, second) as third:
        next(third)
        assert first._crew.reader is second._crew.reader is third._crew.reader


def test_a_chain__ends_at_the_deadline_of_its_last_stage():
    """It holds for the stages before: nobody waits for their blocked bodies either."""
    clock, bodies = Clock(), Bodies()
    first = fan(bodies, "AB", clock, deadline=60)
    second = fan(str, first, clock)
    run = fan(str, second, clock, deadline=5)
    reading = threads.start(lambda: list(run))
    bodies.wait_for("A", "B")
    clock.advance(5, run)
    # What was being handed on at that moment finds no place.
    assert {one.status for one in reading.result()} <= {"not_admitted"}
    assert first.accounting() == Accounting(unknown=2)
    assert set(first.snapshot().overdue) == {"A", "B"}
    bodies.open()


def test_a_chain__looks_again_when_a_stage_before_is_due():
    """Whoever waits for the last stage notices the deadline of the first one in time."""
    clock, bodies = Clock(), Bodies()
    run = fan(str, fan(bodies, "AB", clock, deadline=0.25), clock)
    reading = threads.start(lambda: [one.target.status for one in run])
    bodies.wait_for("A", "B")
    assert run.wait_at_most() == 0.25
    clock.advance(0.25, run)
    assert reading.result() == ["unknown", "unknown"]
    bodies.open()


def test_a_chain__gives_the_error_of_the_first_targets_at_its_end():
    """Every stage accounts for what it was given, and then raises it."""
    first = fan_out(upper, Targets("AB", OSError("broke off"))())
    run = fan_out(lambda outcome: outcome.value, first)
    assert sorted(next(run).value for _ in "AB") == ["A", "B"]
    with pytest.raises(OSError, match="broke off"):
        next(run)


# What is refused


async def an_async_function(target: str) -> str:
    return target


class AsyncCallable:
    async def __call__(self, target: str) -> str:
        return target


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None, "AB"), {}, TypeError, r"None cannot be called"),
        ((upper, 3), {}, TypeError, r"3 cannot be iterated"),
        ((an_async_function, "AB"), {}, TypeError, r"is async.*Use afan_out"),
        ((AsyncCallable(), "AB"), {}, TypeError, r"is async.*Use afan_out"),
        ((upper, "AB"), {"workers": 0}, ValueError, r"workers=0 is below 1"),
        ((upper, "AB"), {"workers": 2.0}, TypeError, r"workers=2.0 is no int"),
        ((upper, "AB"), {"capacity": -1}, ValueError, r"capacity=-1 is below 0"),
        ((upper, "AB"), {"when_full": "drop"}, ValueError, r"when_full='drop' is unknown"),
        ((upper, "AB"), {"timeout": -1}, ValueError, r"timeout=-1 is no span of time"),
        ((upper, "AB"), {"deadline": float("nan")}, ValueError, r"deadline=nan is no span"),
        ((upper, "AB"), {"deadline": "5"}, TypeError, r"deadline='5' is no number"),
        ((upper, "AB"), {"budget": 5}, TypeError, r"budget=5 is no Budget"),
        ((upper, "AB"), {"weight": len}, ValueError, r"weight without budget"),
        ((upper, "AB"), {"max_weight": 5}, ValueError, r"max_weight=5 bounds nothing"),
        ((upper, "AB"), {"weight": "x", "max_weight": 5}, TypeError, r"weight='x' is no int"),
    ],
)
def test_a_useless_argument__is_refused_at_the_call(arguments, options, error, message):
    """Nothing is pulled and nothing starts; the message has the value and what is allowed."""
    with pytest.raises(error, match=message):
        fan_out(*arguments, **options)


def test_an_async_iterable__is_refused_with_the_way_out():
    """Threads cannot wait for it."""

    async def generate():
        yield "A"

    with pytest.raises(TypeError, match="Use afan_out for an async one"):
        fan_out(upper, generate())


def test_on_an_event_loop__it_is_refused():
    """At the call; and at the step of one that was made elsewhere, which may go on there."""
    run = fan_out(upper, "AB")

    @in_loop
    async def main():
        with pytest.raises(SynchronousCallError, match="afan_out"):
            fan_out(upper, "AB")
        with pytest.raises(SynchronousCallError, match="afan_out"):
            next(run)

    main()
    assert len(list(run)) == 2


def test_its_repr__shows_the_account():
    """For the log."""
    assert repr(fan_out(upper, "AB")).startswith("<fan_out: Accounting(done=0,")
