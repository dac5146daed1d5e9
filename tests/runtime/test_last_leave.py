"""`on_last_leave="cancel"`: an async flight that nobody waits for any more is cancelled."""

import asyncio
from typing import Any

import pytest

from django_vega import WaitTimeout, coordinated, in_flight
from tests.runtime.tasks import Witness, ends, in_loop, own_scope

CANCELLED = asyncio.CancelledError


class Work:
    """A body that waits, and notes how it ended."""

    def __init__(self, **options: Any) -> None:
        self.go = asyncio.Event()
        self.may_die = asyncio.Event()
        self.may_die.set()
        self.ended: list[str] = []
        self.runs = 0
        options.setdefault("on_last_leave", "cancel")

        @coordinated(key="work", scope=own_scope(), **options)
        async def call() -> str:
            self.runs += 1
            try:
                await self.go.wait()
            except CANCELLED:
                self.ended.append("cancelled")
                await self.may_die.wait()
                raise
            self.ended.append("value")
            return "value"

        self.call = call


@in_loop
async def test_alone__its_caller_goes() -> None:
    """The body is cancelled at its await; the call ends as cancelled, caller-gone."""
    work = Work()
    with Witness() as seen:
        caller = asyncio.create_task(work.call())
        await seen.sees(1, "call:running")
        caller.cancel()
        assert [type(end) for end in await ends(caller)] == [CANCELLED]
        await seen.sees(1, "call:settled")
        assert seen.states() == [("cancelled", "caller-gone")]
    while in_flight():
        await asyncio.sleep(0)
    assert work.ended == ["cancelled"]


@pytest.mark.parametrize("order", ["leader first", "leader last"])
@in_loop
async def test_followers__the_last_one_to_go_cancels(order: str) -> None:
    """Whoever leaves last: until then the flight goes on."""
    work = Work()
    with Witness() as seen:
        leader, *followers = (asyncio.create_task(work.call()) for _ in range(4))
        await seen.sees(3, "coordination:reuse")
        tasks = [leader, *followers] if order == "leader first" else [*followers, leader]
        for task in tasks[:-1]:
            task.cancel()
        await ends(*tasks[:-1])
        assert work.ended == []
        assert [record.state for record in in_flight()] == ["running"]
        tasks[-1].cancel()
        await ends(tasks[-1])
        while in_flight():
            await asyncio.sleep(0)
    assert work.ended == ["cancelled"]


@in_loop
async def test_followers__one_that_stays_gets_the_value() -> None:
    """A single follower keeps the flight, whose own caller has gone."""
    work = Work()
    with Witness() as seen:
        leader, follower = (asyncio.create_task(work.call()) for _ in range(2))
        await seen.sees(1, "coordination:reuse")
        leader.cancel()
        await ends(leader)
        work.go.set()
        assert await follower == "value"
    assert work.ended == ["value"]


@in_loop
async def test_followers__the_last_one_times_out() -> None:
    """A timeout is a way to leave too."""
    work = Work()
    with Witness() as seen:
        leader = asyncio.create_task(work.call())
        await seen.sees(1, "call:running")
        follower = asyncio.create_task(work.call.with_options(timeout=0.05)())
        await seen.sees(1, "coordination:reuse")
        leader.cancel()
        ended = await ends(leader, follower)
        assert [type(end) for end in ended] == [CANCELLED, WaitTimeout]
        while in_flight():
            await asyncio.sleep(0)
    assert work.ended == ["cancelled"]


@in_loop
async def test_newcomer__does_not_join_what_is_dying() -> None:
    """While the cancelled body takes its time a newcomer runs its own."""
    work = Work()
    work.may_die.clear()
    with Witness() as seen:
        first = asyncio.create_task(work.call())
        await seen.sees(1, "call:running")
        first.cancel()
        await ends(first)
        assert [record.state for record in in_flight()] == ["stopping"]
        second = asyncio.create_task(work.call())
        await seen.sees(2, "call:running")
        work.go.set()
        assert await second == "value"
        work.may_die.set()
        while in_flight():
            await asyncio.sleep(0)
    assert (work.runs, work.ended) == (2, ["cancelled", "value"])


@in_loop
async def test_keep__is_the_default() -> None:
    """Without the option the flight runs to its end."""
    work = Work(on_last_leave="keep")
    with Witness() as seen:
        caller = asyncio.create_task(work.call())
        await seen.sees(1, "call:running")
        caller.cancel()
        await ends(caller)
        work.go.set()
        await seen.sees(1, "call:settled")
        assert seen.states() == [("success", None)]
    assert work.ended == ["value"]


@in_loop
async def test_submitted__is_kept() -> None:
    """Whoever holds the Call can ask for its result later: nobody has left for good."""
    work = Work()
    call = await work.call.asubmit()
    with Witness() as seen:
        waiter = asyncio.ensure_future(_awaited(call))
        follower = asyncio.create_task(work.call())
        await seen.sees(1, "coordination:reuse")
        waiter.cancel()
        follower.cancel()
        await ends(waiter, follower)
        assert not call.done()
        work.go.set()
        assert await call == "value"


async def _awaited(call: Any) -> Any:
    return await call


@in_loop
async def test_submitted__a_follower_keeps_what_it_follows() -> None:
    """Whoever holds a `Call` that shares the flight may still ask."""
    work = Work()
    with Witness() as seen:
        leader = asyncio.create_task(work.call())
        await seen.sees(1, "call:running")
        call = await work.call.asubmit()
        asker = asyncio.ensure_future(_awaited(call))
        while in_flight()[0].joined < 2:
            await asyncio.sleep(0)
        leader.cancel()
        asker.cancel()
        await ends(leader, asker)
        work.go.set()
        assert await call == "value"
