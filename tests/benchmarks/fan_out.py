"""What a fan-out costs: ``python -m tests.benchmarks.fan_out``.

Both sides of a comparison run in one process, one after the other in each round, and only their
ratio is told: machines differ. ``--memory`` adds the peak over 1,000 and 1,000,000 targets.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WORKERS = 4
CAPACITY = 16


def main() -> None:
    """Measure, print the table, and the same as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=10_000, help="per round (10000)")
    parser.add_argument("--rounds", type=int, default=7, help="the median of so many counts (7)")
    parser.add_argument("--memory", action="store_true", help="measure peaks, too; takes minutes")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    compared = {
        "fan_out / ThreadPoolExecutor.map": (with_fan_out, with_executor),
        "fan_out without its Django part / ThreadPoolExecutor.map": (
            with_workers_only,
            with_executor,
        ),
        "afan_out / asyncio with a semaphore": (with_afan_out, with_semaphore),
    }
    ratios = {
        name: ratio(ours, theirs, options.targets, options.rounds)
        for name, (ours, theirs) in compared.items()
    }
    say(f"{options.targets} targets that do nothing, {WORKERS} workers, {options.rounds} rounds")
    for name, found in ratios.items():
        say(f"  {name:<58} {found['median']:5.2f}  ({found['least']:.2f} to {found['most']:.2f})")
    document: dict[str, Any] = {"targets": options.targets, "ratios": ratios}
    if options.memory:
        document["peak_blocks"] = {count: peak_blocks(count) for count in (1_000, 1_000_000)}
        for count, blocks in document["peak_blocks"].items():
            say(f"  peak over {count:>9} targets: {blocks} allocated blocks")
    say(json.dumps(document))


def ratio(
    ours: Callable[[int], int], theirs: Callable[[int], int], targets: int, rounds: int
) -> dict[str, float]:
    """Return how much longer ``ours`` takes than ``theirs``, over several rounds."""
    found = []
    for _ in range(rounds):
        our_time, their_time = timed(ours, targets), timed(theirs, targets)
        found.append(our_time / their_time)
    return {
        "median": round(statistics.median(found), 2),
        "least": round(min(found), 2),
        "most": round(max(found), 2),
    }


def timed(run: Callable[[int], int], targets: int) -> float:
    """Return the seconds that a run takes, which has to yield something for each target."""
    gc.collect()
    began = time.perf_counter()
    count = run(targets)
    took = time.perf_counter() - began
    if count != targets:
        raise AssertionError(f"{run.__name__} yielded {count} of {targets}")
    return took


def with_fan_out(targets: int) -> int:
    """Run the public function: context, language and connections for each target."""
    from django_vega.fanout import fan_out

    return count_of(fan_out(identity, range(targets), workers=WORKERS, capacity=CAPACITY))


def with_workers_only(targets: int) -> int:
    """Run it without Django's frame: what the bounds alone cost."""
    from contextlib import nullcontext

    from django_vega.runtime.fan import Plan
    from django_vega.runtime.fanout import FanOut

    class Frame:
        def capture(self) -> Callable[[], Any]:
            return nullcontext

        def thread_ends(self) -> None:
            pass

        def synchronous_call_error(self, message: str) -> Exception:
            return RuntimeError(message)

    plan = Plan(identity, WORKERS, CAPACITY, "wait", None, None, None, None, None)
    return count_of(FanOut(plan, range(targets), Frame()))


def with_executor(targets: int) -> int:
    """Run what has no bounds: all targets are submitted before the first result is read."""
    with ThreadPoolExecutor(WORKERS) as executor:
        return count_of(executor.map(identity, range(targets)))


def with_afan_out(targets: int) -> int:
    """Run it on an event loop."""
    from django_vega.fanout import afan_out

    async def run() -> int:
        count = 0
        async for _ in afan_out(aidentity, range(targets), workers=WORKERS, capacity=CAPACITY):
            count += 1
        return count

    return asyncio.run(run())


def with_semaphore(targets: int) -> int:
    """Run what has no bounds: all tasks are made, and wait inside for their turn."""

    async def run() -> int:
        semaphore = asyncio.Semaphore(WORKERS)

        async def one(target: int) -> int:
            async with semaphore:
                return await aidentity(target)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(target)) for target in range(targets)]
        return count_of(task.result() for task in tasks)

    return asyncio.run(run())


def peak_blocks(targets: int) -> int:
    """Return by how many blocks the allocations grow at most while targets pass through."""
    from django_vega.fanout import fan_out

    gc.collect()
    before = sys.getallocatedblocks()
    peak = 0
    for outcome in fan_out(bytes, (200 for _ in range(targets))):
        del outcome
        peak = max(peak, sys.getallocatedblocks() - before)
    return peak


def count_of(values: Iterable[object]) -> int:
    """Count without keeping."""
    return sum(1 for _ in values)


def identity(target: int) -> int:
    """Do nothing."""
    return target


async def aidentity(target: int) -> int:
    """Do nothing."""
    return target


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
