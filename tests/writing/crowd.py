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


def hammer(
    number: int, together: Callable[[], object], *, size: int, rounds: int, guarded: bool = True
) -> list[str]:
    """Write the same rows again and again, each process with generations and keys of its own.

    In each round some rows are new. What each process writes follows from its number, so the
    first one knows what everybody wrote, and says of every row whether it is as it must be: all
    of it from the newest generation that ever wrote it.
    """
    from contextlib import nullcontext

    from django_vega.writing import rows as rows_module
    from django_vega.writing.upsert import Upsert
    from tests.writing.refreshing import refresh
    from tests.writing_app.models import Shared

    if not guarded:
        rows_module.guarded = lambda *args: nullcontext()  # type: ignore[attr-defined]

    def plan(turn: int, member: int) -> tuple[int, list[str]]:
        chance = random.Random(f"{turn} {member}")
        # Rounds overlap: some generations are older than what the round before wrote.
        generation = chance.randrange(turn * 100, turn * 100 + 300) * size + member + 1
        codes = [f"kept {n}" for n in range(25)] + [f"{turn} {n}" for n in range(20)]
        return generation, chance.sample(codes, 40)

    upsert = Upsert(Shared, ["code"])
    newest: dict[str, int] = {}
    verdicts = []
    for turn in range(rounds):
        generation, codes = plan(turn, number)
        rows = [{"code": c, "place": str(generation), "number": generation} for c in codes]
        together()
        refresh(rows, generation, key=f"{turn} {number}", upsert=upsert)
        together()
        if number:
            continue
        for member in range(size):
            generation, codes = plan(turn, member)
            for code in codes:
                newest[code] = max(newest.get(code, 0), generation)
        there = Shared.objects.filter(code__in=newest).values_list(
            "code", "place", "number", "generation"
        )
        values = {code: tuple(columns) for code, *columns in there}
        for code, expected in newest.items():
            is_right = values.get(code) == (str(expected), expected, expected)
            verdicts.append("right" if is_right else "wrong")
        # Only the kept rows are written again.
        newest = {code: g for code, g in newest.items() if code.startswith("kept")}
    return verdicts


def refresh_mixed_rows_in_opposite_order(number: int, together: Callable[[], object]) -> list[str]:
    """Refresh the same rows, some of them with a primary key, each process others."""
    from tests.writing.refreshing import refresh
    from tests.writing_app.models import Quake

    pks = dict(Quake.objects.values_list("code", "pk"))
    outcomes = []
    for generation in range(1, 41):
        rows = [
            Quake(code=code, pk=pk if (n + number) % 2 else None, place=str(generation))
            for n, (code, pk) in enumerate(pks.items())
        ]
        together()
        result = refresh(rows[:: 1 if number % 2 else -1], generation, key=f"quakes:{number}")
        assert {row.code: row.pk for row in rows} == pks
        outcomes.append(result.outcome)
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


def write_until_told(work: str, database: dict[str, Any], pipe: Any) -> None:
    """Write generation 2 of a key, and stop where `work` says until somebody sends something."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.conf import settings

    settings.DATABASES["default"] |= database
    django.setup()
    from django_vega.writing import rows as rows_module
    from tests.writing.refreshing import refresh

    def stop() -> None:
        pipe.send("there")
        assert pipe.poll(TIMEOUT)
        pipe.recv()

    write = rows_module.Batch.write

    def write_and_stop(*args: Any) -> Any:
        counts = write(*args)
        stop()
        return counts

    if work == "stop before the commit":
        rows_module.Batch.write = write_and_stop  # type: ignore[method-assign]
    begin_writing = stop if work == "stop before the transaction" else bool
    rows = [{"code": "a", "place": "late"}, {"code": "b"}]
    pipe.send(refresh(rows, 2, begin_writing=begin_writing).outcome)
