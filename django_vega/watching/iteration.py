"""Iterating over what is watched: the present result first, then one after each change."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from copy import copy
from typing import Any, Final, Generic, Self, TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections, transaction

from django_vega.core.outcome import replica
from django_vega.core.watches import Result, Step, Watcher
from django_vega.handler import SynchronousCallError
from django_vega.runtime.aio import LoopWaiter
from django_vega.runtime.outcomes import wait_slice
from django_vega.runtime.threads import ThreadWaiter
from django_vega.runtime.watching import hub
from django_vega.writing.transactions import in_foreign_transaction

T = TypeVar("T")

_NOTHING: Final = object()


class Source(ABC, Generic[T]):
    """What is watched, and how it is read.

    Attributes:
        label: For messages.
        alias: The database that it is read from.
    """

    label: str
    alias: str

    @abstractmethod
    def identify(self) -> tuple[Hashable, Iterable[Hashable]]:
        """Return the key of the watched set, and the topics of which each change is a change."""

    @abstractmethod
    def listen(self) -> None:
        """Make sure that the hub hears of changes; called before the first reading."""

    @abstractmethod
    def read(self) -> T:
        """Read what there is."""

    def is_worth_keeping(self) -> bool:
        """Whether a result still tells anything to who comes when nobody had watched."""
        return False

    def for_watcher(self, value: T) -> T:
        """Return what one watcher gets of a value that all of them share."""
        return value

    def is_news(self, value: T, last: T) -> bool:
        """Whether a watcher that had ``last`` gets ``value``."""
        del value, last
        return True


class Watch(Generic[T]):
    """Something to iterate over, with ``for`` and with ``async for``, any number of times.

    Each iteration begins with the present result and ends with its loop, after `with_timeout`, or
    with an error: what reading raised (an instance of its own for each watcher), or
    ``CallCancelled("shutdown")`` after `django_vega.close()`. Begin another one to go on.

    Attributes:
        timeout: See `with_timeout`.

    Raises:
        SynchronousCallError: ``for`` on a running event loop, which it would block.
        TransactionManagementError: Iterated inside a transaction, which sees no later commit, and
            what nobody else may see.
    """

    def __init__(self, source: Source[T], timeout: float | None = None) -> None:
        self._source = source
        self.timeout = _checked(timeout)

    def __repr__(self) -> str:
        return f"<watch of {self._source.label}>"

    def with_timeout(self, timeout: float | None) -> Self:
        """Return the same watch, whose iterations end after some time without a change.

        Args:
            timeout: Seconds to wait for the next result; the first one always comes. 0 takes what
                is there. None: no end.

        Raises:
            TypeError, ValueError: It is no number of seconds, or below 0.
        """
        other = copy(self)
        other.timeout = _checked(timeout)
        return other

    def __iter__(self) -> Iterator[T]:
        return Iteration(self._source, self.timeout)

    def __aiter__(self) -> AsyncIterator[T]:
        return AsyncIteration(self._source, self.timeout)


class _Watching(Generic[T]):
    """What both kinds of iteration have in common; used by one thread or task at a time.

    `__del__` ends what nobody refers to any more, after a ``break``: it takes no lock that this
    thread could not have twice, and needs no event loop.
    """

    _sends = False

    def __init__(self, source: Source[T], timeout: float | None) -> None:
        self._source = source
        self._timeout = timeout
        self._watcher: Watcher | None = None
        self._last: Any = _NOTHING
        self._began = 0.0
        self._is_waiting = False
        self._has_ended = False

    def __del__(self) -> None:
        if self._watcher is not None:
            hub.leave(self._watcher)

    def _end(self) -> None:
        self._has_ended = True
        if self._watcher is not None:
            hub.leave(self._watcher)

    def _begin(self) -> None:
        if self._is_waiting:
            raise RuntimeError(
                f"two threads or tasks wait for the same iteration over {self._source.label}. "
                "Iterate over the watch itself in each of them"
            )
        self._is_waiting = True
        self._began = hub.clock.monotonic()

    def _stop(self) -> None:
        self._is_waiting = False
        if self._watcher is not None:
            hub.stop_waiting(self._watcher)

    def _join(self) -> None:
        """Become a watcher; on a thread that may block."""
        if self._watcher is not None:
            hub.leave(self._watcher)
        self._refuse_transaction()
        self._watcher = hub.join(*self._source.identify())
        self._source.listen()

    def _look(self, waiter: ThreadWaiter | LoopWaiter) -> Step:
        if self._watcher is None:
            return "join"
        return hub.look(self._watcher, waiter, self._source.label, sends=self._sends)

    def _read(self) -> None:
        """Read for everybody, on a thread that may block, unless somebody else has begun."""
        self._refuse_transaction()
        assert self._watcher is not None
        reading = hub.claim(self._watcher)
        if reading is None:
            return
        result = None
        try:
            # Rows of a TestCase's own transaction are gone with the test.
            keeps = self._source.is_worth_keeping() and not self._connection.in_atomic_block
            result = Result(reading.version, self._source.read(), keeps=keeps)
        except Exception as error:  # noqa: BLE001 - every watcher gets it
            result = Result(reading.version, error=error)
        finally:
            if result is None:
                hub.give_up(reading)
            else:
                hub.finish(reading, result)

    def _take(self, result: Result) -> bool:
        """Keep a result for this watcher; False when it is what it had before."""
        if result.error is not None:
            raise replica(result.error)
        last, self._last = self._last, result.value
        return last is _NOTHING or self._source.is_news(result.value, last)

    def _patience(self) -> float | None:
        """Return for how long to wait before looking again; None when the time is over."""
        if self._timeout is None or self._last is _NOTHING:
            return wait_slice(None, 0)
        waited = hub.clock.monotonic() - self._began
        return None if waited >= self._timeout else wait_slice(self._timeout, waited)

    def _value(self) -> T:
        return self._source.for_watcher(self._last)

    @property
    def _connection(self) -> Any:
        return connections[self._source.alias]

    def _refuse_transaction(self) -> None:
        if in_foreign_transaction(self._source.alias):
            raise transaction.TransactionManagementError(
                f"{self._source.label} was watched inside transaction.atomic() on database "
                f"{self._source.alias!r}, where later commits may not be visible and what is "
                "visible may be rolled back. Move the loop out of the block"
            )


class Iteration(_Watching[T], Iterator[T]):
    """One iteration of a thread, which reads on that thread."""

    def __next__(self) -> T:
        if asyncio._get_running_loop() is not None:
            raise SynchronousCallError(
                f"{self._source.label} was watched with `for` on a thread with a running event "
                "loop, which it would block: use `async for`"
            )
        if self._has_ended:
            raise StopIteration
        self._begin()
        try:
            while True:
                waiter = ThreadWaiter(())
                step = self._look(waiter)
                if isinstance(step, Result):
                    if self._take(step):
                        return self._value()
                elif step == "join":
                    self._join()
                elif step == "read":
                    self._read()
                elif (patience := self._patience()) is not None:
                    waiter.wait(patience)
                else:
                    raise StopIteration
        except Exception:
            self._end()
            raise
        finally:
            self._stop()

    def close(self) -> None:
        """End the iteration; so does letting go of it."""
        self._end()


class AsyncIteration(_Watching[T], AsyncIterator[T]):
    """One iteration of a task, which reads on the thread of its sync code.

    A wait that is cancelled ends that wait only; the iteration can go on.
    """

    _sends = True

    async def __anext__(self) -> T:
        if self._has_ended:
            raise StopAsyncIteration
        self._begin()
        try:
            while True:
                waiter = LoopWaiter()
                step = self._look(waiter)
                if isinstance(step, Result):
                    if self._take(step):
                        return self._value()
                elif step == "join":
                    await sync_to_async(self._take_step)(self._join)
                elif step == "read":
                    await sync_to_async(self._take_step)(self._read)
                elif (patience := self._patience()) is not None:
                    await waiter.wait(patience)
                else:
                    raise StopAsyncIteration
        except Exception:
            self._end()
            raise
        finally:
            self._stop()

    async def aclose(self) -> None:
        """End the iteration; so does letting go of it."""
        self._end()

    def _take_step(self, step: Callable[[], None]) -> None:
        """Take a step, and hold no connection until the next change, which may be hours away."""
        try:
            step()
        finally:
            close_old_connections()


def _checked(timeout: object) -> float | None:
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"timeout={timeout!r}: pass a number of seconds, or None for no end")
    if not 0 <= timeout < math.inf:
        raise ValueError(f"timeout={timeout!r}: pass seconds of at least 0, or None for no end")
    return timeout
