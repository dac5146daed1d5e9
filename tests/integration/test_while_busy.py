"""`while_busy` of a refresh: skipped, answered with what is stored, or told Busy."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_vega import Busy, Upsert, in_flight, singleflight_refresh, throttle
from tests import threads
from tests.gates import TIMEOUT, Gate, Recorder, never
from tests.integration.repository import UPSERT, places, row, run
from tests.writing_app.models import Quake

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a call behind."""
    yield
    assert in_flight() == ()


class Repository:
    """Refreshes quakes, and knows what is stored."""

    @singleflight_refresh(key="busy:{region}", upsert=UPSERT, ignore=["fetch"], while_busy="stale")
    def refresh(self, region: str, fetch: Any) -> Any:
        return fetch()

    @refresh.stale
    def stored(self, region: str, fetch: Any = None) -> list[str]:
        return sorted(Quake.objects.values_list("place", flat=True))

    @singleflight_refresh(key="abusy:{region}", upsert=UPSERT, ignore=["fetch"], while_busy="stale")
    async def arefresh(self, region: str, fetch: Any) -> Any:
        return await fetch()

    @arefresh.stale
    async def astored(self, region: str, fetch: Any = None) -> list[str]:
        return [place async for place in Quake.objects.values_list("place", flat=True)]


def start(function: Any, rows: Any = ()) -> tuple[Gate, threads.Running[Any]]:
    """Start a refresh that waits at its upstream."""
    gate = Gate(list(rows))
    leader = threads.start(lambda: function("alaska", gate))
    assert gate.entered.wait(TIMEOUT)
    return gate, leader


def test_skip__is_told_at_once() -> None:
    """Whoever meets a flight gets a record that says skipped; the event and its count show it."""
    function = Repository().refresh.with_options(while_busy="skip")
    gate, leader = start(function, [row("here")])
    with Recorder() as seen:
        skipped = [function("alaska", never) for _ in range(3)]
    assert {(one.outcome, one.led, one.generation, one.value) for one in skipped} == {
        ("skipped", False, None, None)
    }
    assert [event.answer for event in seen.events("call:skipped")] == ["skip"] * 3
    assert seen.states() == [("cancelled", "busy")] * 3
    gate.open()
    assert leader.result().outcome == "written"
    assert places() == {"a": "here"}


def test_stale__gives_what_is_stored() -> None:
    """The caller gets at once what the registered function gives for its arguments."""
    Quake.objects.create(code="z", place="old")
    repository = Repository()
    gate, leader = start(repository.refresh, [row("new")])
    stale = repository.refresh("alaska", never)
    assert (stale.outcome, stale.value, stale.led) == ("stale", ["old"], False)
    gate.open()
    assert leader.result().outcome == "written"
    assert repository.stored("alaska") == ["new", "old"]


def test_raise__says_busy() -> None:
    """As for functions that return a value of their own."""
    function = Repository().refresh.with_options(while_busy="raise")
    gate, leader = start(function)
    with pytest.raises(Busy, match="busy:alaska is in flight"):
        function("alaska", never)
    gate.open()
    leader.result()


def test_stale__an_error_of_the_function_is_the_callers() -> None:
    """It stands in nobody's way but its own caller's."""

    @singleflight_refresh(key="k:{x}", upsert=UPSERT, ignore=["fetch"], while_busy="stale")
    def refresh(x: str, fetch: Any) -> Any:
        return fetch()

    @refresh.stale
    def stored(x: str, fetch: Any) -> Any:
        raise LookupError("nothing stored")

    gate, leader = start(refresh)
    with pytest.raises(LookupError, match="nothing stored"):
        refresh("alaska", never)
    gate.open()
    leader.result()


@pytest.mark.parametrize("while_busy", ["skip", "stale"])
def test_submit__is_answered_too(while_busy: Any) -> None:
    """A submitted refresh that meets a flight is over at once; its result is the answer."""
    Quake.objects.create(code="z", place="old")
    function = Repository().refresh.with_options(while_busy=while_busy)
    gate, leader = start(function)
    for submit in (function.submit, function.submit_nowait):
        call = submit("alaska", never)
        assert call.done()
        answer = call.result()
        expected = ("skipped", None) if while_busy == "skip" else ("stale", ["old"])
        assert (answer.outcome, answer.value) == expected
    gate.open()
    leader.result()


def test_async__stale_skip_and_submitted() -> None:
    """An async refresh awaits its stale function."""

    async def main() -> list[Any]:
        gate, entered = asyncio.Event(), asyncio.Event()

        async def fetch() -> Any:
            entered.set()
            await gate.wait()
            return [row("new")]

        repository = Repository()
        leader = asyncio.create_task(repository.arefresh("alaska", fetch))
        await entered.wait()
        answers = [await repository.arefresh("alaska", never)]
        answers.append(await repository.arefresh.with_options(while_busy="skip")("alaska", never))
        answers.append(await (await repository.arefresh.asubmit("alaska", never)))
        with pytest.raises(TypeError, match="use asubmit"):
            repository.arefresh.submit_nowait("alaska", never)
        gate.set()
        answers.append(await leader)
        return [(one.outcome, one.value) for one in answers]

    Quake.objects.create(code="z", place="old")
    assert run(main) == [
        ("stale", ["old"]),
        ("skipped", None),
        ("stale", ["old"]),
        ("written", None),
    ]


def test_async__a_plain_function_reads_what_is_stored() -> None:
    """Its queries run where the ORM may."""

    @singleflight_refresh(key="plain:{x}", upsert=UPSERT, ignore=["fetch"], while_busy="stale")
    async def refresh(x: str, fetch: Any) -> Any:
        return await fetch()

    @refresh.stale
    def stored(x: str, fetch: Any) -> int:
        return Quake.objects.count()

    async def main() -> Any:
        gate, entered = asyncio.Event(), asyncio.Event()

        async def fetch() -> Any:
            entered.set()
            await gate.wait()
            return []

        leader = asyncio.create_task(refresh("alaska", fetch))
        await entered.wait()
        answer = await refresh("alaska", never)
        gate.set()
        await leader
        return answer.value

    assert run(main) == 0


def test_throttle__skips_a_refresh() -> None:
    """What a throttle swallows is skipped, with no call and no flight."""

    @singleflight_refresh(key="t:{x}", upsert=UPSERT, ignore=["fetch"], shaper=throttle(3600))
    def refresh(x: str, fetch: Any) -> Any:
        return fetch()

    assert refresh("alaska", lambda: [row("here")]).outcome == "written"
    with Recorder() as seen:
        assert refresh("alaska", never).outcome == "skipped"
    assert [event.type for event in seen.events()] == ["shaper:swallowed"]


# What is refused


def test_stale__without_a_function() -> None:
    """There is nothing to answer with: refused at the first call, naming the way out."""

    @singleflight_refresh(key="none:{x}", upsert=UPSERT, while_busy="stale")
    def refresh(x: str) -> Any:
        return []

    with pytest.raises(ImproperlyConfigured, match=r"Put @refresh\.stale on a function"):
        refresh("alaska")


@pytest.mark.parametrize("strategy", ["restart", "exhaust"])
def test_strategy__that_never_waits(strategy: Any) -> None:
    """Cancel and drop have an answer of their own for a call that meets a flight."""
    function = Repository().refresh.with_options(strategy=strategy)
    with pytest.raises(ImproperlyConfigured, match=f"under the strategy {strategy}"):
        function("alaska", never)


def test_stale__what_cannot_be_registered() -> None:
    """Something that is no function, an async one for a sync refresh, a second one."""

    @singleflight_refresh(key="twice:{x}", upsert=Upsert(Quake, ["code"]))
    def refresh(x: str) -> Any:
        return []

    async def astored(x: str) -> None: ...

    with pytest.raises(TypeError, match=r"refresh\.stale got 5"):
        refresh.stale(5)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="only an async refresh may have an async one"):
        refresh.stale(astored)
    refresh.stale(lambda x: x)
    with pytest.raises(ValueError, match="already"):
        refresh.stale(lambda x: x)
