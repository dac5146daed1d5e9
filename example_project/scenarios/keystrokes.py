"""Somebody types into a search box, and each keystroke asks the upstream."""

from collections.abc import Callable
from functools import partial

from example_project.feed.models import Quake
from example_project.feed.repository import rows
from example_project.scenarios.callers import Callers
from example_project.scenarios.result import Check, Result, Row
from example_project.scenarios.stage import Stage

KEYSTROKES = ("a", "al", "ala", "alas", "alask", "alaska")
BOX = "start-page"


class Typing:
    """Six keystrokes, six requests; the last one is answered first, the first one last."""

    name = "typing"
    promise = "six keystrokes: 6 started, 5 cancelled, and the rows of the last one stand"

    def play(self, stage: Stage) -> Result:
        """Play it without and with vega."""
        without, _ = self._type(stage, "without vega", stage.plain.search)
        restarted, stands = self._type(
            stage, "with vega", lambda text: stage.vega.search(BOX, text)
        )
        found = len(stage.newest_search(KEYSTROKES[-1]).features)
        checks = (
            Check("upstream calls without vega", 6, without.upstream_calls),
            Check("stale overwrites without vega", found, without.stale_overwrites),
            Check("upstream calls with vega", 6, restarted.upstream_calls),
            Check("callers cancelled with vega", 5, restarted.cancelled),
            Check("callers served with vega", 1, restarted.served),
            Check("rows written with vega", found, restarted.rows_written),
            Check("stale overwrites with vega", 0, restarted.stale_overwrites),
            Check("exactly the last answer is stored with vega", True, stands),
        )
        return Result(self.name, self.promise, (without, restarted), checks)

    @staticmethod
    def _type(stage: Stage, variant: str, search: Callable[[str], object]) -> tuple[Row, bool]:
        stage.clear()
        with Callers(len(KEYSTROKES)) as callers, stage.upstream.gate("search") as gate:
            calls = []
            for number, text in enumerate(KEYSTROKES, start=1):
                calls.append(callers.start(partial(search, text)))
                gate.wait_for(number)
            for number in range(len(KEYSTROKES), 0, -1):
                gate.release(number)
                calls[number - 1].result()  # one answer at a time, so that the order is exact
            visits = callers.visits()
        newest = stage.newest_search(KEYSTROKES[-1])
        row = Row.of(
            variant,
            visits,
            upstream_calls=stage.upstream_calls(),
            stale_overwrites=stage.stale_overwrites(newest),
        )
        stored = set(Quake.objects.values_list("usgs_id", "revised_at"))
        return row, stored == {(quake.usgs_id, quake.revised_at) for quake in rows(newest)}
