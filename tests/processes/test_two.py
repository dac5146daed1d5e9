"""Two coordinators of one process, each with its alias, stand for two processes on one server."""

import asyncio
import gc
import io
import os
import platform
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command

import django_vega
from django_vega import (
    Busy,
    CallCancelled,
    LeaseLost,
    QueueFull,
    RemoteCallError,
    Strategy,
    Upsert,
    WaitTimeout,
    checkpoint,
    coordinated,
    singleflight_refresh,
)
from django_vega.backends.base import BackendUnavailableError
from django_vega.backends.protocol import Renewed
from django_vega.backends.redis import RedisBackend
from django_vega.handler import handler
from django_vega.management import SingleflightCommand
from tests import threads
from tests.backends.servers import Server, until
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never
from tests.interpreters import run_script
from tests.processes.conftest import alias
from tests.runtime.tasks import Gate as AnyGate
from tests.runtime.tasks import Witness, in_loop, own_scope
from tests.writing_app.models import Quake


class Two:
    """A function on each side of a server.

    Args:
        url: Of the server.
        settings: Of the tests.
        more: For both aliases.
    """

    def __init__(self, url: str, settings: Any, **more: Any) -> None:
        settings.DJANGO_VEGA = {
            "default": {},
            "here": {**alias(url), **more},
            "there": {**alias(url), **more},
        }
        scope = own_scope()

        def work(x: int, body: Callable[[], Any]) -> Any:
            return body()

        async def awork(x: int, body: Callable[[], Any]) -> Any:
            return await body()

        shared: dict[str, Any] = {"key": "work:{x}", "ignore": ["body"], "scope": scope}
        self.here = coordinated(using="here", **shared)(work)
        self.there = coordinated(using="there", **shared)(work)
        self.ahere = coordinated(using="here", **shared)(awork)
        self.athere = coordinated(using="there", **shared)(awork)

    def lead(self, end: Any = "value") -> tuple[Gate, threads.Running[Any]]:
        """Start a caller here whose body waits at the gate."""
        gate = Gate(end)
        running = threads.start(lambda: self.here(1, gate))
        assert gate.entered.wait(TIMEOUT)
        return gate, running

    def follow(self, function: Any = None, body: Any = never) -> threads.Running[Any]:
        """Start a caller there that follows, or is parked, when this returns."""
        with Arrivals(["coordination:reuse", "call:parked"]) as arrivals:
            running = threads.start(lambda: (function or self.there)(1, body))
            arrivals.wait(1)
        return running


@pytest.fixture
def make_two(own_server: Server, settings: Any) -> Iterator[Callable[..., Two]]:
    """Return a function that makes the two, whose aliases are closed afterwards."""
    yield lambda **more: Two(own_server.url, settings, **more)
    for name in ("here", "there"):
        for coordinator in handler.built(name):
            coordinator.close()
            table = coordinator.flights.table
            assert (len(table), len(table.waits)) == (0, 0)
        handler._coordinators.pop(name, None)
    settings.DJANGO_VEGA = {"default": {}}


@pytest.fixture
def two(make_two: Callable[..., Two]) -> Two:
    return make_two()


@pytest.mark.parametrize("value", [None, 1, "text", [1, {"a": [True, None]}], 2.5])
def test_value__travels(two: Two, value: Any):
    """What JSON carries unchanged comes to the followers of other processes."""
    gate, leader = two.lead(value)
    followers = [two.follow(), two.follow()]
    gate.open()
    assert threads.results([leader, *followers]) == [value] * 3
    assert gate.runs == 1


def test_value__does_not_travel(two: Two):
    """The leader has its own object; the follower is told what was refused, and the way out."""
    gate, leader = two.lead((1, 2))
    follower = two.follow()
    gate.open()
    assert leader.result() == (1, 2)
    error = follower.exception()
    assert isinstance(error, RemoteCallError)
    assert "UnfitValueError" in str(error)
    assert 'CODEC = "pickle"' in str(error)


def test_value__by_pickle(make_two: Callable[..., Two]):
    """An alias that trusts whoever writes to its server carries more."""
    two = make_two(CODEC="pickle")
    gate, leader = two.lead((1, {2: {3}}))
    follower = two.follow()
    gate.open()
    assert threads.results([leader, follower]) == [(1, {2: {3}})] * 2


def test_error__travels_as_text(two: Two):
    """Type, message and process; each follower has an instance of its own."""
    gate, leader = two.lead(ValueError("no luck"))
    followers = [two.follow(), two.follow()]
    gate.open()
    assert isinstance(leader.exception(), ValueError)
    errors = [follower.exception() for follower in followers]
    assert all(isinstance(error, RemoteCallError) for error in errors)
    assert errors[0] is not errors[1]
    assert (errors[0].type_name, errors[0].message) == ("ValueError", "no luck")


@pytest.mark.parametrize("strategy", ["dedupe", "serialize", "exhaust", "restart", "none"])
def test_uncontended__two_round_trips(
    make_two: Callable[..., Two], own_server: Server, strategy: str
):
    """By the server's own count: ADMIT and SETTLE, whatever the strategy; no heartbeat between.

    The inbox looks once at what is there when it has subscribed: that is in one of the counts.
    """
    two = make_two(LEASE=60)
    function = two.here.with_options(strategy=strategy)
    function(1, lambda: None)  # connects, and sends the scripts

    def scripts() -> int:
        return int(own_server.client.info("commandstats")["cmdstat_evalsha"]["calls"])

    counts = []
    for _ in range(3):
        before = scripts()
        for number in range(10):
            function(number, lambda: None)
        counts.append(scripts() - before)
    assert sorted(counts)[:2] == [20, 20]


def test_in_flight__shows_where_it_runs(two: Two):
    """The follower's process lists the flight, by the process that runs it."""
    gate, leader = two.lead()
    follower = two.follow()
    (stand_in,) = django_vega.in_flight(using="there")
    (flight,) = django_vega.in_flight(using="here")
    assert (stand_in.key, stand_in.state, stand_in.generation) == (
        flight.key,
        "running",
        flight.generation,
    )
    assert stand_in.joined == 1
    gate.open()
    threads.results([leader, follower])


def test_busy__says_which_process(two: Two):
    """A caller who does not wait is told who is in its way."""
    gate, leader = two.lead()
    with pytest.raises(Busy, match=f"in flight on {platform.node()}:{os.getpid()}, for"):
        two.there.with_options(while_busy="raise")(1, never)
    gate.open()
    leader.result()
    assert two.there.with_options(while_busy="raise")(1, lambda: 2) == 2


def test_queue__full_and_in_turn(two: Two):
    """Parked calls of two processes run in their order; beyond the capacity one is refused."""
    options = {"strategy": Strategy(limit=1, when_full="queue", capacity=1)}
    gate = Gate("first")
    here, there = two.here.with_options(**options), two.there.with_options(**options)
    leader = threads.start(lambda: here(1, gate))
    assert gate.entered.wait(TIMEOUT)
    parked = two.follow(there, lambda: "second")
    with pytest.raises(QueueFull):
        here(1, never)
    gate.open()
    assert threads.results([leader, parked]) == ["first", "second"]


def test_timeout__of_a_follower(two: Two):
    """Its wait is its own: the flight goes on."""
    gate, leader = two.lead()
    with pytest.raises(WaitTimeout, match="running for"):
        two.there.with_options(timeout=0.05)(1, never)
    gate.open()
    assert leader.result() == "value"


def test_close__lets_a_follower_take_over(two: Two):
    """A process that ends abandons what it leads; nobody elsewhere hears of a shutdown."""
    gate, leader = two.lead()
    follower = two.follow(body=lambda: "mine")
    django_vega.close(using="here")
    assert follower.result() == "mine"
    gate.open()
    assert isinstance(leader.exception(), CallCancelled)


def test_interrupt__of_the_leader(two: Two):
    """Nobody gets a KeyboardInterrupt but its own thread: a follower elsewhere runs."""
    gate, leader = two.lead(KeyboardInterrupt())
    follower = two.follow(body=lambda: "mine")
    gate.open()
    assert isinstance(leader.exception(), KeyboardInterrupt)
    assert follower.result() == "mine"


def test_release__the_leader_learns_that_it_has_lost(two: Two):
    """An operator frees the key: the leader's next checkpoint raises, and a follower runs."""
    gate = Gate()
    lost: list[BaseException] = []

    def body() -> str:
        gate()
        try:
            checkpoint()
        except LeaseLost as error:
            lost.append(error)
        return "old"

    leader = threads.start(lambda: two.here(1, body))
    assert gate.entered.wait(TIMEOUT)
    follower = two.follow(body=lambda: "new")
    remote = handler.coordinator("there").flights.remote
    slot = next(iter(handler.coordinator("there").flights.slots(lambda _: True)))
    with Recorder() as seen:
        remote.link.backend.release(remote.link.hash(slot), "by-hand")
        assert follower.result() == "new"
        seen.wait(1, "lease:lost")
        gate.open()
        assert leader.result() == "old"
    assert "lost its lease (released)" in str(lost[0])


def test_cancel__of_the_key_reaches_the_leader(two: Two):
    """By its key, from the process of a follower; who waits is told, and the body is stopped."""
    gate, leader = two.lead()
    follower = two.follow()
    assert two.there.cancel(1, never) == 1
    assert isinstance(follower.exception(), CallCancelled)
    gate.open()
    assert isinstance(leader.exception(), CallCancelled)
    assert two.there(1, lambda: "anew") == "anew"


def test_restart__over_processes(two: Two):
    """The older flight of the other process is cancelled, and its followers are told."""
    gate, leader = two.lead()
    follower = two.follow()
    with Recorder(["coordination:restart"]) as seen:
        assert two.there.with_options(strategy="restart")(1, lambda: "new") == "new"
        assert [len(event.cancelled_call_ids) for event in seen.events()] == [1]
    assert isinstance(follower.exception(), CallCancelled)
    gate.open()
    assert isinstance(leader.exception(), CallCancelled)


@in_loop
async def _async_story(two: Two) -> None:
    gate = AnyGate()

    async def body() -> str:
        await gate.passed()
        return "value"

    with Witness() as seen:
        leader = asyncio.create_task(two.ahere(1, body))
        await seen.sees(1, "call:running")
        followers = [asyncio.create_task(two.athere(1, body)) for _ in range(5)]
        await seen.sees(5, "coordination:reuse")
        leader.cancel()
        await asyncio.wait([leader])
        gate.open()
        assert await asyncio.gather(*followers) == ["value"] * 5
        assert len(seen.events("call:running")) == 1


def test_async__the_leaders_caller_goes(two: Two):
    """The flight goes on for the followers of the other process."""
    _async_story(two)


def test_async__a_thread_does_not_wait_for_its_own_processes_task(two: Two):
    """It leads a second flight; the threads and tasks of other processes share the first."""

    @in_loop
    async def story() -> None:
        gate = AnyGate()

        async def body() -> str:
            await gate.passed()
            return "task"

        with Witness() as seen:
            task = asyncio.create_task(two.ahere(1, body))
            await seen.sees(1, "call:running")
            assert await asyncio.to_thread(two.here, 1, lambda: "thread") == "thread"
            assert len(seen.events("coordination:solo")) == 1
            other = threads.start(lambda: two.there(1, never))
            await seen.sees(1, "coordination:reuse")
            gate.open()
            assert await task == "task"
            assert await asyncio.to_thread(other.result) == "task"

    story()


def test_submit__over_processes(two: Two):
    """Submitted calls follow flights of other processes, and run when these are abandoned."""
    gate, leader = two.lead(KeyboardInterrupt())
    call = two.there.submit(1, lambda: "mine")
    gate.open()
    assert isinstance(leader.exception(), KeyboardInterrupt)
    assert call.result() == "mine"


class DeafBackend(RedisBackend):
    """Hears nothing of its leases: as if hints and renewals came late."""

    def renew(self, *args: Any, **kwargs: Any) -> Renewed:
        """Say that all is well."""
        return Renewed()


@pytest.mark.parametrize("is_async", [False, True])
def test_cancel__that_the_leader_hears_of_when_it_settles(
    make_two: Callable[..., Two], is_async: bool
):
    """Cancelled elsewhere and never told: its value is discarded, and its own caller is told."""
    two = make_two(BACKEND=f"{__name__}.DeafBackend")

    @in_loop
    async def story() -> None:
        gate = AnyGate()

        async def body() -> str:
            await gate.passed()
            return "value"

        def blocking() -> str:
            gate.wait()
            return "value"

        with Witness() as seen:
            if is_async:
                leader = asyncio.ensure_future(two.ahere(1, body))
            else:
                leader = asyncio.ensure_future(asyncio.to_thread(two.here, 1, blocking))
            await seen.sees(1, "call:running")
            follower = threads.start(lambda: two.there(1, never))
            await seen.sees(1, "coordination:reuse")
            assert await asyncio.to_thread(two.there.cancel, 1, never) == 1
            gate.open()
            with pytest.raises(CallCancelled):
                await leader
            await asyncio.to_thread(follower.exception)
            assert ("cancelled", "abort") in seen.states()

    story()


class HeldBackend(RedisBackend):
    """Looks at nothing before the test says so: as if each hint and each look came late."""

    may_look = threading.Event()

    def look(self, *args: Any, **kwargs: Any) -> Any:
        """Ask how a follower stands, later."""
        assert self.may_look.wait(TIMEOUT)
        return super().look(*args, **kwargs)


def test_strict_join__an_outcome_that_was_there_before(make_two: Callable[..., Two]):
    """The flight elsewhere is over and this process does not know: a newcomer gets no old outcome.

    Who came while it ran gets it, however late. The newcomer's own request finds the key free.
    """
    HeldBackend.may_look.clear()
    two = make_two(BACKEND=f"{__name__}.HeldBackend", TIMEOUT=10)
    gate, leader = two.lead("old")
    follower = two.follow()
    gate.open()
    assert leader.result() == "old"
    (stand_in,) = django_vega.in_flight(using="there")
    assert stand_in.state == "running"
    assert two.there(1, lambda: "new") == "new"
    HeldBackend.may_look.set()
    assert follower.result() == "old"


def test_command__that_runs_in_another_process(two: Two):
    """A second start elsewhere says where the first one runs."""

    def handle(self: Any, *args: Any, **options: Any) -> str:
        return str(gate())

    body = {"handle": handle, "requires_system_checks": ()}
    here, there = (
        type("Command", (SingleflightCommand,), {**body, "vega_using": using})()
        for using in ("here", "there")
    )
    gate, out = Gate("done"), io.StringIO()
    first = threads.start(lambda: call_command(here, stdout=io.StringIO()))
    assert gate.entered.wait(TIMEOUT)
    call_command(there, stdout=out)
    assert out.getvalue().startswith(f"already running on {platform.node()}:{os.getpid()} for ")
    gate.open()
    assert (first.result(), gate.runs) == ("done", 1)


class UntoldInbox:
    """Loses every hint, and never says that it may have."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox

    def receive(self, timeout: float) -> None:
        """Hear, and tell nobody."""
        self._inbox.receive(timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)


class UntoldBackend(RedisBackend):
    """Its processes get no hints."""

    def inbox(self, process: str) -> Any:
        return UntoldInbox(super().inbox(process))


def test_recheck__a_hint_that_was_lost(make_two: Callable[..., Two]):
    """A follower that nobody tells anything looks by itself, and has the outcome."""
    two = make_two(BACKEND=f"{__name__}.UntoldBackend", TIMEOUT=10)
    gate, leader = two.lead()
    follower = two.follow()
    gate.open()
    assert threads.results([leader, follower]) == ["value"] * 2


@pytest.mark.django_db(transaction=True)
def test_fence__a_leader_that_was_taken_for_dead(two: Two):
    """Its key was released and somebody else has written meanwhile: what it brings is refused."""
    upsert = Upsert(Quake, ["code"])
    shared: dict[str, Any] = {"key": "rows", "ignore": ["body"], "upsert": upsert}
    shared["scope"] = own_scope()

    def rows(body: Callable[[], Any]) -> list[dict[str, Any]]:
        return [{"code": "rows", "place": body()}]

    here = singleflight_refresh(using="here", **shared)(rows)
    there = singleflight_refresh(using="there", **shared)(rows)
    gate = Gate("old")
    late = threads.start(lambda: here(gate))
    assert gate.entered.wait(TIMEOUT)
    link = handler.coordinator("there").flights.remote.link
    link.backend.release(link.hash((shared["scope"], "rows")), "release")
    assert there(lambda: "new").outcome == "written"
    gate.open()
    assert late.result().outcome == "superseded"
    assert Quake.objects.get(code="rows").place == "new"


@pytest.mark.parametrize("policy", ["local", "run", "raise"])
def test_outage__is_counted_and_told(
    make_two: Callable[..., Two],
    own_server: Server,
    caplog: pytest.LogCaptureFixture,
    policy: str,
):
    """The log says what becomes of calls, how long that was so, and how many it concerned."""
    two = make_two(ON_BACKEND_ERROR=policy)
    assert two.here(1, lambda: "before") == "before"
    link = handler.coordinator("here").flights.remote.link
    own_server.kill()
    for _ in range(3):
        if policy == "raise":
            with pytest.raises(BackendUnavailableError):
                two.here(1, never)
        else:
            assert two.here(1, lambda: "meanwhile") == "meanwhile"
    assert (link.is_down, link.outages, link.uncoordinated) == (True, 1, 3)
    own_server.start_again()
    until(lambda: not link.is_down, "it is back")
    assert two.here(1, lambda: "after") == "after"
    gone, back = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"ON_BACKEND_ERROR={policy!r} until it is back (outage 1 of this process)" in gone
    assert "meanwhile 3 calls were decided on without it" in back


def test_gather__one_request_for_all_who_come_meanwhile(
    make_two: Callable[..., Two], own_server: Server
):
    """While a first caller's request is under way, seven more gather, and one asks for them."""
    two = make_two()
    gate, leader = two.lead()
    remote = handler.coordinator("there").flights.remote
    with remote.link._sending:  # requests of that process stand still here
        with Arrivals(["call:created"]) as arrivals:
            first = threads.start(lambda: two.there(1, never))
            arrivals.wait(1)
        while not remote._admissions._lanes:
            pass
        with Arrivals(["coordination:reuse"]) as arrivals:
            others = [threads.start(lambda: two.there(1, never)) for _ in range(7)]
            arrivals.wait(6)
        before = own_server.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    with Arrivals(["coordination:reuse"]) as arrivals:
        arrivals.wait(2)
    after = own_server.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert after - before <= 2 + 1  # and at most one look that was due
    gate.open()
    assert threads.results([leader, first, *others]) == ["value"] * 9


def test_settings__a_coordinator_that_they_replace(two: Two, settings: Any):
    """Its threads end when nobody has to do with it any more, and 1,000 keys leave nothing."""
    for number in range(1000):
        two.here(number, lambda: None)
    remote = handler.coordinator("here").flights.remote
    assert remote.link.slots() == {}
    assert (remote._admissions._lanes, remote._admissions._asking) == ({}, {})
    workers = list(handler.coordinator("here")._renewal._threads)
    assert [thread.is_alive() for thread in workers] == [True, True]
    del remote
    here = settings.DJANGO_VEGA["here"]
    settings.DJANGO_VEGA = {**settings.DJANGO_VEGA, "here": {**here, "WORKERS": 2}}
    assert two.here(1, lambda: 2) == 2

    def have_ended() -> bool:
        # A heartbeat under way holds on to what it renews, so once is not enough.
        gc.collect()
        return not any(thread.is_alive() for thread in workers)

    until(have_ended, "the threads of the replaced one end")


SETUP = """
import os, sys
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_vega"],
    DJANGO_VEGA={"default": {
        "BACKEND": "django_vega.backends.redis.RedisBackend", "LOCATION": %r,
    }},
)
import django
django.setup()
import django_vega
from django_vega import coordinated

@coordinated(key="work:{x}")
def work(x):
    return os.getpid()
"""


def test_fork__the_child_is_a_process_of_its_own(own_server: Server):
    """After calls were made, with threads at work: the child has connections and threads anew."""
    script = """
        assert work(1) == os.getpid()
        child = os.fork()
        if not child:
            for number in range(3):
                assert work(number) == os.getpid()
            django_vega.close()
            print("child", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert work(1) == os.getpid()
        print("parent")
    """
    assert run_script(SETUP % own_server.url, script) == "child\nparent\n"
