"""A refresh through its decorator: one fetch, fenced rows, followers told after the commit."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection
from django.test import override_settings

from django_vega import (
    CallCancelled,
    ReentrantCallError,
    Refresh,
    Upsert,
    VegaError,
    current_call,
    in_flight,
    signals,
    singleflight_refresh,
)
from django_vega.backends.local import LocalBackend
from django_vega.models import RefreshState
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never, raising
from tests.integration.repository import (
    UPSERT,
    Repository,
    WriteGate,
    places,
    row,
    states,
)
from tests.writing_app.models import Quake, Station

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a call behind."""
    yield
    assert in_flight() == ()


# Written


@pytest.mark.parametrize(
    "rows",
    [
        [row("here"), row("there", code="b")],
        (Quake(**row("here")), row("there", code="b")),
        (each for each in [row("lost"), row("there", code="b"), row("here")]),
    ],
    ids=["dicts", "mixed", "generator"],
)
def test_written__rows_and_record(rows: Any) -> None:
    """The rows are in the database, and the record tells how many and under which generation."""
    result = Repository(lambda: rows).refresh("alaska")
    assert isinstance(result, Refresh)
    assert (result.key, result.outcome, result.led) == ("quakes:alaska", "written", True)
    assert (result.rows, result.written) == (2, 2)
    assert result.generation is not None
    assert places() == {"a": "here", "b": "there"}
    assert states() == [(result.generation, result.generation, "ok")]


def test_written__empty_answer() -> None:
    """An answer without rows is a success, and moves the fence."""
    result = Repository(list).refresh("alaska")
    assert (result.outcome, result.rows, result.written) == ("written", 0, 0)
    assert states() == [(result.generation, result.generation, "ok")]


def test_written__generator_function() -> None:
    """A generator function is a refresh: it runs to its end outside the transaction."""
    seen = []

    @singleflight_refresh(key="pages:{region}", upsert=UPSERT)
    def pages(region: str) -> Iterator[dict[str, Any]]:
        for number in range(3):
            seen.append((connection.in_atomic_block, current_call() is not None))
            yield row(f"page {number}", code=str(number))

    assert pages("alaska").rows == 3
    assert seen == [(False, True)] * 3


def test_written__function_runs_outside_transactions() -> None:
    """The function fetches outside of any transaction, so that its I/O never holds one."""
    seen = []

    def fetch() -> list[Any]:
        seen.append(connection.in_atomic_block)
        return []

    Repository(fetch).refresh("alaska")
    assert seen == [False]


def test_raw__writes_nothing() -> None:
    """`raw` is the function itself."""
    assert Repository(lambda: [row()]).refresh.raw("alaska") == [row()]
    assert (places(), states()) == ({}, [])


def test_next__each_call_after_the_settle_runs() -> None:
    """A refresh is no cache: the next call fetches again, with a newer generation."""
    repository = Repository(lambda: [row()])
    first, second = repository.refresh("alaska"), repository.refresh("alaska")
    assert (first.outcome, second.outcome) == ("written", "written")
    assert first.generation is not None
    assert second.generation is not None
    assert first.generation < second.generation


# Followers


class CountingBackend(LocalBackend):
    """Counts the generations that it issues."""

    issued = 0

    def next_generation(self) -> int:
        type(self).issued += 1
        return super().next_generation()


def test_followers__joiners_do_not_touch_the_generation() -> None:
    """20 callers join: one fetch, one generation, one write; each has the record, `led` False."""
    CountingBackend.issued = 0
    gate = Gate([row("here")])
    repository = Repository(gate)

    def call() -> tuple[Refresh, dict[str, str]]:
        return repository.refresh("alaska"), places()

    settings = override_settings(DJANGO_VEGA={"default": {"BACKEND": CountingBackend}})
    with settings, Recorder() as recorder:
        leader = threads.start(call)
        recorder.wait(1, "call:running")
        followers = threads.start_together(*[call] * 20)
        recorder.wait(20, "coordination:reuse")
        assert CountingBackend.issued == 1
        gate.open()
        got = [leader.result(), *threads.results(followers)]
    assert (gate.runs, CountingBackend.issued) == (1, 1)
    assert {result.generation for result, _ in got} == {got[0][0].generation}
    assert states() == [(got[0][0].generation, got[0][0].generation, "ok")]
    assert [result.led for result, _ in got] == [True] + [False] * 20
    # Whoever has the record sees the rows, each on a connection of its own.
    assert all(seen == {"a": "here"} for _, seen in got)
    assert len(recorder.events("refresh:written")) == 1


def test_followers__error_of_the_leader() -> None:
    """Each follower gets an error of its own, of the leader's type, with the leader's as cause."""
    error = ConnectionError("upstream is down")
    gate = Gate(error)
    repository = Repository(gate)
    with Arrivals() as arrivals:
        leader = threads.start(lambda: repository.refresh("alaska"))
        arrivals.wait(1)
        follower = threads.start(lambda: repository.refresh("alaska"))
        arrivals.wait(2)
        gate.open()
        assert leader.exception() is error
        replica = follower.exception()
    assert isinstance(replica, ConnectionError)
    assert replica is not error
    assert replica.__cause__ is error
    assert gate.runs == 1


# Events


def test_events__of_a_written_refresh() -> None:
    """The bus tells the life of the call, then that and what was written."""
    with Recorder() as recorder:
        result = Repository(lambda: [row(), row(code="b")]).refresh("alaska")
    kinds = [event.type for event in recorder.events()]
    assert kinds == ["call:created", "call:running", "call:settled", "refresh:written"]
    (written,) = recorder.events("refresh:written")
    assert (written.generation, written.rows, written.written) == (result.generation, 2, 2)
    assert (written.key, written.coordinator) == ("quakes:alaska", "dedupe")
    assert written.function == "tests.integration.repository.Repository.refresh"
    assert written.call_id == recorder.events("call:created")[0].call_id


def test_signal__after_the_commit() -> None:
    """A receiver of `refresh_written` that asks on another connection sees the rows."""
    seen = []

    def look(sender: Any, event: Any, **_: Any) -> None:
        (found,) = threads.run_together(places)
        seen.append((sender, event.rows, found, connection.in_atomic_block))

    signals.refresh_written.connect(look)
    try:
        Repository(lambda: [row("here")]).refresh("alaska")
    finally:
        signals.refresh_written.disconnect(look)
    assert seen == [(Repository.refresh, 1, {"a": "here"}, False)]


def test_signal__receiver_that_raises(caplog: Any) -> None:
    """A receiver that raises is logged; the refresh is a success all the same."""

    def broken(**_: Any) -> None:
        raise ZeroDivisionError("in a receiver")

    signals.refresh_written.connect(broken)
    try:
        assert Repository(lambda: [row()]).refresh("alaska").outcome == "written"
    finally:
        signals.refresh_written.disconnect(broken)
    assert "in a receiver" in caplog.text


def test_signal__superseded_and_failed() -> None:
    """The other two ends of a refresh have signals as well."""
    got = []

    def take(event: Any, **_: Any) -> None:
        got.append((event.type, getattr(event, "error", None)))

    for signal in (signals.refresh_superseded, signals.refresh_failed, signals.refresh_written):
        signal.connect(take)
    try:
        old = cross()[0]
        with pytest.raises(ConnectionError):
            Repository(raising(ConnectionError("down"))).refresh("alaska")
    finally:
        for signal in (signals.refresh_superseded, signals.refresh_failed, signals.refresh_written):
            signal.disconnect(take)
    assert old.outcome == "superseded"
    assert got == [
        ("refresh:written", None),
        ("refresh:superseded", None),
        ("refresh:failed", "ConnectionError: down"),
    ]


# Crossing


def cross() -> tuple[Refresh, Refresh]:
    """Let a slow old answer arrive after a newer one, both of one key; return both records."""
    slow = Gate([row("old")])
    with Arrivals() as arrivals:
        uncoordinated = Repository(slow).refresh.with_options(strategy="none")
        old = threads.start(lambda: uncoordinated("alaska"))
        arrivals.wait(1)
        new = Repository(lambda: [row("new")]).refresh.with_options(strategy="none")("alaska")
        slow.open()
        return old.result(), new


def test_crossing__late_old_answer() -> None:
    """Without coordination two flights of one key cross; the older one writes nothing."""
    with Recorder() as recorder:
        old, new = cross()
    assert (old.outcome, old.rows, old.written, old.led) == ("superseded", 1, 0, True)
    assert new.outcome == "written"
    assert places() == {"a": "new"}
    assert states() == [(new.generation, new.generation, "ok")]
    (superseded,) = recorder.events("refresh:superseded")
    assert superseded.generation == old.generation
    assert [event.generation for event in recorder.events("refresh:written")] == [new.generation]


def test_crossing__other_scopes_have_other_fences() -> None:
    """The same key text of another class is another key: its older answer is written."""

    class OtherRepository(Repository):
        pass

    slow = Gate([row("old")])
    with Arrivals() as arrivals:
        old = threads.start(lambda: OtherRepository(slow).refresh("alaska"))
        arrivals.wait(1)
        Repository(lambda: [row("new")]).refresh("alaska")
        slow.open()
        assert old.result().outcome == "written"
    assert RefreshState.objects.count() == 2


# Without a key


def test_unkeyed__is_neither_coordinated_nor_fenced() -> None:
    """Calls whose key is None do not stand in each other's way, in whatever order they end."""
    slow = Gate([row("slow", code="s")])
    with Recorder() as recorder:
        late = threads.start(lambda: Repository(slow).refresh_unkeyed(None))
        assert slow.entered.wait(TIMEOUT)
        quick = Repository(lambda: [row("quick", code="q")]).refresh_unkeyed(None)
        slow.open()
        assert (late.result().outcome, quick.outcome) == ("written", "written")
        assert recorder.events() == []
    assert places() == {"s": "slow", "q": "quick"}
    assert states() == []
    assert Repository(never).refresh_unkeyed.status(None).state == "idle"


def test_unkeyed__fails() -> None:
    """Its failure is its caller's; there is no key whose status could say so."""
    with pytest.raises(ConnectionError):
        Repository(raising(ConnectionError())).refresh_unkeyed(None)
    assert states() == []


# Failure


def old_rows() -> int | None:
    """Refresh once, as the state that failures have to leave alone."""
    return Repository(lambda: [row("before")]).refresh("alaska").generation


@pytest.mark.parametrize(
    ("fetch", "error", "said"),
    [
        (raising(ConnectionError("upstream is down")), ConnectionError, "upstream is down"),
        (lambda: [row("new"), {"code": "b", "place": None}], IntegrityError, "place"),
        (lambda: None, TypeError, "None"),
        (lambda: [row("new"), 5], TypeError, "5"),
        (lambda: [{"cod": "a"}], Exception, "cod"),
        (lambda: [row("new"), {"place": "x"}, {"code": None}], ValueError, "code"),
        (lambda: (raising(ConnectionError("page 2"))() for _ in "ab"), ConnectionError, "page 2"),
    ],
    ids=["function", "database", "none", "no row", "no field", "no key", "generator"],
)
def test_failure__leaves_rows_and_says_so(fetch: Any, error: type[Exception], said: str) -> None:
    """What fails writes nothing; status and event say type and message; the next call runs."""
    before = old_rows()
    with Recorder() as recorder, pytest.raises(error, match=said):
        Repository(fetch).refresh("alaska")
    assert places() == {"a": "before"}
    assert states() == [(before, before, "failed")]
    status = Repository.refresh.status(Repository(never), "alaska")
    assert (status.state, status.generation) == ("failed", before)
    assert said in str(status.error)
    (failed,) = recorder.events("refresh:failed")
    assert failed.error == status.error
    assert recorder.states() == [("error", None)]
    assert Repository(lambda: [row("after")]).refresh("alaska").outcome == "written"
    assert places() == {"a": "after"}


def test_failure__error_that_cannot_be_shown() -> None:
    """An error whose message raises reaches its caller as it is, and is recorded by its type."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    error = Unspeakable()
    with Recorder() as recorder, pytest.raises(Unspeakable) as caught:
        Repository(raising(error)).refresh("alaska")
    assert caught.value is error
    (failed,) = recorder.events("refresh:failed")
    assert failed.error.endswith("Unspeakable: (its message cannot be shown)")


def test_failure__first_of_a_key() -> None:
    """A key that has never been written has a status of its failure, and its fence at 0."""
    with pytest.raises(ConnectionError):
        Repository(raising(ConnectionError("down"))).refresh("alaska")
    assert states() == [(0, 0, "failed")]


def test_failure__older_than_what_is_written() -> None:
    """A failure that arrives after a newer success does not hide it."""
    slow = Gate(ConnectionError("too late"))
    with Arrivals() as arrivals:
        uncoordinated = Repository(slow).refresh.with_options(strategy="none")
        old = threads.start(lambda: uncoordinated("alaska"))
        arrivals.wait(1)
        new = Repository(lambda: [row("new")]).refresh.with_options(strategy="none")("alaska")
        slow.open()
        assert isinstance(old.exception(), ConnectionError)
    assert states() == [(new.generation, new.generation, "ok")]


def test_failure__reentrant() -> None:
    """A refresh inside a refresh of its own key raises at once, and that is the failure."""
    repository = Repository(lambda: repository.refresh("alaska"))
    with pytest.raises(ReentrantCallError):
        repository.refresh("alaska")
    assert states() == [(0, 0, "failed")]


def test_failure__upsert_that_does_not_fit() -> None:
    """What is wrong with the upsert is said at the first call, before the function runs."""

    @singleflight_refresh(key="misfit:{x}", upsert=Upsert(Station, ["name"]))
    def misfit(x: int) -> Any:
        never()

    with pytest.raises(VegaError, match="unique constraint") as caught:
        misfit(1)
    assert isinstance(caught.value, ImproperlyConfigured)
    with pytest.raises(ImproperlyConfigured):
        misfit.submit(1)
    with pytest.raises(ImproperlyConfigured):
        misfit.status(1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_abandoned__leader_writes_nothing(error: BaseException) -> None:
    """A leader that is interrupted writes nothing and leaves the status; a follower takes over."""
    before = old_rows()
    gate = Gate(error)
    fetches: list[Any] = [lambda: [row("after")], gate]

    def fetch() -> Any:
        return fetches.pop()()

    repository = Repository(fetch)
    with Arrivals() as arrivals:
        leader = threads.start(lambda: repository.refresh("alaska"))
        arrivals.wait(1)
        assert states() == [(before, before, "ok")]
        follower = threads.start(lambda: repository.refresh("alaska"))
        arrivals.wait(2)
        gate.open()
        assert leader.exception() is error
        taken_over = follower.result()
    assert (taken_over.outcome, taken_over.led) == ("written", True)
    assert places() == {"a": "after"}


# Cancellation


def test_cancel__before_writing() -> None:
    """A call cancelled while it fetches writes nothing, and the last status stays."""
    before = old_rows()
    gate = Gate([row("cancelled")])
    repository = Repository(gate)
    with Recorder() as recorder, threads.start(lambda: repository.refresh("alaska")) as running:
        recorder.wait(1, "call:running")
        assert repository.refresh.cancel("alaska") is True
        assert repository.refresh.in_flight("alaska")[0].state == "stopping"
        gate.open()
        error = running.exception()
    assert isinstance(error, CallCancelled)
    assert error.reason == "abort"
    assert places() == {"a": "before"}
    assert states() == [(before, before, "ok")]
    ends = ("refresh:written", "refresh:superseded", "refresh:failed")
    assert recorder.events(*ends) == []
    assert recorder.states() == [("cancelled", "abort")]


def test_cancel__then_the_function_fails() -> None:
    """What a cancelled function raises on its way out is no failure of the key."""
    before = old_rows()
    gate = Gate(ConnectionError("on its way out"))
    repository = Repository(gate)
    with Recorder() as recorder, threads.start(lambda: repository.refresh("alaska")) as running:
        recorder.wait(1, "call:running")
        assert repository.refresh.cancel("alaska")
        gate.open()
        error = running.exception()
    assert isinstance(error, CallCancelled)
    assert isinstance(error.__cause__, ConnectionError)
    assert states() == [(before, before, "ok")]
    assert recorder.events("refresh:failed") == []


def test_restart__before_writing() -> None:
    """Under restart the older flight writes nothing, however late it returns."""
    gate = Gate([row("old")])
    old_one = Repository(gate).refresh.with_options(strategy="restart")
    with Arrivals() as arrivals, threads.start(lambda: old_one("alaska")) as old:
        arrivals.wait(1)
        new_one = Repository(lambda: [row("new")]).refresh.with_options(strategy="restart")
        new = new_one("alaska")
        gate.open()
        assert isinstance(old.exception(), CallCancelled)
    assert new.outcome == "written"
    assert places() == {"a": "new"}
    assert states() == [(new.generation, new.generation, "ok")]


def writing(repository: Repository, gate: WriteGate, **options: Any) -> threads.Running[Refresh]:
    """Start a refresh that stops inside its transaction, and wait until it is there."""
    refresh = repository.refresh.with_options(**options)

    def call() -> Refresh:
        with connection.execute_wrapper(gate.stop):
            return refresh("alaska")

    running = threads.start(call)
    assert gate.entered.wait(TIMEOUT)
    return running


def test_cancel__during_writing() -> None:
    """What is being written cannot be cancelled: it ends as a success, also for its followers."""
    gate = WriteGate()
    repository = Repository(lambda: [row("written")])
    with Recorder() as recorder, writing(repository, gate) as running:
        assert repository.refresh.in_flight("alaska")[0].state == "writing"
        follower = threads.start(lambda: repository.refresh("alaska"))
        recorder.wait(1, "coordination:reuse")
        assert repository.refresh.cancel("alaska") is False
        assert recorder.events("call:settled")[1:] == []
        gate.open()
    assert (running.result().outcome, running.result().led) == ("written", True)
    assert (follower.result().outcome, follower.result().led) == ("written", False)
    assert places() == {"a": "written"}
    assert recorder.states() == [("success", None), ("cancelled", "dedupe")]


def test_restart__during_writing() -> None:
    """A restart that meets a write cancels nothing: both write, the newer one last."""
    gate = WriteGate()
    fetched = Gate([row("second")])
    first = Repository(lambda: [row("first")])
    second = Repository(fetched).refresh.with_options(strategy="restart")
    with Recorder() as recorder, writing(first, gate, strategy="restart") as running:
        newcomer = threads.start(lambda: second("alaska"))
        recorder.wait(2, "call:running")
        gate.open()
        fetched.open()
        newcomer.join()
    assert (running.result().outcome, newcomer.result().outcome) == ("written", "written")
    assert recorder.events("coordination:restart") == []
    assert recorder.states() == [("success", None)] * 2
    assert places() == {"a": "second"}


def test_writing__followers_wait_for_the_commit() -> None:
    """Nobody is told before the rows are committed, and nobody else sees them earlier."""
    gate = WriteGate()
    repository = Repository(lambda: [row("written")])
    with Recorder() as recorder, writing(repository, gate):
        follower = threads.start(lambda: (repository.refresh("alaska"), places()))
        recorder.wait(1, "coordination:reuse")
        assert places() == {}
        assert recorder.events("refresh:written") == []
        assert follower.is_running
        gate.open()
    result, seen = follower.result()
    assert (result.led, seen) == (False, {"a": "written"})


# On the pool


def test_submit__refresh() -> None:
    """A submitted refresh runs on a thread of the pool; its result is the record."""
    gate = Gate([row("here")])
    repository = Repository(gate)
    with Arrivals() as arrivals:
        call = repository.refresh.submit("alaska")
        arrivals.wait(1)
        follower = repository.refresh.submit_nowait("alaska")
        gate.open()
        assert (call.result(TIMEOUT).outcome, call.result(TIMEOUT).led) == ("written", True)
        assert (follower.result(TIMEOUT).generation, follower.result(TIMEOUT).led) == (
            call.generation,
            False,
        )
    assert (call.state, follower.state, follower.cancel_reason) == (
        "success",
        "cancelled",
        "dedupe",
    )
    assert places() == {"a": "here"}


def test_submit__fails() -> None:
    """A submitted refresh that fails keeps its error for whoever asks, and its status says so."""
    call = Repository(raising(ConnectionError("down"))).refresh.submit("alaska")
    for _ in range(2):
        with pytest.raises(ConnectionError, match="down"):
            call.result(TIMEOUT)
    assert states() == [(0, 0, "failed")]


def test_submit__leaves_no_connection() -> None:
    """A thread of the pool closes its connection after each refresh."""
    opened = []

    def fetch() -> list[Any]:
        opened.append((connection.connection, threading.get_ident()))
        return [row()]

    with override_settings(DJANGO_VEGA={"default": {"WORKERS": 1}}):
        repository = Repository(fetch)
        for region in ("alaska", "hawaii"):
            assert repository.refresh.submit(region).result(TIMEOUT).outcome == "written"
    (first, one), (second, other) = opened
    assert one == other != threading.get_ident()
    assert first is second is None


def test_prune__that_cannot_be_called_with_the_arguments() -> None:
    """A prune callable that does not take the function's parameters is refused at decoration."""
    upsert = Upsert(Quake, ["code"], prune=lambda region: Quake.objects.all())

    with pytest.raises(TypeError, match=r"refresh: prune"):

        @singleflight_refresh(key="k:{region}:{page}", upsert=upsert)
        def refresh(region: str, page: int) -> Any:
            return []

    @singleflight_refresh(key="k:{region}", upsert=upsert)
    def fits(region: str) -> Any:
        return []
