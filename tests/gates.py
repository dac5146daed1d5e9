"""Gates of the tests of coordination: a test goes on when calls have arrived, not after a time."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from django_vega import subscribe
from tests import threads

TIMEOUT = 10.0

# Each call has exactly one of these while its peers stand still: it runs, or it is held, or over.
ARRIVED = (
    "call:running",
    "call:parked",
    "coordination:reuse",
    "coordination:dropped",
    "coordination:orphaned-intent",
)


class Recorder:
    """Collects the events of the bus while its block lasts.

    Args:
        types: Event types to collect; default all.
    """

    def __init__(self, types: Sequence[str] | None = None) -> None:
        self._types = types
        self._events: list[Any] = []
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._unsubscribe = subscribe(self._collect, self._types)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._unsubscribe()

    def events(self, *types: str) -> list[Any]:
        """Return what has come so far, of the given types or of all."""
        with self._changed:
            return [event for event in self._events if not types or event.type in types]

    def wait(self, count: int, *types: str) -> None:
        """Block until `count` events have come, of the given types or of all."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.events(*types)) >= count, TIMEOUT)
            assert came, f"expected {count} events {types or self._types}, got {self._events}"

    def states(self) -> list[tuple[str, str | None]]:
        """Return state and reason of each settled call, in the order of the calls."""
        settled = sorted(self.events("call:settled"), key=lambda event: event.call_id)
        return [(event.state, event.reason) for event in settled]

    def _collect(self, event: Any) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()


class Arrivals(Recorder):
    """Counts the calls that have arrived where they stay until the test goes on.

    Args:
        types: What counts as an arrival.
    """

    def __init__(self, types: Sequence[str] = ARRIVED) -> None:
        super().__init__(types)


class Gate:
    """A body that waits inside, and then returns or raises what it was given.

    Args:
        end: The value to return, or the exception to raise.
    """

    def __init__(self, end: Any = None) -> None:
        self.entered = threading.Event()
        self.returned = False
        self._may_end = threading.Event()
        self._end = end
        self.runs = 0

    def __call__(self) -> Any:
        self.runs += 1
        self.entered.set()
        assert self._may_end.wait(TIMEOUT)
        self.returned = True
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end

    def open(self) -> None:
        """Let the body end, now and whenever it runs again."""
        self._may_end.set()


def raising(error: BaseException) -> Callable[[], Any]:
    """Return a body that raises `error`."""

    def body() -> None:
        raise error

    return body


def never() -> None:
    """Be the body of a call that must not run."""
    raise AssertionError("this function must not run")


def interrupt(running: threads.Running[Any]) -> None:
    """Raise KeyboardInterrupt in a thread of the test, as a signal would in the main thread."""
    kind = ctypes.py_object(KeyboardInterrupt)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(running.ident), kind) == 1
