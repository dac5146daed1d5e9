"""Threads for tests: they begin together, end in bounded time, and lose no exception.

Every thread of a test's body is started here. One that does not end with its test, or whose
exception nobody asked for, fails the test (`pytest_runtest_call` in conftest). Servers that
outlive the body belong to their fixture.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from django.db import connections

__all__ = [
    "Running",
    "ThreadHangs",
    "end_all",
    "results",
    "run_together",
    "start",
    "start_together",
]

T = TypeVar("T")

# Enough for a loaded machine. A test that gets here has a defect; it is no measure of speed.
TIMEOUT = 10.0

# The threads of the present test. Read and written by the thread that runs the test.
_started: "list[Running[Any]]" = []


class ThreadHangs(AssertionError):
    """A thread of the test did not end in time; the message shows where it stands."""


class Running(Generic[T]):
    """One function on a thread of its own, and what became of it.

    As a context manager it joins the thread at the end of the block.
    """

    def __init__(self, function: Callable[[], T], begin: threading.Barrier | None = None) -> None:
        self._function = function
        self._begin = begin
        self._value: T
        self._exception: BaseException | None = None
        self._exception_was_asked_for = False
        self.ended_at: float | None = None
        name = getattr(function, "__name__", type(function).__name__)
        self._thread = threading.Thread(target=self._run, name=f"test: {name}", daemon=True)
        _started.append(self)
        self._thread.start()

    def __enter__(self) -> "Running[T]":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        # The block's own exception is the better news: a hanging thread often follows from it.
        if exc is None:
            self.join()

    def __repr__(self) -> str:
        return f"<Running {self._thread.name!r} {'running' if self.is_running else 'ended'}>"

    @property
    def is_running(self) -> bool:
        """Whether the function has not returned yet."""
        return self._thread.is_alive()

    @property
    def ident(self) -> int:
        """The thread's identifier, as `threading.get_ident()` gives it inside."""
        assert self._thread.ident is not None
        return self._thread.ident

    def join(self, timeout: float = TIMEOUT) -> None:
        """Wait until the function has ended, whatever its end.

        Raises:
            ThreadHangs: It still runs after `timeout` seconds.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise ThreadHangs(f"{self._thread.name!r} still runs; it stands here:\n{self.stack()}")

    def exception(self, timeout: float = TIMEOUT) -> BaseException | None:
        """Wait for the end and return the exception that the function raised, or None."""
        self.join(timeout)
        self._exception_was_asked_for = True
        return self._exception

    def result(self, timeout: float = TIMEOUT) -> T:
        """Wait for the end and return the function's value, or raise what it raised."""
        exception = self.exception(timeout)
        if exception is not None:
            raise exception
        return self._value

    def stack(self) -> str:
        """Where the thread stands now, as text; empty when it has ended."""
        frame = sys._current_frames().get(self.ident)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def forgotten_exception(self) -> BaseException | None:
        """The exception that the function raised, unless somebody has asked for it."""
        return None if self._exception_was_asked_for else self._exception

    def _run(self) -> None:
        try:
            if self._begin is not None:
                self._begin.wait(TIMEOUT)
            self._value = self._function()
        except BaseException as exception:
            self._exception = exception
        finally:
            self.ended_at = time.monotonic()
            # Connections belong to their thread; nobody else could close these.
            connections.close_all()


def start(function: Callable[[], T]) -> Running[T]:
    """Run `function` on a thread of its own and return at once.

    Example:
        with start(refresh) as running:
            entered.wait(10)
            ...
        assert running.result() == "value"
    """
    return Running(function)


def start_together(*functions: Callable[[], T]) -> list[Running[T]]:
    """Run each function on a thread of its own; none begins before all threads are there."""
    begin = threading.Barrier(len(functions))
    return [Running(function, begin) for function in functions]


def run_together(*functions: Callable[[], T], timeout: float = TIMEOUT) -> list[T]:
    """Run the functions at the same time and return their values, in the order given.

    Args:
        timeout: Seconds for all of them together.

    Raises:
        ThreadHangs: A thread still runs after `timeout`, and none has raised.
        BaseException: What a function raised; of several the one that was raised first.
    """
    return results(start_together(*functions), timeout)


def results(everyone: Sequence[Running[T]], timeout: float = TIMEOUT) -> list[T]:
    """Wait for all of them and return their values; raises as `run_together`."""
    hanging = join_all(everyone, timeout)
    raised = [running for running in everyone if not running.is_running and running.exception()]
    if raised:
        first = min(raised, key=lambda running: running.ended_at or 0).exception()
        assert first is not None
        for error in hanging:
            first.add_note(str(error))
        raise first
    if hanging:
        raise hanging[0]
    return [running.result() for running in everyone]


def end_all(timeout: float = TIMEOUT) -> None:
    """Wait for every thread of the test and forget them all.

    Args:
        timeout: Seconds for all of them together.

    Raises:
        ThreadHangs: A thread does not end.
        AssertionError: A function raised, and the test asked neither for its result nor for its
            exception.
    """
    everyone = _started.copy()
    _started.clear()
    hanging = join_all(everyone, timeout)
    if hanging:
        raise hanging[0]
    for running in everyone:
        exception = running.forgotten_exception()
        if exception is not None:
            raise AssertionError(f"{running!r} raised, and nobody asked") from exception


def join_all(everyone: Sequence[Running[Any]], timeout: float) -> list[ThreadHangs]:
    """Wait `timeout` seconds for all of them together; return an error for each that hangs."""
    deadline = time.monotonic() + timeout
    hanging = []
    for running in everyone:
        try:
            running.join(max(deadline - time.monotonic(), 0))
        except ThreadHangs as error:
            hanging.append(error)
    return hanging
