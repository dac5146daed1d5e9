"""The end of a flight: what its function returned goes behind the fence into the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from inspect import BoundArguments

from django_vega.changes import announce
from django_vega.core.keys import key_hash
from django_vega.core.outcome import Refresh
from django_vega.writing.counts import Counts
from django_vega.writing.destination import Destination
from django_vega.writing.fence import (
    KeyIdentity,
    write_behind_fence,
    write_unfenced,
)


def identify(
    destination: Destination, *, prefix: str, scope: str, key: str, display_key: str
) -> KeyIdentity:
    """Return whose fence a refresh has to pass, and on which database.

    Call it before the function runs: it raises what is wrong with the upserts.

    Raises:
        InvalidUpsertError: The options do not fit the models, or the database.
    """
    return KeyIdentity(
        alias=destination.database(),
        hash=key_hash(prefix, scope, key),
        scope=scope,
        key=key,
        display_key=display_key,
    )


def write_refresh(
    destination: Destination,
    value: object,
    *,
    identity: KeyIdentity,
    generation: int,
    started_at: datetime,
    started_monotonic: float,
    begin_writing: Callable[[], object],
    arguments: BoundArguments | None = None,
    fenced: bool = True,
    patience: float | None = None,
) -> Refresh:
    """Write what a refresh returned, and return the leader's record of it.

    Either all of it is committed, or nothing. A failure is not recorded here: it may just as well
    come from the function, so the flight records both, with `fence.record_failure`.

    Args:
        destination: Where the value goes.
        value: What the function returned. A generator runs to its end before the transaction.
        identity: Whose fence, from `identify`.
        generation: Of the flight.
        started_at: When the flight started; aware.
        started_monotonic: The same on `time.monotonic`, for the duration.
        begin_writing: Called when everything is ready, just before the transaction. It raises
            `CallCancelled` when the call was cancelled; then nothing is written.
        arguments: Those of the function, for ``prune``.
        fenced: False for a call without a key: no other one is about the same work.
        patience: See `write_behind_fence`.

    Raises:
        TypeError, ValueError: The rows do not fit; see `Destination.prepare`.
        CallCancelled: From ``begin_writing``.
        DatabaseError: The database refused.
    """
    prepared = destination.prepare(identity.alias, value, arguments)
    begin_writing()
    written = False
    counts = prepared.counts()

    def write() -> None:
        nonlocal counts
        counts = prepared.write(identity.alias, generation)

    try:
        written = (
            write_behind_fence(identity, generation, started_at, write, patience)
            if fenced
            else write_unfenced(identity.alias, write)
        )
    finally:
        if not written:
            prepared.restore()
    if written:
        prepared.conclude()
        if counts is None or counts.written != 0:
            announce(identity.alias, [upsert.target.model for upsert in destination.upserts])
    return Refresh(
        key=identity.key,
        outcome="written" if written else "superseded",
        generation=generation,
        **_told(counts, written=written),
        led=True,
        duration=time.monotonic() - started_monotonic,
        value=prepared.value if written else None,
    )


def _told(counts: Counts | None, *, written: bool) -> dict[str, int | None]:
    names = ("rows", "written", "guarded", "unchanged", "duplicates", "pruned")
    if counts is None:
        # Of what somebody else wrote only that it was nothing can be told.
        return dict.fromkeys(names) | ({} if written else {"written": 0, "pruned": 0})
    return {name: getattr(counts, name) for name in names}
