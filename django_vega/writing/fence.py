"""The fence of a key: one conditional UPDATE in the same transaction as the rows.

The authority over who may write is the database itself. A flight passes the fence of its key when
no newer generation has passed before; the UPDATE that finds out also locks the fence until the rows
are committed, so a late old answer waits, sees the newer fence, and writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from django.conf import settings
from django.db import connections, transaction
from django.db.models import Case, F, Value, When
from django.utils import timezone

from django_vega.core.outcome import RefreshStatus
from django_vega.writing.transactions import run_outermost

if TYPE_CHECKING:
    from django.db.models import Field, QuerySet

    from django_vega.models import RefreshState

logger = logging.getLogger("django_vega")

# Enough for a message with its context, not for a page of HTML.
ERROR_LENGTH: Final = 1000


@dataclass(frozen=True, slots=True)
class KeyIdentity:
    """Which row of `RefreshState` belongs to a key, and where it is.

    Attributes:
        alias: The database that the key's rows are written to.
        hash: See `core.keys.key_hash`.
        scope: Whose key it is.
        key: The rendered key; not shown to people.
        display_key: The key as people may see it.
    """

    alias: str
    hash: str
    scope: str
    key: str = field(repr=False)
    display_key: str


def write_behind_fence(
    identity: KeyIdentity,
    generation: int,
    started_at: datetime,
    write: Callable[[], object],
    patience: float | None = None,
) -> bool:
    """Pass the fence and write, in one transaction; or write nothing.

    Args:
        identity: Whose fence.
        generation: Of the flight.
        started_at: When the flight started; aware.
        write: Called inside the transaction, behind the fence. Again after a collision.
        patience: Seconds to wait for a row that somebody has locked, such as a leader that was
            taken for dead inside its transaction; PostgreSQL only. None waits without limit.

    Returns:
        Whether it was written. False: a newer generation was first.

    Raises:
        DatabaseError: The database refused, or the patience ran out.
    """

    def attempt() -> bool:
        with transaction.atomic(identity.alias):
            if patience is not None:
                _bound_lock_waits(identity.alias, patience)
            if not pass_fence(identity, generation, started_at):
                return False
            write()
        return True

    if run_outermost(identity.alias, attempt):
        return True
    # The fence is newer, or not there yet. It is created outside of the transaction: an INSERT
    # after an UPDATE that found nothing deadlocks with another one's (MariaDB, and PostgreSQL at
    # REPEATABLE READ).
    run_outermost(identity.alias, partial(create_row, identity))
    return run_outermost(identity.alias, attempt)


def _bound_lock_waits(alias: str, seconds: float) -> None:
    """Let no statement of this transaction wait for a lock for longer than so many seconds."""
    connection = connections[alias]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            # A utility statement: it takes no snapshot before the fence does.
            cursor.execute(f"SET LOCAL lock_timeout = {round(seconds * 1000)}")


def write_unfenced(alias: str, write: Callable[[], object]) -> bool:
    """Write in one transaction, for a call that has no key and hence no fence."""

    def attempt() -> bool:
        with transaction.atomic(alias):
            write()
        return True

    return run_outermost(alias, attempt)


def pass_fence(identity: KeyIdentity, generation: int, started_at: datetime) -> bool:
    """Move the fence to a generation; the first statement of the transaction that writes its rows.

    The status stays as it is when a newer generation has failed.

    Returns:
        False when the fence is as new already, or there is none; then nothing changed.
    """
    now = timezone.now()
    ended = {
        "state": "ok",
        "error": "",
        "started_at": _for_database(started_at),
        "finished_at": now,
        # Last: MySQL and MariaDB assign one after the other, and it decides about the others.
        "generation_ended": generation,
    }
    passed = (
        _rows(identity)
        .filter(fence__lt=generation)
        .update(
            fence=generation,
            generation_written=generation,
            written_at=now,
            **{name: _unless_newer(generation, name, value) for name, value in ended.items()},
        )
    )
    return passed == 1


def move_fence(identity: KeyIdentity, generation: int) -> None:
    """Let nothing up to a generation be written any more, without writing anything.

    Releases a stuck key, and lets a start void older flights. The status stays as it is.

    Args:
        identity: Whose fence.
        generation: The newest that is void from now on; an older fence stays behind it.
    """

    def move() -> int:
        with transaction.atomic(identity.alias):
            return _rows(identity).filter(fence__lt=generation).update(fence=generation)

    if run_outermost(identity.alias, move) == 0:
        run_outermost(identity.alias, partial(create_row, identity))
        run_outermost(identity.alias, move)


def create_row(identity: KeyIdentity) -> None:
    """Create the row of a key, with its fence at 0, unless it is there."""
    from django_vega.models import RefreshState

    row = RefreshState(
        key_hash=identity.hash,
        scope=_storable(identity.scope),
        key=_storable(identity.display_key),
    )
    with transaction.atomic(identity.alias):
        _table(identity.alias).bulk_create([row], ignore_conflicts=True)


def record_failure(
    identity: KeyIdentity, generation: int, started_at: datetime, error: BaseException
) -> None:
    """Say in the status of a key that its refresh failed.

    The fence stays, and so does the status when a newer generation has ended. Never raises, so
    that the caller can raise ``error``: when the database does not take it, a log record tells.

    Args:
        identity: Whose status.
        generation: Of the flight.
        started_at: When the flight started; aware.
        error: What ended it.
    """
    try:
        record = partial(_record, identity, generation, started_at, describe(error))
        if run_outermost(identity.alias, record) == 0:
            run_outermost(identity.alias, partial(create_row, identity))
            run_outermost(identity.alias, record)
    except Exception:
        logger.exception(
            "the failure of %s (generation %d) could not be recorded; its status is as before",
            identity.display_key,
            generation,
        )


def read_status(identity: KeyIdentity) -> RefreshStatus:
    """Return how the last refresh of a key ended: ``idle`` when none has, ``ok`` or ``failed``.

    Its generation is that of the rows in the database, whether or not later refreshes failed.
    """
    row = _rows(identity).first()
    if row is None or not row.state:
        return RefreshStatus(state="idle")
    failed = row.state == row.Outcome.FAILED
    return RefreshStatus(
        state="failed" if failed else "ok",
        started_at=_aware(row.started_at),
        finished_at=_aware(row.finished_at),
        generation=row.generation_written or None,
        error=row.error if failed else None,
    )


def last_success(identity: KeyIdentity) -> tuple[datetime, int] | None:
    """Return when the rows of a key were last written, aware, and their generation.

    A later refresh that failed, or that moved the fence only, changes nothing about it.

    Returns:
        None when there never was a success.
    """
    found = _rows(identity).values_list("written_at", "generation_written").first()
    if found is None or found[0] is None:
        return None
    return found[0].astimezone(UTC), found[1]


def _unless_newer(generation: int, name: str, value: object) -> Case:
    """Return a value for a column that keeps its own where a newer generation has ended."""
    from django_vega.models import RefreshState

    field = cast("Field[Any, Any]", RefreshState._meta.get_field(name))
    given = When(generation_ended__lt=generation, then=Value(value, output_field=field))
    return Case(given, default=F(name))


def _record(identity: KeyIdentity, generation: int, started_at: datetime, error: str) -> int:
    with transaction.atomic(identity.alias):
        return (
            _rows(identity)
            .filter(generation_ended__lt=generation)
            .update(
                generation_ended=generation,
                state="failed",
                error=error,
                started_at=_for_database(started_at),
                finished_at=timezone.now(),
            )
        )


def describe(error: BaseException) -> str:
    """Return type and message of an error, as the status of a key shows them."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the failure
        message = "(its message cannot be shown)"
    text = f"{type(error).__qualname__}: {message}" if message else type(error).__qualname__
    text = _storable(text)
    return text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 1] + "…"


def _storable(text: str) -> str:
    # PostgreSQL takes no NUL, and no database half of a surrogate pair.
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _for_database(moment: datetime) -> datetime:
    # Without USE_TZ in the machine's zone, as timezone.now() is then.
    return moment if settings.USE_TZ else moment.astimezone().replace(tzinfo=None)


def _aware(stored: datetime | None) -> datetime | None:
    return stored.astimezone(UTC) if stored is not None else None


def _table(alias: str) -> QuerySet[RefreshState]:
    # Not at import: models are there only once the apps are.
    from django_vega.models import RefreshState

    return RefreshState._base_manager.using(alias)


def _rows(identity: KeyIdentity) -> QuerySet[RefreshState]:
    return _table(identity.alias).filter(key_hash=identity.hash)
