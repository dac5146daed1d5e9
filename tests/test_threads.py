"""The threads of the tests: together, in bounded time, no exception lost."""

import queue
import threading

import pytest

from tests import threads
from tests.threads import ThreadHangs, results, run_together, start, start_together


def test_values_come_in_the_order_given__all_threads_overlap() -> None:
    """Each function meets the others inside, and the values keep the order of the arguments."""
    meeting = threading.Barrier(3)

    def caller(value: int) -> int:
        meeting.wait(10)
        return value

    assert run_together(lambda: caller(1), lambda: caller(2), lambda: caller(3)) == [1, 2, 3]


def test_first_exception_reaches_the_test__others_follow() -> None:
    """Of several exceptions the one that was raised first is re-raised."""
    first_thread: queue.Queue[threading.Thread] = queue.Queue()

    def first() -> None:
        first_thread.put(threading.current_thread())
        raise LookupError("first")

    def second() -> None:
        first_thread.get(timeout=10).join(10)
        raise ValueError("second")

    with pytest.raises(LookupError, match="first"):
        run_together(second, first)


def test_hanging_thread_is_shown_where_it_stands__nothing_raised() -> None:
    """The error of a thread that does not end names the function it waits in."""
    entered, gate = threading.Event(), threading.Event()

    def stuck_at_the_gate() -> None:
        entered.set()
        gate.wait(10)

    running = start(stuck_at_the_gate)
    assert entered.wait(10)
    with pytest.raises(ThreadHangs, match="in stuck_at_the_gate"):
        running.join(timeout=0)
    gate.set()


def test_exception_is_the_news__another_thread_hangs_because_of_it() -> None:
    """A hanging thread is but a note on the exception that explains it."""
    gate = threading.Event()

    def raises() -> None:
        raise LookupError("no quake")

    def waits() -> None:
        gate.wait(10)

    everyone = start_together(raises, waits)
    everyone[0].join()
    with pytest.raises(LookupError, match="no quake") as caught:
        results(everyone, timeout=0)
    assert "'test: waits' still runs" in caught.value.__notes__[0]
    gate.set()


def test_background_thread_gives_its_value__left_and_asked_later() -> None:
    """A block around a background thread joins it; the value stays."""
    gate = threading.Event()

    def waits() -> str:
        assert gate.wait(10)
        return "value"

    with start(waits) as running:
        assert running.is_running
        gate.set()
    assert not running.is_running
    assert running.result() == "value"


def test_interrupts_are_results_too__raised_in_a_thread() -> None:
    """KeyboardInterrupt and SystemExit of a thread reach whoever asks for its result."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(interrupted).result()


def test_forgotten_exception_fails_the_test__nobody_asked_for_the_result() -> None:
    """The end of a test raises what its threads raised unseen, then forgets them."""

    def raises() -> None:
        raise LookupError("no quake")

    start(raises)
    with pytest.raises(AssertionError, match="nobody asked") as caught:
        threads.end_all()
    assert isinstance(caught.value.__cause__, LookupError)
    threads.end_all()
