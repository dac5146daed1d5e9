"""`fresh_for`: cache first, then singleflight; what is recent enough is not fetched again."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_vega import close, coordinated, in_flight, singleflight_refresh
from django_vega.models import RefreshState
from django_vega.writing import successes
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never, raising
from tests.integration.repository import UPSERT, places, row, run
from tests.runtime.tasks import own_scope

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Fail the test that leaves a call behind; remember successes, as outside of tests."""
    monkeypatch.delattr(mail, "outbox")
    successes.forget_successes()
    yield monkeypatch
    assert in_flight() == ()


@singleflight_refresh(key="quakes:{region}", upsert=UPSERT, ignore=["fetch"], fresh_for=30)
def refresh(region: str, fetch: Any) -> Any:
    return fetch()


@singleflight_refresh(key="aquakes:{region}", upsert=UPSERT, ignore=["fetch"], fresh_for=30)
async def arefresh(region: str, fetch: Any) -> Any:
    return fetch()


def fetched(region: str, fetch: Any) -> Any:
    return fetch()


def start_and_park(
    function: Any, gate: Gate, seen: Recorder, parked: Any = never
) -> list[threads.Running[Any]]:
    """Start a refresh that waits at the gate, and one that is parked behind it."""
    first = threads.start(lambda: function("alaska", gate))
    assert gate.entered.wait(TIMEOUT)
    second = threads.start(lambda: function("alaska", parked))
    seen.wait(1, "call:parked")
    return [first, second]


def age_stored(seconds: float) -> None:
    """Make what is stored so much older, as another process left it long ago."""
    successes.forget_successes()
    state = RefreshState.objects.get()
    state.written_at -= timedelta(seconds=seconds)
    state.save(update_fields=["written_at"])


def test_fresh__the_function_is_not_called() -> None:
    """Within the time after a success: no call, no event, no query, and its generation."""
    first = refresh("alaska", lambda: [row("here")])
    with Recorder() as seen, CaptureQueriesContext(connection) as queries:
        second = refresh("alaska", never)
    assert (second.outcome, second.generation, second.led) == ("fresh", first.generation, False)
    assert (second.rows, second.written) == (0, 0)
    assert second.key == first.key
    assert seen.events() == []
    assert len(queries) == 0
    assert places() == {"a": "here"}


def test_fresh__another_key_is_not() -> None:
    """Freshness is a matter of one key."""
    refresh("alaska", lambda: [row("here")])
    assert refresh("hawaii", lambda: [row("there", code="b")]).outcome == "written"


def test_fresh__as_another_process_left_it() -> None:
    """What this process did not see is asked of the database, with one query."""
    first = refresh("alaska", lambda: [row("here")])
    age_stored(29)
    with CaptureQueriesContext(connection) as queries:
        assert refresh("alaska", never).generation == first.generation
    assert len(queries) == 1


@pytest.mark.parametrize("seconds", [30, 31, 3600, -31, -3600])
def test_fresh__not_any_more(seconds: float) -> None:
    """Past the time the function runs again; so it does where a clock was far ahead."""
    refresh("alaska", lambda: [row("here")])
    age_stored(seconds)
    assert refresh("alaska", lambda: [row("there")]).outcome == "written"
    assert places() == {"a": "there"}


def test_fresh__a_failure_is_no_success() -> None:
    """The first refresh fails: the next call runs; the last success before it still counts."""
    with pytest.raises(ValueError, match="no"):
        refresh("alaska", raising(ValueError("no")))
    first = refresh("alaska", lambda: [row("here")])
    with pytest.raises(ValueError, match="no"):
        refresh.with_options(force=True)("alaska", raising(ValueError("no")))
    assert refresh.status("alaska", None).state == "failed"
    for _ in range(2):  # as this process saw it, and as it is stored
        assert refresh("alaska", never).generation == first.generation
        successes.forget_successes()


def test_force__runs_all_the_same() -> None:
    """Pull to refresh skips the check, and leaves a newer success behind."""
    first = refresh("alaska", lambda: [row("here")])
    forced = refresh.with_options(force=True)("alaska", lambda: [row("there")])
    assert forced.outcome == "written"
    assert forced.generation > first.generation
    assert refresh("alaska", never).generation == forced.generation


def test_force__joins_a_flight() -> None:
    """It skips the check only: ten who pull at once are one run."""
    refresh("alaska", lambda: [row("old")])
    forced = refresh.with_options(force=True)
    gate = Gate([row("new")])
    leader = threads.start(lambda: forced("alaska", gate))
    assert gate.entered.wait(TIMEOUT)
    with Arrivals() as arrivals:
        others = [threads.start(lambda: forced("alaska", never)) for _ in range(9)]
        arrivals.wait(9)
    # Who is content with what is fresh does not wait for that flight.
    assert refresh("alaska", never).outcome == "fresh"
    gate.open()
    outcomes = threads.results([leader, *others])
    assert {one.outcome for one in outcomes} == {"written"}
    assert len({one.generation for one in outcomes}) == 1
    assert gate.runs == 1


def test_next__runs_all_the_same() -> None:
    """Who must see a run that began after it asked is not content with an older success."""
    refresh("alaska", lambda: [row("here")])
    later = refresh.with_options(next=True)
    assert later("alaska", lambda: [row("there")]).outcome == "written"


def test_admission__finds_it_fresh() -> None:
    """A success between the first look and the admission: the call settles without a run.

    Under serialize the second caller is parked while the first one writes.
    """
    function = refresh.with_options(strategy="serialize")
    gate = Gate([row("here")])
    with Recorder() as seen:
        first, second = start_and_park(function, gate, seen)
        gate.open()
        written, fresh = threads.results([first, second])
        assert (written.outcome, fresh.outcome) == ("written", "fresh")
        assert fresh.generation == written.generation
        assert seen.states() == [("success", None), ("success", None)]
        assert len(seen.events("refresh:written")) == 1


def test_admission__finds_it_fresh_as_another_process_left_it() -> None:
    """The same where only the database knows of the success."""
    function = refresh.with_options(strategy="serialize")
    gate = Gate([row("here")])
    with Recorder() as seen:
        first, second = start_and_park(function, gate, seen)
        real_note, successes._seen.add = successes._seen.add, lambda *args: None  # type: ignore[method-assign]
        try:
            gate.open()
            assert [one.outcome for one in threads.results([first, second])] == ["written", "fresh"]
        finally:
            successes._seen.add = real_note  # type: ignore[method-assign]


def test_admission__a_forced_follower_is_not_content_with_that() -> None:
    """Who was forced and joined a flight that would find itself fresh: it runs all the same."""
    queued = refresh.with_options(strategy="serialize")
    gate = Gate([row("old")])
    with Recorder() as seen:
        first, second = start_and_park(queued, gate, seen, lambda: [row("new")])
        forced = refresh.with_options(next=True)
        third = threads.start(lambda: forced("alaska", never))
        seen.wait(1, "coordination:reuse")
        gate.open()
        outcomes = [one.outcome for one in threads.results([first, second, third])]
    assert outcomes == ["written"] * 3
    assert places() == {"a": "new"}


def test_submit__is_fresh_when_it_runs() -> None:
    """A submitted call is made, and settles as success without a run."""
    first = refresh("alaska", lambda: [row("here")])
    call = refresh.submit("alaska", never)
    found = call.result()
    assert (found.outcome, found.generation, call.state) == ("fresh", first.generation, "success")


def test_transaction__what_may_roll_back_is_not_seen() -> None:
    """A success inside a transaction that is undone is none."""
    solo = singleflight_refresh(
        key="quakes:{region}",
        upsert=UPSERT,
        ignore=["fetch"],
        fresh_for=30,
        in_atomic="solo",
        scope="tests.successes.solo",
    )(lambda region, fetch: fetch())

    class Undo(Exception):
        pass

    def undone() -> None:
        with transaction.atomic():
            assert solo("alaska", lambda: [row("here")]).outcome == "written"
            raise Undo

    with pytest.raises(Undo):
        undone()
    assert places() == {}
    assert solo("alaska", lambda: [row("there")]).outcome == "written"
    assert places() == {"a": "there"}


class test_case__each_test_starts_anew(TestCase):
    """Rows that a TestCase rolled back are not fresh in its next test."""

    def _refresh_once(self) -> None:
        assert refresh("alaska", lambda: [row("here")]).outcome == "written"
        assert places() == {"a": "here"}
        assert refresh("alaska", never).outcome == "fresh"

    def test_one(self) -> None:
        self._refresh_once()

    def test_two(self) -> None:
        self._refresh_once()


def test_flush__nothing_is_fresh() -> None:
    """Emptied tables hold nothing that could be fresh; TransactionTestCase empties them so."""
    refresh("alaska", lambda: [row("here")])
    call_command("flush", interactive=False, verbosity=0)
    assert refresh("alaska", lambda: [row("there")]).outcome == "written"


def test_seen__is_bounded() -> None:
    """The process remembers so many keys and no more."""
    seen = successes._Seen()
    for number in range(successes.MOST_KEYS + 500):
        seen.add(("default", str(number)), float(number), 1)
    assert len(seen) == successes.MOST_KEYS
    assert seen.get(("default", "0"), -1.0) is None
    assert seen.get(("default", str(successes.MOST_KEYS)), 0.0) == 1


def test_seen__an_older_success_does_not_replace_a_newer_one() -> None:
    """Flights may end out of order."""
    seen = successes._Seen()
    seen.add(("default", "a"), 10.0, 7)
    seen.add(("default", "a"), 11.0, 5)
    assert seen.get(("default", "a"), 9.0) == 7
    assert seen.get(("default", "a"), 10.0) is None


def test_async__fresh_and_forced() -> None:
    """The same from a loop: seen without a query, stored with one, forced all the same."""

    async def main() -> list[str]:
        outcomes = [(await arefresh("alaska", lambda: [row("here")])).outcome]
        outcomes.append((await arefresh("alaska", never)).outcome)
        successes.forget_successes()
        outcomes.append((await arefresh("alaska", never)).outcome)
        forced = arefresh.with_options(force=True)
        outcomes.append((await forced("alaska", lambda: [row("there")])).outcome)
        call = await arefresh.asubmit("alaska", never)
        outcomes.append((await call).outcome)
        return outcomes

    assert run(main) == ["written", "fresh", "fresh", "written", "fresh"]
    assert places() == {"a": "there"}


def test_async__admission_finds_it_fresh() -> None:
    """Parked behind a refresh that succeeds: no second run."""

    async def main() -> list[str]:
        gate = asyncio.Event()

        @singleflight_refresh(
            key="gated:{region}", upsert=UPSERT, fresh_for=30, strategy="serialize"
        )
        async def gated(region: str) -> Any:
            await gate.wait()
            return [row("here")]

        tasks = [asyncio.create_task(gated("alaska")) for _ in range(3)]
        while [one.state for one in in_flight()] != ["running", "parked", "parked"]:
            await asyncio.sleep(0)
        gate.set()
        return [one.outcome for one in await asyncio.gather(*tasks)]

    assert run(main) == ["written", "fresh", "fresh"]


def test_option__wrong_values() -> None:
    """Seconds, at least 0."""
    for wrong in (-1, None, "30", True, float("inf")):
        with pytest.raises(ValueError, match="fresh_for="):
            singleflight_refresh(key="k", upsert=UPSERT, fresh_for=wrong)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="fresh_for="):
            refresh.with_options(fresh_for=wrong)
    assert refresh.effective_options("alaska", None).fresh_for == 30


@pytest.mark.parametrize("demand", ["force", "next"])
def test_submit__joins_a_queued_flight_that_would_end_fresh(demand: str, settings: Any) -> None:
    """One success is recent; a content caller waits for a worker, a demanding one joins: it runs.

    The flight asks whether it is needed in the step after which nobody joins it any more.
    """
    settings.DJANGO_VEGA = {"default": {}, f"one-{demand}": {"WORKERS": 1}}
    gate = Gate()

    @coordinated(key="hold", using=f"one-{demand}", scope=own_scope())
    def hold() -> None:
        gate()

    mine = singleflight_refresh(
        key="quakes:{region}",
        upsert=UPSERT,
        ignore=["fetch"],
        fresh_for=30,
        using=f"one-{demand}",
        scope=own_scope(),
    )(fetched)
    mine("alaska", lambda: [row("old")])
    held = hold.submit()
    assert gate.entered.wait(TIMEOUT)
    content = mine.submit("alaska", lambda: [row("new")])
    demanding = mine.with_options(**{demand: True}).submit("alaska", never)
    gate.open()
    held.result()
    assert [call.result().outcome for call in (content, demanding)] == ["written"] * 2
    assert places() == {"a": "new"}
    close(using=f"one-{demand}")


def test_fresh__a_success_that_was_rolled_back_with_autocommit_off() -> None:
    """A solo refresh in a transaction that never commits is no success for anybody."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no transaction without atomic() when autocommit is off")
    solo = singleflight_refresh(
        key="quakes:{region}", upsert=UPSERT, ignore=["fetch"], fresh_for=30, in_atomic="solo"
    )(fetched)
    connection.set_autocommit(False)
    try:
        assert solo("alaska", lambda: [row("here")]).outcome == "written"
        connection.rollback()
    finally:
        connection.set_autocommit(True)
    assert solo("alaska", lambda: [row("there")]).outcome == "written"
    assert places() == {"a": "there"}


def test_fresh__tables_that_were_emptied_without_a_signal(
    nothing_is_left: pytest.MonkeyPatch,
) -> None:
    """So `serialized_rollback` does between two tests: in a test environment nothing is remembered.

    What is stored answers there, and after the flush nothing is.
    """
    nothing_is_left.undo()
    refresh("alaska", lambda: [row("here")])
    assert refresh("alaska", never).outcome == "fresh"
    call_command("flush", interactive=False, inhibit_post_migrate=True, verbosity=0)
    assert refresh("alaska", lambda: [row("there")]).outcome == "written"
    call_command("flush", interactive=False, verbosity=0)
