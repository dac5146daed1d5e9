"""Two answers cross on the way: the older one comes last. On one key, then on two."""

from collections.abc import Callable

from django_vega import Refresh
from example_project.feed.repository import rows
from example_project.scenarios.callers import Callers, Visit
from example_project.scenarios.result import Check, Result, Row
from example_project.scenarios.stage import REGION, ROWS_ON_HEAD, Stage

BOX = "start-page"
TEXT = "alaska"  # most of what it finds is on the head page of REGION, too


class Crossing:
    """Two refreshes overlap, and the upstream answers the second one first.

    On one key nothing joins here: the strategy is ``none``, as when somebody asks for a run of
    their own. The fence of the key holds all the same. Two keys, a page and a search, have two
    fences, and show the same events: what holds there is the generation in each row.
    """

    name = "crossing"
    promise = (
        "a slow old answer that arrives last overwrites nothing newer, whichever key it came for"
    )

    def play(self, stage: Stage) -> Result:
        """Play it without and with vega."""
        uncoordinated = stage.vega.refresh.with_options(strategy="none")
        without, _ = self._cross(stage, "without vega", lambda: stage.plain.refresh(REGION))
        fenced, outcomes = self._cross(stage, "with vega", lambda: uncoordinated(REGION))
        without_keys, _ = self._cross_keys(
            stage,
            "two keys, without",
            page=lambda: stage.plain.refresh(REGION),
            search=lambda: stage.plain.search(TEXT),
        )
        guarded, late = self._cross_keys(
            stage,
            "two keys, with vega",
            page=lambda: stage.vega.refresh(REGION),
            search=lambda: stage.vega.search(BOX, TEXT),
        )
        found = {quake.usgs_id for quake in rows(stage.newest_search(TEXT))}
        shared = len(found & {quake.usgs_id for quake in rows(stage.newest_head())})
        checks = (
            Check("upstream calls without vega", 2, without.upstream_calls),
            Check("stale overwrites without vega", ROWS_ON_HEAD, without.stale_overwrites),
            Check("upstream calls with vega", 2, fenced.upstream_calls),
            Check("stale overwrites with vega", 0, fenced.stale_overwrites),
            Check("rows written with vega", ROWS_ON_HEAD, fenced.rows_written),
            Check("outcomes with vega, old then new", ["superseded", "written"], outcomes),
            Check(
                "stale overwrites on two keys without vega", shared, without_keys.stale_overwrites
            ),
            Check("stale overwrites on two keys with vega", 0, guarded.stale_overwrites),
            Check("rows of the old answer that were guarded", shared, _guarded(late)),
            Check(
                "rows written on two keys with vega",
                2 * ROWS_ON_HEAD + len(found) - shared,
                guarded.rows_written,
            ),
        )
        return Result(self.name, self.promise, (without, fenced, without_keys, guarded), checks)

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

    @staticmethod
    def _cross_keys(
        stage: Stage, variant: str, *, page: Callable[[], object], search: Callable[[], object]
    ) -> tuple[Row, Visit]:
        stage.clear()
        with Callers(3) as callers, stage.upstream.gate("search") as gate:
            callers.start(page).result()
            old = callers.start(search)
            gate.wait_for(1)
            callers.start(page).result()  # one revision newer than what the search has seen
            gate.release(1)
            visits = callers.visits()
        row = Row.of(
            variant,
            visits,
            upstream_calls=stage.upstream_calls(),
            stale_overwrites=stage.stale_overwrites(stage.newest_head()),
        )
        return row, old.result()


def _outcome(visit: Visit) -> object:
    return visit.value.outcome if isinstance(visit.value, Refresh) else None


def _guarded(visit: Visit) -> object:
    return visit.value.guarded if isinstance(visit.value, Refresh) else None
