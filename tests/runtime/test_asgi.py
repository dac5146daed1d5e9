"""Requests of a real ASGI handler: the deadlocks that threads and loops make with asgiref.

Each of these tests ends in `WaitTimeout` when a thread waits for an async flight of its process.
"""

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpRequest, JsonResponse
from django.urls import path

from django_vega import Upsert, coordinated, singleflight_refresh
from tests import threads
from tests.gates import Recorder
from tests.runtime.tasks import Gate, Witness, ends, in_loop, own_scope
from tests.writing_app.models import Quake

# How long a thread waits that must not wait at all: where it does, the test fails after this.
PATIENCE = 4

# What a sync caller does on arrival: the right thing, and the wrong one.
ARRIVALS = ("coordination:solo", "coordination:reuse")


def count_quakes() -> int:
    return Quake.objects.count()


class Pair:
    """A sync and an async function of one scope and key; the async one needs a thread to end.

    Args:
        reach: Awaited by the async function when the sync caller has arrived; it needs a thread.
        stay: What the sync function does.
    """

    def __init__(self, reach: Callable[[], Any], stay: Callable[[], object] = bool) -> None:
        scope = own_scope()
        self.sync_caller_is_there = Gate()

        @coordinated(key="work", scope=scope, timeout=PATIENCE)
        async def on_loop() -> str:
            await self.sync_caller_is_there.passed()
            await reach()
            return "async value"

        @coordinated(key="work", scope=scope, timeout=PATIENCE)
        def in_thread() -> str:
            stay()
            return "sync value"

        self.on_loop = on_loop
        self.in_thread = in_thread


class Request:
    """One GET request to an ASGI handler, on the running loop."""

    def __init__(self, handler: ASGIHandler, where: str) -> None:
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self._sent: list[Any] = []
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": where,
            "query_string": b"",
            "headers": [(b"host", b"testserver")],
        }
        self.task = asyncio.create_task(handler(scope, self._incoming.get, self._send))

    async def _send(self, message: Any) -> None:
        self._sent.append(message)

    def disconnect(self) -> None:
        """Let the client be gone."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def json(self) -> Any:
        """Wait for the response and return what it says."""
        await self.task
        assert self._sent[0]["status"] == 200
        return json.loads(b"".join(message.get("body", b"") for message in self._sent[1:]))


@pytest.fixture
def serve(settings: Any) -> Callable[..., ASGIHandler]:
    """Return a function that makes an ASGI handler of views, one for each path."""

    def make(*middleware: str, **views: Callable[..., Any]) -> ASGIHandler:
        urls = ModuleType("urls")
        urls.urlpatterns = [path(name, view) for name, view in views.items()]  # type: ignore[attr-defined]
        settings.ROOT_URLCONF = urls
        settings.MIDDLEWARE = [f"{__name__}.{name}" for name in middleware]
        return ASGIHandler()

    return make


def sync_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Run every view inside the request's thread, as any old middleware does."""

    def middleware(request: HttpRequest) -> Any:
        return get_response(request)

    return middleware


with_and_without_middleware = pytest.mark.parametrize(
    "middleware", [(), ("sync_middleware",)], ids=["plain", "sync-middleware"]
)


@with_and_without_middleware
@pytest.mark.django_db(transaction=True)
@in_loop
async def test_the_flight_needs_the_thread_that_a_sync_caller_of_its_key_sits_on(
    middleware: tuple[str, ...], serve: Callable[..., ASGIHandler]
) -> None:
    """A request has one thread for the ORM: whoever sits on it leads a flight of its own."""
    pair = Pair(sync_to_async(count_quakes))

    async def view(request: HttpRequest) -> JsonResponse:
        leading = asyncio.create_task(pair.on_loop())
        await seen.sees(1, "call:running")
        sync = asyncio.create_task(sync_to_async(pair.in_thread)())
        await seen.sees(1, *ARRIVALS)
        pair.sync_caller_is_there.open()
        return JsonResponse([await leading, await sync], safe=False)

    with Witness() as seen:
        got = await Request(serve(*middleware, view=view), "/view").json()
        assert len(seen.events("coordination:solo")) == 1
    assert got == ["async value", "sync value"]


@pytest.mark.django_db(transaction=True)
@in_loop
async def test_two_requests_on_one_key__one_of_them_sync(serve: Callable[..., ASGIHandler]) -> None:
    """A sync view beside an async one of the same key: both are served, neither waits."""
    pair = Pair(sync_to_async(count_quakes))

    async def async_view(request: HttpRequest) -> JsonResponse:
        return JsonResponse(await pair.on_loop(), safe=False)

    def sync_view(request: HttpRequest) -> JsonResponse:
        return JsonResponse(pair.in_thread(), safe=False)

    with Witness() as seen:
        handler = serve(a=async_view, s=sync_view)
        asking = Request(handler, "/a")
        await seen.sees(1, "call:running")
        assert await Request(handler, "/s").json() == "sync value"
        pair.sync_caller_is_there.open()
        assert await asking.json() == "async value"


@in_loop
async def test_the_default_executor_is_full_of_sync_callers__of_the_flight_that_needs_it() -> None:
    """They share a flight of their own, end, and leave the executor to the async one."""
    size = 4
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(size))
    full = Gate()
    pair = Pair(lambda: asyncio.to_thread(bool), full.wait)
    with Witness() as seen:
        leading = asyncio.create_task(pair.on_loop())
        await seen.sees(1, "call:running")
        sync = [asyncio.create_task(asyncio.to_thread(pair.in_thread)) for _ in range(size)]
        await seen.sees(size, *ARRIVALS)
        pair.sync_caller_is_there.open()
        full.open()
        assert await asyncio.gather(*sync) == ["sync value"] * size
        assert await leading == "async value"
        assert [len(seen.events(kind)) for kind in ARRIVALS] == [1, size - 1]


@pytest.mark.django_db(transaction=True)
@in_loop
async def test_unrelated_tasks_share_the_one_thread__outside_of_requests() -> None:
    """In commands and consumers all sync code has one thread; a caller on it does not wait."""
    pair = Pair(sync_to_async(count_quakes))
    with Witness() as seen:
        leading = asyncio.create_task(pair.on_loop(), context=contextvars.Context())
        await seen.sees(1, "call:running")
        sync = sync_to_async(pair.in_thread)
        unrelated = asyncio.create_task(sync(), context=contextvars.Context())
        await seen.sees(1, *ARRIVALS)
        pair.sync_caller_is_there.open()
        assert await asyncio.gather(leading, unrelated) == ["async value", "sync value"]
    await sync_to_async(connections.close_all)()


def test_a_short_lived_loop_whose_caller_goes_away__is_taken_over() -> None:
    """Under WSGI each `async_to_sync` has a loop of its own, which ends with its caller."""
    runs: list[str] = []
    follower_is_there = Gate()

    @coordinated(key="work", ignore=["me"], timeout=PATIENCE)
    async def work(me: str) -> str:
        runs.append(me)
        if me == "gone":
            await asyncio.Event().wait()
        return f"{me}'s value"

    async def impatient() -> str:
        task = asyncio.create_task(work("gone"))
        await follower_is_there.passed()
        task.cancel()
        await ends(task)
        return "gone"

    with Recorder() as seen:
        leading = threads.start(async_to_sync(impatient))
        seen.wait(1, "call:running")
        following = [threads.start(lambda: async_to_sync(work)("next")) for _ in range(2)]
        seen.wait(2, "coordination:reuse")
        follower_is_there.open()
        assert leading.result() == "gone"
        assert [one.result() for one in following] == ["next's value"] * 2
    assert runs[:2] == ["gone", "next"]


@pytest.mark.django_db(transaction=True)
def test_short_lived_loops_share_a_flight__that_uses_its_callers_thread() -> None:
    """The leading thread serves its flight's ORM while it waits; the other gets the value."""
    used: list[int] = []
    gate = Gate()

    @coordinated(key="work", timeout=PATIENCE)
    async def work() -> int:
        await gate.passed()
        return await sync_to_async(orm)()  # type: ignore[no-any-return]

    def orm() -> int:
        used.append(threading.get_ident())
        return count_quakes()

    with Recorder() as seen:
        leading = threads.start(async_to_sync(work))
        seen.wait(1, "call:running")
        following = threads.start(async_to_sync(work))
        seen.wait(1, "coordination:reuse")
        gate.open()
        assert (leading.result(), following.result()) == (0, 0)
        assert used == [leading.ident]


def test_work_on_top_of_a_leader_on_its_own_thread__goes_solo() -> None:
    """A thread blocked in `async_to_sync` runs sync work for it: that work cannot wait for it."""
    depth: list[int] = []

    @coordinated(key="work", timeout=PATIENCE)
    def work() -> str:
        depth.append(threading.get_ident())
        if len(depth) == 1:
            return f"outer of {async_to_sync(unrelated_task)()}"
        return "inner"

    async def unrelated_task() -> Any:
        # Its context knows nothing of the flight, so this is no re-entry that could be told.
        return await asyncio.create_task(sync_to_async(work)(), context=contextvars.Context())

    with Recorder() as seen:
        running = threads.start(work)
        assert running.result() == "outer of inner"
        assert len(seen.events("coordination:solo")) == 1
    assert depth == [running.ident] * 2


# Clients that go away


class Refreshing:
    """A view that refreshes quakes and says who led, and the gate that the fetch waits for."""

    def __init__(self) -> None:
        self.gate = Gate()

        @singleflight_refresh(key="quakes", upsert=Upsert(Quake, ["code"]), scope=own_scope())
        async def refresh() -> list[dict[str, Any]]:
            await self.gate.passed()
            return [{"code": f"code-{number}"} for number in range(3)]

        self.refresh = refresh

    async def view(self, request: HttpRequest) -> JsonResponse:
        refresh = await self.refresh()
        return JsonResponse([refresh.outcome, refresh.led, refresh.written], safe=False)


@with_and_without_middleware
@pytest.mark.django_db(transaction=True)
@in_loop
async def test_a_client_that_disconnects__takes_nobody_with_it(
    middleware: tuple[str, ...], serve: Callable[..., ASGIHandler]
) -> None:
    """The leading view is cancelled; another request gets its refresh, and the rows are there.

    Under sync middleware the request's thread waits for the view in ``async_to_sync`` and would
    have served the flight's write: it is gone by then.
    """
    refreshing = Refreshing()
    with Witness() as seen:
        handler = serve(*middleware, quakes=refreshing.view)
        gone = Request(handler, "/quakes")
        await seen.sees(1, "call:running")
        staying = Request(handler, "/quakes")
        await seen.sees(1, "coordination:reuse")
        gone.disconnect()
        await gone.task
        refreshing.gate.open()
        assert await staying.json() == ["written", False, 3]
        assert seen.states()[0] == ("success", None)
    assert await sync_to_async(count_quakes)() == 3
    await sync_to_async(connections.close_all)()


@with_and_without_middleware
@pytest.mark.django_db(transaction=True)
@in_loop
async def test_the_only_client_disconnects__and_the_rows_are_written(
    middleware: tuple[str, ...], serve: Callable[..., ASGIHandler]
) -> None:
    """The flight needs a thread for its rows though its request, and its thread, are over."""
    refreshing = Refreshing()
    with Witness() as seen:
        gone = Request(serve(*middleware, quakes=refreshing.view), "/quakes")
        await seen.sees(1, "call:running")
        gone.disconnect()
        await gone.task
        refreshing.gate.open()
        await seen.sees(1, "call:settled")
        assert seen.states() == [("success", None)]
        assert [event.written for event in seen.events("refresh:written")] == [3]
    assert await sync_to_async(count_quakes)() == 3
    await sync_to_async(connections.close_all)()


@pytest.mark.django_db(transaction=True)
@in_loop
async def test_a_follower_of_another_request_disconnects__and_leaves_alone(
    serve: Callable[..., ASGIHandler],
) -> None:
    """Its view is cancelled at once; the leading request ends as if it had been alone."""
    refreshing = Refreshing()
    with Witness() as seen:
        handler = serve(quakes=refreshing.view)
        leading = Request(handler, "/quakes")
        await seen.sees(1, "call:running")
        gone = Request(handler, "/quakes")
        await seen.sees(1, "coordination:reuse")
        gone.disconnect()
        await gone.task
        refreshing.gate.open()
        assert await leading.json() == ["written", True, 3]
