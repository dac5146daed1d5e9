"""A refresh over many arguments: a fan-out whose fetches and writes have bounds of their own."""

from __future__ import annotations

import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sized,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from django_vega.core.errors import CallCancelled
from django_vega.core.fan import Accounting, Outcome, Snapshot
from django_vega.core.outcome import Refresh
from django_vega.fanout import afan_out, fan_out
from django_vega.runtime.budget import check_int

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ManyAccounting(Accounting):
    """How many of the pulled arguments came to what.

    Attributes:
        fetching: Of the running: their function runs.
        fetched: Of the running: fetched and not written, waiting for room to write.
        writing: Of the running: they write.
        written: Of the done: their rows were written.
    """

    fetching: int = 0
    fetched: int = 0
    writing: int = 0
    written: int = 0


class Left(BaseException):
    """Ends a flight that was fetched for somebody who has left, as one that was abandoned.

    Whoever else follows it runs its own; so it is no error that they could be given.
    """


class Stages:
    """The two bounds of the flights that one `many` leads, and how many are where.

    Args:
        fetch_workers: How many functions run at once.
        write_workers: How many writes.
        semaphore: What bounds them: that of threads, or that of the running loop's tasks.
    """

    def __init__(
        self, fetch_workers: int, write_workers: int, semaphore: Callable[[int], Any]
    ) -> None:
        check_int("fetch_workers", fetch_workers, at_least=1)
        check_int("write_workers", write_workers, at_least=1)
        self.workers = fetch_workers + write_workers
        self._lock = threading.Lock()
        self._counts = {"fetching": 0, "fetched": 0, "writing": 0, "written": 0}
        self._is_over = False
        self._fetches, self._writes = semaphore(fetch_workers), semaphore(write_workers)

    def end(self) -> None:
        """Let no write begin any more: nobody is there to be told."""
        self._is_over = True

    def count(self, outcome: Outcome[Any, Any]) -> None:
        """Count what was written."""
        if isinstance(outcome.value, Refresh) and outcome.value.outcome == "written":
            self._move(None, "written")

    def accounting(self, targets: Accounting) -> ManyAccounting:
        """Return the account of the fan-out, with what its running targets do."""
        with self._lock:
            return ManyAccounting(**asdict(targets), **self._counts)

    @contextmanager
    def fetch(self) -> Generator[None]:
        """Surround the call of a function; afterwards its rows wait for room to be written."""
        with self._fetches, self._at("fetching"):
            yield
        self._move(None, "fetched")

    @contextmanager
    def write(self) -> Generator[None]:
        """Surround a write."""
        with self._until_turn():
            self._writes.acquire()
        try:
            with self._at("writing"):
                yield
        finally:
            self._writes.release()

    @asynccontextmanager
    async def afetch(self) -> AsyncGenerator[None]:
        """Surround the call of an async function."""
        async with self._fetches:
            with self._at("fetching"):
                yield
        self._move(None, "fetched")

    @asynccontextmanager
    async def awrite(self) -> AsyncGenerator[None]:
        """Surround a write from a loop."""
        with self._until_turn():
            await self._writes.acquire()
        try:
            with self._at("writing"):
                yield
        finally:
            self._writes.release()

    @contextmanager
    def _until_turn(self) -> Generator[None]:
        try:
            yield
        finally:
            self._move("fetched", None)

    @contextmanager
    def _at(self, stage: str) -> Generator[None]:
        """Be at a stage, unless nobody is there to be told any more."""
        if self._is_over:
            raise Left
        self._move(None, stage)
        try:
            yield
        finally:
            self._move(stage, None)

    def _move(self, before: str | None, after: str | None) -> None:
        with self._lock:
            if before is not None:
                self._counts[before] -= 1
            if after is not None:
                self._counts[after] += 1


class Bar(Protocol):
    """A progress bar."""

    def update(self, n: int) -> Any:
        """Go on by so many."""

    def close(self) -> None:
        """Leave the last picture."""


class _Many:
    """What threads and tasks have in common."""

    _run: Any

    def __init__(self, arguments: object, stages: Stages, *, progress: bool) -> None:
        self._stages = stages
        self._bar = _bar(arguments) if progress else None

    def __del__(self) -> None:
        self._stages.end()

    def snapshot(self) -> Snapshot:
        """Return where the arguments are; see `fan_out`."""
        return self._run.snapshot()  # type: ignore[no-any-return]

    def accounting(self) -> ManyAccounting:
        """Return the count of all pulled arguments."""
        return self._stages.accounting(self._run.accounting())

    def _note(self, outcome: Outcome[Any, Any]) -> None:
        self._stages.count(outcome)
        if self._bar is not None:
            self._bar.update(1)

    def _finish(self) -> None:
        self._stages.end()
        if self._bar is not None:
            self._bar.close()


class Many(_Many, Generic[R]):
    """The calls of one function with many arguments, over threads; iterate over their outcomes.

    As with `fan_out`: best inside of ``with``; leaving early stops pulling and joins the workers,
    and what was fetched by then is not written.

    Args:
        call: Makes one call, with an argument as `spread` takes it.
        arguments: Pulled lazily.
        stages: The bounds of fetches and writes.
        progress: Whether to show a bar on a terminal.
        options: For `fan_out`.
    """

    def __init__(
        self,
        call: Callable[[Stages, Any], R],
        arguments: Iterable[Any],
        stages: Stages,
        *,
        progress: bool,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(arguments, stages, progress=progress)

        def one(argument: Any) -> R:
            try:
                return call(stages, argument)
            except Left:
                raise CallCancelled("caller-gone") from None

        self._run = fan_out(one, arguments, workers=stages.workers, **options)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Outcome[Any, R]:
        try:
            outcome: Outcome[Any, R] = next(self._run)
        except BaseException:
            self._finish()
            raise
        self._note(outcome)
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop pulling, write nothing more, join the workers; calling it twice does no harm."""
        self._finish()
        self._run.close()


class AsyncMany(_Many, Generic[R]):
    """The calls of one async function with many arguments, over tasks; see `Many`."""

    def __init__(
        self,
        call: Callable[[Stages, Any], Awaitable[R]],
        arguments: Iterable[Any] | AsyncIterable[Any],
        stages: Stages,
        *,
        progress: bool,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(arguments, stages, progress=progress)

        async def one(argument: Any) -> R:
            try:
                return await call(stages, argument)
            except Left:
                raise CallCancelled("caller-gone") from None

        self._run = afan_out(one, arguments, workers=stages.workers, **options)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome[Any, R]:
        try:
            outcome: Outcome[Any, R] = await anext(self._run)
        except BaseException:
            self._finish()
            raise
        self._note(outcome)
        return outcome

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop pulling, write nothing more, cancel and await the tasks."""
        self._finish()
        await self._run.aclose()


_NONE: Final[Mapping[str, Any]] = {}


def spread(argument: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the positional and the keyword arguments that one element stands for.

    A tuple is spread over the parameters, a mapping over the keywords; anything else is the one
    argument.
    """
    if isinstance(argument, tuple):
        return argument, _NONE
    if isinstance(argument, Mapping):
        return (), argument
    return (argument,), _NONE


def _bar(arguments: object) -> Bar:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            "progress=True needs tqdm, which is not installed: pip install "
            "'django-vega-singleflight[progress]'"
        ) from error
    total = len(arguments) if isinstance(arguments, Sized) else None
    # None: only where stderr is a terminal.
    return tqdm(total=total, unit="call", disable=None)
