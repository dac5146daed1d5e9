"""Four answers to the same repeated calls, and what vega's own makes of them."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from django.core.cache.backends.locmem import LocMemCache

from django_vega import coordinated, singleflight_refresh, subscribe
from django_vega.models import RefreshState
from example_project.scenarios.callers import Callers
from example_project.scenarios.result import Check, Result
from example_project.scenarios.stage import Stage
from example_project.upstream import PATIENCE

# Two for one page and one for another at the same moment; the first page again when all is over.
TOGETHER: Final = ("home", "home", "suggest")
AGAIN: Final = "home"


@dataclass(frozen=True)
class Line:
    """What one answer made of the four calls.

    Attributes:
        variant: The answer.
        executions: How often a page was really fetched.
        joined: Callers that shared somebody else's fetch.
        queued: Callers that waited for somebody else's fetch, and then fetched themselves.
        hits: Callers that were given what was stored.
        two_keys_at_once: Whether the two pages were fetched side by side.
        after: What the call after completion did.
    """

    HEADINGS: ClassVar[dict[str, tuple[str, str]]] = {
        "executions": ("", "executions"),
        "joined": ("", "joined"),
        "queued": ("queued, then", "own run"),
        "hits": ("", "hits"),
        "two_keys_at_once": ("two keys", "at once"),
        "after": ("call after", "completion"),
    }

    variant: str
    executions: int
    joined: int
    queued: int
    hits: int
    two_keys_at_once: str
    after: str


PROMISED: Final = (
    Line("none", 4, 0, 0, 0, "yes", "runs again"),
    Line("mutex", 4, 0, 2, 0, "no", "runs its own"),
    Line("singleflight", 3, 1, 0, 0, "yes", "runs again"),
    Line("cache", 3, 0, 0, 1, "yes", "stored result"),
    Line("cache, then singleflight", 2, 1, 0, 1, "yes", "stored result"),
)


class Pages:
    """The pages and what happens to them: fetches that wait at a gate, and a tally."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self.side_by_side = False
        self._changed = threading.Condition()
        self._open = False
        self._inside: list[str] = []

    def fetch(self, page: str) -> str:
        """Fetch a page; the answer comes when the gate is open."""
        with self._changed:
            self._inside.append(page)
            self.side_by_side |= len(set(self._inside)) > 1
            self.count("executions")
            opened = self._changed.wait_for(lambda: self._open, PATIENCE)
            self._inside.remove(page)
        if not opened:
            raise TimeoutError(f"the gate of {page} stayed closed for {PATIENCE} s")
        return f"the {page} page"

    def count(self, what: str) -> None:
        """Count something."""
        with self._changed:
            self.tally[what] += 1
            self._changed.notify_all()

    def open_when_all_wait(self, callers: int) -> None:
        """Open the gate once every caller fetches, has joined, or is queued."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.tally.total() >= callers, PATIENCE):
                raise TimeoutError(f"of {callers} callers only {self.tally.total()} are there")
            self._open = True
            self._changed.notify_all()


class Compare:
    """Two callers for one page, one for another, all at once; then the first page again."""

    name = "compare"
    promise = "nothing, a mutex, singleflight, a cache: who runs, who joins, who waits, who is told"

    def play(self, stage: Stage) -> Result:
        """Play the four calls over each answer."""
        del stage  # pages of its own: what is compared is who fetches them
        RefreshState.objects.filter(key__startswith="feed:").delete()
        lines = [
            _play("none", lambda pages: _coordinated(pages, "none")),
            _play("mutex", _mutex, run_word="runs its own"),
            _play("singleflight", lambda pages: _coordinated(pages, "dedupe")),
            _play("cache", _cache),
            _play("cache, then singleflight", _fresh),
        ]
        checks = [
            Check(f"{name}, {promised.variant}", getattr(promised, name), getattr(line, name))
            for promised, line in zip(PROMISED, lines, strict=True)
            for name in Line.HEADINGS
        ]
        return Result(self.name, self.promise, tuple(lines), tuple(checks))


Get = Callable[[str], object]


def _play(variant: str, answer: Callable[[Pages], Get], run_word: str = "runs again") -> Line:
    pages = Pages()
    get = answer(pages)
    unsubscribe = subscribe(lambda _: pages.count("joined"), types=["coordination:reuse"])
    try:
        with Callers(len(TOGETHER)) as callers:
            for page in TOGETHER:
                callers.start(partial(get, page))
            pages.open_when_all_wait(len(TOGETHER))
            callers.visits()
    finally:
        unsubscribe()
    before = pages.tally["executions"]
    get(AGAIN)
    tally = pages.tally
    return Line(
        variant=variant,
        executions=tally["executions"],
        joined=tally["joined"],
        queued=tally["queued"],
        hits=tally["hits"],
        two_keys_at_once="yes" if pages.side_by_side else "no",
        after=run_word if tally["executions"] > before else "stored result",
    )


def _coordinated(pages: Pages, strategy: Any) -> Get:
    return coordinated(key="feed:{page}", strategy=strategy, scope=f"compare: {strategy}")(
        pages.fetch
    )


def _mutex(pages: Pages) -> Get:
    lock = threading.Lock()

    def get(page: str) -> str:
        if not lock.acquire(blocking=False):
            pages.count("queued")
            lock.acquire()
        try:
            return pages.fetch(page)
        finally:
            lock.release()

    return get


def _cache(pages: Pages) -> Get:
    cache = LocMemCache("compare", {})
    cache.clear()

    def get(page: str) -> object:
        stored = cache.get(page)
        if stored is not None:
            pages.count("hits")
            return stored
        fetched = pages.fetch(page)
        cache.set(page, fetched)
        return fetched

    return get


def _fresh(pages: Pages) -> Get:
    # What a page becomes is no matter here: the time of its success is what is stored.
    @singleflight_refresh(key="feed:{page}", write=lambda page, _: page, fresh_for=60)
    def refresh(page: str) -> str:
        return pages.fetch(page)

    def get(page: str) -> object:
        outcome = refresh(page)
        if outcome.outcome == "fresh":
            pages.count("hits")
        return outcome

    return get
