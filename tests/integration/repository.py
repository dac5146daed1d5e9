"""A repository whose upstream is whatever the test says, and looks at what it left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, connections

from django_vega import Upsert, singleflight_refresh
from django_vega.models import RefreshState
from tests.gates import Gate
from tests.writing_app.models import Quake

UPSERT = Upsert(Quake, ["code"])


class Repository:
    """Refreshes quakes of a region.

    Args:
        fetch: What upstream answers: called without arguments, wherever the function runs.
    """

    def __init__(self, fetch: Callable[[], Any]) -> None:
        self.fetch = fetch

    @singleflight_refresh(key="quakes:{region}", upsert=UPSERT)
    def refresh(self, region: str) -> Any:
        return self.fetch()

    @singleflight_refresh(key="quakes:{region}", upsert=UPSERT, in_atomic="solo")
    def refresh_solo(self, region: str) -> Any:
        return self.fetch()

    @singleflight_refresh(
        key=lambda self, region: f"quakes:{region}" if region else None, upsert=UPSERT
    )
    def refresh_unkeyed(self, region: str | None) -> Any:
        return self.fetch()


class AsyncRepository:
    """The same for upstreams that are awaited.

    Args:
        fetch: Called without arguments, and awaited.
    """

    def __init__(self, fetch: Callable[[], Awaitable[Any]]) -> None:
        self.fetch = fetch

    @singleflight_refresh(key="quakes:{region}", upsert=UPSERT)
    async def refresh(self, region: str) -> Any:
        return await self.fetch()

    @singleflight_refresh(key="quakes:{region}", upsert=UPSERT)
    async def generate(self, region: str) -> AsyncIterator[Any]:
        for row in await self.fetch():
            yield row

    @singleflight_refresh(key="quakes:{region}", upsert=UPSERT, in_atomic="solo")
    async def refresh_solo(self, region: str) -> Any:
        return await self.fetch()


def row(place: str = "", code: str = "a") -> dict[str, Any]:
    """One row."""
    return {"code": code, "place": place}


def places() -> dict[str, str]:
    """Code and place of every row that this thread's connection sees."""
    return dict(Quake.objects.values_list("code", "place"))


def states() -> list[tuple[int, int, str]]:
    """Fence, written generation and state of every key."""
    return list(RefreshState.objects.values_list("fence", "generation_written", "state"))


class WriteGate(Gate):
    """Stops the write of one thread inside its transaction, after its rows.

    Wrap what the thread does in ``connection.execute_wrapper(gate.stop)``.
    """

    def stop(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if sql.startswith("INSERT") and "writing_app_quake" in sql:
            self()
        return result


@asynccontextmanager
async def execute_wrapper(wrapper: Any) -> AsyncIterator[None]:
    """Install an execute wrapper where an event loop's database work is done."""
    stack = ExitStack()

    def install() -> None:
        stack.enter_context(connection.execute_wrapper(wrapper))

    await sync_to_async(install)()
    try:
        yield
    finally:
        await sync_to_async(stack.close)()


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run on an event loop of its own; its thread for the database keeps no connection."""

    async def whole() -> Any:
        try:
            async with asyncio.timeout(30):
                return await main()
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(whole())
