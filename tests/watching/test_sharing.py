"""Many watchers of one set on threads and event loops: one query, in order, and nobody is lost."""

import asyncio
import contextlib
import gc
import itertools
import threading
from functools import partial
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.contrib.auth.models import Group, User
from django.db import DatabaseError, connections, transaction
from django.db.models import DecimalField, ExpressionWrapper, F, FloatField, Prefetch, Value

from django_vega.core.watches import LINGER, PATIENCE
from django_vega.runtime.watching import hub
from django_vega.watching.query import watch
from tests import threads
from tests.gates import TIMEOUT, interrupt
from tests.integration.repository import run
from tests.watching.stage import END, Stage, codes, present, quake, quakes, waiting
from tests.writing_app.models import Quake, QuakeReport

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def awaiting(count: int, **options: Any) -> None:
    """Wait until so many watchers wait."""
    await asyncio.to_thread(partial(waiting, count, **options))


# One query


def test_threads__one_query_for_all(stage):
    """Watchers on many threads share the first query, and one more for each change."""
    read, together = stage.stop_next("after"), threading.Barrier(5)

    def consume() -> list[list[str]]:
        rows = iter(watch(quakes(stage), timeout=TIMEOUT))
        seen = [codes(next(rows))]
        together.wait(TIMEOUT)
        seen.append(codes(next(rows)))
        rows.close()
        return seen

    running = [threads.start(consume) for _ in range(4)]
    assert read.reached.wait(TIMEOUT)
    waiting(3)
    read.go()
    together.wait(TIMEOUT)
    waiting(4, for_a_change=True)
    quake("a")
    assert threads.results(running) == [[[], ["a"]]] * 4
    assert (stage.queries, stage.at_once) == (2, 1)


def test_tasks__one_query_for_all(stage):
    """Watchers on one loop share the first query, and one more for each change."""

    async def consume() -> list[list[str]]:
        rows = aiter(watch(quakes(stage)))
        seen = [codes(await anext(rows))]
        seen.append(codes(await anext(rows)))
        await rows.aclose()
        return seen

    async def main() -> Any:
        tasks = [asyncio.ensure_future(consume()) for _ in range(20)]
        await awaiting(20, for_a_change=True)
        await Quake.objects.acreate(code="a")
        return await asyncio.gather(*tasks)

    assert run(main) == [[[], ["a"]]] * 20
    assert (stage.queries, stage.at_once) == (2, 1)


def test_threads_and_loops__share_one_set(stage):
    """Two loops and a thread watch one set: queries run one at a time, and all see the last row."""
    everybody = 3

    def in_thread() -> list[str]:
        for rows in watch(quakes(stage), timeout=TIMEOUT):
            if len(rows) == 3:
                return codes(rows)
        raise AssertionError("the iteration ended")

    async def in_loop() -> list[str]:
        async for rows in watch(quakes(stage)):
            if len(rows) == 3:
                return codes(rows)
        raise AssertionError("the iteration ended")

    running = [
        threads.start(in_thread),
        *(threads.start(lambda: run(in_loop)) for _ in range(everybody - 1)),
    ]
    for code in "abc":
        waiting(everybody)
        quake(code)
    assert threads.results(running) == [["a", "b", "c"]] * everybody
    assert stage.at_once == 1
    assert stage.queries <= 4


def test_lists_are_ones_own__rows_are_shared(stage):
    """A watcher may sort or cut its list; rows are the same objects for everybody."""
    quake("a")
    one, two = iter(watch(quakes(stage), timeout=0)), iter(watch(quakes(stage), timeout=0))
    mine, theirs = next(one), next(two)
    assert mine[0] is theirs[0]
    mine.clear()
    assert codes(theirs) == ["a"]
    assert codes(next(iter(watch(quakes(stage), timeout=0)))) == ["a"]
    assert stage.queries == 1


NUMBER = F("magnitude") + Value(1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: Quake.objects.filter(code="a"), lambda: Quake.objects.filter(code="b")),
        (lambda: Quake.objects.filter(pk=1), Quake.objects.all),
        (Quake.objects.all, QuakeReport.objects.all),
        (lambda: Quake.objects.values("code"), lambda: Quake.objects.values_list("code")),
        (
            lambda: Quake.objects.values_list("code"),
            lambda: Quake.objects.values_list("code", flat=True),
        ),
        (
            lambda: Quake.objects.values_list("code", "place"),
            lambda: Quake.objects.values_list("code", "place", named=True),
        ),
        (lambda: Quake.objects.using("default"), lambda: Quake.objects.using("other")),
        (User.objects.all, lambda: User.objects.prefetch_related("groups")),
        (
            lambda: User.objects.prefetch_related("groups"),
            lambda: User.objects.prefetch_related(Prefetch("groups", Group.objects.none())),
        ),
        (
            lambda: User.objects.prefetch_related(Prefetch("groups", Group.objects.all())),
            lambda: User.objects.prefetch_related(Prefetch("groups", Group.objects.filter(pk=1))),
        ),
        (
            lambda: Quake.objects.annotate(n=ExpressionWrapper(NUMBER, FloatField())),
            lambda: Quake.objects.annotate(n=ExpressionWrapper(NUMBER, DecimalField())),
        ),
    ],
    ids=[
        *("parameter", "statement", "proxy", "values", "flat", "named", "database"),
        *("prefetch", "prefetched", "prefetched queryset", "conversion"),
    ],
)
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_querysets_that_give_different_rows__are_different_sets(one, other):
    """What may differ in its rows is never merged; the same built twice is one set."""
    kept = [iter(watch(queryset(), timeout=0)) for queryset in (one, one, other)]
    for rows in kept:
        next(rows)
    assert len(hub) == 2


# Order, and no lost change


def test_change_after_the_query_has_read__leads_to_another_query(stage):
    """Query reads, a change commits, query ends: the watcher gets the old rows, then the new."""
    read = stage.stop_next("after")
    with threads.start(lambda: take(quakes(stage), 2)) as running:
        assert read.reached.wait(TIMEOUT)
        quake("a")
        read.go()
    assert running.result() == [[], ["a"]]
    assert stage.queries == 2


def test_change_before_the_query_reads__is_in_its_result_and_counts(stage):
    """Query begins, a change commits, query reads: both results have it, nothing is lost."""
    read = stage.stop_next("before")
    with threads.start(lambda: take(quakes(stage), 2)) as running:
        assert read.reached.wait(TIMEOUT)
        quake("a")
        read.go()
    assert running.result() == [["a"], ["a"]]
    assert stage.queries == 2


def take(queryset: Any, count: int) -> list[list[str]]:
    """Take so many results."""
    return [codes(rows) for rows in itertools.islice(watch(queryset, timeout=TIMEOUT), count)]


def test_burst_while_a_query_runs__one_more_query(stage):
    """Many commits during a query are one change."""
    read = stage.stop_next("after")
    with threads.start(lambda: take(quakes(stage), 2)) as running:
        assert read.reached.wait(TIMEOUT)
        for code in "abcdefgh":
            quake(code)
        read.go()
    assert running.result() == [[], list("abcdefgh")]
    assert stage.queries == 2


def test_watcher_that_comes_after_a_change__never_gets_what_was_read_before(stage):
    """Who saved and then watches sees the row, though a query from before is still running."""
    read = stage.stop_next("after")
    with threads.start(lambda: take(quakes(stage), 1)) as early:
        assert read.reached.wait(TIMEOUT)

        def save_and_watch() -> list[list[str]]:
            quake("a")
            return take(quakes(stage), 1)

        late = threads.start(save_and_watch)
        waiting(1)
        read.go()
    assert (early.result(), late.result()) == ([[]], [["a"]])


def test_results_never_go_back__under_many_writers(stage):
    """Whatever the interleaving, no watcher gets fewer rows after more, and all get the last."""
    writers, each = 3, 5

    def consume() -> list[int]:
        sizes = []
        for rows in watch(quakes(stage), timeout=TIMEOUT):
            sizes.append(len(rows))
            if len(rows) == writers * each:
                break
        return sizes

    async def aconsume() -> list[int]:
        sizes = []
        async for rows in watch(quakes(stage)):
            sizes.append(len(rows))
            if len(rows) == writers * each:
                break
        return sizes

    def write(name: int) -> list[int]:
        for number in range(each):
            with transaction.atomic():
                quake(f"{name}-{number}")
        return []

    seen = threads.run_together(
        consume,
        consume,
        lambda: run(aconsume),
        *(lambda name=name: write(name) for name in range(writers)),
        timeout=30,
    )
    for sizes in seen[:3]:
        assert sizes == sorted(sizes)
        assert sizes[-1] == writers * each
    assert stage.at_once == 1


# Leaving


def test_cancelled_while_it_reads__the_others_get_the_result(stage):
    """The task whose thread runs the shared query is cancelled; nobody else notices."""

    async def main() -> Any:
        read = stage.stop_next("after")
        first = asyncio.ensure_future(anext(aiter(watch(quakes(stage)))))
        await asyncio.to_thread(read.reached.wait, TIMEOUT)
        second = asyncio.ensure_future(anext(aiter(watch(quakes(stage)))))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        read.go()
        return codes(await second)

    assert run(main) == []
    assert stage.queries == 1


def test_cancelled_before_it_reads__another_one_reads(stage):
    """The task that has sent for a thread is cancelled before that is free; the next one reads."""

    async def main() -> Any:
        free = threading.Event()
        queryset = watch(quakes(stage))
        first, second = aiter(queryset), aiter(queryset)
        await anext(first)
        await anext(second)
        busy = asyncio.ensure_future(sync_to_async(free.wait)(TIMEOUT))
        await asyncio.to_thread(quake_and_close, "a")
        one = asyncio.ensure_future(anext(first))
        while not somebody_has_sent():
            await asyncio.sleep(0)
        two = asyncio.ensure_future(anext(second))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.wait([one])
        assert one.cancelled()
        free.set()
        assert await busy
        assert codes(await two) == ["a"]
        # A cancelled wait has not ended the iteration.
        assert codes(await anext(first)) == ["a"]
        await first.aclose()
        await second.aclose()

    run(main)
    assert stage.queries == 2


def somebody_has_sent() -> bool:
    """Tell whether an async watcher waits for a thread."""
    return any(watcher.watched.sent for watcher in present())


def quake_and_close(code: str) -> None:
    """Save one, on a thread that keeps no connection."""
    quake(code)
    connections.close_all()


def test_interrupted_while_it_reads__another_one_reads(stage):
    """A thread that gets KeyboardInterrupt in the shared query keeps it; the next one reads."""
    read = stage.stop_next("before")
    first = threads.start(lambda: take(quakes(stage), 1))
    assert read.reached.wait(TIMEOUT)
    second = threads.start(lambda: take(quakes(stage), 1))
    waiting(1)
    interrupt(first)
    read.go()
    assert isinstance(first.exception(), KeyboardInterrupt)
    assert second.result() == [[]]
    assert stage.queries == 2


def test_thread_that_blocks_the_loops_thread__reads_itself(stage):
    """A thread never waits for an async watcher whose query needs that very thread."""

    async def main() -> Any:
        loop_rows = aiter(watch(quakes(stage)))
        await anext(loop_rows)
        entered, sent = threading.Event(), threading.Event()

        def block() -> list[str]:
            """Sit on the thread of the loop's sync code, and watch."""
            thread_rows = iter(watch(quakes(stage), timeout=TIMEOUT))
            next(thread_rows)
            entered.set()
            assert sent.wait(TIMEOUT)
            return codes(next(thread_rows))

        blocking = asyncio.ensure_future(sync_to_async(block)())
        await asyncio.to_thread(entered.wait, TIMEOUT)
        await asyncio.to_thread(quake_and_close, "a")
        waits = asyncio.ensure_future(anext(loop_rows))
        while not somebody_has_sent():
            await asyncio.sleep(0)
        sent.set()
        return await blocking, codes(await waits)

    assert run(main) == (["a"], ["a"])
    assert stage.queries == 2


def test_loop_that_goes_away_with_the_turn_to_read__others_read(stage, clock):
    """A loop that is stopped before its query began holds nobody up."""
    free, stuck = threading.Event(), []

    async def get_stuck() -> None:
        rows = aiter(watch(quakes(stage)))
        await anext(rows)
        stuck.append(asyncio.ensure_future(sync_to_async(free.wait)(TIMEOUT)))
        await asyncio.to_thread(quake_and_close, "a")
        stuck.append(asyncio.ensure_future(anext(rows)))
        while not somebody_has_sent():
            await asyncio.sleep(0)

    async def go_on() -> list[str]:
        # As in another request: it has another thread for its queries.
        async with ThreadSensitiveContext():
            found = codes(await anext(aiter(watch(quakes(stage)))))
            await sync_to_async(connections.close_all)()
            return found

    with asyncio.Runner() as runner:
        runner.run(get_stuck())
        clock.now += PATIENCE
        assert threads.start(lambda: asyncio.run(go_on())).result() == ["a"]
        free.set()
        with contextlib.suppress(asyncio.CancelledError):
            stuck[1].cancel()
            runner.run(asyncio.wait(stuck))
        runner.run(sync_to_async(connections.close_all)())
    stuck.clear()


def test_loop_that_is_closed_while_somebody_waits__saving_goes_on(stage):
    """A watcher whose loop is closed cannot be told; nobody else notices."""
    rows = iter(watch(quakes(stage), timeout=0))
    loop, kept = asyncio.new_event_loop(), []

    async def wait_for_ever() -> None:
        iteration = aiter(watch(quakes(stage)))
        await anext(iteration)
        task = asyncio.ensure_future(anext(iteration))
        task._log_destroy_pending = False  # it is, on purpose
        kept.append(task)
        await awaiting(1, for_a_change=True)
        await sync_to_async(connections.close_all)()

    loop.run_until_complete(wait_for_ever())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    next(rows)
    quake("a")
    assert codes(next(rows)) == ["a"]
    kept.clear()


# Errors


def test_error_of_the_shared_query__each_watcher_has_its_own(stage):
    """Everybody who waits for it gets an instance of its own; the next watcher reads anew."""
    read = stage.stop_next("after")
    error = DatabaseError("gone")
    running = [threads.start(lambda: take(quakes(stage), 1)) for _ in range(3)]
    assert read.reached.wait(TIMEOUT)
    waiting(2)
    read.go(error)
    raised = [one.exception() for one in running]
    assert [(type(one), str(one), one.__cause__) for one in raised] == [
        (DatabaseError, "gone", error)
    ] * 3
    assert len({id(one) for one in raised}) == 3
    assert take(quakes(stage), 1) == [[]]
    assert stage.queries == 2


# Five seconds


def test_coming_back_within_five_seconds__no_query(stage, clock):
    """The result outlives its last watcher by 5 s, on threads and loops alike."""
    take(quakes(stage), 1)
    clock.now += LINGER - 0.1

    async def come_back() -> list[str]:
        async for rows in watch(quakes(stage)):
            return codes(rows)
        raise AssertionError("the iteration ended")

    assert run(come_back) == []
    assert stage.queries == 1
    clock.now += LINGER
    assert len(hub) == 0
    assert run(come_back) == []
    assert stage.queries == 2


def test_coming_back_after_a_change__one_query(stage):
    """What has changed meanwhile is read anew."""
    take(quakes(stage), 1)
    quake("a")
    assert take(quakes(stage), 1) == [["a"]]
    assert stage.queries == 2


def test_breaking_out__is_leaving(stage, clock):
    """A loop that is left lets go of its set at once: `break`, `close`, and `aclose`."""

    async def main() -> None:
        async for _ in watch(quakes(stage)):
            break
        rows = aiter(watch(quakes(stage)))
        await anext(rows)
        await rows.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(rows)

    for _ in watch(quakes(stage)):
        break
    rows = iter(watch(quakes(stage)))
    next(rows)
    rows.close()
    assert next(rows, END) == END
    run(main)
    assert present() == []


def test_collected_in_the_middle_of_a_step__does_no_harm(stage):
    """The garbage collector may end an iteration while its thread takes a step of the hub."""
    ring: list[Any] = [iter(watch(quakes(stage), timeout=0))]
    next(ring[0])
    ring.append(ring)
    stays = iter(watch(quakes(stage), timeout=0))
    next(stays)
    watchers = present()[0].watched.watchers

    def step(_: float) -> None:
        for _ in watchers:
            gc.collect()

    del ring
    hub._take(step)
    assert len(hub) == 1  # the next step lets go of what was collected
    assert len(watchers) == 1


def test_ten_thousand_sets__nothing_is_kept(clock):
    """Sets that came and went are forgotten, with what was kept for them."""
    for number in range(500):
        for _ in watch(Quake.objects.filter(pk=number)):
            break
        clock.now += 0.5
    assert len(hub) <= LINGER / 0.5
    clock.now += LINGER
    assert len(hub) == 0


# The end of waits


def test_timeout__ends_the_iteration(clock):
    """After so many seconds without a change the iteration ends; with one it goes on."""
    rows = iter(watch(Quake.objects.order_by("code"), timeout=3))
    assert next(rows) == []
    quake("a")
    assert codes(next(rows)) == ["a"]
    with threads.start(lambda: next(rows, END)) as running:
        waiting(1)
        clock.now += 3
        hub._take(lambda _: hub._watches.wake_all())
    assert running.result() == END


def test_timeout__of_a_loop(clock):
    """The same with `async for`."""

    async def main() -> list[list[str]]:
        return [codes(rows) async for rows in watch(Quake.objects.all(), timeout=0)]

    assert run(main) == [[]]


def test_first_result_comes__whatever_the_timeout(stage):
    """A watcher that finds a query under way waits for it: no timeout makes an empty answer."""
    quake("a")
    read = stage.stop_next("after")
    with threads.start(lambda: take(quakes(stage), 1)):
        assert read.reached.wait(TIMEOUT)
        with threads.start(lambda: [codes(r) for r in watch(quakes(stage), timeout=0)]) as running:
            waiting(1)
            read.go()
    assert running.result() == [["a"]]


def test_two_threads_on_one_iteration__raises(stage):
    """An iteration belongs to one thread at a time; the second one is told what to do."""
    rows = iter(watch(quakes(stage), timeout=TIMEOUT))
    read = stage.stop_next("after")
    with threads.start(lambda: next(rows)):
        assert read.reached.wait(TIMEOUT)
        with pytest.raises(RuntimeError, match="watch itself"):
            next(rows)
        read.go()
    rows.close()


def test_inside_async_to_sync__the_callers_transaction_is_refused():
    """An async watcher whose queries run in its caller's transaction is refused as well."""

    async def main() -> None:
        async for _ in watch(Quake.objects.all()):
            break

    with transaction.atomic(), pytest.raises(transaction.TransactionManagementError):
        async_to_sync(main)()
