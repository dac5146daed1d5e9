"""Tab 6: six targets over two workers and a queue of three; their gates are opened by hand.

Source: the seed "concurrency-composition", section 2.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from typing import Any, ClassVar, Final

from django.utils.translation import gettext as _

from django_vega import Outcome, fan_out
from django_vega.core.fan import Snapshot
from example_project.lab.lanes import Lane
from example_project.lab.runs import LIFETIME, Refused, Run, spawn
from example_project.scenarios.fanout import CAPACITY, MEMBERS, WORKERS
from example_project.upstream import PATIENCE

LOOK_AGAIN: Final = 0.001  # seconds; a fan-out tells its reader, and nobody else


class FanOutRun(Run):
    """A fan-out whose deliveries wait until their visitor lets them end."""

    slug: ClassVar[str] = "fan-out"

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        # All under _changed.
        self._open: set[str] = set()
        self._begun: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._outcomes: list[Outcome[str, str]] = []
        self._fan_out = fan_out(
            self._deliver, MEMBERS, workers=WORKERS, capacity=CAPACITY, deadline=LIFETIME
        )

    def start(self) -> None:
        """Start the reader, and wait until the last target finds no room."""
        spawn(self._read)
        self._settle_down()

    def act(self, action: str, value: str) -> None:
        """Open the gate of one target, or of all."""
        if self.is_over:
            raise Refused(_("This fan-out is over; start another one."))
        if action == "release" and value in set(MEMBERS):
            self._release(value)
        elif action == "release-all":
            self._release(*MEMBERS)
        else:
            super().act(action, value)
        self._settle_down()

    def close(self) -> None:
        """Let every delivery end."""
        self._release(*MEMBERS)

    def state(self) -> dict[str, Any]:
        """Return where each target is, and what is known of those that are over."""
        shown = self._fan_out.snapshot()
        with self._changed:
            outcomes = [{"target": it.target, "status": it.status} for it in self._outcomes]
            released = sorted(self._open)
        return {
            "running": list(shown.running),
            "queued": list(shown.queued),
            "held": list(shown.held),
            "unread": list(shown.unread),
            "limits": asdict(shown.limits),
            "admitted": len(shown.running) + len(shown.queued),
            "accounting": asdict(self._fan_out.accounting()),
            "outcomes": outcomes,
            "released": released,
            "calls": [],
            "executions": len(self._begun),
            "events": [],
        }

    def lanes(self) -> list[Lane]:
        """Return one lane per target that has begun."""
        with self._changed:
            ends = {it.target: it for it in self._outcomes}
            return [
                {
                    "label": target,
                    "bars": [
                        {
                            "start": began,
                            "end": self._ended.get(target),
                            "state": _lane_state(ends.get(target)),
                            "title": target,
                            "joined": 0,
                            "stale": False,
                        }
                    ],
                }
                for target, began in self._begun.items()
            ]

    def _deliver(self, target: str) -> str:
        with self._changed:
            self._begun[target] = time.time()
            self._changed.notify_all()
            opened = self._changed.wait_for(lambda: target in self._open, LIFETIME)
            self._ended[target] = time.time()
        if not opened:
            raise TimeoutError(f"nobody let {target} go on within {LIFETIME} s")
        return f"delivered to {target}"

    def _read(self) -> None:
        with self._fan_out as run:
            for outcome in run:
                with self._changed:
                    self._outcomes.append(outcome)
                    self._changed.notify_all()
        with self._changed:
            self.ends()
            self._changed.notify_all()

    def _release(self, *targets: str) -> None:
        with self._changed:
            self._open.update(targets)
            self._changed.notify_all()

    def _settle_down(self) -> None:
        """Wait until nothing more moves before another gate is opened."""
        with self._changed:
            until = time.monotonic() + PATIENCE
            while not self._is_at_rest(self._fan_out.snapshot()) and time.monotonic() < until:
                self._changed.wait(LOOK_AGAIN)

    def _is_at_rest(self, shown: Snapshot) -> bool:
        if self.is_over:
            return True
        pulled = self._fan_out.accounting().pulled
        has_room = len(shown.running) < WORKERS or len(shown.queued) < CAPACITY
        moves = (
            shown.unread
            or (has_room and (shown.held or pulled < len(MEMBERS)))
            or (len(shown.running) < WORKERS and shown.queued)
            or any(it in self._open or it not in self._begun for it in shown.running)
        )
        return bool(shown.running or shown.held) and not moves


def _lane_state(outcome: Outcome[str, str] | None) -> str:
    if outcome is None:
        return "running"
    return {"done": "success", "failed": "error"}.get(outcome.status, "cancelled")
