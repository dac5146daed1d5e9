"""The end of a flight: what its function returned goes behind the fence into the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

from django_vega.core.outcome import Refresh
from django_vega.writing.fence import (
    KeyIdentity,
    key_hash,
    write_behind_fence,
    write_unfenced,
)
from django_vega.writing.rows import prepare
from django_vega.writing.upsert import Upsert


def identify(upsert: Upsert, *, prefix: str, scope: str, key: str, display_key: str) -> KeyIdentity:
    """Return whose fence a refresh has to pass, and on which database.

    Call it before the function runs: it raises what is wrong with the upsert.

    Raises:
        InvalidUpsertError: The options do not fit the model.
    """
    return KeyIdentity(
        alias=upsert.database(),
        hash=key_hash(prefix, scope, key),
        scope=scope,
        key=key,
        display_key=display_key,
    )


def write_refresh(
    upsert: Upsert,
    rows: object,
    *,
    identity: KeyIdentity,
    generation: int,
    started_at: datetime,
    started_monotonic: float,
    begin_writing: Callable[[], object],
    fenced: bool = True,
) -> Refresh:
    """Write what a refresh returned, and return the leader's record of it.

    Either all of it is committed, or nothing. A failure is not recorded here: it may just as well
    come from the function, so the flight records both, with `fence.record_failure`.

    Args:
        upsert: How rows are written.
        rows: What the function returned. A generator runs to its end before the transaction.
        identity: Whose fence, from `identify`.
        generation: Of the flight.
        started_at: When the flight started; aware.
        started_monotonic: The same on `time.monotonic`, for the duration.
        begin_writing: Called when everything is ready, just before the transaction. It raises
            `CallCancelled` when the call was cancelled; then nothing is written.
        fenced: False for a call without a key: no other one is about the same work.

    Raises:
        TypeError, ValueError: The rows do not fit; see `rows.prepare`.
        CallCancelled: From ``begin_writing``.
        DatabaseError: The database refused.
    """
    batch = prepare(upsert, rows)
    begin_writing()
    written = False
    try:
        write = partial(batch.write, identity.alias, upsert.batch_size)
        written = (
            write_behind_fence(identity, generation, started_at, write)
            if fenced
            else write_unfenced(identity.alias, write)
        )
    finally:
        if not written:
            batch.restore()
    if written:
        batch.share_primary_keys()
    return Refresh(
        key=identity.key,
        outcome="written" if written else "superseded",
        generation=generation,
        rows=len(batch),
        written=len(batch) if written else 0,
        guarded=0,
        unchanged=0,
        duplicates=batch.duplicates,
        pruned=0,
        led=True,
        duration=time.monotonic() - started_monotonic,
    )
