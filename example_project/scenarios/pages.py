"""Two pages of one list are in flight at once, and both land in one table."""

from collections.abc import Callable, Iterable
from functools import partial

from django.db.models import QuerySet
from django.utils import timezone

from django_vega import Refresh
from example_project.feed.models import Entry
from example_project.scenarios.callers import Callers, Visit
from example_project.scenarios.result import Check, Result, Row
from example_project.scenarios.stage import REGION, ROWS_ON_HEAD, Stage

CURSORS = ("head", "page-2")


class Pages:
    """The first page is answered first, then the second. Each used to have one line more.

    Clear-and-insert is how a list without pages is often refreshed. With pages, whichever comes
    last takes the others with it. ``prune=`` says which rows belong to a page: what the answer no
    longer has is deleted there, and nowhere else.
    """

    name = "pages"
    promise = "two pages of one list: each refresh replaces its own page and leaves the other alone"

    def play(self, stage: Stage) -> Result:
        """Play it without and with vega."""
        without, _ = self._read(stage, "without vega", stage.plain.list_page)
        pruned, visits = self._read(stage, "with vega", stage.vega.list_page)
        checks = (
            Check("rows lost without vega", ROWS_ON_HEAD, without.rows_lost),
            Check("upstream calls with vega", len(CURSORS), pruned.upstream_calls),
            Check("rows written with vega", len(CURSORS) * ROWS_ON_HEAD, pruned.rows_written),
            Check("rows lost with vega", 0, pruned.rows_lost),
            Check("withdrawn rows deleted with vega, by page", [1, 1], list(map(_pruned, visits))),
            Check("withdrawn rows left with vega", 0, _withdrawn().count()),
        )
        return Result(self.name, self.promise, (without, pruned), checks)

    @staticmethod
    def _read(
        stage: Stage, variant: str, list_page: Callable[[str, str], object]
    ) -> tuple[Row, list[Visit]]:
        stage.clear()
        Entry.objects.bulk_create(_withdrawn_entries())
        with Callers(len(CURSORS)) as callers, stage.upstream.gate() as gate:
            calls = []
            for number, cursor in enumerate(CURSORS, start=1):
                calls.append(callers.start(partial(list_page, REGION, cursor)))
                gate.wait_for(number)
            for number, call in enumerate(calls, start=1):
                gate.release(number)
                call.result()
            visits = callers.visits()
        stored = set(Entry.objects.values_list("cursor", "usgs_id"))
        newest = {
            (cursor, feature["id"])
            for cursor in CURSORS
            for feature in stage.newest_page(cursor).features
        }
        row = Row.of(
            variant,
            visits,
            upstream_calls=stage.upstream_calls(),
            stale_overwrites=0,  # every page is answered once
            rows_lost=len(newest - stored),
        )
        return row, visits


def _withdrawn_entries() -> Iterable[Entry]:
    """One event per page that the USGS has withdrawn: it was listed, and no answer has it."""
    for cursor in CURSORS:
        yield Entry(
            region=REGION,
            cursor=cursor,
            usgs_id=f"withdrawn-{cursor}",
            place="nowhere",
            revised_at=timezone.now(),
        )


def _withdrawn() -> QuerySet[Entry]:
    return Entry.objects.filter(usgs_id__startswith="withdrawn-")


def _pruned(visit: Visit) -> object:
    return visit.value.pruned if isinstance(visit.value, Refresh) else None
