"""Async refreshes: fetched on the loop, written on the thread of the database, shared by all."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from django_vega import CallCancelled, Refresh, in_flight, signals
from tests import threads
from tests.gates import TIMEOUT, Recorder
from tests.integration.repository import (
    AsyncRepository,
    WriteGate,
    execute_wrapper,
    places,
    row,
    run,
    states,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a call behind."""
    yield
    assert in_flight() == ()


class AsyncGate:
    """An upstream that waits inside until it is let go.

    Args:
        end: The rows, or the exception to raise.
    """

    def __init__(self, end: Any) -> None:
        self.entered, self._may_end = asyncio.Event(), asyncio.Event()
        self._end = end
        self.runs = 0

    async def __call__(self) -> Any:
        self.runs += 1
        self.entered.set()
        await self._may_end.wait()
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end

    def open(self) -> None:
        self._may_end.set()


async def joined(recorder: Recorder, count: int) -> None:
    """Wait, off the loop, until so many callers have joined."""
    await asyncio.to_thread(recorder.wait, count, "coordination:reuse")


def answer(rows: Any) -> Any:
    """Return an upstream that answers at once."""

    async def fetch() -> Any:
        return rows

    return fetch


@pytest.mark.parametrize("method", ["refresh", "generate", "refresh_solo"])
def test_written__coroutine_and_async_generator(method: str) -> None:
    """An `async def` and an async generator are refreshes alike."""
    repository = AsyncRepository(answer([row("here"), row("there", code="b")]))
    result = run(lambda: getattr(repository, method)("alaska"))
    assert isinstance(result, Refresh)
    assert (result.outcome, result.rows, result.led) == ("written", 2, True)
    assert places() == {"a": "here", "b": "there"}
    assert states() == [(result.generation, result.generation, "ok")]


def test_written__on_the_thread_of_the_database() -> None:
    """Rows are consumed and written on the thread-sensitive thread, never on the loop's."""
    seen = []

    def lazily() -> Iterator[Any]:
        seen.append(("rows", threading.get_ident()))
        yield row("here")

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(("sql", threading.get_ident()))
        return execute(sql, params, many, context)

    async def main() -> int:
        async with execute_wrapper(look):
            await AsyncRepository(answer(lazily())).refresh("alaska")
        return await sync_to_async(threading.get_ident)()

    database_thread = run(main)
    assert {kind for kind, _ in seen} == {"rows", "sql"}
    assert {ident for _, ident in seen} == {database_thread}
    assert database_thread != threading.get_ident()


def test_written__under_async_to_sync() -> None:
    """Under a sync caller the write is on the caller's own thread and connection."""
    seen = []

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(threading.get_ident())
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        result = async_to_sync(AsyncRepository(answer([row("here")])).refresh)("alaska")
    assert result.outcome == "written"
    assert set(seen) == {threading.get_ident()}


def test_followers__share_one_flight() -> None:
    """20 tasks join: one fetch, one generation; each has the record, `led` False."""

    async def main() -> list[Refresh]:
        gate = AsyncGate([row("here")])
        repository = AsyncRepository(gate)
        with Recorder() as recorder:
            tasks = [asyncio.ensure_future(repository.refresh("alaska")) for _ in range(21)]
            await joined(recorder, 20)
            gate.open()
            got = await asyncio.gather(*tasks)
        assert gate.runs == 1
        assert len(recorder.events("refresh:written")) == 1
        return got

    got = run(main)
    assert sorted(result.led for result in got) == [False] * 20 + [True]
    assert len({result.generation for result in got}) == 1
    assert states()[0][0] == got[0].generation


def test_followers__of_two_loops() -> None:
    """Callers on two event loops share one flight."""
    entered, may_end = threading.Event(), threading.Event()
    runs = []

    async def fetch() -> Any:
        runs.append(1)
        entered.set()
        await asyncio.to_thread(may_end.wait, TIMEOUT)
        return [row("here")]

    def call() -> Refresh:
        result: Refresh = run(lambda: AsyncRepository(fetch).refresh("alaska"))
        return result

    with Recorder() as recorder:
        leader = threads.start(call)
        assert entered.wait(TIMEOUT)
        follower = threads.start(call)
        recorder.wait(1, "coordination:reuse")
        may_end.set()
        assert (leader.result().led, follower.result().led) == (True, False)
    assert runs == [1]


def test_caller__cancelled_while_others_wait() -> None:
    """The leader's own caller goes away: the flight goes on, and its rows are written."""

    async def main() -> list[Any]:
        gate = AsyncGate([row("here")])
        repository = AsyncRepository(gate)
        with Recorder() as recorder:
            first = asyncio.ensure_future(repository.refresh("alaska"))
            await gate.entered.wait()
            others = [asyncio.ensure_future(repository.refresh("alaska")) for _ in range(3)]
            await joined(recorder, 3)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            gate.open()
            got = await asyncio.gather(*others)
        assert gate.runs == 1
        return got

    assert [result.led for result in run(main)] == [False] * 3
    assert places() == {"a": "here"}


def test_cancel__before_writing() -> None:
    """A flight that is cancelled while it fetches writes nothing, and the last status stays."""

    async def main() -> Any:
        before = await AsyncRepository(answer([row("before")])).refresh("alaska")
        gate = AsyncGate([row("cancelled")])
        repository = AsyncRepository(gate)
        task = asyncio.ensure_future(repository.refresh("alaska"))
        await gate.entered.wait()
        assert repository.refresh.cancel("alaska") is True
        with pytest.raises(CallCancelled, match="abort"):
            await task
        gate.open()
        status = await repository.refresh.status("alaska")
        assert (status.state, status.generation) == ("ok", before.generation)

    run(main)
    assert places() == {"a": "before"}


def test_cancel__during_writing() -> None:
    """While the thread of the database writes, `cancel` returns False; the refresh is a success."""
    gate = WriteGate()

    async def main() -> Refresh:
        repository = AsyncRepository(answer([row("written")]))
        async with execute_wrapper(gate.stop):
            task = asyncio.ensure_future(repository.refresh("alaska"))
            assert await asyncio.to_thread(gate.entered.wait, TIMEOUT)
            assert repository.refresh.in_flight("alaska")[0].state == "writing"
            assert repository.refresh.cancel("alaska") is False
            gate.open()
            return await task

    assert run(main).outcome == "written"
    assert places() == {"a": "written"}


def test_caller__cancelled_during_writing() -> None:
    """A caller that leaves while its flight writes changes nothing of what is written."""
    gate = WriteGate()

    async def main() -> None:
        repository = AsyncRepository(answer([row("written")]))
        with Recorder(["refresh:written"]) as recorder:
            async with execute_wrapper(gate.stop):
                task = asyncio.ensure_future(repository.refresh("alaska"))
                assert await asyncio.to_thread(gate.entered.wait, TIMEOUT)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                gate.open()
                await asyncio.to_thread(recorder.wait, 1)

    run(main)
    assert places() == {"a": "written"}


@pytest.mark.parametrize(
    ("fetch", "error", "said"),
    [
        ("raises", ConnectionError, "down"),
        ("refused", Exception, "place"),
        ("none", TypeError, "None"),
    ],
)
def test_failure__leaves_rows_and_says_so(fetch: str, error: type[Exception], said: str) -> None:
    """What fails writes nothing; status and event say so; each follower has its own error."""

    async def main() -> None:
        await AsyncRepository(answer([row("before")])).refresh("alaska")
        ends = {
            "raises": ConnectionError("down"),
            "refused": [{"code": "b", "place": None}],
            "none": None,
        }
        gate = AsyncGate(ends[fetch])
        repository = AsyncRepository(gate)
        with Recorder() as recorder:
            tasks = [asyncio.ensure_future(repository.refresh("alaska")) for _ in range(3)]
            await joined(recorder, 2)
            gate.open()
            got = await asyncio.gather(*tasks, return_exceptions=True)
        assert len(set(map(id, got))) == 3
        assert all(isinstance(one, error) and said in str(one) for one in got)
        (failed,) = recorder.events("refresh:failed")
        status = await repository.refresh.status("alaska")
        assert (status.state, status.error) == ("failed", failed.error)
        assert said in failed.error

    run(main)
    assert places() == {"a": "before"}


def test_cancelled_error__that_nobody_asked_for() -> None:
    """A CancelledError out of the function itself is a cancellation: the status stays."""

    async def main() -> None:
        async def fetch() -> Any:
            raise asyncio.CancelledError

        repository = AsyncRepository(fetch)
        with Recorder() as recorder, pytest.raises(CallCancelled, match="abort"):
            await repository.refresh("alaska")
        assert recorder.events("refresh:failed") == []
        assert (await repository.refresh.status("alaska")).state == "idle"

    run(main)
    assert states() == []


def test_generator__fails_midway() -> None:
    """Nothing of an async generator that breaks is written."""

    async def main() -> None:
        class Pages(AsyncRepository):
            async def pages(self) -> AsyncIterator[Any]:
                yield row("page 1")
                raise ConnectionError("page 2")

        repository = Pages(answer([]))

        async def fetch() -> Any:
            return [each async for each in repository.pages()]

        repository.fetch = fetch
        with pytest.raises(ConnectionError, match="page 2"):
            await repository.generate("alaska")

    run(main)
    assert (places(), states()) == ({}, [(0, 0, "failed")])


def test_signal__after_the_commit() -> None:
    """An async receiver that asks the database, on whatever thread, sees the rows."""
    seen = []

    async def look(sender: Any, event: Any, **_: Any) -> None:
        seen.append((sender, await asyncio.to_thread(threads.run_together, places)))

    signals.refresh_written.connect(look)
    try:
        run(lambda: AsyncRepository(answer([row("here")])).refresh("alaska"))
    finally:
        signals.refresh_written.disconnect(look)
    assert seen == [(AsyncRepository.refresh, [{"a": "here"}])]


def test_submit__as_a_task() -> None:
    """A submitted async refresh runs as a task of the loop; its awaited result is the record."""

    async def main() -> None:
        repository = AsyncRepository(answer([row("here")]))
        call = await repository.refresh.submit("alaska")
        result = await call
        assert (result.outcome, result.led, call.state) == ("written", True, "success")
        again = await repository.refresh.asubmit("alaska")
        assert (await again).generation > result.generation
        at_once = repository.refresh.submit_nowait("hawaii")
        assert at_once.key == "quakes:hawaii"
        assert (await at_once).outcome == "written"

    run(main)
    assert places() == {"a": "here"}


def test_crossing__late_old_answer() -> None:
    """Two async flights of one key cross under `none`: the older one writes nothing."""

    async def main() -> tuple[Refresh, Refresh]:
        gate = AsyncGate([row("old")])
        slow = AsyncRepository(gate).refresh.with_options(strategy="none")
        quick = AsyncRepository(answer([row("new")])).refresh.with_options(strategy="none")
        old = asyncio.ensure_future(slow("alaska"))
        await gate.entered.wait()
        new = await quick("alaska")
        gate.open()
        return await old, new

    old, new = run(main)
    assert (old.outcome, new.outcome) == ("superseded", "written")
    assert places() == {"a": "new"}
