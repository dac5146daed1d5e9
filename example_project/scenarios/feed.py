"""A start page opens, and five places on it want the feed within 120 ms."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from example_project.scenarios.callers import Callers
from example_project.scenarios.result import Check, Result, Row
from example_project.scenarios.stage import REGION, Attendance, Stage


@dataclass(frozen=True, slots=True)
class Asker:
    """A place on the page: when it asks, in milliseconds, and whether it wants but a number."""

    name: str
    at_ms: int
    wants_badge: bool = False


ASKERS = (
    Asker("page opens", 0),
    Asker("pull to refresh", 40),
    Asker("header", 70),
    Asker("list", 90),
    Asker("unread badge", 120, wants_badge=True),
)


class Feed:
    """The five calls at 0, 40, 70, 90 and 120 ms.

    The offsets are real; the upstream holds its answers until all five have asked, so that the
    numbers do not depend on them.
    """

    name = "feed"
    promise = "five askers: 5 upstream calls alone, 1 on one key, 2 when the badge has its own"

    def play(self, stage: Stage) -> Result:
        """Play it uncoordinated, on one key, and with a key of its own for the badge."""
        alone = self._open_page(
            stage,
            "without vega",
            page=lambda: stage.plain.refresh(REGION),
            badge=lambda: stage.plain.refresh(REGION),
        )
        one_key = self._open_page(
            stage,
            "with vega, one key",
            page=lambda: stage.vega.refresh(REGION),
            badge=lambda: stage.vega.refresh(REGION),
        )
        two_keys = self._open_page(
            stage,
            "with vega, badge apart",
            page=lambda: stage.vega.refresh(REGION),
            badge=lambda: stage.vega.unread(REGION),
        )
        checks: list[Check] = []
        for row, calls, joined in ((alone, 5, 0), (one_key, 1, 4), (two_keys, 2, 3)):
            checks += [
                Check(f"upstream calls {row.variant}", calls, row.upstream_calls),
                Check(f"callers joined {row.variant}", joined, row.joined),
                Check(f"callers served {row.variant}", len(ASKERS), row.served),
            ]
        return Result(self.name, self.promise, (alone, one_key, two_keys), tuple(checks))

    @staticmethod
    def _open_page(
        stage: Stage, variant: str, *, page: Callable[[], object], badge: Callable[[], object]
    ) -> Row:
        stage.clear()
        with (
            Attendance() as attendance,
            Callers(len(ASKERS)) as callers,
            stage.upstream.gate(on_arrival=attendance.arrived) as gate,
        ):
            opened = time.monotonic()
            for asker in ASKERS:
                time.sleep(max(0.0, opened + asker.at_ms / 1000 - time.monotonic()))
                callers.start(badge if asker.wants_badge else page)
            attendance.wait_for(len(ASKERS))
            gate.open()
            visits = callers.visits()
        return Row.of(
            variant,
            visits,
            upstream_calls=stage.upstream_calls(),
            stale_overwrites=stage.stale_overwrites(stage.newest_head()),
            joined=attendance.joined,
        )
