"""One refresh of quakes with a key of the test's own, as a flight would end it."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from inspect import BoundArguments

from django.db import transaction

from django_vega.core.outcome import Refresh
from django_vega.writing.destination import Destination, Write
from django_vega.writing.fence import KeyIdentity
from django_vega.writing.refresh import identify, write_refresh
from django_vega.writing.upsert import Upsert
from tests.writing_app.models import Quake

UPSERT = Upsert(Quake, ["code"])
STARTED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@contextmanager
def rolled_back() -> Generator[None]:
    """A transaction that ends with a rollback."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def destination(upsert: Upsert | tuple[Upsert, ...] | Write) -> Destination:
    """Where the rows go: by one upsert, by several, or by a function."""
    if isinstance(upsert, Upsert):
        return Destination((upsert,))
    return Destination(upsert) if isinstance(upsert, tuple) else Destination(write=upsert)


def identity(
    key: str = "quakes:alaska", upsert: Upsert | tuple[Upsert, ...] | Write = UPSERT
) -> KeyIdentity:
    """Whose fence a refresh of `key` passes."""
    return identify(
        destination(upsert), prefix="tests", scope="feed.refresh", key=key, display_key=key
    )


def refresh(
    rows: object,
    generation: int,
    *,
    key: str = "quakes:alaska",
    upsert: Upsert | tuple[Upsert, ...] | Write = UPSERT,
    begin_writing: Callable[[], object] = bool,
    started_at: datetime = STARTED,
    fenced: bool = True,
    arguments: BoundArguments | None = None,
) -> Refresh:
    """Write `rows` as the flight of `generation`."""
    return write_refresh(
        destination(upsert),
        rows,
        identity=identity(key, upsert),
        generation=generation,
        started_at=started_at,
        started_monotonic=time.monotonic(),
        begin_writing=begin_writing,
        fenced=fenced,
        arguments=arguments,
    )
