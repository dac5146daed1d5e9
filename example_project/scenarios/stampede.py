"""Many callers want the same page at the same moment."""

import asyncio

from asgiref.sync import sync_to_async
from django.db import connections

from example_project.scenarios.callers import Callers, Visit, avisit
from example_project.scenarios.result import Check, Result, Row
from example_project.scenarios.stage import REGION, ROWS_ON_HEAD, Attendance, Stage
from example_project.upstream import PATIENCE

CALLERS = 20


class Stampede:
    """20 callers, one page. The upstream answers when all of them are waiting for it."""

    name = "stampede"
    promise = f"{CALLERS} callers at once: one upstream call, one write, everybody is served"

    def play(self, stage: Stage) -> Result:
        """Play it without vega, with vega from threads, and with vega on an event loop."""
        without, threads, tasks = self._without(stage), self._threads(stage), self._tasks(stage)
        checks = [Check("upstream calls without vega", CALLERS, without.upstream_calls)]
        for row in (threads, tasks):
            checks += [
                Check(f"upstream calls {row.variant}", 1, row.upstream_calls),
                Check(f"callers joined {row.variant}", CALLERS - 1, row.joined),
                Check(f"callers served {row.variant}", CALLERS, row.served),
                Check(f"rows written {row.variant}", ROWS_ON_HEAD, row.rows_written),
                Check(f"stale overwrites {row.variant}", 0, row.stale_overwrites),
            ]
        return Result(self.name, self.promise, (without, threads, tasks), tuple(checks))

    def _without(self, stage: Stage) -> Row:
        stage.clear()
        with Callers(CALLERS) as callers, stage.upstream.gate() as gate:
            for _ in range(CALLERS):
                callers.start(lambda: stage.plain.refresh(REGION))
            gate.wait_for(CALLERS)
            gate.open()
            visits = callers.visits()
        return self._measure(stage, "without vega", visits)

    def _threads(self, stage: Stage) -> Row:
        stage.clear()
        with (
            Attendance() as attendance,
            Callers(CALLERS) as callers,
            stage.upstream.gate(on_arrival=attendance.arrived) as gate,
        ):
            for _ in range(CALLERS):
                callers.start(lambda: stage.vega.refresh(REGION))
            attendance.wait_for(CALLERS)
            gate.open()
            visits = callers.visits()
        return self._measure(stage, "with vega", visits, attendance.joined)

    def _tasks(self, stage: Stage) -> Row:
        stage.clear()

        async def stampede() -> list[Visit]:
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(avisit(lambda: stage.vega.arefresh(REGION)))
                    for _ in range(CALLERS)
                ]
                await asyncio.to_thread(attendance.wait_for, CALLERS)
                gate.open()
            # As a request would at its end: the write has opened a connection on the loop's thread.
            await sync_to_async(connections.close_all)()
            return [task.result() for task in tasks]

        with (
            Attendance() as attendance,
            stage.upstream.gate(on_arrival=attendance.arrived) as gate,
        ):
            visits = asyncio.run(stampede())
        return self._measure(stage, "with vega, async", visits, attendance.joined)

    @staticmethod
    def _measure(stage: Stage, variant: str, visits: list[Visit], joined: int = 0) -> Row:
        return Row.of(
            variant,
            visits,
            upstream_calls=stage.upstream_calls(),
            stale_overwrites=stage.stale_overwrites(stage.newest_head()),
            joined=joined,
        )
