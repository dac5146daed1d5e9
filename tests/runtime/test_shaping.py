"""Shapers in front of the coordinator: what is held back, what passes, who is swallowed."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

import django_vega
from django_vega import (
    CallCancelled,
    ReentrantCallError,
    Strategy,
    WaitTimeout,
    coordinated,
    coordinator,
    debounce,
    throttle,
)
from django_vega.handler import handler
from django_vega.signals import shaper_swallowed
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, interrupt, never, raising
from tests.runtime.tasks import Witness, ends, in_loop, own_scope


class ManualClock:
    """A clock that stands still until the test says otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._looked = threading.Condition()

    def monotonic(self) -> float:
        with self._looked:
            self._looked.notify_all()
            return self.now

    time = monotonic

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Block until a condition holds, asked again whenever somebody looks at the clock."""
        with self._looked:
            assert self._looked.wait_for(condition, TIMEOUT)


class Desk:
    """An alias with a clock of its own, and a debounced and a throttled function."""

    def __init__(self, alias: str) -> None:
        self.coordinator = handler.coordinator(alias)
        self.clock = self.coordinator.flights.clock = ManualClock()
        self.shaping = self.coordinator._shaping

        def work(x: int, body: Callable[[], Any]) -> Any:
            return body()

        async def awork(x: int, body: Callable[[], Any]) -> Any:
            return await body()

        def decorated(function: Any, shaper: Any, **options: Any) -> Any:
            return coordinated(
                key="work:{x}",
                ignore=["body"],
                using=alias,
                scope=own_scope(),
                shaper=shaper,
                **{"timeout": 300, **options},
            )(function)

        self.decorated = decorated

        self.work, self.awork = work, awork
        self.debounced = decorated(work, debounce(wait=2, max_wait=5))
        self.throttled = decorated(work, throttle(10))
        self.adebounced = decorated(awork, debounce(wait=2, max_wait=5))
        self.athrottled = decorated(awork, throttle(10))

    def held(self, x: int = 1) -> int:
        """How many callers of a key are held back."""
        bursts = tuple(self.shaping._bursts.items())
        return sum(len(burst.members) for slot, burst in bursts if slot[1][-1] == str(x))

    def arrive(self, body: Callable[[], Any], function: Any = None) -> threads.Running[Any]:
        """Start a caller that is held back when this returns."""
        before = self.held()
        caller = threads.start(lambda: (function or self.debounced)(1, body))
        self.clock.wait_for(lambda: self.held() == before + 1)
        return caller

    async def aarrive(self, body: Callable[[], Any], function: Any = None) -> "asyncio.Task[Any]":
        """Start a task that is held back when this returns."""
        before = self.held()
        task = asyncio.create_task((function or self.adebounced)(1, body))
        while self.held() == before:
            await asyncio.sleep(0)
        return task

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and everybody see it."""
        self.clock.now += seconds
        self.shaping.wake_all()

    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self.shaping._bursts


@pytest.fixture
def desk(new_alias: Callable[..., str]) -> Desk:
    return Desk(new_alias())


def answer(value: Any) -> Callable[[], Any]:
    """Return an async body of that value."""

    async def body() -> Any:
        return value

    return body


# Debounce


def test_debounce__the_last_caller_runs_and_all_share_its_outcome(desk: Desk):
    """Three callers within the wait: one run, that of the last, after two quiet seconds."""
    with Recorder() as seen:
        first = desk.arrive(never)
        desk.pass_time(1)
        second = desk.arrive(never)
        desk.pass_time(1.9)
        gate = Gate("value")
        third = desk.arrive(gate)
        desk.pass_time(1.9)
        assert not gate.entered.is_set()
        assert seen.events() == []
        desk.pass_time(0.1)
        assert gate.entered.wait(TIMEOUT)
        assert [event.shaper for event in seen.events("shaper:swallowed")] == ["debounce"] * 2
        assert [event.call_id for event in seen.events("shaper:swallowed")] == [0, 0]
        gate.open()
        assert threads.results([first, second, third]) == ["value"] * 3
        assert len(seen.events("call:created")) == 1
    assert gate.runs == 1
    assert desk.is_empty()


def test_debounce__a_steady_stream_runs_at_max_wait(desk: Desk):
    """Calls every second never leave two quiet ones: after five the last of them runs."""
    ran = []
    callers = []
    for number in range(5):
        callers.append(desk.arrive(lambda number=number: ran.append(number) or number))
        desk.pass_time(1)
    assert threads.results(callers) == [4] * 5
    assert ran == [4]


def test_debounce__after_the_run_a_new_burst_begins(desk: Desk):
    """Who comes while the run is under way is not its, but the next burst's."""
    gate = Gate("first")
    first = desk.arrive(gate)
    desk.pass_time(2)
    assert gate.entered.wait(TIMEOUT)
    late = desk.arrive(lambda: "second")
    gate.open()
    assert threads.results([first]) == ["first"]
    desk.pass_time(2)
    assert threads.results([late]) == ["second"]


def test_debounce__keys_are_their_own(desk: Desk):
    """Another key has a burst, and a run, of its own."""
    one = desk.arrive(lambda: "one")
    two = threads.start(lambda: desk.debounced(2, lambda: "two"))
    desk.clock.wait_for(lambda: desk.held(2) == 1)
    desk.pass_time(2)
    assert threads.results([one, two]) == ["one", "two"]


def test_debounce__an_error_reaches_all(desk: Desk):
    """Each swallowed caller raises an instance of its own."""
    first = desk.arrive(never)

    def fail() -> None:
        raise ValueError("no")

    last = desk.arrive(fail)
    desk.pass_time(2)
    errors = [first.exception(), last.exception()]
    assert [str(error) for error in errors] == ["no", "no"]
    assert errors[0] is not errors[1]
    assert errors[0].__cause__ is errors[1]


def test_debounce__the_one_to_run_is_interrupted(desk: Desk):
    """The one before it runs in its place, at the time that was set."""
    first = desk.arrive(lambda: "first")
    last = desk.arrive(never)
    interrupt(last)
    desk.shaping.wake_all()
    assert isinstance(last.exception(), KeyboardInterrupt)
    assert desk.held() == 1
    desk.pass_time(2)
    assert threads.results([first]) == ["first"]
    assert desk.is_empty()


def test_debounce__the_run_is_interrupted(desk: Desk):
    """A run that its thread breaks off is nobody's outcome: the next one runs."""
    first = desk.arrive(lambda: "first")

    def broken() -> None:
        raise KeyboardInterrupt

    last = desk.arrive(broken)
    desk.pass_time(2)
    assert isinstance(last.exception(), KeyboardInterrupt)
    assert threads.results([first]) == ["first"]


def test_debounce__everybody_leaves(desk: Desk):
    """A burst without callers is forgotten and never runs."""
    only = desk.arrive(never)
    interrupt(only)
    desk.shaping.wake_all()
    assert isinstance(only.exception(), KeyboardInterrupt)
    assert desk.is_empty()


def test_debounce__a_swallowed_caller_times_out(desk: Desk):
    """Its timeout is its own, and counts from its call."""
    gate = Gate("value")
    impatient = desk.debounced.with_options(timeout=6)
    first = desk.arrive(never, impatient)
    last = desk.arrive(gate)
    desk.pass_time(2)
    assert gate.entered.wait(TIMEOUT)
    desk.clock.now += 5
    error = first.exception()
    assert isinstance(error, WaitTimeout)
    assert "running" in str(error)
    gate.open()
    assert threads.results([last]) == ["value"]


def test_debounce__close(desk: Desk, new_alias: Callable[..., str]):
    """Who is held back when the coordinator closes is told."""
    callers = [desk.arrive(never), desk.arrive(never)]
    desk.coordinator.close()
    errors = [caller.exception() for caller in callers]
    assert [error.reason for error in errors] == ["shutdown", "shutdown"]
    assert desk.is_empty()


def test_debounce__no_key_is_not_shaped(new_alias: Callable[..., str]):
    """A call that a callable key leaves uncoordinated runs at once."""

    @coordinated(key=lambda x: None, using=new_alias(), shaper=debounce(2, 5))
    def work(x: int) -> int:
        return x

    assert work(1) == 1


@in_loop
async def _async_story(desk: Desk) -> None:
    with Witness() as seen:
        tasks = [await desk.aarrive(answer(number)) for number in range(3)]
        assert seen.events() == []
        desk.pass_time(2)
        assert await asyncio.gather(*tasks) == [2] * 3
        assert len(seen.events("call:running")) == 1
        assert len(seen.events("shaper:swallowed")) == 2
    assert desk.is_empty()


def test_debounce__async(desk: Desk):
    """Tasks are held back like threads."""
    _async_story(desk)


def test_debounce__async_the_runner_is_cancelled(desk: Desk):
    """Held back or running: when the last one is cancelled the others have an outcome."""

    @in_loop
    async def story() -> None:
        first, last = await desk.aarrive(answer("first")), await desk.aarrive(answer("last"))
        last.cancel()
        assert [type(end) for end in await ends(last)] == [asyncio.CancelledError]
        desk.pass_time(2)
        assert await first == "first"

        gate = asyncio.Event()

        async def slow() -> str:
            await gate.wait()
            return "slow"

        with Witness() as seen:
            first, last = await desk.aarrive(never), await desk.aarrive(slow)
            desk.pass_time(2)
            await seen.sees(1, "call:running")
            last.cancel()
            await ends(last)
            await seen.sees(1, "coordination:reuse")
            gate.set()
            assert await first == "slow"

    story()


@pytest.mark.parametrize("fired", [False, True])
def test_debounce__the_loop_of_the_runner_is_gone(desk: Desk, fired: bool):
    """A loop that was closed under a caller, held back or running, takes no outcome away."""
    dead = asyncio.new_event_loop()
    first: list[Any] = []
    entered = asyncio.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    @in_loop
    async def story() -> None:
        mine = await desk.aarrive(answer("mine"))
        ready = threading.Event()

        def on_another_thread() -> None:
            async def hold_back() -> None:
                task = asyncio.ensure_future(desk.adebounced(1, hang))
                task._log_destroy_pending = False
                first.append(task)
                while desk.held() < 2:
                    await asyncio.sleep(0)
                if fired:
                    desk.pass_time(2)
                    await entered.wait()

            dead.run_until_complete(hold_back())
            dead.close()
            ready.set()

        running = threads.start(on_another_thread)
        while not ready.is_set():
            await asyncio.sleep(0)
        running.result()
        desk.pass_time(2)
        assert await mine == "mine"

    story()
    first.clear()


def test_debounce__inside_of_a_flight(desk: Desk):
    """A body calls its own key while another caller is held back: it is told at once.

    Held back, it would wait for a run that waits for the flight which its body is.
    """
    held: list[Any] = []

    def body() -> Any:
        held.append(desk.arrive(lambda: "later"))
        return desk.debounced(1, never)

    caller = desk.arrive(body)
    desk.pass_time(2)
    assert isinstance(caller.exception(), ReentrantCallError)
    desk.pass_time(2)
    assert held[0].result() == "later"
    assert desk.is_empty()


def test_debounce__inside_of_a_flight_of_another_key(desk: Desk):
    """What a flight waits for is not put off: it may be what the others of the burst wait for."""

    @in_loop
    async def story() -> None:
        async def inner() -> Any:
            return await desk.adebounced(2, answer("inner"))

        outer = await desk.aarrive(inner)
        desk.pass_time(2)
        assert await outer == "inner"

    story()
    outer = desk.arrive(lambda: desk.debounced(2, lambda: "inner"))
    desk.pass_time(2)
    assert outer.result() == "inner"


def test_debounce__the_runner_times_out(desk: Desk):
    """Its timeout is its own: the one before it follows the flight, and gets the outcome."""
    gate = Gate("value")
    impatient = desk.debounced.with_options(timeout=6)
    busy = desk.arrive(gate)
    desk.pass_time(2)
    assert gate.entered.wait(TIMEOUT)
    with Arrivals(["coordination:reuse"]) as arrivals:
        patient = desk.arrive(never)
        last = desk.arrive(never, impatient)
        desk.pass_time(2)
        arrivals.wait(1)
        desk.clock.now += 7
        assert isinstance(last.exception(), WaitTimeout)
        arrivals.wait(2)
    gate.open()
    assert threads.results([busy, patient]) == ["value"] * 2


def test_debounce__the_body_raises_what_a_wait_may_raise(desk: Desk):
    """A timeout of something inside the body is the outcome of the run, for all."""
    first = desk.arrive(never)
    last = desk.arrive(raising(WaitTimeout("inner", 5.0, "somebody")))
    desk.pass_time(2)
    errors = [first.exception(), last.exception()]
    assert [type(error) for error in errors] == [WaitTimeout] * 2
    assert errors[0] is not errors[1]


def test_debounce__the_run_is_refused_by_its_coordinator(desk: Desk):
    """An error of the coordinator goes to that caller alone; the one before it asks for itself."""
    asked: list[int] = []

    @coordinator("fails-once")
    def fails_once(ctx: Any) -> None:
        asked.append(ctx.intent.id)
        if len(asked) == 1:
            raise LookupError("once")
        ctx.proceed()

    function = desk.decorated(desk.work, debounce(2, 5), strategy=fails_once)
    first = desk.arrive(lambda: "first", function)
    last = desk.arrive(never, function)
    desk.pass_time(2)
    assert isinstance(last.exception(), LookupError)
    assert first.result() == "first"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"while_busy": "raise"}, "busy"),
        ({"strategy": "exhaust"}, "exhaust-dropped"),
        ({"strategy": Strategy(limit=1, when_full="queue", capacity=0)}, "queue-full"),
    ],
)
def test_debounce__the_run_is_turned_away(desk: Desk, options: dict[str, Any], reason: str):
    """The burst is one call: when its rule refuses it, everybody is told so, in one and a kind."""
    gate = Gate("value")
    function = desk.decorated(desk.work, debounce(2, 5), **options)
    busy = desk.arrive(gate, function)
    desk.pass_time(2)
    assert gate.entered.wait(TIMEOUT)
    with Recorder() as seen:
        callers = [desk.arrive(never, function), desk.arrive(never, function)]
        desk.pass_time(2)
        errors = [caller.exception() for caller in callers]
        assert type(errors[0]) is type(errors[1])
        assert errors[0] is not errors[1]
        assert [state[1] for state in seen.states()] == [reason]
    gate.open()
    assert busy.result() == "value"


def test_debounce__callers_with_other_options(desk: Desk):
    """Who needs the next run shares none that only joined the one under way."""
    gate = Gate("first")
    busy = desk.arrive(gate)
    desk.pass_time(2)
    assert gate.entered.wait(TIMEOUT)
    with Arrivals() as arrivals:
        new = desk.arrive(lambda: "second", desk.debounced.with_options(next=True))
        old = desk.arrive(never)
        desk.pass_time(2)
        arrivals.wait(2)
    gate.open()
    assert threads.results([busy, old, new]) == ["first", "first", "second"]


def test_debounce__a_signal_closes_the_coordinator_within_a_step(desk: Desk):
    """A handler may run on the thread that holds the lock; it does not wait for itself."""
    first = desk.arrive(never)
    with desk.shaping._lock:
        desk.coordinator.close()
    assert isinstance(first.exception(), CallCancelled)


def test_debounce__interrupted_once_it_has_run(desk: Desk):
    """The run is over and its thread interrupted before it told anybody: it is the outcome."""
    first = desk.arrive(never)
    last = desk.arrive(lambda: "value")

    def interrupted(event: Any) -> None:
        raise KeyboardInterrupt

    unsubscribe = django_vega.subscribe(interrupted, ["call:settled"])
    try:
        desk.pass_time(2)
        assert isinstance(last.exception(), KeyboardInterrupt)
        assert first.result() == "value"
    finally:
        unsubscribe()


def test_debounce__async_a_run_that_is_cancelled_when_nobody_is_left(desk: Desk):
    """`on_last_leave="cancel"`: the members of the burst count as waiting for its flight."""
    function = desk.decorated(desk.awork, debounce(2, 5), on_last_leave="cancel")
    ended: list[str] = []
    gate = asyncio.Event()

    async def body() -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "value"

    @in_loop
    async def story() -> None:
        with Witness() as seen:
            first, second, last = [
                await desk.aarrive(one, function) for one in (never, never, body)
            ]
            desk.pass_time(2)
            await seen.sees(1, "call:running")
            (record,) = django_vega.in_flight()
            assert record.joined == 2
            last.cancel()
            await ends(last)
            await seen.sees(1, "coordination:reuse")
            assert ended == []
            second.cancel()  # it had taken over
            await ends(second)
            await seen.sees(2, "coordination:reuse")
            assert ended == []
            first.cancel()
            await ends(first)
            while django_vega.in_flight():
                await asyncio.sleep(0)
        assert ended == ["cancelled"]

    story()


def test_debounce__async_a_closed_coroutine(desk: Desk):
    """A caller whose coroutine is closed, as by the garbage collector, takes no step and no lock.

    The one before it sees that when it looks again.
    """

    @in_loop
    async def story() -> None:
        first = await desk.aarrive(answer("first"))
        closed = desk.adebounced(1, never)
        closed.send(None)
        assert desk.held() == 2
        locked = threading.Event()
        done = threading.Event()

        def hold() -> None:
            with desk.shaping._lock:
                locked.set()
                assert done.wait(TIMEOUT)

        holder = threads.start(hold)
        assert locked.wait(TIMEOUT)
        closed.close()
        done.set()
        holder.result()
        desk.pass_time(2)
        assert await first == "first"

    story()
    assert desk.is_empty()


def test_debounce__async_bursts_of_a_closed_loop(desk: Desk):
    """A loop that is closed without cancelling its tasks leaves nothing once another key comes."""
    dead = asyncio.new_event_loop()

    async def hold_back() -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(desk.adebounced(1, never))
        task._log_destroy_pending = False
        while desk.held() < 1:
            await asyncio.sleep(0)
        return task

    def on_another_thread() -> Any:
        task = dead.run_until_complete(hold_back())
        dead.close()
        return task

    lost = threads.start(on_another_thread).result()
    assert not desk.is_empty()
    other = threads.start(lambda: desk.debounced(2, lambda: "other"))
    desk.clock.wait_for(lambda: desk.held(2) == 1)
    assert desk.held(1) == 0
    desk.pass_time(2)
    assert other.result() == "other"
    del lost


# Throttle


def test_throttle__swallows_within_the_interval(desk: Desk):
    """The first runs; the next ones raise until the interval is over, whatever ran meanwhile."""
    with Recorder() as seen:
        assert desk.throttled(1, lambda: "first") == "first"
        for _ in range(2):
            with pytest.raises(CallCancelled) as caught:
                desk.throttled(1, never)
            assert caught.value.reason == "throttled"
        assert [event.shaper for event in seen.events("shaper:swallowed")] == ["throttle"] * 2
        assert len(seen.events("call:created")) == 1
    assert desk.throttled(2, lambda: "another key") == "another key"
    desk.clock.now += 10
    assert desk.throttled(1, lambda: "again") == "again"


def test_throttle__async(desk: Desk):
    """The same on a loop."""

    @in_loop
    async def story() -> None:
        assert await desk.athrottled(1, answer("first")) == "first"
        with pytest.raises(CallCancelled, match="throttled"):
            await desk.athrottled(1, never)
        desk.clock.now += 10
        assert await desk.athrottled(1, answer("again")) == "again"

    story()


def test_throttle__together(desk: Desk):
    """Of eight threads at once one passes."""
    ran: list[int] = []

    def call() -> str:
        try:
            return desk.throttled(1, lambda: ran.append(1) or "ran")
        except CallCancelled as error:
            return error.reason

    assert sorted(threads.run_together(*[call] * 8)) == ["ran", *["throttled"] * 7]
    assert ran == [1]


def test_swallowed__signal(desk: Desk):
    """The event is a signal, sent for the decorated function."""
    heard = []

    def receiver(sender: Any, event: Any, **_: Any) -> None:
        heard.append((sender, event.shaper, event.key))

    shaper_swallowed.connect(receiver)
    try:
        desk.throttled(1, lambda: None)
        with pytest.raises(CallCancelled):
            desk.throttled(1, never)
    finally:
        shaper_swallowed.disconnect(receiver)
    assert heard == [(desk.throttled, "throttle", "work:1")]


# What is refused


def test_submit__of_a_shaped_function(desk: Desk):
    """There is no caller to hold back."""
    with pytest.raises(ValueError, match="has a shaper"):
        desk.debounced.submit(1, never)
    with pytest.raises(ValueError, match="has a shaper"):
        desk.throttled.submit_nowait(1, never)


def test_timeout__below_max_wait(new_alias: Callable[..., str]):
    """Callers would time out before the run begins: refused at the first call."""

    @coordinated(key="work:{x}", using=new_alias(), shaper=debounce(2, 30))
    def work(x: int) -> int:
        return x

    with pytest.raises(ImproperlyConfigured, match=r"max_wait=30 s, timeout=30 s\. Raise the"):
        work(1)
    assert django_vega.in_flight() == ()


def test_shaper__of_another_kind():
    """A number of seconds is no shaper."""
    with pytest.raises(TypeError, match="shaper=5: pass debounce"):
        coordinated(key="work", shaper=5)
