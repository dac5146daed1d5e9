"""Tab 2: two coordinators of one's own, and whether the first does what the built-in one does."""

from __future__ import annotations

import inspect
import threading
from typing import Any, ClassVar, Final

from django_vega import CoordinationContext, bounded, coordinator
from django_vega.core.admission import CoordinatorFunction
from example_project.lab.burst import Burst
from example_project.lab.lanes import Lane, lanes_of
from example_project.lab.runs import Run, spawn


def bounded_by_hand(limit: int) -> CoordinatorFunction:
    """Return a coordinator that lets ``limit`` calls of a key run; later ones share the oldest."""

    @coordinator(f"bounded({limit}) by hand")
    def decide(ctx: CoordinationContext) -> None:
        peers = ctx.peers()
        if len(peers) < limit:
            ctx.proceed()
        else:
            ctx.reuse(peers[0])

    return decide


@coordinator("forgetful")
def forgetful(ctx: CoordinationContext) -> None:
    """Decide nothing: the orphan guard ends each call, and says so."""


SOURCES: Final = {
    "bounded": inspect.getsource(bounded_by_hand),
    "forgetful": inspect.getsource(forgetful.function),
}


class OwnRun(Run):
    """A burst under a coordinator written by hand; for ``bounded`` the built-in one beside it.

    Args:
        name: ``bounded`` or ``forgetful``.
        limit: How many calls of a key ``bounded`` lets run.
        calls: How many calls.
        duration: Seconds that the function takes.
    """

    slug: ClassVar[str] = "own"

    def __init__(self, name: str, limit: int, calls: int, duration: float) -> None:
        super().__init__()
        chosen = bounded_by_hand(limit) if name == "bounded" else forgetful
        self.by_hand = Burst(chosen, calls, 0, duration, f"{self.id}-hand")
        self.built_in = (
            Burst(bounded(limit), calls, 0, duration, f"{self.id}-built")
            if name == "bounded"
            else None
        )
        self._threads: list[threading.Thread] = []

    @property
    def bursts(self) -> list[Burst]:
        """What is played: by hand first."""
        return [self.by_hand] if self.built_in is None else [self.by_hand, self.built_in]

    def start(self) -> None:
        """Fire both at once; they do not meet, as their keys differ."""
        players = [spawn(burst.play) for burst in self.bursts]

        def finish() -> None:
            for player in players:
                player.join()
            self.ends()

        self._threads = [spawn(finish)]

    def wait(self) -> None:
        """Wait until each caller has its answer."""
        for thread in self._threads:
            thread.join()

    def state(self) -> dict[str, Any]:
        """Return what came of the burst by hand, and of the built-in one beside it."""
        by_hand = self.by_hand.state()
        if self.built_in is None:
            return {**by_hand, "built_in": None, "equal": None}
        built_in = self.built_in.state()
        equal = cells(by_hand) == cells(built_in) if self.is_over else None
        return {**by_hand, "built_in": built_in, "equal": equal, "rows": _rows(by_hand, built_in)}

    def lanes(self) -> list[Lane]:
        """Return the lanes by hand, then those of the built-in one."""
        lanes: list[Lane] = []
        for burst, prefix in zip(self.bursts, ("", "= "), strict=False):
            with burst.journal.changed:
                lanes += lanes_of(burst.journal, prefix)
        return lanes


def cells(state: dict[str, Any]) -> dict[str, Any]:
    """Return what has to be equal of two bursts: everything but times, ids and names."""
    return {
        "executions": state["executions"],
        "calls": [(call["outcome"], call["got"], call["leader"]) for call in state["calls"]],
        "coordination": [
            (event["type"], event["number"], event["detail"])
            for event in state["events"]
            if event["type"].startswith("coordination:")
        ],
    }


def _rows(by_hand: dict[str, Any], built_in: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = zip(by_hand["calls"], built_in["calls"], strict=False)
    return [{"by_hand": mine, "built_in": theirs} for mine, theirs in pairs]
