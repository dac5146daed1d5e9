"""Whose transaction is open, and which database errors deserve another try."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from django.db import DatabaseError, connections

T = TypeVar("T")

# Errors that say: nothing is wrong with the statement, another transaction was in the way, and
# everything was rolled back.
_SQLSTATES: Final = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock
    }
)
_MYSQL_CODES: Final = frozenset(
    {
        1020,  # the row changed since the snapshot: MariaDB 11.6+ at REPEATABLE READ
        1205,  # lock wait timeout
        1213,  # deadlock
    }
)
_SQLITE_CODES: Final = frozenset(
    {
        5,  # SQLITE_BUSY
        6,  # SQLITE_LOCKED, a shared cache
    }
)

# Of colliding transactions at least one gets through each time, so ten tries serve a crowd. A lock
# wait timeout takes the database's own patience (50 s in MariaDB) per try: hence also a time limit.
TRIES: Final = 10
RETRY_SECONDS: Final = 30.0
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5


def in_foreign_transaction(alias: str) -> bool:
    """Tell whether this thread is inside somebody's transaction on a database.

    A connection with autocommit switched off always is. The transaction that a test case wraps
    around a test is nobody's: ``atomic(durable=True)`` ignores it too. Opens no connection.
    """
    connection = connections[alias]
    if connection.in_atomic_block:
        # Private, and what Django itself looks at. Without it every TestCase counts as somebody.
        blocks = connection.atomic_blocks
        return not all(getattr(block, "_from_testcase", False) for block in blocks)
    return not _autocommits(alias)


def run_outermost(
    alias: str,
    work: Callable[[], T],
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Run ``work``, which opens its own atomic block, again when the database asks for it.

    Retried are deadlocks, serialization failures and lock timeouts, at most `TRIES` times and not
    after `RETRY_SECONDS`, with a growing random pause. Inside a transaction that was open before,
    a test case's included, the first error propagates: the database may have rolled back the whole
    of it (MySQL's and MariaDB's 1213 does), and only its owner can repeat that.

    Args:
        alias: The database that the work uses.
        work: Must be safe to run again after its block was rolled back.
        sleep: Waits for so many seconds.
        clock: Seconds that never go back.
    """
    if connections[alias].in_atomic_block or not _autocommits(alias):
        return work()
    give_up_at = clock() + RETRY_SECONDS
    for tried in range(1, TRIES):
        try:
            return work()
        except DatabaseError as error:
            if not is_collision(error) or clock() >= give_up_at:
                raise
        # Jitter over the whole span keeps those that collided from meeting again.
        sleep(random.uniform(0, min(_FIRST_PAUSE * 2**tried, _LONGEST_PAUSE)))
    return work()


def is_collision(error: DatabaseError) -> bool:
    """Tell whether a database error only means that another transaction was in the way."""
    cause = error.__cause__
    # psycopg 3, then psycopg2.
    sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if sqlstate is not None:
        return sqlstate in _SQLSTATES
    sqlite_code = getattr(cause, "sqlite_errorcode", None)
    if sqlite_code is not None:
        # The upper bits say which kind of busy.
        return sqlite_code & 0xFF in _SQLITE_CODES
    # mysqlclient and PyMySQL.
    return bool(cause is not None and cause.args and cause.args[0] in _MYSQL_CODES)


def _autocommits(alias: str) -> bool:
    connection = connections[alias]
    if connection.connection is None:
        # What it will be; the attribute is set on connecting.
        return bool(connection.settings_dict["AUTOCOMMIT"])
    return bool(connection.autocommit)
