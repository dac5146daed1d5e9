"""A refresh inside its caller's transaction: refused, or alone in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connection, transaction
from django.http import HttpResponse
from django.test import Client, TestCase, override_settings
from django.urls import path

from django_vega import (
    InAtomicBlockError,
    coordinated,
    current_call,
    in_flight,
)
from tests import threads
from tests.gates import Arrivals, Gate, Recorder, never, raising
from tests.integration.repository import (
    AsyncRepository,
    Repository,
    places,
    row,
    run,
    states,
)
from tests.writing_app.models import Quake

transactional = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a call behind."""
    yield
    assert in_flight() == ()


@contextmanager
def without_autocommit() -> Iterator[None]:
    """A connection that is always inside a transaction; what is not committed is rolled back."""
    transaction.set_autocommit(False)
    try:
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


# Refuse


@transactional
@pytest.mark.parametrize("block", [transaction.atomic, without_autocommit])
def test_refuse__before_the_function_runs(block: Callable[[], Any]) -> None:
    """Inside a transaction the call raises, naming key and database; nothing has run or changed."""
    with Recorder() as recorder, block():
        with pytest.raises(InAtomicBlockError, match="quakes:alaska") as caught:
            Repository(never).refresh("alaska")
        assert (caught.value.key, caught.value.alias) == ("quakes:alaska", "default")
        with pytest.raises(InAtomicBlockError):
            Repository(never).refresh_unkeyed(None)
        assert recorder.events() == []
    assert states() == []
    assert Repository(lambda: [row()]).refresh("alaska").outcome == "written"


@transactional
def test_refuse__followers_too() -> None:
    """A caller in a transaction does not wait either: it may hold a row that the leader needs."""
    gate = Gate([row("here")])
    repository = Repository(gate)
    with Arrivals() as arrivals, threads.start(lambda: repository.refresh("alaska")) as leader:
        arrivals.wait(1)
        with transaction.atomic(), pytest.raises(InAtomicBlockError):
            repository.refresh("alaska")
        gate.open()
    assert leader.result().outcome == "written"


@transactional
@pytest.mark.parametrize("refresh", ["refresh", "refresh_solo"])
def test_refuse__submit(refresh: str) -> None:
    """A submitted refresh would write on another connection: refused, whatever `in_atomic` says."""
    function = getattr(Repository(never), refresh)
    with transaction.atomic():
        with pytest.raises(InAtomicBlockError):
            function.submit("alaska")
        with pytest.raises(InAtomicBlockError):
            function.submit_nowait("alaska")


@transactional
def test_refuse__key_as_people_may_see_it() -> None:
    """The message shows the key as KEY_DISPLAY does."""
    with (
        override_settings(DJANGO_VEGA={"default": {"KEY_DISPLAY": lambda key: "quakes:***"}}),
        transaction.atomic(),
        pytest.raises(InAtomicBlockError) as caught,
    ):
        Repository(never).refresh("alaska")
    assert caught.value.key == "quakes:***"
    assert "alaska" not in str(caught.value)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_refuse__only_on_the_database_of_the_rows() -> None:
    """A transaction on another database is nobody's business."""
    with transaction.atomic("other"):
        assert Repository(lambda: [row()]).refresh("alaska").outcome == "written"


@transactional
def test_coordinated__is_not_checked() -> None:
    """A function that returns a value of its own is coordinated inside a transaction as outside."""

    @coordinated(key="value:{x}")
    def value(x: int) -> tuple[int, bool]:
        return x, current_call() is not None

    with transaction.atomic():
        assert value(1) == (1, True)


# Test cases


@pytest.mark.django_db
def test_test_case__its_own_transaction_does_not_count() -> None:
    """In the transaction around a test a refresh is coordinated and written as outside of one."""
    with Recorder() as recorder:
        result = Repository(lambda: [row("here")]).refresh("alaska")
    assert (result.outcome, result.led, places()) == ("written", True, {"a": "here"})
    assert len(recorder.events("refresh:written")) == 1
    assert Repository.refresh.status(Repository(never), "alaska").state == "ok"
    with pytest.raises(ConnectionError):
        Repository(raising(ConnectionError())).refresh("alaska")
    assert Repository.refresh.status(Repository(never), "alaska").state == "failed"


@pytest.mark.django_db
def test_test_case__a_transaction_inside_counts() -> None:
    """A block that the test itself opens is a transaction of the caller."""
    with transaction.atomic(), pytest.raises(InAtomicBlockError):
        Repository(never).refresh("alaska")


class DjangoTestCase(TestCase):
    """Django's own test case."""

    @classmethod
    def setUpTestData(cls) -> None:
        Repository(lambda: [row("from the class")]).refresh("alaska")

    def test_refresh(self) -> None:
        """Refreshes work in `setUpTestData` and in tests, and are rolled back with them."""
        assert places() == {"a": "from the class"}
        assert Repository(lambda: [row("mine")]).refresh("alaska").outcome == "written"

    def test_refresh__again(self) -> None:
        """The same for the next test."""
        assert places() == {"a": "from the class"}
        assert async_to_sync(AsyncRepository(answer("mine")).refresh)("alaska").rows == 1


def answer(place: str) -> Callable[[], Any]:
    """Return an async upstream."""

    async def fetch() -> list[Any]:
        return [row(place)]

    return fetch


# Solo


class RolledBack(Exception):
    """Ends a transaction."""


@transactional
def test_solo__written_and_rolled_back_with_the_caller() -> None:
    """Solo writes in the caller's transaction: seen inside it, gone with it."""

    def refresh_and_fail() -> None:
        with transaction.atomic():
            result = Repository(lambda: [row("here")]).refresh_solo("alaska")
            assert (result.outcome, result.led, result.rows) == ("written", True, 1)
            assert places() == {"a": "here"}
            assert threads.run_together(places) == [{}]
            raise RolledBack

    with pytest.raises(RolledBack):
        refresh_and_fail()
    assert (places(), states()) == ({}, [])


@transactional
def test_solo__committed_with_the_caller() -> None:
    """And stays with it."""
    with transaction.atomic():
        result = Repository(lambda: [row("here")]).refresh_solo("alaska")
    assert places() == {"a": "here"}
    assert states() == [(result.generation, result.generation, "ok")]


@transactional
def test_solo__is_not_coordinated() -> None:
    """It neither joins nor is joined, there is no call and no event."""
    gate = Gate([row("flight")])
    with Recorder() as recorder:
        flight = threads.start(lambda: Repository(gate).refresh_solo("alaska"))
        recorder.wait(1, "call:running")
        with transaction.atomic():
            seen = []

            def fetch() -> list[Any]:
                seen.append(current_call())
                return []

            alone = Repository(fetch).refresh_solo("alaska")
        assert (alone.outcome, alone.led, seen) == ("written", True, [None])
        gate.open()
        # The flight began before: the fence knows.
        assert flight.result().outcome == "superseded"
        assert len(recorder.events("call:created")) == 1


@transactional
def test_solo__autocommit_off() -> None:
    """Without autocommit the caller's transaction is the one that it will commit."""
    with without_autocommit():
        assert Repository(lambda: [row("gone")]).refresh_solo("alaska").outcome == "written"
        transaction.rollback()
        assert Repository(lambda: [row("kept")]).refresh_solo("alaska").outcome == "written"
        transaction.commit()
    assert places() == {"a": "kept"}


@transactional
def test_solo__slow_old_answer() -> None:
    """A solo refresh that began before a newer write is superseded, though it writes after it."""
    slow = Gate([row("old")])

    def alone() -> Any:
        with without_autocommit():
            result = Repository(slow).refresh_solo("alaska")
            transaction.commit()
            return result

    with threads.start(alone) as running:
        assert slow.entered.wait(10)
        assert Repository(lambda: [row("new")]).refresh_solo("alaska").outcome == "written"
        slow.open()
    assert running.result().outcome == "superseded"
    assert places() == {"a": "new"}


@transactional
@pytest.mark.parametrize(
    ("fetch", "error"),
    [
        (raising(ConnectionError("down")), ConnectionError),
        (lambda: [row("new"), {"code": "b", "place": None}], IntegrityError),
    ],
)
def test_solo__fails(fetch: Any, error: type[Exception]) -> None:
    """A solo refresh that fails leaves the caller's transaction usable; its status says so."""
    with transaction.atomic():
        Quake.objects.create(code="theirs")
        with pytest.raises(error):
            Repository(fetch).refresh_solo("alaska")
        Quake.objects.create(code="after")
    assert set(places()) == {"theirs", "after"}
    assert states() == [(0, 0, "failed")]


# Views


def refuse_view(request: Any) -> HttpResponse:
    return HttpResponse(Repository(lambda: [row("refused")]).refresh("alaska").outcome)


@transaction.non_atomic_requests
def plain_view(request: Any) -> HttpResponse:
    return HttpResponse(Repository(lambda: [row("plain")]).refresh("alaska").outcome)


def solo_view(request: Any) -> HttpResponse:
    result = Repository(lambda: [row("solo")]).refresh_solo("alaska")
    if "fail" in request.GET:
        raise RolledBack
    return HttpResponse(result.outcome)


urlpatterns = [
    path("refuse/", refuse_view),
    path("plain/", plain_view),
    path("solo/", solo_view),
]


@pytest.fixture
def client(settings: Any) -> Iterator[Client]:
    """A client of a project with ATOMIC_REQUESTS."""
    settings.ROOT_URLCONF = __name__
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield Client()
    connection.settings_dict["ATOMIC_REQUESTS"] = False


@transactional
def test_atomic_requests__views(client: Client) -> None:
    """Under ATOMIC_REQUESTS a view is refused, unless it is non-atomic or the refresh is solo."""
    with pytest.raises(InAtomicBlockError):
        client.get("/refuse/")
    assert places() == {}
    assert client.get("/plain/").content == b"written"
    assert client.get("/solo/").content == b"written"
    assert places() == {"a": "solo"}


@transactional
def test_atomic_requests__view_that_fails(client: Client) -> None:
    """What a solo refresh wrote is rolled back with the request."""
    with pytest.raises(RolledBack):
        client.get("/solo/?fail=1")
    assert places() == {}


# Async callers


@transactional
def test_async__inside_async_to_sync_within_atomic() -> None:
    """An async refresh under a sync caller's transaction is refused before its function runs."""

    async def fail() -> Any:
        never()

    with transaction.atomic():
        with pytest.raises(InAtomicBlockError):
            async_to_sync(AsyncRepository(fail).refresh)("alaska")
        with pytest.raises(InAtomicBlockError):
            async_to_sync(AsyncRepository(fail).generate)("alaska")
        with pytest.raises(InAtomicBlockError):
            async_to_sync(AsyncRepository(fail).refresh.asubmit)("alaska")
    assert async_to_sync(AsyncRepository(answer("x")).refresh)("alaska").outcome == "written"


@transactional
def test_async__solo_writes_in_the_callers_transaction() -> None:
    """Async and solo: the write is part of the sync caller's transaction."""

    def refresh_and_fail() -> None:
        with transaction.atomic():
            result = async_to_sync(AsyncRepository(answer("here")).refresh_solo)("alaska")
            assert (result.outcome, result.led) == ("written", True)
            assert places() == {"a": "here"}
            raise RolledBack

    with pytest.raises(RolledBack):
        refresh_and_fail()
    assert (places(), states()) == ({}, [])


@transactional
def test_async__no_transaction_on_the_loop() -> None:
    """A plain event loop has no transaction: solo is coordinated like any other."""
    with Recorder() as recorder:
        result = run(lambda: AsyncRepository(answer("here")).refresh_solo("alaska"))
    assert result.outcome == "written"
    assert len(recorder.events("call:created")) == 1
    assert places() == {"a": "here"}
