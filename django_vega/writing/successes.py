"""Whether the last success of a key is recent enough: as this process saw it, or as stored."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from typing import Any, Final

from django.db import connections

from django_vega.core.clock import Clock
from django_vega.writing.fence import KeyIdentity, last_success

# What is not remembered costs a query.
MOST_KEYS: Final = 10_000


class _Seen:
    """The last successes of this process, by database and key, oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, slot: tuple[str, str], now: float, generation: int) -> None:
        with self._lock:
            if generation < self._keys.get(slot, (now, 0))[1]:
                return
            self._keys[slot] = now, generation
            self._keys.move_to_end(slot)
            while len(self._keys) > MOST_KEYS:
                self._keys.popitem(last=False)

    def get(self, slot: tuple[str, str], since: float) -> int | None:
        with self._lock:
            at, generation = self._keys.get(slot, (since, 0))
            if at > since:
                return generation
            self._keys.pop(slot, None)  # a longer fresh_for of the same key asks the database
            return None

    def clear(self) -> None:
        with self._lock:
            self._keys.clear()


_seen = _Seen()


def _renew() -> None:
    global _seen  # noqa: PLW0603 - another thread may have held its lock when the process forked
    _seen = _Seen()


os.register_at_fork(after_in_child=_renew)


def note_success(identity: KeyIdentity, generation: int, clock: Clock) -> None:
    """Remember a success, unless its transaction is still open and may roll back.

    In a test environment nothing is remembered: not every flush between two tests tells of it
    (``serialized_rollback``). What is stored answers there.
    """
    connection = connections[identity.alias]
    is_committed = connection.get_autocommit() and not connection.in_atomic_block
    if is_committed and not hasattr(sys.modules.get("django.core.mail"), "outbox"):
        _seen.add((identity.alias, identity.hash), clock.monotonic(), generation)


def seen_success(identity: KeyIdentity, fresh_for: float, clock: Clock) -> int | None:
    """Return the generation of a success that this process saw within ``fresh_for`` seconds."""
    return _seen.get((identity.alias, identity.hash), clock.monotonic() - fresh_for)


def stored_success(identity: KeyIdentity, fresh_for: float, clock: Clock) -> int | None:
    """Return the generation of a success that is stored and at most ``fresh_for`` seconds old.

    One from the future, by a clock that is ahead, counts for no longer than that either.
    """
    success = last_success(identity)
    if success is None or abs(clock.time() - success[0].timestamp()) >= fresh_for:
        return None
    return success[1]


def forget_successes(**_: Any) -> None:
    """Forget what this process saw: the tables may have been emptied."""
    _seen.clear()
