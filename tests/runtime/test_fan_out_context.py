"""What a function finds around it in a fan-out: the caller's context, and clean connections."""

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from zoneinfo import ZoneInfo

import pytest
from django.db import connections
from django.utils import timezone, translation

from django_vega import ReentrantCallError, coordinated, current_call
from django_vega.fanout import _DjangoFrame, afan_out, fan_out
from tests.runtime.fans import fan, until, worker_threads
from tests.runtime.tasks import in_loop, own_scope

colour: ContextVar[str] = ContextVar("colour", default="none")


def see(target):
    seen = (translation.get_language(), timezone.get_current_timezone_name(), colour.get())
    colour.set(f"set for {target}")
    return seen


def test_the_context__is_the_iterating_codes():
    """Language, time zone and context variables are the caller's, for each target anew."""
    with translation.override("de"), timezone.override(ZoneInfo("Asia/Tokyo")):
        colour.set("red")
        seen = [outcome.value for outcome in fan_out(see, range(6))]
    assert seen == [("de", "Asia/Tokyo", "red")] * 6
    assert colour.get() == "red"
    colour.set("none")


@in_loop
async def test_the_context_of_tasks__is_the_iterating_codes():
    """As on threads."""

    async def asee(target):
        return see(target)

    with translation.override("de"), timezone.override(ZoneInfo("Asia/Tokyo")):
        colour.set("red")
        seen = [outcome.value async for outcome in afan_out(asee, range(6))]
    assert seen == [("de", "Asia/Tokyo", "red")] * 6
    assert colour.get() == "red"


def test_flights_around_the_iteration__are_around_each_target():
    """A target that would wait for the flight that iterates raises, instead of a deadlock."""

    @coordinated(key="outer:{name}", scope=own_scope())
    def outer(name):
        def inner(target):
            assert current_call().key == "outer:a"
            return outer(name)

        return [type(one.error) for one in fan_out(inner, range(3))]

    assert outer("a") == [ReentrantCallError] * 3


def test_a_coordinated_function__runs_once_for_targets_at_the_same_time():
    """Two workers with one key share a flight."""
    both = threading.Barrier(2)

    @coordinated(key="shared", ignore=["target"], scope=own_scope())
    def work(target):
        return "once"

    def call(target):
        both.wait(10)
        return work(target)

    assert [one.value for one in fan_out(call, "AB")] == ["once", "once"]


def test_each_target__is_surrounded_by_the_hosts_frame():
    """The function runs inside of it; a thread says when it ends, also one whose body failed."""
    frame, seen = _DjangoFrame(), []

    @contextmanager
    def around():
        seen.append("in")
        with frame.pool_item():
            yield
        seen.append("out")

    class Frame:
        def capture(self):
            return around

        def thread_ends(self):
            seen.append("end")

    run = fan(seen.append, "AB", workers=1)
    run._crew._frame = Frame()
    list(run)
    assert seen == ["in", "A", "out", "in", "B", "out", "end"]


def test_a_frame_that_fails__fails_the_target():
    """A connection that cannot be closed is no reason to lose the worker."""

    class Frame(_DjangoFrame):
        @contextmanager
        def pool_item(self):
            raise OSError("no connection")
            yield

    run = fan(str, "AB", workers=1)
    run._crew._frame = Frame()
    assert [one.status for one in run] == ["failed", "failed"]


@pytest.mark.django_db(transaction=True)
def test_connections__are_closed_when_their_thread_ends(monkeypatch):
    """Nobody else could close them: they belong to the thread."""
    closed = []
    wrapper = type(connections["default"])
    close = wrapper.close

    def record(self):
        closed.append(threading.current_thread().name)
        close(self)

    monkeypatch.setattr(wrapper, "close", record)
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", None)

    def query(target):
        connection = connections["default"]
        # A test's own in-memory database is shared between threads.
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return cursor.fetchone()[0]

    outcomes = list(fan_out(query, "ABC", workers=1))
    assert [one.value for one in outcomes] == [1, 1, 1]
    assert closed.count("django-vega fan-out, worker 1") == 1


def test_threads__do_not_hold_up_the_end_of_the_interpreter():
    """They are daemons: a body that hangs is nobody's prison."""
    seen = []
    list(fan_out(lambda _: seen.append(threading.current_thread().daemon), "A"))
    assert seen == [True]
    until(lambda: not worker_threads())
