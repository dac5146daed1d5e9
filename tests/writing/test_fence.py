"""The fence of a key: who may write, and what the status says."""

import hashlib
import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_vega.core.keys import key_hash
from django_vega.models import RefreshState
from django_vega.writing import fence
from django_vega.writing.fence import (
    KeyIdentity,
    last_success,
    move_fence,
    pass_fence,
    read_status,
    record_failure,
    write_behind_fence,
)
from tests import threads
from tests.writing.refreshing import STARTED, identity, rolled_back
from tests.writing_app.models import Tag

pytestmark = pytest.mark.django_db(transaction=True)

KEY = KeyIdentity(
    alias="default",
    hash=key_hash("tests", "feed.refresh", "quakes:alaska"),
    scope="feed.refresh",
    key="quakes:alaska",
    display_key="quakes:***",
)


def write(generation, tag=None):
    """Pass the fence with one tag as the rows."""
    return write_behind_fence(
        KEY, generation, STARTED, lambda: Tag.objects.create(name=tag or f"of {generation}")
    )


def fences():
    """Return every fence, the generation written, and the state."""
    return list(RefreshState.objects.values_list("fence", "generation_written", "state"))


def tags():
    """Return the names of the rows."""
    return sorted(Tag.objects.values_list("name", flat=True))


def test_key_hash__prefix_scope_and_key():
    """The three parts are separated, so that no two keys share a fence by accident."""
    assert key_hash("p", "s", "k") == hashlib.sha256(b"p\0s\0k").hexdigest()
    assert key_hash("a", "b", "c") != key_hash("ab", "", "c")
    assert key_hash("a", "b", "c") != key_hash("a", "", "bc")
    assert len(key_hash("", "", "half \ud800 of a pair")) == 64


def test_fence__migration_matches_the_model():
    """The migration makes the table that the model describes."""
    call_command("makemigrations", "django_vega", check=True, dry_run=True, verbosity=0)


def test_fence__first_refresh_of_a_key():
    """A key without a row gets one, and its first refresh is written."""
    assert write(5)
    assert fences() == [(5, 5, "ok")]
    assert tags() == ["of 5"]
    state = RefreshState.objects.get()
    assert (state.pk, state.scope, state.key) == (KEY.hash, "feed.refresh", "quakes:***")
    assert str(state) == "quakes:***"
    assert str(RefreshState(key_hash="abc")) == "abc"


@pytest.mark.parametrize(
    ("generations", "written"),
    [
        ((5, 6), [5, 6]),
        ((6, 5), [6]),
        ((5, 5), [5]),
        ((5, 9, 7, 10), [5, 9, 10]),
        ((2**53, 2**53 + 1, 2**53), [2**53, 2**53 + 1]),
    ],
)
def test_fence__newer_passes_older_does_not(generations, written):
    """A generation passes when it is newer than all that passed before."""
    assert [generation for generation in generations if write(generation)] == written
    assert fences() == [(max(written), max(written), "ok")]
    assert tags() == sorted(f"of {generation}" for generation in written)


def test_fence__first_statement_of_the_transaction():
    """Nothing is read or written before the fence; its row is created between transactions."""

    def words(generation):
        with CaptureQueriesContext(connections["default"]) as queries:
            write(generation)
        return " ".join(query["sql"].split()[0] for query in queries)

    fence_and_row = "BEGIN UPDATE INSERT COMMIT"
    assert words(1) == f"BEGIN UPDATE COMMIT BEGIN INSERT COMMIT {fence_and_row}"
    assert words(2) == fence_and_row


def test_fence__rows_fail():
    """When the rows cannot be written, the fence did not move."""
    write(5)
    with pytest.raises(DatabaseError):
        write_behind_fence(KEY, 9, STARTED, lambda: Tag.objects.create(name="of 5"))
    assert fences() == [(5, 5, "ok")]
    assert write(7)


def test_fence__dies_between_fence_and_rows():
    """A process that ends after the fence and before the rows leaves both as they were."""

    def die():
        raise SystemExit

    with pytest.raises(SystemExit):
        write_behind_fence(KEY, 9, STARTED, die)
    assert fences() == [(0, 0, "")]
    assert write(7)


def test_fence__inside_a_foreign_transaction():
    """Within somebody's transaction the fence, its row included, is part of that transaction."""
    with rolled_back():
        assert write(5)
        assert not write(4)
        assert fences() == [(5, 5, "ok")]
    assert (fences(), tags()) == ([], [])
    with transaction.atomic():
        assert write(4)
    assert fences() == [(4, 4, "ok")]


def test_fence__other_keys():
    """Each key has a fence of its own."""
    write(5)
    with transaction.atomic():
        assert not pass_fence(identity("quakes:chile"), 1, STARTED)
    assert write_behind_fence(identity("quakes:chile"), 1, STARTED, bool)
    assert sorted(fences()) == [(1, 1, "ok"), (5, 5, "ok")]


def test_fence__text_that_databases_refuse():
    """Keys of callables may hold NUL and halves of surrogate pairs; they are stored escaped."""
    key = KeyIdentity("default", key_hash("", "s", "a\0\ud800"), "s", "a\0\ud800", "a\0\ud800")
    assert write_behind_fence(key, 1, STARTED, bool)
    assert RefreshState.objects.get().key == "a\\x00\\ud800"


def test_status__idle():
    """Without a row, and with one that only has a fence, nothing has finished yet."""
    assert read_status(KEY).state == "idle"
    fence.create_row(KEY)
    status = read_status(KEY)
    assert (status.state, status.started_at, status.finished_at) == ("idle", None, None)
    assert status.generation is None


def test_status__ok():
    """After a write it says when, and which generation."""
    write(5)
    status = read_status(KEY)
    assert (status.state, status.generation, status.started_at) == ("ok", 5, STARTED)
    assert timedelta() <= datetime.now(UTC) - status.finished_at < timedelta(minutes=5)
    assert status.error is None


def test_status__without_time_zones(settings):
    """With USE_TZ = False times are stored in the machine's zone, and come back aware."""
    settings.USE_TZ = False
    write(5)
    stored = RefreshState.objects.get()
    assert stored.started_at == STARTED.astimezone().replace(tzinfo=None)
    status = read_status(KEY)
    assert status.started_at == STARTED
    assert timedelta() <= datetime.now(UTC) - status.finished_at < timedelta(minutes=5)


def test_failure__leaves_the_fence():
    """A failure is told with type and message; the fence and the rows are as before."""
    write(5)
    record_failure(KEY, 9, STARTED + timedelta(1), ValueError("no connection"))
    assert fences() == [(5, 5, "failed")]
    status = read_status(KEY)
    assert (status.state, status.error) == ("failed", "ValueError: no connection")
    assert (status.generation, status.started_at) == (5, STARTED + timedelta(1))
    assert status.finished_at is not None
    assert write(11)
    assert read_status(KEY).error is None
    assert RefreshState.objects.get().error == ""


def test_failure__first_refresh_of_a_key():
    """A key that has never been written gets its row, with the fence at 0."""
    record_failure(KEY, 9, STARTED, KeyError())
    assert fences() == [(0, 0, "failed")]
    assert read_status(KEY).error == "KeyError"
    assert read_status(KEY).generation is None


def test_failure__a_newer_generation_has_written():
    """The failure of an older flight is no news any more."""
    write(9)
    record_failure(KEY, 7, STARTED, ValueError("late"))
    assert read_status(KEY).state == "ok"


def test_failure__long_and_strange_messages():
    """Messages are cut, made storable, and an error without one is still an error."""

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    record_failure(KEY, 1, STARTED, ValueError("x" * 5000))
    error = read_status(KEY).error
    assert (len(error), error[-2:]) == (fence.ERROR_LENGTH, "x…")
    record_failure(KEY, 2, STARTED, ValueError("\0 \ud800"))
    assert read_status(KEY).error == "ValueError: \\x00 \\ud800"
    record_failure(KEY, 3, STARTED, Mute())
    assert read_status(KEY).error.endswith("Mute: (its message cannot be shown)")


def test_failure__database_is_down(monkeypatch, caplog):
    """When the database cannot take it, a log record tells, and nothing is raised."""
    connection = connections["default"]
    connection.close()

    def refuse(*args, **kwargs):
        raise DatabaseError("down")

    monkeypatch.setattr(connection, "connect", refuse)
    record_failure(KEY, 9, STARTED, ValueError("no connection"))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("django_vega", "ERROR")
    assert "quakes:*** (generation 9)" in record.getMessage()
    assert "alaska" not in caplog.text


def test_failure__inside_a_foreign_transaction():
    """Inside somebody's transaction it is recorded as a part of that."""
    with rolled_back():
        record_failure(KEY, 9, STARTED, ValueError("no connection"))
        assert fences() == [(0, 0, "failed")]
    assert fences() == []


def test_failure__refused_inside_a_foreign_transaction(caplog):
    """A record that the database refuses leaves the transaction around it usable."""

    def garble(execute, sql, params, many, context):
        return execute("SELECT no_such_column" if "UPDATE" in sql else sql, None, many, context)

    with transaction.atomic():
        with connections["default"].execute_wrapper(garble):
            record_failure(KEY, 9, STARTED, ValueError("no connection"))
        Tag.objects.create(name="theirs")
    assert tags() == ["theirs"]
    assert "could not be recorded" in caplog.text


def test_failure__foreign_transaction_is_broken(caplog):
    """In a transaction that can only be rolled back nothing is recorded, and nothing raised."""
    with transaction.atomic():
        transaction.set_rollback(True)
        record_failure(KEY, 9, STARTED, ValueError("no connection"))
    assert fences() == []
    assert "could not be recorded" in caplog.text


def test_failure__older_one_arrives_late():
    """The failure of an older flight does not replace what a newer one came to."""
    record_failure(KEY, 9, STARTED, ValueError("newer"))
    record_failure(KEY, 7, STARTED, ValueError("older"))
    assert read_status(KEY).error == "ValueError: newer"
    record_failure(KEY, 11, STARTED, ValueError("newest"))
    assert read_status(KEY).error == "ValueError: newest"


@pytest.mark.parametrize("failed", [9, 2**53])
def test_failure__older_success_arrives_late(failed):
    """A success older than the last failure writes its rows, and the status stays failed."""
    record_failure(KEY, failed, STARTED + timedelta(1), ValueError("newer"))
    before = RefreshState.objects.get()
    assert write(8)
    assert tags() == ["of 8"]
    assert fences() == [(8, 8, "failed")]
    state = RefreshState.objects.get()
    for name in ("generation_ended", "error", "started_at", "finished_at"):
        assert getattr(state, name) == getattr(before, name)
    assert state.written_at >= before.finished_at
    assert (read_status(KEY).generation, last_success(KEY)[1]) == (8, 8)
    assert not write(7)
    assert write(failed + 1)
    state = RefreshState.objects.get()
    assert (state.state, state.error, state.started_at) == ("ok", "", STARTED)
    assert state.generation_ended == failed + 1
    assert state.finished_at == state.written_at


def test_success__is_remembered_when_later_refreshes_fail():
    """The last success stays known behind failures, and behind a fence that only moved."""
    assert last_success(KEY) is None
    record_failure(KEY, 3, STARTED, ValueError("first"))
    assert last_success(KEY) is None
    write(5)
    at, generation = last_success(KEY)
    assert generation == 5
    assert at.utcoffset() == timedelta()
    assert timedelta() <= datetime.now(UTC) - at < timedelta(minutes=5)
    record_failure(KEY, 9, STARTED, ValueError("no connection"))
    move_fence(KEY, 12)
    assert not write(11)
    assert last_success(KEY) == (at, 5)
    write(13)
    newer, generation = last_success(KEY)
    assert (newer > at, generation) == (True, 13)


def test_success__without_time_zones(settings):
    """With USE_TZ = False it comes back aware, as other times do."""
    settings.USE_TZ = False
    write(5)
    at, _ = last_success(KEY)
    assert timedelta() <= datetime.now(UTC) - at < timedelta(minutes=5)


def test_move__voids_older_flights():
    """A fence that was moved keeps older flights from writing; rows and status stay."""
    write(5)
    move_fence(KEY, 8)
    assert fences() == [(8, 5, "ok")]
    assert [write(generation) for generation in (7, 8)] == [False, False]
    assert tags() == ["of 5"]
    assert read_status(KEY).generation == 5
    assert write(9)


def test_move__never_back():
    """A fence moves to newer generations only, and there is one for a new key, too."""
    move_fence(KEY, 8)
    move_fence(KEY, 3)
    assert fences() == [(8, 0, "")]
    assert read_status(KEY).state == "idle"
    assert not write(8)


def test_move__locks_nothing():
    """Outside of a transaction the move is committed at once: other connections see it."""
    move_fence(KEY, 8)
    assert threads.run_together(fences) == [[(8, 0, "")]]


def test_patience__a_zombie_holds_the_fence():
    """A leader that was taken for dead inside its transaction does not hold up the next for ever.

    PostgreSQL gives up after the patience, and nothing is written; later waits have no bound again.
    """
    if connections["default"].vendor != "postgresql":
        pytest.skip("the bound of waits for locks is PostgreSQL's")
    write(1)
    holds, ends = threading.Event(), threading.Event()

    def zombie():
        with transaction.atomic():
            RefreshState.objects.select_for_update().get()
            holds.set()
            assert ends.wait(10)

    held = threads.start(zombie)
    assert holds.wait(10)
    with pytest.raises(DatabaseError, match="lock timeout"):
        write_behind_fence(KEY, 2, STARTED, lambda: Tag.objects.create(name="of 2"), 0.05)
    with connections["default"].cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
    ends.set()
    held.result()
    assert write(3)
    assert tags() == ["of 1", "of 3"]
