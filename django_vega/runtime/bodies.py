"""Bodies of async flights as other threads see them: whether they are gone, and stopping them."""

from __future__ import annotations

import asyncio
import logging

from django_vega.core.call import Call

logger = logging.getLogger("django_vega")


def is_lost(call: Call) -> bool:
    """Whether the event loop that runs the call's body, or was about to, is closed."""
    if call.ended or call.state == "parked":  # of parked calls the queue takes care
        return False
    if call.body is not None:
        return bool(call.body.get_loop().is_closed())
    # Queued in a loop's pool, or let go by a queue and not yet back on its loop. Threads have none.
    loop = getattr(call.pool or call.caller, "loop", None)
    try:
        return loop is not None and loop.is_closed()
    except ReferenceError:  # the pool does not keep its loop alive
        return True


def stop_body(call: Call) -> None:
    """Ask the body of a cancelled async flight to stop at its next await."""
    task = call.body
    if task is None:
        return
    loop = task.get_loop()
    if asyncio._get_running_loop() is loop:
        task.cancel()
        return
    try:
        loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:
        logger.debug("the loop of %r is closed; its body is gone", call)
