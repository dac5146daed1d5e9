"""Whose transaction is open, and what is tried again."""

import sqlite3
import threading
from collections.abc import Callable

import MySQLdb
import psycopg
import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction
from django.test import TestCase

from django_vega.writing import transactions
from django_vega.writing.transactions import in_foreign_transaction, is_collision, run_outermost
from tests import threads
from tests.writing_app.models import Quake

on_every_database = pytest.mark.django_db(transaction=True)


def raised_from(cause: BaseException) -> OperationalError:
    """Return what Django makes of an error of a driver."""
    error = OperationalError(*cause.args)
    error.__cause__ = cause
    return error


def sqlite_error(code: int) -> sqlite3.OperationalError:
    """Return an error as the sqlite3 module raises it."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


DEADLOCK = raised_from(psycopg.errors.DeadlockDetected("deadlock detected"))
COLLISIONS = [
    DEADLOCK,
    raised_from(psycopg.errors.SerializationFailure("could not serialize access")),
    raised_from(MySQLdb.OperationalError(1213, "Deadlock found")),
    raised_from(MySQLdb.OperationalError(1205, "Lock wait timeout exceeded")),
    raised_from(MySQLdb.OperationalError(1020, "Record has changed since last read")),
    raised_from(sqlite_error(sqlite3.SQLITE_BUSY)),
    raised_from(sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT)),
    raised_from(sqlite_error(sqlite3.SQLITE_LOCKED)),
]
OTHERS = [
    DatabaseError("no driver behind it"),
    raised_from(psycopg.errors.UniqueViolation("duplicate key")),
    raised_from(psycopg.OperationalError("the connection is lost")),
    raised_from(MySQLdb.OperationalError(2006, "Server has gone away")),
    raised_from(MySQLdb.OperationalError()),
    raised_from(sqlite_error(sqlite3.SQLITE_FULL)),
]


class Failing:
    """Work that raises the given errors, one per run, and then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize("error", COLLISIONS, ids=lambda error: repr(error.__cause__))
def test_collision__deadlock_serialization_or_lock(error):
    """What only says that another transaction was in the way is recognised by the driver's code."""
    assert is_collision(error)


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: repr(error.__cause__))
def test_collision__any_other_error(error):
    """Every other database error stays an error."""
    assert not is_collision(error)


def test_collision__psycopg2():
    """psycopg2 keeps the code under a name of its own."""
    cause = Exception("deadlock detected")
    cause.pgcode = "40P01"
    assert is_collision(raised_from(cause))


@on_every_database
def test_retry__until_it_works():
    """Collisions are retried with growing random pauses, without real time."""
    pauses = []
    work = Failing(*COLLISIONS)
    assert run_outermost("default", work, sleep=pauses.append) == "done"
    assert work.runs == len(COLLISIONS) + 1
    assert len(pauses) == len(COLLISIONS)
    assert all(0 <= pause <= 0.01 * 2**tried for tried, pause in enumerate(pauses, 1))
    assert max(pauses) <= 0.5


@on_every_database
def test_retry__never_works():
    """After ten tries the caller gets the database's own error."""
    pauses = []
    work = Failing(*[DEADLOCK] * 100)
    with pytest.raises(OperationalError) as caught:
        run_outermost("default", work, sleep=pauses.append)
    assert caught.value is DEADLOCK
    assert (work.runs, len(pauses)) == (transactions.TRIES, transactions.TRIES - 1) == (10, 9)


@on_every_database
def test_retry__too_late():
    """No try begins once the time is over, however few there were."""
    times = iter([0.0, 29.9, 30.0])
    work = Failing(*[DEADLOCK] * 100)
    with pytest.raises(OperationalError):
        run_outermost("default", work, sleep=lambda pause: None, clock=lambda: next(times))
    assert work.runs == 2


@on_every_database
@pytest.mark.parametrize("error", [IntegrityError("duplicate"), ValueError("not the database's")])
def test_retry__other_errors(error):
    """An error that another try cannot cure propagates at once."""
    work = Failing(error)
    with pytest.raises(type(error)):
        run_outermost("default", work)
    assert work.runs == 1


@on_every_database
def test_retry__inside_a_transaction():
    """Inside an atomic block a deadlock propagates: the database may have rolled back all of it."""
    work = Failing(DEADLOCK)
    with pytest.raises(OperationalError), transaction.atomic():
        run_outermost("default", work)
    assert work.runs == 1


@on_every_database
def test_retry__autocommit_off():
    """Without autocommit a transaction is open that only its owner can repeat."""
    work = Failing(DEADLOCK)
    transaction.set_autocommit(False)
    try:
        with pytest.raises(OperationalError):
            run_outermost("default", work)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert work.runs == 1


@pytest.mark.django_db
def test_retry__inside_a_test_case():
    """The transaction of a test case is not repeated either."""
    work = Failing(DEADLOCK)
    with pytest.raises(OperationalError):
        run_outermost("default", work)
    assert work.runs == 1


@on_every_database
def test_retry__real_deadlock():
    """Two transactions that lock the same rows in opposite order both succeed, one on a retry."""
    if connections["default"].vendor == "sqlite":
        pytest.skip("SQLite has one lock for the whole database: no cycle")
    Quake.objects.bulk_create([Quake(code="a"), Quake(code="b")])
    both_hold_one = threading.Barrier(2)

    def lock(first: str, second: str) -> Callable[[], list[str]]:
        done = []

        def work() -> None:
            with transaction.atomic():
                Quake.objects.filter(code=first).update(place=first)
                if not done:
                    done.append("first try")
                    both_hold_one.wait(10)
                else:
                    done.append("again")
                Quake.objects.filter(code=second).update(place=first)

        def run() -> list[str]:
            run_outermost("default", work)
            return done

        return run

    runs = threads.run_together(lock("a", "b"), lock("b", "a"))
    assert sorted(map(len, runs)) == [1, 2]


@on_every_database
def test_foreign_transaction__none():
    """Outside of a transaction the answer is no, with a connection and without one."""
    assert not in_foreign_transaction("default")
    connections["default"].close()
    assert not in_foreign_transaction("default")
    assert connections["default"].connection is None


@on_every_database
def test_foreign_transaction__atomic():
    """Inside an atomic block it is yes, on that connection only."""
    with transaction.atomic():
        assert in_foreign_transaction("default")
        assert not in_foreign_transaction("other")
        with transaction.atomic(savepoint=False):
            assert in_foreign_transaction("default")
    assert not in_foreign_transaction("default")


@on_every_database
def test_foreign_transaction__autocommit_off():
    """A connection with autocommit switched off is in a transaction of its owner's at all times."""
    transaction.set_autocommit(False)
    try:
        assert in_foreign_transaction("default")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert not in_foreign_transaction("default")


@on_every_database
def test_foreign_transaction__autocommit_off_in_settings(monkeypatch):
    """A database without autocommit in the settings needs no connection for the answer."""
    connection = connections["default"]
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    assert in_foreign_transaction("default")
    assert connection.connection is None


@pytest.mark.django_db
def test_foreign_transaction__pytest_django():
    """The transaction that pytest-django's `db` wraps around a test does not count."""
    assert connections["default"].in_atomic_block
    assert not in_foreign_transaction("default")
    with transaction.atomic():
        assert in_foreign_transaction("default")


class InsideATestCase(TestCase):
    """Django's own TestCase opens two: for the class and for the test."""

    def test_foreign_transaction__django(self):
        """Neither of them counts; the test's own atomic block does."""
        assert len(connections["default"].atomic_blocks) == 2
        assert not in_foreign_transaction("default")
        with transaction.atomic():
            assert in_foreign_transaction("default")
