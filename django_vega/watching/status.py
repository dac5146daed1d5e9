"""Watching where the refreshes of a key stand."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Final

from django_vega.core.events import CallQueued, CallRunning, CallSettled, Event, subscribe
from django_vega.core.outcome import RefreshStatus
from django_vega.runtime.watching import hub
from django_vega.watching.iteration import Source, Watch

_ANY_STATUS: Final = "status"


class StatusWatch(Watch[RefreshStatus]):
    """The present status of a key, then one after each change, for ``async for`` or ``for``.

    Equal statuses in a row are one, and only the latest counts: who is slow may miss ``loading``.
    A change is what the flights of this process do; nothing is asked while nothing happens.

    Args:
        look: Returns the present status, on a thread that may block.
        key: What tells the status from those of other keys.
        shown_key: The key as events show it.
        alias: The database that it is stored in.
        timeout: See `Watch.with_timeout`.
    """

    def __init__(
        self,
        look: Callable[[], RefreshStatus],
        *,
        key: Hashable,
        shown_key: str,
        alias: str,
        timeout: float | None = None,
    ) -> None:
        super().__init__(StatusSource(look, key, shown_key, alias), timeout)


class StatusSource(Source[RefreshStatus]):
    """The status of a key. Events are hints to look again: keys may be masked alike in them."""

    def __init__(
        self, look: Callable[[], RefreshStatus], key: Hashable, shown_key: str, alias: str
    ) -> None:
        self.label = f"the status of {shown_key}"
        self.alias = alias
        self._look = look
        self._key = key
        self._shown_key = shown_key

    def identify(self) -> tuple[Hashable, Iterable[Hashable]]:
        """Return the key; it is about the events that show the same one."""
        return (_ANY_STATUS, self._key), (_ANY_STATUS, topic_of(self._shown_key))

    def listen(self) -> None:
        """Hear of what happens to calls."""
        _ears.open()

    def read(self) -> RefreshStatus:
        """Ask the live table and what is stored."""
        return self._look()

    def is_news(self, value: RefreshStatus, last: RefreshStatus) -> bool:
        """Whether it differs; when a loading one began is reckoned anew each time, inexactly."""
        return _without_start_of_loading(value) != _without_start_of_loading(last)


class _Ears:
    """Listens to the bus while a status is watched: events are built only for who listens."""

    def __init__(self) -> None:
        self.renew_lock()
        self._close: Callable[[], None] | None = None

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def open(self) -> None:
        """Listen; called by a watcher that has joined already."""
        with self._lock:
            if self._close is None:
                types = [one.type for one in (CallQueued, CallRunning, CallSettled)]
                self._close = subscribe(self._hear, types)

    def _hear(self, event: Event) -> None:
        if isinstance(event, CallSettled) and event.reason == "dedupe":
            return  # a call that joins changes nothing
        with self._lock:
            if self._close is not None and not hub.is_watched(_ANY_STATUS):
                self._close()
                self._close = None
                return
        hub.changed([topic_of(event.key)])


def topic_of(shown_key: str) -> Hashable:
    """Return what to tell the hub of when the status of such a key may have changed."""
    return _ANY_STATUS, shown_key


def _without_start_of_loading(status: RefreshStatus) -> RefreshStatus:
    return replace(status, started_at=None) if status.state == "loading" else status


_ears = _Ears()
os.register_at_fork(after_in_child=_ears.renew_lock)
