"""Processes that refresh at the same time, each with connections of its own.

Imported by the processes before Django is set up, so Django's parts are imported late.
"""

import multiprocessing
import os
import random
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

# For everything that a crowd does, start of its interpreters included, on a loaded machine.
TIMEOUT = 90.0

Work = Callable[[int, Callable[[], object]], list[str]]


def run(work: Work, size: int, options: dict[str, Any]) -> Counter[str]:
    """Do `work` in so many processes on the database of the test, and count what came of it.

    Args:
        work: Gets the number of its process and a function that waits for all the others.
        size: How many processes.
        options: Added to the OPTIONS of the default database.

    Raises:
        AssertionError: A process raised; the message has its traceback.
    """
    from django.db import connections

    settings = connections["default"].settings_dict
    database = {"NAME": settings["NAME"], "OPTIONS": settings["OPTIONS"] | options}
    spawn = multiprocessing.get_context("spawn")
    everyone, results = spawn.Barrier(size), spawn.Queue()
    processes = [
        spawn.Process(target=_member, args=(work, number, database, everyone, results))
        for number in range(size)
    ]
    for process in processes:
        process.start()
    try:
        done = [results.get(timeout=TIMEOUT) for _ in processes]
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)
    failed = [result for result in done if isinstance(result, str)]
    # One that fails breaks the barrier for the others: its traceback is the news.
    assert not failed, min(failed, key=lambda text: "BrokenBarrierError" in text)
    return Counter(outcome for result in done for outcome in result)


def refresh_new_keys(number: int, together: Callable[[], object]) -> list[str]:
    """Refresh 100 keys that nobody has refreshed before, each together with all the others."""
    from django_vega.core.clock import HybridClock, SystemClock
    from tests.writing.refreshing import refresh

    clock = HybridClock(SystemClock())
    outcomes = []
    for key in range(100):
        together()
        generation = clock.next()
        rows = [{"code": f"{key}:{n}", "place": str(generation)} for n in range(3)]
        outcomes.append(refresh(rows, generation, key=f"quakes:{key}").outcome)
    return outcomes


def refresh_the_same_rows(number: int, together: Callable[[], object]) -> list[str]:
    """Refresh a key of its own whose rows are those of all the others, in any order."""
    from tests.writing.refreshing import refresh

    order = random.Random(number)
    outcomes = []
    for generation in range(1, 51):
        rows = [{"code": str(n), "place": f"{number}:{generation}"} for n in range(20)]
        order.shuffle(rows)
        together()
        outcomes.append(refresh(rows, generation, key=f"quakes:{number}").outcome)
    return outcomes


def _member(work: Work, number: int, database: dict[str, Any], everyone: Any, results: Any) -> None:
    try:
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        import django
        from django.conf import settings

        settings.DATABASES["default"] |= database
        django.setup()
        outcomes = work(number, lambda: everyone.wait(TIMEOUT))
    except BaseException:
        everyone.abort()
        results.put(traceback.format_exc())
    else:
        results.put(outcomes)
