"""Two answers cross on the way: the older one comes last."""

from collections.abc import Callable

from django_vega import Refresh
from example_project.scenarios.callers import Callers, Visit
from example_project.scenarios.result import Check, Result, Row
from example_project.scenarios.stage import REGION, ROWS_ON_HEAD, Stage


class Crossing:
    """Two refreshes of one page overlap, and the upstream answers the second one first.

    Nothing joins here: the strategy is ``none``, as when somebody asks for a run of their own. The
    fence holds all the same.
    """

    name = "crossing"
    promise = "a slow old answer that arrives last never overwrites a newer one"

    def play(self, stage: Stage) -> Result:
        """Play it without and with vega."""
        uncoordinated = stage.vega.refresh.with_options(strategy="none")
        without, _ = self._cross(stage, "without vega", lambda: stage.plain.refresh(REGION))
        fenced, outcomes = self._cross(stage, "with vega", lambda: uncoordinated(REGION))
        checks = (
            Check("upstream calls without vega", 2, without.upstream_calls),
            Check("stale overwrites without vega", ROWS_ON_HEAD, without.stale_overwrites),
            Check("upstream calls with vega", 2, fenced.upstream_calls),
            Check("stale overwrites with vega", 0, fenced.stale_overwrites),
            Check("rows written with vega", ROWS_ON_HEAD, fenced.rows_written),
            Check("outcomes with vega, old then new", ["superseded", "written"], outcomes),
        )
        return Result(self.name, self.promise, (without, fenced), checks)

    @staticmethod
    def _cross(
        stage: Stage, variant: str, refresh: Callable[[], object]
    ) -> tuple[Row, list[object]]:
        stage.clear()
        with Callers(2) as callers, stage.upstream.gate() as gate:
            callers.start(refresh)
            gate.wait_for(1)
            new = callers.start(refresh)
            gate.wait_for(2)
            gate.release(2)
            new.result()  # the new answer is in the database before the old one leaves the upstream
            gate.release(1)
            visits = callers.visits()
        row = Row.of(
            variant,
            visits,
            upstream_calls=stage.upstream_calls(),
            stale_overwrites=stage.stale_overwrites(stage.newest_head()),
        )
        return row, [_outcome(visit) for visit in visits]


def _outcome(visit: Visit) -> object:
    return visit.value.outcome if isinstance(visit.value, Refresh) else None
