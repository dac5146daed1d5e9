"""Nobody waits for what cannot come: abandoned heirs, workers that wait for their own pool."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from django_vega import coordinated, subscribe
from django_vega.handler import handler
from tests import threads
from tests.gates import Arrivals, Gate, Recorder, raising
from tests.runtime.tasks import own_scope


def test_submitted_followers__whose_heirs_abandon_too():
    """Each that takes over and leaves keeps its own exit; one that lives serves all the others."""
    bodies = [Gate(SystemExit(1)), raising(SystemExit(2)), raising(SystemExit(3))]

    @coordinated(key="work", scope=own_scope())
    def work() -> str:
        return bodies.pop(0)() if bodies else "value"

    first = bodies[0]
    with Recorder() as seen:
        leader = threads.start(work)
        seen.wait(1, "call:running")
        calls = [work.submit() for _ in range(6)]
        first.open()
        ends = []
        for call in calls:
            try:
                ends.append(call.result(10))
            except SystemExit as error:
                ends.append(error.code)
    assert isinstance(leader.exception(), SystemExit)
    assert sorted(ends, key=str) == [2, 3, "value", "value", "value", "value"]


@pytest.mark.parametrize("strategy", ["dedupe", "serialize"])
def test_direct_call__of_what_is_queued_behind_its_own_worker(
    new_alias: Callable[..., str], strategy: str
):
    """The only worker calls a function whose call is queued in its pool: it runs that itself."""
    alias = new_alias(WORKERS=1)
    body = Gate()

    @coordinated(key="inner", using=alias, strategy=strategy)
    def inner() -> str:
        return "inner"

    @coordinated(key="outer", using=alias)
    def outer() -> str:
        body()
        return inner()

    with Recorder() as seen:
        first = outer.submit()
        seen.wait(1, "call:running")
        second = inner.submit()
        body.open()
        assert first.result() == second.result() == "inner"


def test_direct_await__of_what_is_queued_behind_its_own_task(new_alias: Callable[..., str]):
    """The only task of the pool awaits a function whose call is queued there: it is started."""
    alias = new_alias(WORKERS=1)

    @coordinated(key="inner", using=alias)
    async def inner() -> str:
        return "inner"

    async def main() -> list[str]:
        may_go = asyncio.Event()

        @coordinated(key="outer", using=alias)
        async def outer() -> str:
            await may_go.wait()
            return await inner()

        first = await outer.submit()
        second = await inner.submit()
        may_go.set()
        async with asyncio.timeout(10):
            return [await first, await second]

    assert asyncio.run(main()) == ["inner", "inner"]


def test_receiver_that_raises_no_exception__still_lets_the_parked_run():
    """Whoever is told may leave by SystemExit: the next in the queue runs all the same."""
    body = Gate("first")

    @coordinated(key="queue", strategy="serialize", scope=own_scope(), ignore=["function"])
    def queue(function: Callable[[], Any]) -> Any:
        return function()

    def leave(event: Any) -> None:
        if event.state == "success":
            unsubscribe()
            raise SystemExit

    with Arrivals() as arrivals:
        head = threads.start(lambda: queue(body))
        arrivals.wait(1)
        parked = queue.submit(lambda: "second")
        unsubscribe = subscribe(leave, ["call:settled"])
        body.open()
        assert isinstance(head.exception(), SystemExit)
    assert parked.result() == "second"


def test_key_display__that_asks_what_is_in_flight(new_alias: Callable[..., str]):
    """A KEY_DISPLAY may ask for the flights, also where an error is made under the lock."""

    def display(key: str) -> str:
        return f"{key} of {len(handler.coordinator(alias).in_flight())}"

    alias = new_alias(KEY_DISPLAY=display)

    @coordinated(key="self", using=alias, strategy="restart")
    def itself() -> str:
        return itself()

    running = threads.start(itself)
    assert "self of 1" in str(running.exception())


def test_key_display__that_raises(new_alias: Callable[..., str]):
    """It is logged, the key is not shown, and the call goes on."""

    def display(key: str) -> str:
        raise RuntimeError(key)

    alias = new_alias(KEY_DISPLAY=display)

    @coordinated(key="work", using=alias)
    def work() -> str:
        return "value"

    with Recorder() as seen:
        assert work() == "value"
    assert {event.key for event in seen.events()} == {"(not shown)"}
