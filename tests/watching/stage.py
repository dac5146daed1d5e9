"""Querysets that count their queries and stop at gates, and a clock that the test moves."""

import threading
from collections.abc import Callable
from typing import Any, Self

from django.db import models

from django_vega.runtime.watching import hub
from tests.gates import TIMEOUT
from tests.writing_app.models import Quake

#: What `next` gives when an iteration has ended.
END = "end"


class VirtualClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


class Stop:
    """A place where one query stands until the test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._may_go = threading.Event()
        self._error: BaseException | None = None

    def stand(self) -> None:
        self.reached.set()
        assert self._may_go.wait(TIMEOUT)
        if self._error is not None:
            raise self._error

    def go(self, error: BaseException | None = None) -> None:
        self._error = error
        self._may_go.set()


class Stage:
    """Sees every query of its querysets; the next one can be stopped before or after it reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stops: dict[str, Stop] = {}
        self.queries = 0
        #: Queries that ran at the same time, at most.
        self.at_once = 0
        self._running = 0

    def stop_next(self, when: str) -> Stop:
        """Stop the next query that comes to this point: ``before`` or ``after`` it reads."""
        stop = self._stops[when] = Stop()
        return stop

    def around(self, fetch: Callable[[], None]) -> None:
        with self._lock:
            self.queries += 1
            self._running += 1
            self.at_once = max(self.at_once, self._running)
        try:
            self._pass("before")
            fetch()
            self._pass("after")
        finally:
            with self._lock:
                self._running -= 1

    def _pass(self, when: str) -> None:
        with self._lock:
            stop = self._stops.pop(when, None)
        if stop is not None:
            stop.stand()


class Staged(models.QuerySet[Any]):
    """A queryset on a stage."""

    stage: Stage

    def on(self, stage: Stage) -> Self:
        staged = self.all()
        staged.stage = stage
        return staged

    def _clone(self) -> Any:
        clone = super()._clone()
        if "stage" in vars(self):
            clone.stage = self.stage
        return clone

    def _fetch_all(self) -> None:
        if self._result_cache is None:
            self.stage.around(super()._fetch_all)
        else:
            super()._fetch_all()


def present() -> list[Any]:
    """Everybody who watches."""
    with hub._lock:
        return [one for watched in hub._watches._sets.values() for one in watched.watchers]


def waiting(count: int, *, for_a_change: bool = False) -> None:
    """Block until so many watchers wait; if for a change, they have had a result before."""
    turn = threading.Event()
    for _ in range(int(TIMEOUT / 0.01)):
        waits = [one for one in present() if one.waiter is not None]
        if len([one for one in waits if one.had is not None or not for_a_change]) >= count:
            return
        turn.wait(0.01)
    raise AssertionError(f"{count} watchers never waited")


def quakes(stage: Stage) -> Any:
    """All quakes in the order of their codes, on a stage."""
    return Staged(Quake).order_by("code").on(stage)


def codes(rows: Any) -> list[str]:
    return [row.code for row in rows]


def quake(code: str) -> Quake:
    """Save one."""
    return Quake.objects.create(code=code)
