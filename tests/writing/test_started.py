"""fence="started": a newer flight that has merely started voids an older one."""

from functools import partial

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction

from django_vega import Upsert, singleflight_refresh
from django_vega.models import RefreshState
from tests import threads
from tests.gates import Gate
from tests.writing_app.models import Quake

pytestmark = pytest.mark.django_db(transaction=True)

BODIES = {}


def rows_of(name):
    """What the body of a flight returns."""
    return [{"code": "a", "place": BODIES[name]() or name}]


def refreshes(fence):
    """Return a refresh whose calls do not know of each other."""

    @singleflight_refresh(
        key="quakes",
        ignore=["name"],
        strategy="none",
        scope=f"started {fence}",
        in_atomic="solo",
        upsert=Upsert(Quake, ["code"], fence=fence),
    )
    def refresh(name):
        return rows_of(name)

    return refresh


def cross(fence, newer):
    """Start a flight, start and end a newer one, and let the first one write."""
    refresh, older = refreshes(fence), Gate()
    BODIES.update(older=older, newer=newer)
    with threads.start(partial(refresh, "older")) as running:
        assert older.entered.wait(10)
        try:
            refresh("newer")
        except ConnectionError:
            pass
        finally:
            older.open()
    return running.result().outcome


def broken():
    raise ConnectionError


def test_started__newer_one_fails():
    """The newer flight failed, and still the older one does not write; by default it does."""
    assert cross("started", broken) == "superseded"
    assert not Quake.objects.exists()
    assert cross("written", broken) == "written"


def test_started__newer_one_writes():
    """The newer flight writes behind the fence that its own start has moved."""
    assert cross("started", lambda: None) == "superseded"
    assert Quake.objects.get().place == "newer"


def test_started__before_the_function_runs():
    """The fence has moved, and is committed, when the function begins."""
    seen = []

    def look():
        seen.append(threads.run_together(lambda: RefreshState.objects.get().fence))
        assert not connections["default"].in_atomic_block

    BODIES.update(one=look)
    result = refreshes("started")("one")
    assert seen == [[result.generation - 1]]
    assert RefreshState.objects.get().fence == result.generation


def test_started__inside_the_callers_transaction():
    """A refresh that is solo in its caller's transaction moves the fence there."""
    BODIES.update(one=lambda: None)
    with transaction.atomic():
        assert refreshes("started")("one").outcome == "written"
        transaction.set_rollback(True)
    assert not RefreshState.objects.filter(fence__gt=0).exists()


def test_started__without_a_key():
    """A call without a key has no fence to move."""

    @singleflight_refresh(key=lambda: None, upsert=Upsert(Quake, ["code"], fence="started"))
    def alone():
        return [{"code": "a"}]

    assert alone().outcome == "written"
    assert not RefreshState.objects.exists()


def test_started__async():
    """An async flight moves the fence at its start, too."""

    @singleflight_refresh(key="async", upsert=Upsert(Quake, ["code"], fence="started"))
    async def refresh():
        fences.append(await RefreshState.objects.values_list("fence", flat=True).aget())
        return [{"code": "a"}]

    fences = []
    result = async_to_sync(refresh)()
    assert fences == [result.generation - 1]
    assert result.outcome == "written"


def test_started__the_fence_cannot_be_moved():
    """A database that refuses fails the refresh before its function runs."""
    BODIES.update(one=lambda: pytest.fail("the function must not run"))

    def refuse(execute, sql, params, many, context):
        raise ConnectionError("down")

    with connections["default"].execute_wrapper(refuse), pytest.raises(ConnectionError):
        refreshes("started")("one")
