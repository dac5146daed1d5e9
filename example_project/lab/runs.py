"""Runs of experiments: kept in memory, a bounded number of them, each for its own visitor."""

import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

from django.db import connections
from django.utils.translation import gettext as _

from example_project.lab.lanes import Lane

MOST_RUNS: Final = 50  # kept in all
MOST_LIVE: Final = 12  # that are not over; each of them has a dozen threads at most
LIFETIME: Final = 120.0  # seconds, after which a run that waits for its visitor ends by itself


class Refused(Exception):
    """A run or an action that the lab does not do; the message tells the visitor why."""


class TooManyRuns(Refused):
    """Too many runs are going on."""


class Run(ABC):
    """One experiment that was started.

    Attributes:
        slug: The tab that it belongs to.
        id: Part of its address and of its keys.
        began: When it was started, in seconds since the epoch.
    """

    slug: ClassVar[str]

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.began = time.time()
        self._over_at: float | None = None

    @property
    def over_at(self) -> float | None:
        """When it was over, in seconds since the epoch; None while something may still happen."""
        return self._over_at

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens without its visitor."""
        return self.over_at is not None

    def ends(self) -> None:
        """Write down that it is over."""
        self._over_at = time.time()

    @abstractmethod
    def start(self) -> None:
        """Let it begin."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what is known so far, JSON-ready."""

    @abstractmethod
    def lanes(self) -> list[Lane]:
        """Return what the lanes show."""

    def wait(self) -> None:  # noqa: B027 - most wait for their visitor, not the other way round
        """Wait for the end, where it comes by itself."""

    def act(self, action: str, value: str) -> None:
        """Do what the visitor wants.

        Raises:
            Refused: There is no such action, or not now.
        """
        wanted = f"{action} {value}".strip()
        raise Refused(_("There is no action “%(action)s” here.") % {"action": wanted})

    def close(self) -> None:  # noqa: B027 - most end by themselves
        """Let go of everything that waits for the visitor."""

    def document(self) -> dict[str, Any]:
        """Return state, lanes and times; JSON-ready."""
        now = self.over_at or time.time()
        return {
            "id": self.id,
            "now": now,
            "span": max(now - self.began, 0.5) * 1.05,
            "over": self.is_over,
            "lanes": self.lanes(),
            **self.state(),
        }


RunT = TypeVar("RunT", bound=Run)


class Runs:
    """The runs that are kept; the oldest one goes first."""

    def __init__(self, most: int = MOST_RUNS, most_live: int = MOST_LIVE) -> None:
        self._most = most
        self._most_live = most_live
        self._lock = threading.Lock()
        # By id: whose it is, and the run. Under the lock.
        self._runs: OrderedDict[str, tuple[str, Run]] = OrderedDict()

    def start(self, visitor: str, run: RunT) -> RunT:
        """Keep a run and start it; the visitor's earlier ones of the same tab are closed.

        Raises:
            TooManyRuns: Too many are going on.
        """
        with self._lock:
            earlier = [
                kept
                for whose, kept in self._runs.values()
                if whose == visitor and kept.slug == run.slug
            ]
            live = sum(not kept.is_over for _, kept in self._runs.values())
            refused = live - sum(not kept.is_over for kept in earlier) >= self._most_live
            if not refused:
                self._runs[run.id] = (visitor, run)
                while len(self._runs) > self._most:
                    earlier.append(self._runs.popitem(last=False)[1][1])
        if refused:
            raise TooManyRuns(_("Too many runs are going on; try again in a moment."))
        for other in earlier:
            other.close()
        run.start()
        return run

    def get(self, visitor: str, run_id: str) -> Run | None:
        """Return a run of this visitor; None when it is gone, or somebody else's."""
        with self._lock:
            whose, run = self._runs.get(run_id, ("", None))
        return run if whose == visitor else None

    def __len__(self) -> int:
        return len(self._runs)


runs: Final = Runs()


def spawn(function: Callable[[], object]) -> threading.Thread:
    """Run a function on a thread of its own, as a request of a busy server would be."""

    def target() -> None:
        try:
            function()
        finally:
            connections.close_all()  # receivers of events may have opened some

    thread = threading.Thread(target=target, name="lab", daemon=True)
    thread.start()
    return thread
