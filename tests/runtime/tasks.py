"""Event loops for tests: bounded in time, and strict about errors that nobody retrieved."""

import asyncio
import contextlib
import functools
import gc
import itertools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from tests.gates import Recorder

T = TypeVar("T")

# Enough for a loaded machine. A test that gets here has a defect; it is no measure of speed.
TIMEOUT = 15.0

_numbers = itertools.count(1)


def own_scope() -> str:
    """Return a scope for one test's functions, so that closures of one factory do not meet."""
    return f"tests.scope-{next(_numbers)}"


def run_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``main()`` on an event loop of its own.

    Raises:
        TimeoutError: It took too long.
        AssertionError: The loop had something to complain of, such as "exception was never
            retrieved".
    """
    complaints: list[dict[str, Any]] = []

    async def bounded() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        try:
            async with asyncio.timeout(TIMEOUT):
                return await main()
        except BaseException:
            # Bodies that ignore one cancellation must not hold up the end of a failed test.
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            raise

    value = asyncio.run(bounded())
    gc.collect()  # what was never retrieved is told when it goes away
    assert not complaints
    return value


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make an ``async def`` a test that runs on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_loop(lambda: test(*args, **kwargs))

    return run


class Witness(Recorder):
    """A recorder whose events a task of the running loop can wait for."""

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        super().__enter__()
        return self

    async def sees(self, count: int, *types: str) -> None:
        """Wait until ``count`` events have come, of the given types or of all."""
        while True:
            self._news.clear()
            if len(self.events(*types)) >= count:
                return
            await self._news.wait()

    def _collect(self, event: Any) -> None:
        super()._collect(event)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)


class Gate:
    """Keeps threads and tasks of any loop until it is opened; a cancelled task leaves no thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        """Let everybody pass, now and later."""
        with self._lock:
            self._opened.set()
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(event.set)

    def wait(self) -> None:
        """Block this thread until the gate is open."""
        assert self._opened.wait(TIMEOUT)

    async def passed(self) -> None:
        """Wait, as a task, until the gate is open."""
        with self._lock:
            if self._opened.is_set():
                return
            event = asyncio.Event()
            self._waiting.append((asyncio.get_running_loop(), event))
        await event.wait()


async def ends(*tasks: "asyncio.Future[Any]") -> list[Any]:
    """Wait for tasks and return what each came to: its value, or its exception."""
    await asyncio.wait(tasks)
    return [_end(task) for task in tasks]


def _end(task: "asyncio.Future[Any]") -> Any:
    try:
        return task.result()
    except BaseException as error:
        return error
