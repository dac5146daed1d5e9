"""Watching as users reach it: by its names, beside real refreshes, until the end of the process."""

import contextlib
from typing import Any

import pytest
from django.db import transaction

from django_vega import CallCancelled, Upsert, singleflight_refresh, watch
from django_vega.runtime.watching import hub
from tests import interpreters, threads
from tests.gates import TIMEOUT, Gate, never
from tests.integration.repository import AsyncRepository, Repository, row, run
from tests.watching.stage import END, Stage, codes, quakes, waiting
from tests.writing_app.models import Page, Quake, Station

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]

PRUNING = Upsert(Page, ["code"], prune=lambda fetch: Page.objects.all())


@singleflight_refresh(key="pages", ignore=["fetch"], upsert=PRUNING)
def refresh_pages(fetch: Any) -> Any:
    return fetch()


@singleflight_refresh(
    key="stations",
    ignore=["fetch"],
    upsert=Upsert(Station, ["code"], skip_unchanged=True),
)
def refresh_stations(fetch: Any) -> Any:
    return fetch()


def watching(queryset: Any) -> Any:
    return iter(watch(queryset, timeout=0))


# Refreshes


def test_refresh__its_rows_are_given():
    """What a refresh has written is given once; before it, what is stored."""
    stage = Stage()
    rows = watching(quakes(stage))
    assert codes(next(rows)) == []
    Repository(lambda: [row(code="a"), row(code="b")]).refresh("alaska")
    assert codes(next(rows)) == ["a", "b"]
    assert next(rows, END) == END
    assert stage.queries == 2


def test_refresh__while_it_fetches_the_list_stays():
    """A refresh in flight gives nothing until its rows are committed."""
    gate = Gate([row(code="a")])
    rows = iter(watch(quakes(Stage()), timeout=TIMEOUT))
    assert codes(next(rows)) == []
    with threads.start(lambda: Repository(gate).refresh("alaska")):
        assert gate.entered.wait(TIMEOUT)
        assert [codes(found) for found in watch(quakes(Stage()), timeout=0)] == [[]]
        gate.open()
        assert codes(next(rows)) == ["a"]
    rows.close()


def test_async_refresh__its_rows_are_given():
    """The same for an async refresh and `async for`."""

    async def main() -> list[list[str]]:
        async def upstream() -> Any:
            return [row(code="a")]

        seen = []
        async for rows in watch(quakes(Stage())):
            seen.append(codes(rows))
            if rows:
                break
            await AsyncRepository(upstream).refresh("alaska")
        return seen

    assert run(main) == [[], ["a"]]


def test_refresh_that_prunes__deleted_rows_are_gone():
    """Rows that a response no longer has leave the list."""
    refresh_pages(lambda: [{"code": "a"}, {"code": "b"}])
    rows = watching(Page.objects.order_by("code"))
    assert codes(next(rows)) == ["a", "b"]
    refresh_pages(lambda: [{"code": "b"}])
    assert codes(next(rows)) == ["b"]


def test_refresh_that_changes_no_row__gives_nothing():
    """Where every row held its values already, nothing has changed."""
    refresh_stations(lambda: [{"code": "a"}])
    rows = watching(Station.objects.all())
    next(rows)
    refresh_stations(lambda: [{"code": "a"}])
    assert next(rows, END) == END


def test_solo_refresh__told_after_its_callers_commit():
    """A refresh in its caller's transaction is told with that transaction, or never."""

    class Undo(Exception):
        pass

    rows = watching(quakes(Stage()))
    next(rows)
    with contextlib.suppress(Undo), transaction.atomic():
        Repository(lambda: [row(code="gone")]).refresh_solo("alaska")
        raise Undo
    with transaction.atomic():
        Repository(lambda: [row(code="a")]).refresh_solo("alaska")
    assert codes(next(rows)) == ["a"]
    assert next(rows, END) == END


# Statuses


def test_watch_status__of_sync_and_async_refreshes():
    """`watch_status` takes the refresh's own arguments, bound or not."""
    refresh = Repository(lambda: [row()]).refresh
    statuses = iter(refresh.watch_status("alaska").with_timeout(0))
    assert next(statuses).state == "idle"
    refresh("alaska")
    assert next(statuses) == refresh.status("alaska")
    assert next(statuses, END) == END

    async def main() -> str:
        async for status in AsyncRepository(never).refresh.watch_status("alaska"):
            return status.state
        raise AssertionError("the iteration ended")

    assert run(main) == "idle"


def test_watch_status__of_a_call_without_key():
    """A call that is not coordinated has no status but idle."""
    statuses = Repository(never).refresh_unkeyed.watch_status(None).with_timeout(0)
    assert [status.state for status in statuses] == ["idle"]


# The end


def test_close__ends_every_wait():
    """Whoever waits is told at once, on threads and loops, and so is who comes later."""

    async def in_loop() -> None:
        async for _ in watch(Quake.objects.all()):
            pass

    def in_thread() -> None:
        for _ in watch(Quake.objects.all()):
            pass

    waits = [threads.start(in_thread), threads.start(lambda: run(in_loop))]
    waiting(2, for_a_change=True)
    hub.close()
    for wait in waits:
        error = wait.exception()
        assert isinstance(error, CallCancelled)
        assert (error.reason, error.key) == ("shutdown", "writing_app.Quake")
    with pytest.raises(CallCancelled, match="shutdown"):
        in_thread()


SETUP = """
import os, threading
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
os.environ["VEGA_DB"] = "sqlite"
import django
django.setup()
import django_vega
from django_vega.runtime.watching import hub
from tests.writing_app.models import Quake
nothing = django_vega.watch(Quake.objects.none())
"""


def run_script(script: str) -> str:
    """Run a script after the setup, and return what it printed."""
    return interpreters.run_script(SETUP, script)


def test_interpreter_exits__threads_watch():
    """At exit a thread that watches without end is freed; the process ends."""
    printed = run_script(
        """
        began = threading.Event()
        def consume():
            try:
                for rows in nothing:
                    began.set()
            except django_vega.CallCancelled as error:
                print(error.reason)
        threading.Thread(target=consume).start()
        began.wait()
        """
    )
    assert printed == "shutdown\n"


def test_close__ends_watches_only_when_everything_is_closed():
    """`close()` of one alias leaves watches alone; that of all ends them."""
    printed = run_script(
        """
        rows = iter(nothing)
        print(next(rows))
        django_vega.close(using="default")
        print(next(iter(nothing)))
        django_vega.close()
        try:
            next(rows)
        except django_vega.CallCancelled as error:
            print(error.reason)
        """
    )
    assert printed == "[]\n[]\nshutdown\n"


def test_forked_child__begins_anew():
    """In a child the parent's iteration gives the present result again; no lock is left held."""
    printed = run_script(
        """
        rows = iter(nothing)
        next(rows)
        entered, leave = threading.Event(), threading.Event()
        def hold(_):
            entered.set()
            leave.wait()
        thread = threading.Thread(target=hub._take, args=[hold])
        thread.start()
        entered.wait()
        child = os.fork()
        if child == 0:
            assert len(hub) == 0
            print(next(rows), next(iter(nothing)), len(hub), flush=True)
            os._exit(0)
        leave.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        print(len(hub))
        """
    )
    assert printed == "[] [] 1\n1\n"
