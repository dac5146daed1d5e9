"""Fan-outs for tests: bodies that wait at gates, a clock that the test moves, threads that end."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from django_vega.core.clock import SystemClock
from django_vega.fanout import _DjangoFrame
from django_vega.runtime.afanout import AsyncFanOut
from django_vega.runtime.fan import Plan
from django_vega.runtime.fanout import FanOut

TIMEOUT = 10.0

DEFAULTS: dict[str, Any] = {
    "workers": 2,
    "capacity": 3,
    "when_full": "wait",
    "deadline": None,
    "timeout": None,
    "budget": None,
    "weight": None,
    "max_weight": None,
}


class Clock(SystemClock):
    """Stands still until the test moves it; on an event loop its timers are looked at then."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float, run: Any) -> None:
        """Move on, and let the run see it."""
        self.now += seconds
        run._crew.look()
        run._crew.reader.wake()


def fan(function: Callable[..., Any], targets: Any, clock: Any = None, **options: Any) -> Any:
    """Return a `fan_out` with a clock of the test's."""
    return FanOut(Plan(function, **(DEFAULTS | options)), targets, _DjangoFrame(), clock)


def afan(function: Callable[..., Any], targets: Any, clock: Any = None, **options: Any) -> Any:
    """Return an `afan_out` with a clock of the test's."""
    return AsyncFanOut(Plan(function, **(DEFAULTS | options)), targets, clock)


def until(holds: Callable[[], object]) -> None:
    """Return when it holds; for what tells nobody."""
    for _ in range(int(TIMEOUT / 0.001)):
        if holds():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never held")


async def auntil(holds: Callable[[], object]) -> None:
    """Return when it holds, in the turns of the loop; the loop of the test bounds it."""
    while not holds():
        await asyncio.sleep(0)


class Bodies:
    """A sync function whose calls wait until the test lets them end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: set[Any] = set()
        self._all_open = False
        self._errors: dict[Any, BaseException] = {}
        self.entered: list[Any] = []
        self.left: list[Any] = []
        self.most = 0

    def __call__(self, target: Any) -> str:
        with self._changed:
            self.entered.append(target)
            self.most = max(self.most, len(self.entered) - len(self.left))
            self._changed.notify_all()
            opened = self._changed.wait_for(lambda: self._all_open or target in self._open, TIMEOUT)
            self.left.append(target)
            self._changed.notify_all()
        assert opened
        if target in self._errors:
            raise self._errors[target]
        return f"{target}!"

    def open(self, *targets: Any, error: BaseException | None = None) -> None:
        """Let the bodies of these targets end, or of all; now and later."""
        with self._changed:
            self._open.update(targets)
            self._all_open |= not targets
            if error is not None:
                self._errors.update(dict.fromkeys(targets, error))
            self._changed.notify_all()

    def wait_for(self, *targets: Any) -> None:
        """Return when all of them have been entered."""
        with self._changed:
            came = self._changed.wait_for(lambda: set(targets) <= set(self.entered), TIMEOUT)
            assert came, f"{self.entered} were entered, {targets} expected"


class Targets:
    """A generator of targets that says how far it was pulled, and whether it was closed."""

    def __init__(self, targets: Any, error: BaseException | None = None) -> None:
        self.pulled = 0
        self.closed = False
        self.thread: int | None = None
        self._targets = targets
        self._error = error

    def __call__(self) -> Any:
        try:
            for target in self._targets:
                self.pulled += 1
                self.thread = threading.get_ident()
                yield target
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True

    async def astream(self) -> Any:
        with contextlib.closing(self()) as targets:
            for target in targets:
                yield target


def worker_threads() -> list[threading.Thread]:
    """Return the threads of fan-outs that live."""
    return [thread for thread in threading.enumerate() if "fan-out" in thread.name]
