"""From what the function returned to a `Refresh`: all of it, or nothing."""

import threading
import time

import pytest
from django.db import DatabaseError, IntegrityError, connections, transaction

from django_vega.core.errors import CallCancelled, DuplicateRowError
from django_vega.models import RefreshState
from django_vega.writing import fence
from django_vega.writing.fence import read_status, record_failure
from django_vega.writing.upsert import Upsert
from tests import threads
from tests.writing.refreshing import STARTED, UPSERT, identity, refresh, rolled_back
from tests.writing_app.models import Document, Quake

pytestmark = pytest.mark.django_db(transaction=True)


def places():
    """Return code and place of every row."""
    return dict(Quake.objects.values_list("code", "place"))


def fences():
    """Return every fence."""
    return list(RefreshState.objects.values_list("fence", flat=True))


def test_written__counts():
    """The record counts distinct rows, what was written, and what was dropped."""
    before = time.monotonic()
    dropped, kept = Quake(code="a"), Quake(code="a", place="x")
    result = refresh(iter([dropped, {"code": "b"}, kept]), 7)
    assert (result.key, result.outcome, result.generation) == ("quakes:alaska", "written", 7)
    assert (result.rows, result.written, result.duplicates) == (2, 2, 1)
    assert (result.guarded, result.unchanged, result.pruned) == (0, 0, 0)
    assert result.led is True
    assert result.value is None
    assert 0 <= result.duration <= time.monotonic() - before
    assert places() == {"a": "x", "b": ""}
    assert dropped.pk == kept.pk == Quake.objects.get(code="a").pk
    assert read_status(identity()).generation == 7


def test_written__empty_response():
    """A response without rows is a success: the fence moves, the rows stay."""
    refresh([{"code": "a"}], 1)
    result = refresh([], 2)
    assert (result.outcome, result.rows, result.written) == ("written", 0, 0)
    assert (places(), fences()) == ({"a": ""}, [2])


@pytest.mark.once
def test_size__hundred_thousand_rows():
    """100,000 rows of a generator are written, new and old; no statement holds them all."""
    sizes = []

    def measure(execute, sql, params, many, context):
        sizes.append(len(params or ()))
        return execute(sql, params, many, context)

    refresh(({"code": f"{n:06}"} for n in range(0, 100_000, 5)), 1)
    rows = ({"code": f"{n:06}", "place": "x"} for n in range(100_000))
    with connections["default"].execute_wrapper(measure):
        result = refresh(rows, 2)
    assert (result.outcome, result.rows, result.written) == ("written", 100_000, 100_000)
    assert Quake.objects.filter(place="x").count() == Quake.objects.count() == 100_000
    assert max(sizes) <= 2_000 * len(Quake._meta.concrete_fields)


def test_written__without_a_fence():
    """A call without a key has no fence: it is written whatever came before, or not at all."""
    for generation in (2, 1):
        result = refresh([{"code": "a", "place": str(generation)}], generation, fenced=False)
        assert (result.outcome, result.written) == ("written", 1)
    with pytest.raises(IntegrityError):
        refresh([{"code": "a"}, {"code": "b", "place": None}], 3, fenced=False)
    assert (places(), fences()) == ({"a": "1"}, [])


def test_crossing__older_answer_arrives_last():
    """A slow old answer that comes after a newer one is superseded, and writes nothing."""
    refresh([{"code": "a", "place": "new"}], 2)
    row = Quake(code="a", place="old")
    result = refresh([row, {"code": "b"}, {"code": "b"}], 1)
    assert (result.outcome, result.generation) == ("superseded", 1)
    assert (result.rows, result.written, result.duplicates) == (2, 0, 1)
    assert places() == {"a": "new"}
    assert row.pk is None
    assert (read_status(identity()).state, read_status(identity()).generation) == ("ok", 2)


def test_crossing__same_moment():
    """While the newer one is still in its transaction, the older one waits for it and gives way."""
    refresh([], 1)
    newer_holds_the_fence, older_is_about_to_write = threading.Event(), threading.Event()

    def write_rows():
        newer_holds_the_fence.set()
        assert older_is_about_to_write.wait(10)
        Quake.objects.create(code="a", place="new")

    def write_newer():
        return fence.write_behind_fence(identity(), 3, STARTED, write_rows)

    def write_older():
        assert newer_holds_the_fence.wait(10)
        return refresh(
            [{"code": "a", "place": "old"}], 2, begin_writing=older_is_about_to_write.set
        ).outcome

    assert threads.run_together(write_newer, write_older) == [True, "superseded"]
    assert places() == {"a": "new"}


def cross():
    """Let an old answer arrive after a new one, and return whose place stands."""
    refresh([{"code": "a", "place": "new"}], 2)
    refresh([{"code": "a", "place": "old"}], 1)
    return places()["a"]


def test_crossing__without_the_fence(monkeypatch):
    """The test of the test: with the fence taken out, the old answer overwrites the new one."""
    monkeypatch.setattr(fence, "pass_fence", lambda *args: True)
    assert cross() == "old"
    monkeypatch.undo()
    assert cross() == "new"


@pytest.mark.parametrize("rows", [None, [{"cod": "a"}], [{"code": "a"}, {"code": None}]])
def test_failure__rows_that_do_not_fit(rows):
    """What cannot be prepared never opens a transaction, nor asks to begin writing."""
    asked = []
    with pytest.raises((TypeError, ValueError)):
        refresh(rows, 1, begin_writing=lambda: asked.append(1))
    assert (asked, places(), fences()) == ([], {}, [])


def test_failure__generator_breaks_midway():
    """Nothing of a generator that breaks is written."""
    refresh([{"code": "a", "place": "good"}], 1)

    def rows():
        yield {"code": "a", "place": "half"}
        assert not connections["default"].in_atomic_block
        raise ConnectionError("page 2")

    with pytest.raises(ConnectionError) as caught:
        refresh(rows(), 2)
    record_failure(identity(), 2, STARTED, caught.value)
    assert (places(), fences()) == ({"a": "good"}, [1])
    status = read_status(identity())
    assert (status.state, status.error) == ("failed", "ConnectionError: page 2")
    assert refresh([{"code": "a", "place": "next"}], 3).outcome == "written"
    assert (read_status(identity()).state, read_status(identity()).error) == ("ok", None)


def test_failure__database_refuses():
    """An error in the last batch undoes the first, the fence and the primary keys."""
    refresh([{"code": "a", "place": "good"}], 1)
    rows = [Quake(code="a", place="half"), Quake(code="b"), Quake(code="c", place=None)]
    with pytest.raises(IntegrityError):
        refresh(rows, 2, upsert=Upsert(Quake, ["code"], batch_size=1))
    assert (places(), fences()) == ({"a": "good"}, [1])
    assert [(row.pk, row._state.adding) for row in rows] == [(None, True)] * 3


def test_failure__after_the_rows():
    """An error behind the last row leaves instances without the keys that were rolled back."""
    rows = [Quake(code="a"), Quake(pk=77, code="b")]

    def fail(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "quake" in sql:
            raise DatabaseError("the connection is gone")
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(fail), pytest.raises(DatabaseError):
        refresh(rows, 1)
    assert places() == {}
    assert [(row.pk, row._state.adding) for row in rows] == [(None, True), (77, True)]


def test_failure__duplicates_refused():
    """With duplicates="error" two rows of one key fail the refresh, naming the key."""
    with pytest.raises(DuplicateRowError, match="code='a'"):
        refresh([{"code": "a"}] * 2, 1, upsert=Upsert(Quake, ["code"], duplicates="error"))
    assert places() == {}


@pytest.mark.parametrize("error", [DatabaseError("killed"), KeyboardInterrupt(), SystemExit()])
def test_failure__between_fence_and_rows(error, monkeypatch):
    """What ends a write between fence and rows leaves the fence where it was."""
    refresh([{"code": "a", "place": "good"}], 1)

    def fail(*args, **options):
        assert fences() == [2]
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(type(Quake.objects.all()), "bulk_create", fail)
        with pytest.raises(type(error)):
            refresh([{"code": "a", "place": "half"}], 2)
    assert (places(), fences()) == ({"a": "good"}, [1])
    assert refresh([{"code": "a", "place": "next"}], 2).outcome == "written"


def test_cancelled__before_the_write():
    """A call that was cancelled by then writes nothing, and the last status stays."""
    refresh([{"code": "a", "place": "good"}], 1)
    before = read_status(identity())
    consumed = []

    def rows():
        yield {"code": "a", "place": "cancelled"}
        consumed.append(True)

    def begin_writing():
        assert consumed
        raise CallCancelled("abort", "quakes:alaska")

    with pytest.raises(CallCancelled):
        refresh(rows(), 2, begin_writing=begin_writing)
    assert (places(), fences(), read_status(identity())) == ({"a": "good"}, [1], before)


def test_transaction__function_ran_outside():
    """The response is consumed, and the step to writing taken, outside of any transaction."""
    seen = []

    def look():
        seen.append(connections["default"].in_atomic_block)

    def rows():
        look()
        yield {"code": "a"}

    refresh(rows(), 1, begin_writing=look)
    assert seen == [False, False]


def test_transaction__solo():
    """Inside the caller's transaction fence and rows are written with it, and vanish with it."""
    with rolled_back():
        assert refresh([{"code": "a"}], 2).outcome == "written"
        assert refresh([{"code": "b"}], 1).outcome == "superseded"
        assert (places(), fences()) == ({"a": ""}, [2])
    assert (places(), fences()) == ({}, [])


def test_transaction__solo_fails():
    """A refresh that fails inside the caller's transaction leaves it usable."""
    with transaction.atomic():
        Quake.objects.create(code="theirs")
        with pytest.raises(IntegrityError):
            refresh([{"code": "c", "place": None}], 1)
        Quake.objects.create(code="after")
    assert set(places()) == {"theirs", "after"}


@pytest.mark.django_db(transaction=False)
def test_transaction__test_case():
    """Inside the transaction of a test case everything works as outside."""
    assert refresh([{"code": "a"}], 2).outcome == "written"
    assert refresh([{"code": "a"}], 1).outcome == "superseded"
    assert fences() == [2]


def test_retry__collision():
    """After a collision the write is tried again, not the function; keys are those of the rows."""
    pulled = []

    def rows():
        pulled.append(1)
        yield from kept

    kept = [Quake(code="a"), Quake(code="b")]
    connection = connections["default"]
    collisions = ["first"]

    def collide(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if collisions and "INSERT" in sql and "quake" in sql:
            collisions.clear()
            raise deadlock()
        return result

    refresh([], 1)
    with connection.execute_wrapper(collide):
        result = refresh(rows(), 2)
    assert (result.outcome, result.written, pulled) == ("written", 2, [1])
    assert {(row.pk, row.code) for row in kept} == set(Quake.objects.values_list("pk", "code"))


def deadlock():
    """Return the error that Django makes of a deadlock on PostgreSQL."""
    cause = Exception("deadlock detected")
    cause.sqlstate = "40P01"
    error = DatabaseError("deadlock detected")
    error.__cause__ = cause
    return error


class ToOther:
    def db_for_write(self, model, **hints):
        return "other" if model is Document else None


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_databases__fence_beside_the_rows(settings):
    """The fence lives in the database of the rows, where the router writes the model."""
    settings.DATABASE_ROUTERS = ["tests.writing.test_refresh.ToOther"]
    upsert = Upsert(Document, ["slug"])
    result = refresh([{"slug": "a"}], 5, upsert=upsert)
    assert result.outcome == "written"
    assert refresh([{"slug": "a"}], 4, upsert=upsert).outcome == "superseded"
    assert list(Document.objects.using("other").values_list("slug", flat=True)) == ["a"]
    assert list(RefreshState.objects.using("other").values_list("fence", flat=True)) == [5]
    assert not RefreshState.objects.exists()
    assert read_status(identity(upsert=upsert)).state == "ok"
    record_failure(identity(upsert=upsert), 6, STARTED, ValueError("x"))
    assert read_status(identity(upsert=upsert)).state == "failed"
    assert read_status(identity(upsert=UPSERT)).state == "idle"
