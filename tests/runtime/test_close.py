"""The end: close(), the interpreter's exit, and the beginning in a forked child."""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import django_vega
from django_vega import CallCancelled, checkpoint, coordinated, current_call
from django_vega.handler import handler
from tests import interpreters, threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never


def run(name: str, body: Callable[[], Any]) -> Any:
    return body()


def on_alias(alias: str, **options: Any) -> Any:
    """Return a coordinated function of the alias."""
    return coordinated(key="end:{name}", ignore=["body"], using=alias, scope=alias, **options)(run)


@pytest.fixture
def work(new_alias) -> Any:
    """A function on an alias of its own, with one worker and room for one more call."""
    return on_alias(new_alias(WORKERS=1, CAPACITY=1))


def close(function: Any) -> None:
    django_vega.close(using=function.definition.using)


class Cooperative(Gate):
    """A body that gets to a checkpoint when the gate opens."""

    def __call__(self) -> Any:
        super().__call__()
        checkpoint()
        return "not stopped"


def start_leader(function: Any, name: str, body: Gate) -> threads.Running[Any]:
    """Start a caller whose body is entered when this returns."""
    leader = threads.start(lambda: function(name, body))
    assert body.entered.wait(TIMEOUT)
    return leader


def arrive(call: Callable[[], Any]) -> threads.Running[Any]:
    """Start a caller that waits for others when this returns."""
    with Arrivals() as arrivals:
        caller = threads.start(call)
        arrivals.wait(1)
    return caller


def test_close_frees_every_waiter__followers_parked_submitted_and_queued(work):
    """Whoever waits is told at once, whatever for; bodies stop at their next point."""
    queue = work.with_options(strategy="serialize")
    inline, head, pooled = Cooperative(), Cooperative(), Cooperative()
    with Recorder() as recorder:
        leader = start_leader(work, "inline", inline)
        holder = start_leader(queue, "queue", head)
        follower = arrive(lambda: work("inline", never))
        parked = arrive(lambda: queue("queue", never))
        running = work.submit("pooled", pooled)
        assert pooled.entered.wait(TIMEOUT)
        queued = work.submit("queued", never)
        assert queued.state == "queued"
        waiting = [threads.start(call.result) for call in (running, queued)]
        closing = threads.start(lambda: close(work))
        told = [one.exception() for one in (follower, parked, *waiting)]
        assert [(type(one), one.reason) for one in told] == [(CallCancelled, "shutdown")] * 4
        assert {record.state for record in django_vega.in_flight()} == {"stopping"}
        for body in (inline, head, pooled):
            body.open()
        closing.join()
        assert [one.exception().reason for one in (leader, holder)] == ["shutdown"] * 2
        states = recorder.states()
    assert states.count(("cancelled", "shutdown")) == 5
    assert states.count(("cancelled", "dedupe")) == 1


def test_close_frees_who_waits_for_room__full_pool(work):
    """A submit that waits for a place of the pool is refused when the alias closes."""
    running, queued = Gate(), Gate()
    first = work.submit("running", running)
    assert running.entered.wait(TIMEOUT)
    second = work.submit("queued", queued)
    line = handler.coordinator(work.definition.using)._pool.permits._waiting
    submitting = threads.start(lambda: work.submit("third", never))
    closing = threads.start(lambda: close(work))
    assert submitting.exception().reason == "shutdown"
    assert not line
    running.open()
    closing.join()
    for call in (first, second):
        with pytest.raises(CallCancelled, match="shutdown"):
            call.result()


def test_later_calls_are_refused__after_close(work):
    """A closed alias refuses calls and submissions, and says why; nothing runs."""
    close(work)
    with Recorder() as recorder:
        for call in (work, work.submit, work.submit_nowait):
            with pytest.raises(CallCancelled, match="make calls before close") as caught:
                call("a", never)
            assert (caught.value.reason, caught.value.key) == ("shutdown", "end:a")
        assert recorder.states() == [("cancelled", "shutdown")] * 3
    assert work.in_flight("a", never) == ()
    assert work.cancel("a", never) is False


def test_other_aliases_go_on__one_is_closed(work, new_alias):
    """close(using=...) ends that alias alone."""
    other = on_alias(new_alias())
    gate = Gate("value")
    leader = start_leader(other, "a", gate)
    close(work)
    assert other("b", lambda: "value") == "value"
    gate.open()
    assert leader.result() == "value"


def test_threads_are_joined__by_close(work):
    """After close() no thread of the pool is left."""
    worker = work.submit("a", threading.current_thread).result()
    assert worker.is_alive()
    close(work)
    assert not worker.is_alive()


def test_close_twice__second_does_nothing(work):
    """Closing again, also at the same time, is harmless."""
    work.submit("a", lambda: None).result()
    threads.run_together(*[lambda: close(work)] * 3)
    close(work)


def test_close_inside_a_worker__does_not_wait_for_itself(work):
    """A function of the pool that closes its own alias ends like a cancelled one."""
    call = work.submit("a", lambda: close(work))
    with pytest.raises(CallCancelled, match="shutdown"):
        call.result()


def test_close_inside_a_flight__on_its_callers_thread(work):
    """A function that closes its own alias returns, and its caller learns that it was cancelled."""
    with pytest.raises(CallCancelled, match="shutdown"):
        work("a", lambda: close(work))


def test_writing_ends_as_success__under_close(work):
    """What is being written at that moment ends as it would have, for all who wait for it."""
    gate = Gate("written")

    def body() -> Any:
        call = current_call()
        assert call is not None
        handler.coordinator(work.definition.using).begin_writing(call)
        return gate()

    call = work.submit("a", body)
    assert gate.entered.wait(TIMEOUT)
    follower = arrive(lambda: work("a", never))
    parked = arrive(lambda: work.with_options(strategy="serialize")("a", never))
    closing = threads.start(lambda: close(work))
    assert parked.exception().reason == "shutdown"
    assert not call.done()
    gate.open()
    assert (call.result(), follower.result()) == ("written", "written")
    closing.join()


def test_results_stay__after_close(work):
    """Handles of settled calls keep their outcome."""
    call = work.submit("a", lambda: "value")
    assert call.result() == "value"
    close(work)
    assert call.result() == "value"


# Processes

SETUP = """
import os, sys, threading
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["django_vega"], DJANGO_VEGA={"default": {"WORKERS": 2}})
django.setup()
import django_vega
from django_vega import coordinated

def say(line):
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()

@coordinated(key="process:{name}", ignore=["body"])
def work(name, body):
    return body()
"""


def run_script(script: str) -> str:
    """Run a script after the setup, and return what it printed."""
    return interpreters.run_script(SETUP, script)


def test_interpreter_exits__calls_wait_in_every_way():
    """At exit workers that wait, queued calls and parked threads are freed; the process ends."""
    printed = run_script(
        """
        from django_vega import CallCancelled, checkpoint

        inside = threading.Event()
        told = []

        def leads():
            inside.set()
            while True:
                checkpoint()
                threading.Event().wait(0.01)

        def follows():
            waiting.set()
            try:
                work("leader", leads)
            except CallCancelled as error:
                say(f"follower: {error.reason}")

        def parks():
            try:
                work.with_options(strategy="serialize")("leader", leads)
            except CallCancelled as error:
                say(f"parked: {error.reason}")

        waiting = threading.Event()
        parked = threading.Event()
        django_vega.subscribe(lambda event: parked.set(), ["call:parked"])
        leader = work.submit("leader", leads)
        assert inside.wait(10)
        follower = work.submit("follower", follows)
        assert waiting.wait(10)
        queued = work.submit("queued", leads)
        threading.Thread(target=parks).start()
        assert parked.wait(10)
        say("main ends")
        """
    )
    assert printed.splitlines()[0] == "main ends"
    assert sorted(printed.splitlines()[1:]) == ["follower: shutdown", "parked: shutdown"]


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no os.fork")


@needs_fork
def test_forked_child_begins_anew__flights_and_locks_of_the_parent():
    """A child has an empty table, locks of its own and new threads, and names itself."""
    printed = run_script(
        """
        from django_vega.handler import handler

        inside, gate = threading.Event(), threading.Event()

        def held():
            inside.set()
            assert gate.wait(10)
            return "parent's"

        leader = work.submit("held", held)
        assert inside.wait(10)
        # Another thread of the parent may be anywhere in that moment.
        holds, forked = threading.Event(), threading.Event()
        coordinator = handler.coordinator("default")

        def hold_locks():
            with coordinator.flights.lock, handler._lock, coordinator._pool.permits._lock:
                holds.set()
                assert forked.wait(10)

        holder = threading.Thread(target=hold_locks)
        holder.start()
        assert holds.wait(10)
        pid = os.fork()
        forked.set()
        if pid == 0:
            assert django_vega.in_flight() == ()
            assert work("held", lambda: "child's") == "child's"
            call = work.submit("held", lambda: django_vega.in_flight())
            (record,) = call.result(10)
            assert record.process.endswith(f":{os.getpid()}"), record
            say("child works")
            sys.exit()
        holder.join(10)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert [record.state for record in django_vega.in_flight()] == ["running"]
        gate.set()
        assert leader.result(10) == "parent's"
        say("parent works")
        """
    )
    assert printed.split("\n") == ["child works", "parent works", ""]


@needs_fork
def test_fork_inside_a_flight__child_is_not_inside():
    """A child that was forked inside a flight may call that key: the flight is not its own."""
    printed = run_script(
        """
        def body():
            pid = os.fork()
            if pid == 0:
                assert work("a", lambda: "child's") == "child's"
                return "child"
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            return "parent"

        say(work("a", body))
        assert django_vega.in_flight() == ()
        """
    )
    assert printed.splitlines() == ["child", "parent"]
