"""Cache first, then singleflight: whether a refresh need not run, as its last success is recent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async

from django_vega.core.clock import Clock
from django_vega.core.outcome import Refresh
from django_vega.invocation import Invocation
from django_vega.writing.fence import KeyIdentity
from django_vega.writing.successes import note_success, seen_success, stored_success


class Freshness:
    """Whether the last success of an invocation's key is recent enough for it not to run."""

    def __init__(self, invocation: Invocation, identity: KeyIdentity) -> None:
        options = invocation.site.options
        self._identity = identity
        self._clock = invocation.coordinator.flights.clock
        self._must_run = options.force or options.next
        self._fresh_for = options.fresh_for
        #: Whether a recent success is an answer.
        self.matters = options.fresh_for > 0 and not self._must_run

    def seen(self) -> Refresh | None:
        """Answer from a success that this process saw."""
        return self._answer(seen_success) if self.matters else None

    def stored(self) -> Refresh | None:
        """Answer from the success that is stored."""
        return self._answer(stored_success) if self.matters else None

    async def astored(self) -> Refresh | None:
        """Answer from the success that is stored."""
        return await sync_to_async(self.stored)() if self.matters else None

    def note(self, refresh: Refresh) -> None:
        """Remember a success."""
        if self._fresh_for and refresh.outcome == "written":
            assert refresh.generation is not None
            note_success(self._identity, refresh.generation, self._clock)

    def is_too_old(self, refresh: Any) -> bool:
        """Whether the flight was led by somebody who was content with less and did not run."""
        is_fresh = isinstance(refresh, Refresh) and refresh.outcome == "fresh"
        return self._must_run and is_fresh

    def _answer(self, find: Callable[[KeyIdentity, float, Clock], int | None]) -> Refresh | None:
        generation = find(self._identity, self._fresh_for, self._clock)
        if generation is None:
            return None
        return Refresh(self._identity.key, "fresh", generation, led=False)
