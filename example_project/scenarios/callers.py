"""Callers: what the outside of the system does. Each makes one call and says how it went."""

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from django.db import connections

from django_vega import CallCancelled, Refresh
from example_project.upstream import PATIENCE


@dataclass(frozen=True, slots=True)
class Visit:
    """One caller's experience.

    Attributes:
        value: What the call returned; None when it was cancelled.
        was_cancelled: Whether it raised CallCancelled. Any other exception ends the demo.
        waited: Seconds from the call to its end.
    """

    value: object
    was_cancelled: bool
    waited: float

    @property
    def rows_written(self) -> int:
        """How many rows this caller's own work sent to the database."""
        match self.value:
            case Refresh(led=True, written=int(count)):
                return count
            case [*stored]:
                return len(stored)
            case _:
                return 0


class Callers:
    """Threads that make one call each, like the requests of a busy server.

    Use it as a context manager; the block ends when all of them have.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="caller")
        self._calls: list[Future[Visit]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._threads.shutdown()

    def start(self, call: Callable[[], object]) -> Future[Visit]:
        """Let one more caller make its call, now."""
        future = self._threads.submit(_visit, call)
        self._calls.append(future)
        return future

    def visits(self) -> list[Visit]:
        """Wait for all callers; return their visits in the order in which they started."""
        return [call.result(PATIENCE) for call in self._calls]


def _visit(call: Callable[[], object]) -> Visit:
    started = time.monotonic()
    try:
        value = call()
    except CallCancelled:
        return Visit(None, was_cancelled=True, waited=time.monotonic() - started)
    else:
        return Visit(value, was_cancelled=False, waited=time.monotonic() - started)
    finally:
        connections.close_all()  # nobody else closes what a thread of one's own has opened


async def avisit(call: Callable[[], Awaitable[object]]) -> Visit:
    """Make one call on the running event loop."""
    started = time.monotonic()
    try:
        value = await call()
    except CallCancelled:
        return Visit(None, was_cancelled=True, waited=time.monotonic() - started)
    return Visit(value, was_cancelled=False, waited=time.monotonic() - started)
