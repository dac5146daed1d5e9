"""Calls as objects: submitted to a bounded pool, awaited from anywhere, as often as one likes."""

import asyncio
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone, translation

import django_vega
from django_vega import (
    CallCancelled,
    NotAdmitted,
    QueueFull,
    ReentrantCallError,
    WaitTimeout,
    coordinated,
    current_call,
    serialize,
)
from django_vega.handler import handler
from django_vega.runtime.pool import Permits
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never, raising


def run(name: str, body: Callable[[], Any]) -> Any:
    return body()


def pooled(alias: str, **options: Any) -> Any:
    """Return a coordinated function of the alias."""
    return coordinated(key="work:{name}", ignore=["body"], using=alias, scope=alias, **options)(run)


@pytest.fixture
def work(new_alias) -> Any:
    """A function on a pool of two workers with room for three more."""
    return pooled(new_alias(WORKERS=2, CAPACITY=3))


@pytest.fixture
def one_worker(new_alias) -> Any:
    """A function on a pool of one worker with room for one more."""
    return pooled(new_alias(WORKERS=1, CAPACITY=1))


def free_places(function: Any) -> int:
    """Close the alias, so that its workers are done, and count its free places."""
    alias = function.definition.using
    django_vega.close(using=alias)
    return handler.coordinator(alias)._pool.permits._free


def busy(function: Any, name: str = "busy", end: Any = "busy") -> tuple[Gate, Any]:
    """Submit a call whose body is entered when this returns."""
    gate = Gate(end)
    call = function.submit(name, gate)
    assert gate.entered.wait(TIMEOUT)
    return gate, call


# The life of a submitted call


def test_call_has_its_data__from_submit_to_settle(work):
    """A submitted call runs on a thread of the pool and shows its state all the way."""
    with Recorder() as recorder:
        gate, call = busy(work)
        assert (call.key, call.state, call.cancel_reason) == ("work:busy", "running", None)
        assert not call.done()
        assert call.generation > 0
        assert [record.id for record in django_vega.in_flight()] == [call.id]
        gate.open()
        assert call.result() == "busy"
        assert (call.state, call.done()) == ("success", True)
        told = [event.type for event in recorder.events() if event.call_id == call.id]
    assert told == ["call:created", "call:queued", "call:running", "call:settled"]


def test_thread_is_one_of_the_pool__not_the_callers(work):
    """Submitted functions run on the alias's own threads."""
    thread = work.submit("a", threading.current_thread).result()
    assert thread is not threading.current_thread()
    assert thread.name.startswith("django-vega")


def test_result_is_repeatable__from_any_thread_and_long_after(work):
    """result() gives the same value again and again, to threads and to tasks."""
    call = work.submit("a", lambda: ["value"])
    value = call.result()
    assert value == ["value"]
    assert all(got is value for got in threads.run_together(*[call.result] * 5))

    async def later() -> Any:
        return await call, await call

    assert asyncio.run(later()) == (value, value)
    assert all(got is value for got in threads.run_together(*[call.result] * 5))


def test_error_is_a_replica__for_each_who_asks(work):
    """Each result() raises an instance of its own whose cause is what the function raised."""
    error = LookupError("no answer")
    call = work.submit("a", raising(error))
    caught = [threads.start(call.result).exception() for _ in range(5)]
    assert len({id(one) for one in (error, *caught)}) == 6
    for one in caught:
        assert (type(one), one.args) == (LookupError, ("no answer",))
        assert one.__cause__ is error
    assert call.state == "error"
    frames = len(traceback.extract_tb(error.__traceback__))
    for _ in range(20):
        with pytest.raises(LookupError):
            call.result()
    assert len(traceback.extract_tb(error.__traceback__)) == frames


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupt_ends_its_call_alone__worker_goes_on(one_worker, kind):
    """A function that is interrupted abandons its call; the worker takes the next one."""
    call = one_worker.submit("a", raising(kind("stop")))
    with pytest.raises(kind, match="stop"):
        call.result()
    assert (call.state, call.cancel_reason) == ("cancelled", "abandoned")
    assert one_worker.submit("a", lambda: "next").result() == "next"
    assert free_places(one_worker) == 2


def test_result_times_out__call_goes_on(work):
    """A result() whose timeout passes leaves the call alone."""
    gate, call = busy(work)
    with pytest.raises(WaitTimeout, match=f"work:busy \\(call {call.id} on .*, running for"):
        call.result(timeout=0.01)
    with pytest.raises(WaitTimeout):
        call.result(timeout=0)
    gate.open()
    assert call.result(timeout=None) == "busy"
    assert call.result(timeout=0) == "busy"


def test_timeout_of_the_call__result_names_none(new_alias):
    """Without a timeout of its own, result() waits as long as the call's options say."""
    work = pooled(new_alias(), timeout=0.01)
    gate, call = busy(work)
    with pytest.raises(WaitTimeout):
        call.result()
    gate.open()
    assert call.result(TIMEOUT) == "busy"


def test_result_is_awaited__from_several_loops(work):
    """Tasks of two loops and a thread get one call's value."""
    gate, call = busy(work)
    waiting = threading.Barrier(4)

    def in_a_loop() -> Any:
        async def wait() -> Any:
            waiting.wait(TIMEOUT)
            return await call

        return asyncio.run(wait())

    def in_a_thread() -> Any:
        waiting.wait(TIMEOUT)
        return call.result()

    callers = [threads.start(one) for one in (in_a_loop, in_a_loop, in_a_thread)]
    waiting.wait(TIMEOUT)
    gate.open()
    assert threads.results(callers) == ["busy"] * 3


def test_submit_has_no_key__refused():
    """A call that is not coordinated cannot be submitted: nothing could be asked of it."""

    @coordinated(key=lambda: None)
    def keyless() -> None:
        never()

    with pytest.raises(ValueError, match="its key is None"):
        keyless.submit()


# The bounds


def test_pool_is_full__submit_nowait(one_worker):
    """submit_nowait raises at once; the function is not called and no call is created."""
    gate, running = busy(one_worker)
    queued = one_worker.submit("queued", lambda: "queued")
    assert queued.state == "queued"
    with Recorder() as recorder, pytest.raises(NotAdmitted) as caught:
        one_worker.submit_nowait("third", never)
    assert recorder.events() == []
    error = caught.value
    assert (error.key, error.workers, error.capacity) == ("work:third", 1, 1)
    assert "1 workers are busy and 1 calls are queued" in str(error)
    gate.open()
    assert (running.result(), queued.result()) == ("busy", "queued")
    assert free_places(one_worker) == 2


def test_pool_has_room__submit_nowait(one_worker):
    """With room submit_nowait admits as submit does."""
    assert one_worker.submit_nowait("a", lambda: "value").result() == "value"


def test_submit_waits__until_there_is_room(new_alias):
    """Submit returns when a place is free, so after the body that held it."""
    work = pooled(new_alias(WORKERS=1, CAPACITY=0))
    gate, first = busy(work)
    submitting = threads.start(lambda: (work.submit("second", lambda: "second"), gate.returned))
    gate.open()
    second, first_had_returned = submitting.result()
    assert first_had_returned
    assert (first.result(), second.result()) == ("busy", "second")


def test_submit_times_out__there_is_no_room(new_alias):
    """Submit waits for room as long as the call's timeout, then leaves the line."""
    work = pooled(new_alias(WORKERS=1, CAPACITY=0))
    gate, first = busy(work)
    with pytest.raises(WaitTimeout, match="1 workers and 0 places"):
        work.with_options(timeout=0.01).submit("second", never)
    gate.open()
    assert first.result() == "busy"
    assert work.submit("second", lambda: "second").result() == "second"
    assert free_places(work) == 1


def test_asubmit_waits__until_there_is_room(new_alias):
    """Asubmit waits for a place of the pool without blocking the loop."""
    work = pooled(new_alias(WORKERS=1, CAPACITY=0))

    async def main() -> Any:
        gate = Gate("first")
        first = await work.asubmit("first", gate)
        submitting = asyncio.create_task(work.asubmit("second", lambda: "second"))
        await asyncio.sleep(0)
        assert not submitting.done()
        gate.open()
        second = await submitting
        assert gate.returned
        return await first, await second

    assert asyncio.run(main()) == ("first", "second")


def test_order_is_kept__one_worker(new_alias):
    """Submitted calls start in the order in which they were submitted."""
    work = pooled(new_alias(WORKERS=1, CAPACITY=20))
    ran: list[int] = []
    gate, first = busy(work)
    calls = [work.submit(f"{n}", lambda n=n: ran.append(n)) for n in range(20)]
    assert [call.state for call in calls] == ["queued"] * 20
    gate.open()
    for call in (first, *calls):
        call.result()
    assert ran == list(range(20))


def test_no_more_bodies_than_workers__many_submitters(new_alias):
    """However many threads submit, no more bodies run at once than there are workers."""
    work = pooled(new_alias(WORKERS=3, CAPACITY=2))
    meeting, lock = threading.Barrier(3), threading.Lock()
    inside, most = 0, 0

    def body() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        meeting.wait(TIMEOUT)
        with lock:
            inside -= 1

    def submitter(number: int) -> None:
        for call in [work.submit(f"{number}:{turn}", body) for turn in range(6)]:
            call.result()

    threads.run_together(*[lambda number=number: submitter(number) for number in range(4)])
    assert most == 3
    assert free_places(work) == 5


class Place:
    """Somebody in the line for a place, who may have gone."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.is_there = is_there
        self.woken = 0

    def wake(self) -> bool:
        self.woken += 1
        return self.is_there


def test_places_are_handed_over__first_come_first_served():
    """A freed place goes to the first in line, and to nobody who came later."""
    permits, first, second = Permits(1), Place(), Place()
    assert permits.take_nowait()
    assert not permits.take_or_wait(first)
    assert not permits.take_or_wait(second)
    permits.give_back()
    assert (first.woken, second.woken) == (1, 0)
    assert (permits.confirm(first), permits.confirm(second)) == (True, False)
    assert not permits.take_nowait()
    permits.give_back()
    assert second.woken == 1
    permits.give_back()
    assert permits.take_nowait()


def test_place_is_passed_on__first_in_line_is_gone():
    """A place is not lost with somebody whose loop is closed, or who left in that moment."""
    permits, gone, leaving, next_one = Permits(1), Place(is_there=False), Place(), Place()
    assert permits.take_nowait()
    for place in (gone, leaving, next_one):
        assert not permits.take_or_wait(place)
    permits.give_back()
    assert (gone.woken, leaving.woken, next_one.woken) == (1, 1, 0)
    permits.stop_waiting(leaving)
    assert next_one.woken == 1
    permits.give_back()
    assert permits.take_nowait()


def test_line_is_left__before_a_place_was_free():
    """Somebody who leaves the line gets no place, and takes none with him."""
    permits, leaving = Permits(1), Place()
    assert permits.take_nowait()
    assert not permits.take_or_wait(leaving)
    permits.stop_waiting(leaving)
    permits.give_back()
    assert leaving.woken == 0
    assert permits.take_nowait()
    assert not permits.take_nowait()


# Strategies


def test_follower_gives_its_place_back__at_once(one_worker):
    """A submitted call that follows takes no worker and no place, and gets the leader's value."""
    gate, leader = busy(one_worker)
    followers = [one_worker.submit("busy", never) for _ in range(10)]
    assert [(one.state, one.cancel_reason) for one in followers] == [("cancelled", "dedupe")] * 10
    assert not any(one.done() for one in followers)
    queued = one_worker.submit_nowait("queued", lambda: "queued")
    gate.open()
    assert [one.result() for one in (leader, *followers)] == ["busy"] * 11
    assert all(one.done() for one in followers)
    assert queued.result() == "queued"
    assert free_places(one_worker) == 2


def test_follower_of_a_failure__its_own_instance(work):
    """A submitted follower raises a replica of the leader's error, at each result() a new one."""
    error = LookupError("no answer")
    gate, leader = busy(work, end=error)
    follower = work.submit("busy", never)
    gate.open()
    caught = []
    for call in (leader, follower, follower):
        with pytest.raises(LookupError) as info:
            call.result()
        caught.append(info.value)
    assert len({id(one) for one in caught}) == 3
    assert [one.__cause__ for one in caught] == [error] * 3


def test_submitted_calls_are_dropped__exhaust(new_alias):
    """Under exhaust the handle of a dropped call is settled at once."""
    work = pooled(new_alias(WORKERS=1, CAPACITY=1), strategy="exhaust")
    gate, leader = busy(work)
    dropped = [work.submit("busy", never) for _ in range(5)]
    for call in dropped:
        with pytest.raises(CallCancelled, match="exhaust-dropped"):
            call.result()
    gate.open()
    assert leader.result() == "busy"
    assert free_places(work) == 2


def test_submitted_calls_are_parked__serialize(new_alias):
    """Parked calls keep their places, take no worker, and run in order."""
    work = pooled(new_alias(WORKERS=2, CAPACITY=3), strategy=serialize(capacity=10))
    ran: list[int] = []
    gate, head = busy(work)
    parked = [work.submit("busy", lambda n=n: ran.append(n)) for n in range(4)]
    assert [call.state for call in parked] == ["parked"] * 4
    with pytest.raises(NotAdmitted):
        work.submit_nowait("other", never)
    gate.open()
    for call in (head, *parked):
        call.result()
    assert ran == [0, 1, 2, 3]
    assert free_places(work) == 5


def test_parked_calls_take_no_worker__others_run(new_alias):
    """While calls of one key are parked, the workers run those of other keys."""
    work = pooled(new_alias(WORKERS=2, CAPACITY=9), strategy="serialize")
    gate, head = busy(work)
    parked = [work.submit("busy", lambda: "parked") for _ in range(4)]
    assert work.submit("other", lambda: "other").result() == "other"
    gate.open()
    assert [call.result() for call in (head, *parked)] == ["busy"] + ["parked"] * 4


def test_queue_is_full__submit(new_alias):
    """Submit raises QueueFull, and takes no place with it."""
    work = pooled(new_alias(WORKERS=1, CAPACITY=5), strategy=serialize(capacity=1))
    gate, head = busy(work)
    parked = work.submit("busy", lambda: "parked")
    with pytest.raises(QueueFull):
        work.submit("busy", never)
    gate.open()
    assert (head.result(), parked.result()) == ("busy", "parked")
    assert free_places(work) == 6


def test_queued_call_is_cancelled__never_runs(one_worker):
    """Cancelling a queued call frees its key and its place at once."""
    gate, running = busy(one_worker)
    queued = one_worker.submit("queued", never)
    assert queued.cancel()
    assert not queued.cancel()
    with pytest.raises(CallCancelled, match="abort"):
        queued.result()
    instead = one_worker.submit_nowait("queued", lambda: "instead")
    gate.open()
    assert (running.result(), instead.result()) == ("busy", "instead")
    assert free_places(one_worker) == 2


def test_running_call_is_cancelled__result_at_once(one_worker):
    """Whoever waits for a cancelled call is told at once; its body keeps its place to the end."""
    gate, call = busy(one_worker)
    assert call.cancel()
    with pytest.raises(CallCancelled, match="abort"):
        call.result()
    queued = one_worker.submit_nowait("queued", lambda: "queued")
    with pytest.raises(NotAdmitted):
        one_worker.submit_nowait("third", never)
    gate.open()
    assert queued.result() == "queued"
    assert free_places(one_worker) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_handles_take_over__inline_leader_is_interrupted(work, kind):
    """When the leader that handles follow is interrupted, one of their own functions runs."""
    gate, second = Gate(kind("stop")), Gate("second")
    leader = threads.start(lambda: work("a", gate))
    assert gate.entered.wait(TIMEOUT)
    handles = [work.submit("a", second) for _ in range(3)]
    with Arrivals(["coordination:reuse"]) as arrivals:
        waiting = [threads.start(handle.result) for handle in handles]
        gate.open()
        assert isinstance(leader.exception(), kind)
        arrivals.wait(2)
    second.open()
    assert threads.results(waiting) == ["second"] * 3
    assert second.runs == 1
    assert [handle.result() for handle in handles] == ["second"] * 3


# No starvation


def test_workers_wait_for_each_other__same_pool(new_alias):
    """Four workers that each submit to their own pool and wait for the result all end."""
    work = pooled(new_alias(WORKERS=4, CAPACITY=4))
    meeting = threading.Barrier(4)

    def outer(number: int) -> Any:
        meeting.wait(TIMEOUT)
        return work.submit(f"inner {number}", lambda: number).result()

    calls = [work.submit(f"outer {n}", lambda n=n: outer(n)) for n in range(4)]
    assert [call.result(TIMEOUT) for call in calls] == [0, 1, 2, 3]
    assert free_places(work) == 8


def test_worker_submits_to_its_full_pool__never_waits_for_room(new_alias):
    """Submit from a worker of a full pool admits at once; the result runs inline."""
    work = pooled(new_alias(WORKERS=1, CAPACITY=0))
    thread: list[threading.Thread] = []

    def inner() -> str:
        thread.append(threading.current_thread())
        return "inner"

    def outer() -> Any:
        call = work.submit("inner", inner)
        assert call.state == "queued"
        thread.append(threading.current_thread())
        return call.result()

    assert work.submit("outer", outer).result(TIMEOUT) == "inner"
    assert thread[0] is thread[1]
    assert free_places(work) == 1


def test_nested_submits__deeper_than_the_pool(new_alias):
    """Ten levels of submit and result on a pool of two workers end."""
    work = pooled(new_alias(WORKERS=2, CAPACITY=1))

    def level(depth: int) -> int:
        if depth == 0:
            return 0
        return 1 + work.submit(f"level {depth}", lambda: level(depth - 1)).result()

    assert work.submit("level 10", lambda: level(9)).result(TIMEOUT) == 9
    assert free_places(work) == 3


def test_worker_waits_for_a_call_in_the_queue__parked_behind_one(new_alias):
    """A worker that waits for a parked call runs what is queued ahead of it."""
    work = pooled(new_alias(WORKERS=1, CAPACITY=9))
    in_order = work.with_options(strategy="serialize")

    def outer() -> Any:
        head = in_order.submit("inner", lambda: "head")
        parked = in_order.submit("inner", lambda: "parked")
        assert (head.state, parked.state) == ("queued", "parked")
        return parked.result(), head.result()

    assert work.submit("outer", outer).result(TIMEOUT) == ("parked", "head")


def test_call_waits_for_itself__refused_at_once(work):
    """result() of the call that the code runs in raises instead of waiting for itself."""

    def body() -> None:
        call = current_call()
        assert call is not None
        call.result()

    with pytest.raises(ReentrantCallError, match="work:a -> work:a"):
        work.submit("a", body).result()


def test_submitted_call_follows_its_submitter__refused_at_once(work):
    """A flight that submits its own key gets a follower of itself, and cannot wait for it."""

    def body() -> Any:
        return work.submit("a", never).result()

    with pytest.raises(ReentrantCallError):
        work("a", body)


def test_submitted_call_is_nobodys_inner_call__other_key(work):
    """What is submitted does not run inside its submitter, and may outlive it."""
    seen: list[Any] = []

    def inner() -> None:
        call = current_call()
        assert call is not None
        seen.append([one.key for one in call.chain()])

    work("outer", lambda: work.submit("inner", inner)).result()
    assert seen == [["work:inner"]]


# Django


def test_language_and_time_zone_are_not_inherited__by_pool_threads(one_worker):
    """A submitted call runs under the defaults, and leaves nothing to the next one."""

    def look() -> tuple[str | None, str]:
        return translation.get_language(), timezone.get_current_timezone_name()

    def change() -> None:
        translation.activate("fr")
        timezone.activate("Asia/Tokyo")

    defaults = look()
    with translation.override("de"), timezone.override("Europe/Berlin"):
        assert look() == ("de", "Europe/Berlin")
        assert one_worker.submit("look", look).result() == defaults
        one_worker.submit("change", change).result()
        assert one_worker.submit("look", look).result() == defaults


@pytest.mark.django_db(transaction=True)
def test_old_connections_are_closed__around_each_call(one_worker):
    """A pool thread leaves no connection behind that is past its age."""

    def use() -> bool:
        was_open = connection.connection is not None
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return was_open

    assert [one_worker.submit("use", use).result() for _ in range(3)] == [False] * 3
