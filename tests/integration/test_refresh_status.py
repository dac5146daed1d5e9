"""Where the refreshes of a key stand: from the live table and from what is stored."""

import asyncio
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from django_vega import CallCancelled, in_flight
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never, raising
from tests.integration.repository import AsyncRepository, Repository, WriteGate, row, run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a call behind."""
    yield
    assert in_flight() == ()


def status(region: str = "alaska") -> Any:
    """Ask through an object whose function must not run."""
    return Repository(never).refresh.status(region)


def test_idle__never_refreshed() -> None:
    """A key that was never refreshed is idle, and asking leaves no row behind."""
    found = status()
    assert found.state == "idle"
    assert (found.started_at, found.finished_at, found.generation, found.error) == (None,) * 4
    assert status() == found


def test_ok__after_a_refresh() -> None:
    """After a success the status tells when and under which generation, in aware times."""
    before = timezone.now()
    result = Repository(lambda: [row()]).refresh("alaska")
    found = status()
    assert (found.state, found.generation, found.error) == ("ok", result.generation, None)
    assert before <= found.started_at <= found.finished_at <= timezone.now()
    assert found.started_at.tzinfo is found.finished_at.tzinfo is UTC
    assert status("hawaii").state == "idle"
    assert Repository.refresh.status(Repository(never), "alaska") == found


def test_failed__then_ok_again() -> None:
    """A failure keeps the generation of the rows; the next success takes the error away."""
    written = Repository(lambda: [row()]).refresh("alaska").generation
    ok = status()
    with pytest.raises(ConnectionError):
        Repository(raising(ConnectionError("down"))).refresh("alaska")
    failed = status()
    assert (failed.state, failed.generation) == ("failed", written)
    assert failed.error == "ConnectionError: down"
    assert failed.started_at > ok.started_at
    again = Repository(lambda: [row()]).refresh("alaska").generation
    assert (status().state, status().error, status().generation) == ("ok", None, again)


def test_loading__while_in_flight() -> None:
    """While a flight fetches or writes the status is loading, since it began; then ok."""
    with pytest.raises(ConnectionError):
        Repository(raising(ConnectionError("down"))).refresh("alaska")
    fetch, write = Gate([row()]), WriteGate()
    before = timezone.now()

    def call() -> Any:
        with connection.execute_wrapper(write.stop):
            return Repository(fetch).refresh("alaska")

    with threads.start(call) as running:
        assert fetch.entered.wait(TIMEOUT)
        loading = status()
        assert (loading.state, loading.finished_at, loading.error) == ("loading", None, None)
        assert before <= loading.started_at <= timezone.now()
        assert loading.generation is None
        fetch.open()
        assert write.entered.wait(TIMEOUT)
        assert status().state == "loading"
        write.open()
    assert (status().state, status().generation) == ("ok", running.result().generation)


def test_loading__keeps_the_generation_of_the_rows() -> None:
    """The generation is that of the rows in the database, not of the flight."""
    written = Repository(lambda: [row()]).refresh("alaska").generation
    gate = Gate([row()])
    with threads.start(lambda: Repository(gate).refresh("alaska")):
        assert gate.entered.wait(TIMEOUT)
        assert (status().state, status().generation) == ("loading", written)
        gate.open()


def test_loading__queued_for_a_worker() -> None:
    """A refresh that waits for a worker of the pool is loading too."""
    gate = Gate([row()])
    with override_settings(DJANGO_VEGA={"default": {"WORKERS": 1}}):
        first = Repository(gate).refresh.submit("hawaii")
        assert gate.entered.wait(TIMEOUT)
        second = Repository(gate).refresh.submit("alaska")
        assert status().state == "loading"
        gate.open()
        assert {first.result(TIMEOUT).outcome, second.result(TIMEOUT).outcome} == {"written"}
        assert status().state == "ok"


def test_loading__flight_that_ends_meanwhile() -> None:
    """A flight that ends between the two looks never makes a refreshed key look idle."""
    fetch = Gate([row()])
    running = threads.start(lambda: Repository(fetch).refresh("alaska"))
    assert fetch.entered.wait(TIMEOUT)

    def let_it_end(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found = execute(sql, params, many, context)
        fetch.open()
        running.join()
        return found

    with connection.execute_wrapper(let_it_end):
        assert status().state == "loading"
    assert status().state == "ok"
    assert running.result().outcome == "written"


def test_cancelled__last_status_stays() -> None:
    """A cancelled refresh is no failure: the status is the one of before, also the very first."""
    for expected in ("idle", "ok"):
        gate = Gate([row("cancelled")])
        repository = Repository(gate)
        before = status()
        assert before.state == expected
        with threads.start(lambda: repository.refresh("alaska")) as running:  # noqa: B023
            assert gate.entered.wait(TIMEOUT)
            assert repository.refresh.cancel("alaska")
            # The body is stopping; nobody loads any more.
            assert status() == before
            gate.open()
            assert isinstance(running.exception(), CallCancelled)
        assert status() == before
        Repository(lambda: [row()]).refresh("alaska")


def test_reading__starts_and_joins_nothing() -> None:
    """Reading a status makes no call and waits for none."""
    gate = Gate([row()])
    with Arrivals() as arrivals, threads.start(lambda: Repository(gate).refresh("alaska")):
        arrivals.wait(1)
        with Recorder() as recorder:
            (found,) = threads.run_together(status)
            assert found.state == "loading"
            assert Repository(never).refresh.in_flight("alaska")[0].joined == 0
            assert recorder.events() == []
        gate.open()


def test_async__through_its_life() -> None:
    """The same for an async refresh, asked from its event loop."""

    async def main() -> list[str]:
        seen, fetch, opened = [], asyncio.Event(), asyncio.Event()
        answers: Iterator[Any] = iter([[row()], ConnectionError("down")])

        async def upstream() -> Any:
            fetch.set()
            await opened.wait()
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        repository = AsyncRepository(upstream)

        async def ask() -> Any:
            found = await repository.refresh.status("alaska")
            seen.append(found.state)
            return found

        await ask()
        task = asyncio.ensure_future(repository.refresh("alaska"))
        await fetch.wait()
        assert (await ask()).generation is None
        opened.set()
        written = await task
        assert (await ask()).generation == written.generation
        with pytest.raises(ConnectionError):
            await repository.refresh("alaska")
        failed = await ask()
        assert (failed.error, failed.generation) == ("ConnectionError: down", written.generation)
        return seen

    assert run(main) == ["idle", "loading", "ok", "failed"]


def test_async__sync_refresh_is_asked_through_sync_to_async() -> None:
    """From an event loop the status of a sync refresh is asked on the thread of the database."""
    Repository(lambda: [row()]).refresh("alaska")
    assert run(sync_to_async(status)).state == "ok"
