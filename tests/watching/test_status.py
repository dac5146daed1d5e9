"""Watching a status: the present one first, then changes only, and no query in between."""

import asyncio
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_vega import CallCancelled, get_event_bus
from django_vega.runtime.watching import hub
from django_vega.watching.status import StatusWatch
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, never, raising
from tests.integration.repository import AsyncRepository, Repository, row, run
from tests.watching.stage import END

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]


def status_of(refresh: Any, *args: Any) -> StatusWatch:
    """Watch the status of a refresh, counting how often it is asked for."""
    invocation = refresh.invocation(args, {})
    plan = refresh.definition.plan
    identity = plan._identity(invocation)

    def look() -> Any:
        looks.append(identity.key)
        return plan.status(invocation)

    return StatusWatch(
        look,
        key=(identity.hash, identity.alias, id(invocation.coordinator)),
        shown_key=identity.display_key,
        alias=identity.alias,
    )


looks: list[str] = []


@pytest.fixture(autouse=True)
def no_looks() -> None:
    looks.clear()


def states(statuses: Any) -> list[str]:
    """Take what there is without waiting."""
    found = []
    while (status := next(statuses, END)) != END:
        found.append(status.state)
    return found


def watching(region: str = "alaska", timeout: float = 0) -> Any:
    return iter(status_of(Repository(never).refresh, region).with_timeout(timeout))


def test_never_refreshed__idle_first():
    """The present status comes at once, that of a key without any refresh too."""
    assert states(watching()) == ["idle"]


def test_through_a_refresh__idle_loading_ok_then_failed():
    """A watcher sees each state as it begins, in order, and the last refresh's own data."""
    gate, failing = Gate([row()]), Gate(ConnectionError("down"))
    statuses = watching(timeout=TIMEOUT)
    assert next(statuses).state == "idle"
    with threads.start(lambda: Repository(gate).refresh("alaska")) as running:
        assert next(statuses).state == "loading"
        gate.open()
        ok = next(statuses)
    assert (ok.state, ok.generation) == ("ok", running.result().generation)
    with threads.start(lambda: Repository(failing).refresh("alaska")) as running:
        assert next(statuses).state == "loading"
        failing.open()
        failed = next(statuses)
        assert isinstance(running.exception(), ConnectionError)
    assert (failed.state, failed.error) == ("failed", "ConnectionError: down")
    assert failed.generation == ok.generation
    statuses.close()


def test_stored_status__is_the_first_one():
    """Who begins to watch after a failure sees that failure."""
    with pytest.raises(ConnectionError):
        Repository(raising(ConnectionError("down"))).refresh("alaska")
    assert states(watching()) == ["failed"]


def test_watcher_that_is_slow__has_the_latest_only():
    """States in between are skipped: what counts is where the key stands."""
    statuses = watching()
    next(statuses)
    Repository(lambda: [row()]).refresh("alaska")
    assert states(statuses) == ["ok"]


def test_equal_statuses__are_one():
    """Calls that join cost nothing; a cancelled refresh leads back to the status of before."""
    Repository(lambda: [row()]).refresh("alaska")
    statuses = watching(timeout=TIMEOUT)
    ok = next(statuses)
    gate = Gate([row()])
    repository = Repository(gate)
    with Arrivals() as arrivals:
        leader = threads.start(lambda: repository.refresh("alaska"))
        assert next(statuses).state == "loading"
        asked = len(looks)
        follower = threads.start(lambda: repository.refresh("alaska"))
        arrivals.wait(2)
    # What is known is still current.
    assert states(watching()) == ["loading"]
    assert len(looks) == asked
    assert repository.refresh.cancel("alaska")
    assert next(statuses) == ok
    gate.open()
    for one in (leader, follower):
        assert isinstance(one.exception(), CallCancelled)
    statuses._timeout = 0
    assert states(statuses) == []


def test_loading_of_another_flight__is_still_loading():
    """A restart changes who loads, not that it loads."""
    first, second = Gate([row("a")]), Gate([row("b")])
    statuses = watching(timeout=TIMEOUT)
    next(statuses)
    one = threads.start(lambda: Repository(first).refresh("alaska"))
    assert next(statuses).state == "loading"
    restarting = Repository(second).refresh.with_options(strategy="restart")
    other = threads.start(lambda: restarting("alaska"))
    assert second.entered.wait(TIMEOUT)
    statuses._timeout = 0
    assert states(statuses) == []
    for gate in (first, second):
        gate.open()
    assert one.exception() is not None
    other.result()
    assert states(watching()) == ["ok"]


def test_nothing_happens__nothing_is_asked(django_assert_num_queries):
    """While no call of the key does anything there is no query; other keys cost none either."""
    with django_assert_num_queries(1):
        statuses = watching()
        next(statuses)
        assert next(statuses, END) == END
    statuses = watching()
    next(statuses)
    asked = len(looks)
    Repository(lambda: [row()]).refresh("hawaii")
    assert next(statuses, END) == END
    assert len(looks) == asked


def test_many_watchers__one_query():
    """Watchers of one key share what is asked."""
    many = [watching() for _ in range(10)]
    assert [next(statuses).state for statuses in many] == ["idle"] * 10
    assert len(looks) == 1
    Repository(lambda: [row()]).refresh("alaska")
    assert [states(statuses) for statuses in many] == [["ok"]] * 10
    assert len(looks) == 2


def test_masked_keys__are_hints_only():
    """Where KEY_DISPLAY shows all keys alike, each watcher still has the status of its own key."""
    with override_settings(DJANGO_VEGA={"default": {"KEY_DISPLAY": lambda _: "***"}}):
        alaska, hawaii = watching("alaska"), watching("hawaii")
        assert (next(alaska).state, next(hawaii).state) == ("idle", "idle")
        Repository(lambda: [row()]).refresh("alaska")
        assert (states(alaska), states(hawaii)) == (["ok"], [])
        assert "***" in repr(status_of(Repository(never).refresh, "alaska"))


def test_nobody_watches__the_bus_is_left():
    """The bus is listened to while a status is watched, until the next event, and then anew."""
    bus = get_event_bus()
    Repository(lambda: [row()]).refresh("alaska")
    before = bus._receivers
    for _ in range(2):
        statuses = watching()
        next(statuses)
        next(watching())
        assert len(bus._receivers) == len(before) + 1
        statuses.close()
        assert len(hub) == 0
        Repository(lambda: [row()]).refresh("alaska")
        assert bus._receivers == before


def test_status_is_not_kept__when_nobody_watches():
    """Another process may have refreshed meanwhile: each first watcher asks."""
    for expected in (1, 2):
        assert states(watching()) == ["idle"]
        assert len(looks) == expected


def test_queued_refresh__is_loading():
    """A refresh that waits for a worker of the pool is seen as it begins to wait."""
    gate = Gate([row()])
    with override_settings(DJANGO_VEGA={"default": {"WORKERS": 1}}):
        first = Repository(gate).refresh.submit("hawaii")
        assert gate.entered.wait(TIMEOUT)
        statuses = watching()
        assert next(statuses).state == "idle"
        second = Repository(gate).refresh.submit("alaska")
        assert states(statuses) == ["loading"]
        gate.open()
        first.result(TIMEOUT)
        second.result(TIMEOUT)
        assert states(watching()) == ["ok"]


def test_inside_a_transaction__raises():
    """A transaction may not see what other refreshes store."""
    with transaction.atomic(), pytest.raises(transaction.TransactionManagementError):
        next(watching())
    assert not connection.in_atomic_block


def test_async__through_its_life():
    """The same with `async for`: present status, loading, ok, failed."""

    async def main() -> list[str]:
        entered, opened = asyncio.Event(), asyncio.Event()
        answers: Any = iter([[row()], ConnectionError("down")])

        async def upstream() -> Any:
            entered.set()
            await opened.wait()
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        repository = AsyncRepository(upstream)
        statuses = aiter(status_of(repository.refresh, "alaska"))
        seen = [(await anext(statuses)).state]
        for ends_well in (True, False):
            task = asyncio.ensure_future(repository.refresh("alaska"))
            await entered.wait()
            seen.append((await anext(statuses)).state)
            opened.set()
            seen.append((await anext(statuses)).state)
            await asyncio.wait([task])
            assert (task.exception() is None) == ends_well
            entered.clear()
            opened.clear()
        await statuses.aclose()
        return seen

    assert run(main) == ["idle", "loading", "ok", "loading", "failed"]


def test_async__sync_refreshes_are_seen_too():
    """An async watcher hears of a refresh that a thread runs."""

    async def main() -> list[str]:
        seen = []
        refresh = partial(threads.start, lambda: Repository(lambda: [row()]).refresh("alaska"))
        running = None
        async for status in status_of(Repository(never).refresh, "alaska"):
            seen.append(status.state)
            if running is None:
                running = refresh()
            if status.state == "ok":
                await asyncio.to_thread(running.join)
                break
        return [state for state in seen if state != "loading"]

    assert run(main) == ["idle", "ok"]
