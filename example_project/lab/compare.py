"""Tab 4: the same four calls over nothing, a mutex, singleflight and a cache.

The calls, their gate and the promised table are those of the scenario of the same name; here the
calls are written down as well, and take long enough to be seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Final

from example_project.lab.asking import ask
from example_project.lab.journal import CallSeen, Journal
from example_project.lab.lanes import Lane, lanes_of
from example_project.lab.runs import Run, spawn
from example_project.scenarios.compare import AGAIN, PROMISED, TOGETHER, Line, Pages

Get = Callable[[str], str]

VARIANTS: Final = ("none", "mutex", "singleflight", "cache")
PROMISE: Final = tuple(line for line in PROMISED if line.variant in VARIANTS)


class SeenPages(Pages):
    """Pages whose fetches take a while, and are written down.

    Args:
        duration: Seconds that a fetch takes once its gate is open.
    """

    def __init__(self, duration: float) -> None:
        super().__init__()
        self.duration = duration
        self.journal = Journal()
        self._caller = threading.local()

    def call(self, seen: CallSeen, get: Get) -> None:
        """Make one call and write down what its caller got."""
        self._caller.seen = seen
        got = ""
        with self.journal.listening(), self.journal.asking(seen):
            try:
                got = get(seen.page)
            finally:
                self.journal.note(seen, got=got)
        if seen.call_id is None:
            self.journal.note(seen, state="success", settled=seen.body_ended or seen.ended)

    def fetch(self, page: str) -> str:
        """Fetch a page; the answer comes some time after the gate is open."""
        seen = self._caller.seen
        self.journal.begins()
        self.journal.note(seen, state="running", started=time.time())
        answer = super().fetch(page)
        self.journal.wait_for(lambda: False, self.duration)
        self.journal.note(seen, body_ended=time.time())
        return answer

    def queue(self) -> None:
        """Count a caller that waits for somebody else's fetch, to fetch itself afterwards."""
        self.journal.note(self._caller.seen, state="parked", parked=time.time())
        self.count("queued")


class Variant:
    """One answer to the four calls, and what it makes of them."""

    def __init__(self, name: str, run: str, duration: float) -> None:
        self.name = name
        self.run = f"{run}-{name}"
        self.pages = SeenPages(duration)
        self.line: Line | None = None

    def play(self) -> None:
        """Make three calls at once, and the fourth when they are over."""
        pages, journal = self.pages, self.pages.journal
        get: Get = getattr(self, f"_{self.name}")()
        callers = []
        for page in TOGETHER:
            seen = journal.add(page)
            callers.append(spawn(partial(pages.call, seen, get)))
            journal.wait_for(partial(_is_in_place, seen))
        for seen in journal.calls:
            if seen.leader is not None:
                pages.count("joined")
        pages.open_when_all_wait(len(TOGETHER))
        for caller in callers:
            caller.join()
        before = pages.tally["executions"]
        pages.call(journal.add(AGAIN), get)
        self.line = self._sum_up(before)

    def _sum_up(self, executions_before: int) -> Line:
        tally = self.pages.tally
        ran_again = tally["executions"] > executions_before
        runs = "runs its own" if self.name == "mutex" else "runs again"
        return Line(
            variant=self.name,
            executions=tally["executions"],
            joined=tally["joined"],
            queued=tally["queued"],
            hits=tally["hits"],
            two_keys_at_once="yes" if self.pages.side_by_side else "no",
            after=runs if ran_again else "stored result",
        )

    def _none(self) -> Get:
        return self._coordinated("none")

    def _singleflight(self) -> Get:
        return self._coordinated("dedupe")

    def _coordinated(self, strategy: Any) -> Get:
        function = ask.with_options(strategy=strategy)
        return lambda page: function(page, self.run, partial(self.pages.fetch, page))

    def _mutex(self) -> Get:
        """One lock for everything, whatever the page."""
        lock = threading.Lock()

        def get(page: str) -> str:
            if not lock.acquire(blocking=False):
                self.pages.queue()
                lock.acquire()
            try:
                return self.pages.fetch(page)
            finally:
                lock.release()

        return get

    def _cache(self) -> Get:
        """What was fetched is stored, and given to whoever asks afterwards."""
        stored: dict[str, str] = {}

        def get(page: str) -> str:
            if page in stored:
                self.pages.count("hits")
                return stored[page]
            stored[page] = self.pages.fetch(page)
            return stored[page]

        return get


class CompareRun(Run):
    """The four answers, played side by side; they do not meet.

    Args:
        duration: Seconds that a fetch takes.
    """

    slug: ClassVar[str] = "compare"

    def __init__(self, duration: float) -> None:
        super().__init__()
        self.variants = [Variant(name, self.id, duration) for name in VARIANTS]
        self._thread: threading.Thread

    def start(self) -> None:
        """Play all of them."""
        self._thread = spawn(self._play)

    def wait(self) -> None:
        """Wait until all have been played."""
        self._thread.join()

    def state(self) -> dict[str, Any]:
        """Return the table as far as it is known, and whether it is the promised one."""
        lines = [variant.line for variant in self.variants if variant.line is not None]
        calls: list[dict[str, Any]] = []
        for variant in self.variants:
            journal = variant.pages.journal
            with journal.changed:
                calls += [{**seen.as_dict(), "variant": variant.name} for seen in journal.calls]
        return {
            "table": [asdict(line) for line in lines],
            "as_promised": tuple(lines) == PROMISE if self.is_over else None,
            "calls": calls,
            "executions": sum(line.executions for line in lines),
            "events": [],
        }

    def lanes(self) -> list[Lane]:
        """Return the lanes of each answer, one per call."""
        lanes: list[Lane] = []
        for variant in self.variants:
            journal = variant.pages.journal
            with journal.changed:
                lanes += lanes_of(journal, f"{variant.name} ")
        return lanes

    def _play(self) -> None:
        players = [spawn(variant.play) for variant in self.variants]
        for player in players:
            player.join()
        self.ends()


def _is_in_place(seen: CallSeen) -> bool:
    """Whether a call fetches, has joined, or is queued."""
    return seen.state != "idle" or seen.ended is not None
