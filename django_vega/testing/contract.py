"""What every backend has to keep: subclass `BackendContract` and let pytest, or unittest, run it.

    class TestMine(BackendContract, unittest.TestCase):
        def alias(self):
            return {"BACKEND": "mine.Backend", "LOCATION": "…"}

Gates and events decide the order; nothing is timed. A backend that processes share is tried with
two aliases of the same settings, each of which has a coordinator as a process of its own would.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.test import override_settings

from django_vega import close, coordinated, coordinator, in_flight, subscribe
from django_vega.core.admission import CoordinationContext
from django_vega.core.errors import CallCancelled, QueueFull, RemoteCallError
from django_vega.core.strategies import Strategy, bounded
from django_vega.handler import handler

# Only a defect gets here.
_TIMEOUT: Final = 30.0

# Each call has one of these while the others stand still: it runs, is held, shares, or is over.
_ARRIVED: Final = ("call:running", "call:parked", "coordination:reuse", "coordination:dropped")

_numbers = itertools.count(1)


@coordinator("share-the-oldest")
def _share_the_oldest(ctx: CoordinationContext) -> None:
    peers = ctx.peers()
    if peers:
        ctx.reuse(peers[0])
    else:
        ctx.proceed()


class Caller:
    """A call on a thread of its own, and what it came to."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(_TIMEOUT)
        assert not self._thread.is_alive(), "a caller hangs"

    def _run(self) -> None:
        try:
            self.value = self._call()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error


class Stage:
    """One key, the functions of as many processes as take part, and a gate in front of bodies.

    Args:
        aliases: One per process.
    """

    def __init__(self, aliases: list[str]) -> None:
        self.gate = threading.Event()
        self.values = itertools.count()
        self.end: Callable[[int], Any] = lambda number: number
        scope = f"contract-{uuid.uuid4().hex}"
        self.functions = [
            coordinated(key="work", scope=scope, using=one)(self._work) for one in aliases
        ]
        self._arrived: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._unsubscribe = subscribe(self._note, _ARRIVED)

    def arrive(self, count: int, process: int = 0, **options: Any) -> list[Caller]:
        """Let calls come one after the other; each has arrived when the next one comes."""
        function = self.functions[process].with_options(**options)
        callers = []
        for _ in range(count):
            with self._changed:
                expected = sum(self._arrived.values()) + 1
            callers.append(Caller(function))
            self._wait_for(expected)
        return callers

    def finish(self, callers: list[Caller]) -> list[Any]:
        """Let all bodies end; returns what each caller got, errors by the name of their type."""
        self.gate.set()
        for caller in callers:
            caller.join()
        return [
            caller.value if caller.error is None else type(caller.error).__name__
            for caller in callers
        ]

    def close(self) -> None:
        """Listen no more."""
        self._unsubscribe()

    def _work(self) -> Any:
        number = next(self.values)
        assert self.gate.wait(_TIMEOUT)
        return self.end(number)

    def _wait_for(self, arrivals: int) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: sum(self._arrived.values()) >= arrivals, _TIMEOUT)
        assert came, "a call neither runs nor waits nor is over"

    def _note(self, event: Any) -> None:
        with self._changed:
            self._arrived[event.type] += 1
            self._changed.notify_all()


class BackendContract:
    """Tests of one backend."""

    def alias(self) -> dict[str, Any]:
        """Return the settings of an alias with the backend."""
        raise NotImplementedError

    @contextmanager
    def stage(self, processes: int = 1) -> Iterator[Stage]:
        """Set a stage with as many coordinators, which leave nothing behind."""
        names = [f"contract-{next(_numbers)}" for _ in range(processes)]
        setting = {"default": {}, **{name: self.alias() for name in names}}
        with override_settings(DJANGO_VEGA=setting):
            stage = Stage(names)
            try:
                yield stage
                assert [flight for name in names for flight in in_flight(using=name)] == []
            finally:
                stage.gate.set()
                stage.close()
                for name in names:
                    close(using=name)

    @contextmanager
    def two(self) -> Iterator[Stage | None]:
        """Set a stage for two processes; None where the backend has only one."""
        with self.stage() as probe:
            is_shared = handler.settings(probe.functions[0].definition.using).backend.is_shared
        if not is_shared:
            yield None
            return
        with self.stage(2) as stage:
            yield stage

    # The four calls

    def test_dedupe__one_runs_for_all(self) -> None:
        """All four get the first one's value; the next call runs anew."""
        with self.stage() as stage:
            assert stage.finish(stage.arrive(4)) == [0, 0, 0, 0]
            assert stage.functions[0]() == 1

    def test_dedupe__by_hand(self) -> None:
        """A coordinator that shares the oldest does the same."""
        with self.stage() as stage:
            assert stage.finish(stage.arrive(4, strategy=_share_the_oldest)) == [0, 0, 0, 0]

    def test_restart__the_last_one_runs(self) -> None:
        """Three are cancelled, the last has its own value."""
        with self.stage() as stage:
            callers = stage.arrive(4, strategy="restart")
            assert stage.finish(callers) == [*["CallCancelled"] * 3, 3]

    def test_serialize__in_order(self) -> None:
        """Each has its own value, produced in the order of the calls."""
        with self.stage() as stage:
            assert stage.finish(stage.arrive(4, strategy="serialize")) == [0, 1, 2, 3]

    def test_serialize__at_capacity(self) -> None:
        """Beyond the capacity a call is refused, and those in the queue run."""
        with self.stage() as stage:
            strategy = Strategy(limit=1, when_full="queue", capacity=1)
            callers = stage.arrive(2, strategy=strategy)
            refused = Caller(stage.functions[0].with_options(strategy=strategy))
            refused.join()
            assert isinstance(refused.error, QueueFull)
            assert stage.finish(callers) == [0, 1]

    def test_exhaust__the_first_one_runs(self) -> None:
        """Three are dropped."""
        with self.stage() as stage:
            callers = stage.arrive(4, strategy="exhaust")
            assert stage.finish(callers) == [0, *["CallCancelled"] * 3]

    def test_bounded__two_run(self) -> None:
        """The third and fourth share the oldest."""
        with self.stage() as stage:
            assert stage.finish(stage.arrive(4, strategy=bounded(2))) == [0, 1, 0, 0]

    def test_none__all_run(self) -> None:
        """Each has its own value."""
        with self.stage() as stage:
            assert stage.finish(stage.arrive(4, strategy="none")) == [0, 1, 2, 3]

    def test_failure__reaches_all_and_is_not_remembered(self) -> None:
        """Each has an error of its own; the next call runs."""

        def fail(number: int) -> Any:
            if number == 0:
                raise ValueError("no")
            return number

        with self.stage() as stage:
            stage.end = fail
            callers = stage.arrive(3)
            assert stage.finish(callers) == ["ValueError"] * 3
            assert len({id(caller.error) for caller in callers}) == 3
            assert stage.functions[0]() == 1

    def test_generations__grow(self) -> None:
        """Each call has a higher one than those before it."""
        with self.stage() as stage:
            stage.gate.set()
            calls = [stage.functions[0].submit() for _ in range(3)]
            for call in calls:
                call.result()
            backend = handler.coordinator(stage.functions[0].definition.using).backend
            issued = [backend.next_generation() for _ in range(3)]
            assert issued == sorted({*issued})
            newest = max(call.last_leader().generation or 0 for call in calls)
            assert issued[0] > newest

    # Of two processes

    def test_two__share_one_flight(self) -> None:
        """The value goes over; both run anew afterwards."""
        with self.two() as stage:
            if stage is not None:
                callers = [*stage.arrive(2), *stage.arrive(2, 1)]
                assert stage.finish(callers) == [0, 0, 0, 0]
                assert [stage.functions[1](), stage.functions[0]()] == [1, 2]

    def test_two__an_error_goes_over(self) -> None:
        """As `RemoteCallError`, with type and message."""

        def fail(number: int) -> Any:
            raise ValueError(f"no {number}")

        with self.two() as stage:
            if stage is not None:
                stage.end = fail
                callers = [*stage.arrive(1), *stage.arrive(1, 1)]
                assert stage.finish(callers) == ["ValueError", "RemoteCallError"]
                error = callers[1].error
                assert isinstance(error, RemoteCallError)
                assert (error.type_name, error.message) == ("ValueError", "no 0")

    def test_two__queue_in_order(self) -> None:
        """Calls of two processes run one after the other, in the order in which they came."""
        with self.two() as stage:
            if stage is not None:
                callers = [
                    *stage.arrive(1, 0, strategy="serialize"),
                    *stage.arrive(1, 1, strategy="serialize"),
                    *stage.arrive(1, 0, strategy="serialize"),
                ]
                assert stage.finish(callers) == [0, 1, 2]

    def test_two__restart(self) -> None:
        """A call of one process cancels that of the other."""
        with self.two() as stage:
            if stage is not None:
                callers = [
                    *stage.arrive(1, 0, strategy="restart"),
                    *stage.arrive(1, 1, strategy="restart"),
                ]
                assert stage.finish(callers) == ["CallCancelled", 1]

    def test_two__cancel(self) -> None:
        """Whoever cancels the key ends the flight, wherever it runs."""
        with self.two() as stage:
            if stage is not None:
                callers = [*stage.arrive(1), *stage.arrive(1, 1)]
                assert stage.functions[1].cancel() == 1
                callers[1].join()
                assert isinstance(callers[1].error, CallCancelled)
                assert stage.finish(callers) == ["CallCancelled"] * 2

    def test_two__a_leader_that_is_closed(self) -> None:
        """It hands over: a follower of the other process runs."""
        with self.two() as stage:
            if stage is not None:
                callers = [*stage.arrive(1), *stage.arrive(1, 1)]
                close(using=stage.functions[0].definition.using)
                assert stage.finish(callers) == ["CallCancelled", 1]
