"""Steps that may have to ask a server, written once and taken by threads and by event loops.

A generator yields what blocks: a request to be made, or a turn to be waited for. A thread makes the
request itself; an event loop lets another thread make it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeAlias, TypeVar

from django_vega.runtime.outcomes import LOOK_AGAIN

T = TypeVar("T")


class Turn:
    """A step that waits until somebody wakes the waiter, which is of the kind of its caller."""

    __slots__ = ("waiter",)

    def __init__(self, waiter: Any) -> None:
        self.waiter = waiter


Request: TypeAlias = Callable[[], Any]
Steps: TypeAlias = Generator[Request | Turn, Any, T]


def take(steps: Steps[T]) -> T:
    """Take all steps on this thread and return what they come to."""
    try:
        _walk(steps, _block).send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("what blocks its thread has nothing to suspend")


async def atake(steps: Steps[T], executor: Executor) -> T:
    """Take all steps from an event loop; the requests are made on a thread of ``executor``.

    One that is under way when the task is cancelled goes on there; the steps undo it afterwards.
    """
    return await _walk(steps, partial(_await, executor))


async def _walk(steps: Steps[T], make: Callable[[Request | Turn], Coroutine[Any, Any, Any]]) -> T:
    reply: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(reply) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        reply = error = None
        try:
            reply = await make(step)
        except BaseException as raised:  # noqa: BLE001 - the steps decide
            error = raised


async def _block(step: Request | Turn) -> Any:
    return step.waiter.wait(LOOK_AGAIN) if isinstance(step, Turn) else step()


async def _await(executor: Executor, step: Request | Turn) -> Any:
    if isinstance(step, Turn):
        return await step.waiter.wait(LOOK_AGAIN)
    try:
        future = asyncio.get_running_loop().run_in_executor(executor, step)
    except RuntimeError:
        return step()  # the coordinator is closed: what is still to be said is said here
    return await future
