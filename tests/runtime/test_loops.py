"""Event loops that end with a flight in the air, and flights that many loops share."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import django_vega
from django_vega import coordinated, current_call
from django_vega.handler import handler
from django_vega.runtime import outcomes
from tests import threads
from tests.gates import TIMEOUT, Recorder
from tests.runtime.tasks import Gate, own_scope, run_loop

Main = Callable[[], Coroutine[Any, Any, Any]]


@pytest.fixture
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no waiter look again by itself, so that a wake that is lost hangs the test."""
    monkeypatch.setattr(outcomes, "LOOK_AGAIN", 3600.0)


class Stoppable:
    """An event loop in a thread that can be stopped and closed with tasks still pending."""

    def __init__(self, main: Main) -> None:
        self.loop = asyncio.new_event_loop()
        self._main = main
        self._running = threads.start(self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(None)
        task = self.loop.create_task(self._main())
        self.loop.run_forever()
        # The test loses tasks on purpose; that asyncio says so is not its subject.
        for lost in asyncio.all_tasks(self.loop) | {task}:
            lost._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()

    def close(self) -> None:
        """Stop the loop where it stands, cancel nothing, and close it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._running.join()


def make_work(runs: list[str], gates: dict[str, Gate], **options: Any) -> Any:
    """Return a function that notes who runs it and waits for that one's gate, if it has one."""

    @coordinated(key="work", ignore=["me"], scope=own_scope(), **options)
    async def work(me: str) -> str:
        runs.append(me)
        if me in gates:
            await gates[me].passed()
        return f"{me}'s value"

    return work


@contextmanager
def ending(how: str, main: Main) -> Iterator[Callable[[], None]]:
    """Run ``main()`` on a loop that the yielded function ends, with everything in the air."""
    if how == "stopped and closed":
        loop = Stoppable(main)
        yield loop.close
        return
    leave: list[Any] = []
    ready = threading.Event()

    async def shut_down() -> None:
        flag = asyncio.Event()
        leave.append((asyncio.get_running_loop(), flag))
        task = asyncio.create_task(main())
        ready.set()
        await flag.wait()
        del task

    running = threads.start(lambda: asyncio.run(shut_down()))
    assert ready.wait(TIMEOUT)
    [(loop, flag)] = leave

    def end() -> None:
        loop.call_soon_threadsafe(flag.set)
        running.join()

    yield end


@pytest.mark.parametrize("how", ["shut down", "stopped and closed"])
def test_a_loop_ends_with_the_flight_in_the_air__and_followers_elsewhere_take_over(
    how: str,
) -> None:
    """Followers on another loop share one new run; nobody gets the lost loop's CancelledError."""
    runs: list[str] = []
    gates = {"lost": Gate(), "next": Gate()}
    work = make_work(runs, gates)

    async def followers() -> list[str]:
        return await asyncio.gather(work("next"), work("next"), work("next"))

    with Recorder() as seen, ending(how, lambda: work("lost")) as end:
        seen.wait(1, "call:running")
        following = threads.start(lambda: run_loop(followers))
        seen.wait(3, "coordination:reuse")
        end()
        seen.wait(2, "call:running")
        seen.wait(5, "coordination:reuse")
        gates["next"].open()
        assert following.result() == ["next's value"] * 3
        assert seen.states()[0] == ("cancelled", "abandoned")
    assert runs == ["lost", "next"]


@pytest.mark.parametrize("how", ["shut down", "stopped and closed"])
def test_a_loop_ends_with_the_flight_in_the_air__and_a_newcomer_runs(how: str) -> None:
    """The key works at once, on any loop, though nobody followed."""
    runs: list[str] = []
    work = make_work(runs, {"lost": Gate()})
    with Recorder() as seen, ending(how, lambda: work("lost")) as end:
        seen.wait(1, "call:running")
        end()
    assert run_loop(lambda: work("new")) == "new's value"
    assert runs == ["lost", "new"]


@pytest.mark.parametrize("how", ["shut down", "stopped and closed"])
def test_a_loop_ends_with_the_head_of_a_queue__and_the_parked_call_runs(how: str) -> None:
    """Nobody but the parked caller itself is there to see that the loop is gone."""
    runs: list[str] = []
    work = make_work(runs, {"lost": Gate()}, strategy="serialize")
    with Recorder() as seen, ending(how, lambda: work("lost")) as end:
        seen.wait(1, "call:running")
        parked = threads.start(lambda: run_loop(lambda: work("next")))
        seen.wait(1, "call:parked")
        end()
        assert parked.result() == "next's value"
    assert runs == ["lost", "next"]


@pytest.mark.parametrize("how", ["shut down", "stopped and closed"])
def test_a_loop_ends_with_a_parked_caller__and_the_one_behind_it_runs(
    how: str, no_second_look: None
) -> None:
    """A parked call whose loop is gone is passed over when its turn comes."""
    runs: list[str] = []
    gates = {"head": Gate()}
    work = make_work(runs, gates, strategy="serialize")
    with Recorder() as seen:
        head = threads.start(lambda: run_loop(lambda: work("head")))
        seen.wait(1, "call:running")
        with ending(how, lambda: work("lost")) as end:
            seen.wait(1, "call:parked")
            last = threads.start(lambda: run_loop(lambda: work("last")))
            seen.wait(2, "call:parked")
            end()
        gates["head"].open()
        assert (head.result(), last.result()) == ("head's value", "last's value")
    assert runs == ["head", "last"]


@pytest.mark.parametrize("how", ["shut down", "stopped and closed"])
def test_a_loop_ends_with_followers__and_the_flight_elsewhere_does_not_notice(
    how: str, no_second_look: None
) -> None:
    """The leader settles and wakes whoever is left, though some of them are gone for good."""
    runs: list[str] = []
    gates = {"leader": Gate()}
    work = make_work(runs, gates)
    with Recorder() as seen:
        leader = threads.start(lambda: run_loop(lambda: work("leader")))
        seen.wait(1, "call:running")
        with ending(how, lambda: work("lost")) as end:
            seen.wait(1, "coordination:reuse")
            other = threads.start(lambda: run_loop(lambda: work("other")))
            seen.wait(2, "coordination:reuse")
            end()
        gates["leader"].open()
        assert (leader.result(), other.result()) == ("leader's value", "leader's value")
    assert runs == ["leader"]


@pytest.mark.parametrize("how", ["shut down", "stopped and closed"])
def test_a_loop_ends_before_its_submitted_call_started__and_a_newcomer_runs(
    how: str, new_alias: Callable[..., str]
) -> None:
    """A queued call of a loop's pool is lost with the loop; its key works at once."""
    runs: list[str] = []
    gates = {"busy": Gate()}
    alias = new_alias(WORKERS=1)
    busy = make_work(runs, gates, using=alias)
    work = make_work(runs, gates, using=alias)

    async def submit_two() -> None:
        await busy.asubmit("busy")
        await work.asubmit("lost")

    with Recorder() as seen, ending(how, submit_two) as end:
        seen.wait(1, "call:running")
        seen.wait(2, "call:queued")
        end()
    assert run_loop(lambda: work("new")) == "new's value"
    assert run_loop(lambda: busy("new")) == "new's value"
    # A loop that shuts down may still begin what was queued, and lose it in the air.
    assert [me for me in runs if me != "lost"] == ["busy", "new", "new"]


@pytest.mark.parametrize("how", ["shut down", "stopped and closed"])
def test_a_loop_ends_before_its_parked_submission_may_run__and_the_next_one_does(
    how: str, no_second_look: None
) -> None:
    """Let go by another loop's flight, it finds no loop to run on; the one behind it runs."""
    runs: list[str] = []
    gates = {"head": Gate()}
    work = make_work(runs, gates, strategy="serialize")
    with Recorder() as seen:
        head = threads.start(lambda: run_loop(lambda: work("head")))
        seen.wait(1, "call:running")
        with ending(how, lambda: work.asubmit("lost")) as end:
            seen.wait(1, "call:parked")
            last = threads.start(lambda: run_loop(lambda: work("last")))
            seen.wait(2, "call:parked")
            end()
        gates["head"].open()
        assert (head.result(), last.result()) == ("head's value", "last's value")
    assert runs == ["head", "last"]


def test_a_loop_stops_in_the_step_that_lets_its_parked_call_run__and_the_next_one_runs() -> None:
    """The wake is on its way when the loop closes: the released call never began, and is lost."""
    runs: list[str] = []
    gates = {"head": Gate()}
    work = make_work(runs, gates, strategy="serialize")
    held, let_go = threading.Event(), threading.Event()

    async def parked() -> None:
        task = asyncio.create_task(work("lost"))
        await asyncio.sleep(0)
        held.set()
        # The loop stands still here, so that the wake arrives and is not seen.
        assert let_go.wait(TIMEOUT)
        asyncio.get_running_loop().stop()
        await task

    with Recorder() as seen:
        head = threads.start(lambda: run_loop(lambda: work("head")))
        seen.wait(1, "call:running")
        loop = Stoppable(parked)
        assert held.wait(TIMEOUT)
        gates["head"].open()
        assert head.result() == "head's value"
        let_go.set()
        loop._running.join()
    assert run_loop(lambda: work("new")) == "new's value"
    assert runs == ["head", "new"]


def test_a_flight_task_cancelled_before_its_first_step__is_taken_over() -> None:
    """A loop may end before the flight's task began (Python 3.11): the next one runs."""
    runs: list[str] = []
    work = make_work(runs, {"lost": Gate()})

    async def leave_at_once() -> None:
        task = asyncio.create_task(work("lost"))
        await asyncio.sleep(0)
        del task

    asyncio.run(leave_at_once())
    assert run_loop(lambda: work("new")) == "new's value"
    assert runs[-1:] == ["new"]


def test_tasks_of_a_closed_loop_are_collected_under_the_lock__without_a_deadlock() -> None:
    """The garbage collector closes their coroutines at any moment, this thread's lock or not."""
    lock = handler.coordinator("default").flights.lock
    closed_under_the_lock: list[str] = []

    async def body(me: str) -> str:
        if me == "new":
            return me
        try:
            await asyncio.Event().wait()
        finally:
            if lock._is_owned():
                closed_under_the_lock.append(me)
        raise AssertionError

    work = coordinated(key="work", ignore=["me"], scope=own_scope())(body)
    queue = coordinated(key="work", ignore=["me"], scope=own_scope(), strategy="serialize")(body)

    async def lose_everything() -> None:
        leader = await work.asubmit("leader")
        await asyncio.gather(leader, work("a"), work("b"), queue("head"), queue("parked"))

    def collect() -> None:
        with lock:
            gc.collect()

    gc.disable()
    try:
        with Recorder() as seen, ending("stopped and closed", lose_everything) as end:
            seen.wait(2, "call:running")
            seen.wait(2, "coordination:reuse")
            seen.wait(1, "call:parked")
            end()
        # Newcomers end what was lost; only then can its tasks be collected.
        assert asyncio.run(work("new")) == "new"
        assert asyncio.run(queue("new")) == "new"
        del end
        threads.start(collect).result()
    finally:
        gc.enable()
    assert sorted(closed_under_the_lock) == ["head", "leader"]


def test_two_loops_share_one_flight(
    no_second_look: None,
) -> None:
    """A follower on another loop gets the value of the leader's loop, woken across threads."""
    runs: list[str] = []
    gates = {"leader": Gate()}
    work = make_work(runs, gates)
    with Recorder() as seen:
        leader = threads.start(lambda: run_loop(lambda: work("leader")))
        seen.wait(1, "call:running")
        follower = threads.start(lambda: run_loop(lambda: work("follower")))
        seen.wait(1, "coordination:reuse")
        gates["leader"].open()
        assert (leader.result(), follower.result()) == ("leader's value",) * 2
    assert runs == ["leader"]


def test_a_queue_goes_over_loops__in_arrival_order(
    no_second_look: None,
) -> None:
    """Parked calls of three loops run one after another, each on its own loop's thread."""
    order: list[tuple[str, int]] = []
    gate = Gate()

    @coordinated(key="work", strategy="serialize", ignore=["me"])
    async def work(me: str) -> int:
        order.append((me, threading.get_ident()))
        if me == "a":
            await gate.passed()
        return threading.get_ident()

    with Recorder() as seen:
        a = threads.start(lambda: run_loop(lambda: work("a")))
        seen.wait(1, "call:running")
        b = threads.start(lambda: run_loop(lambda: work("b")))
        seen.wait(1, "call:parked")
        c = threads.start(lambda: run_loop(lambda: work("c")))
        seen.wait(2, "call:parked")
        gate.open()
        idents = [a.result(), b.result(), c.result()]
    assert order == list(zip("abc", idents, strict=True))
    assert len(set(idents)) == 3


def test_a_flight_is_cancelled_from_another_loop__and_its_body_stops_there(
    no_second_look: None,
) -> None:
    """Cancelling is thread-safe: the body's loop throws the CancelledError, the caller learns."""
    stopped = threading.Event()

    @coordinated(key="work")
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert current_call() is not None
            stopped.set()

    async def caller() -> str:
        try:
            await work()
        except django_vega.CallCancelled as error:
            return error.reason
        raise AssertionError

    async def canceller() -> bool:
        return work.cancel()

    with Recorder() as seen:
        running = threads.start(lambda: run_loop(caller))
        seen.wait(1, "call:running")
        assert run_loop(canceller)
        assert running.result() == "abort"
    assert stopped.wait(TIMEOUT)
