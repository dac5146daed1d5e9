"""One message for six members, and for ten thousand: where each of them is."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from django_vega import fan_out
from django_vega.core.fan import Snapshot
from example_project.scenarios.callers import Callers
from example_project.scenarios.result import Check, Result
from example_project.scenarios.stage import Stage
from example_project.upstream import PATIENCE

MEMBERS: Final = "ABCDEF"
CROWD: Final = 10_000
WORKERS: Final = 2
CAPACITY: Final = 3

# Ten thousand threads end some machines; a tenth of them shows the same.
MOST_THREADS: Final = 1_000


@dataclass(frozen=True)
class Places:
    """Where the targets of a fan-out are at one moment.

    Attributes:
        variant: The moment, or the way of doing it.
        at_work: By worker: whose function runs.
        queued: Admitted, in order.
        held: Pulled, and not admitted.
        pulled: Targets that were taken from their source so far.
        threads: Threads that live for it.
        waiting: Those of them that do nothing but wait.
    """

    HEADINGS: ClassVar[dict[str, tuple[str, str]]] = {
        "at_work": ("", "at work"),
        "queued": ("", "queued"),
        "held": ("", "held"),
        "pulled": ("targets", "pulled"),
        "threads": ("", "threads"),
        "waiting": ("threads", "waiting"),
    }

    variant: str
    at_work: str
    queued: str
    held: str
    pulled: int
    threads: int
    waiting: int


class Delivery:
    """Deliveries that wait until the scenario lets them go on, and a count of who is inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # All under _changed.
        self._open: set[object] = set()
        self._is_open = False
        self._inside: set[int] = set()
        self.threads = 0
        self.pulled = 0

    def deliver(self, member: object) -> None:
        """Deliver to a member; takes until `open`."""
        with self._changed:
            self._inside.add(threading.get_ident())
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open or member in self._open, PATIENCE)
            self._inside.discard(threading.get_ident())

    def members(self, count: int) -> Iterator[int]:
        """Enumerate a crowd, and count how far somebody asked."""
        for number in range(count):
            self.pulled += 1
            yield number

    @property
    def inside(self) -> int:
        """How many threads deliver at the moment."""
        return len(self._inside)

    def open(self, *members: object) -> None:
        """Let deliveries to these members end, or to all."""
        with self._changed:
            self._open.update(members)
            self._is_open |= not members
            self._changed.notify_all()

    def starts(self) -> None:
        """Count a thread that is there, whatever it waits for."""
        with self._changed:
            self.threads += 1
            self._changed.notify_all()

    def wait_for(self, *, inside: int = 0, threads: int = 0) -> None:
        """Wait until so many deliver, and so many threads are there.

        Raises:
            TimeoutError: They did not come.
        """
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self._inside) >= inside and self.threads >= threads, PATIENCE
            )
        if not came:
            raise TimeoutError(f"{self.inside} deliver and {self.threads} threads are there")


class FanOut:
    """Two workers, a queue of three. A holds up a place, B another one; then A is delivered.

    The counter-example starts a thread for each member, and takes the permit inside of it: that
    bounds what is at work, and nothing else.
    """

    name = "fanout"
    promise = "two workers, a queue of three: 5 admitted, the sixth held, however many there are"

    def play(self, stage: Stage) -> Result:
        """Play six members, then a crowd with fan_out and with threads first."""
        del stage  # nobody is asked upstream: what counts is who waits where
        first, second = _six()
        crowd = _crowd()
        counted = _threads_first()
        checks = (
            Check("at t0: at work, queued, held", ("A B", "C D E", "F"), _places(first)),
            Check("at t1: at work, queued, held", ("C B", "D E F", ""), _places(second)),
            Check("pulled of a crowd", WORKERS + CAPACITY + 1, crowd.pulled),
            Check("threads for a crowd", WORKERS, crowd.threads),
            Check("threads of a crowd that wait", 0, crowd.waiting),
        )
        return Result(self.name, self.promise, (first, second, crowd, counted), checks)


def _six() -> tuple[Places, Places]:
    delivery = Delivery()
    before = threading.active_count() + 1  # the reader
    with (
        Callers(1) as reader,
        fan_out(delivery.deliver, MEMBERS, workers=WORKERS, capacity=CAPACITY) as run,
    ):
        reading = reader.start(lambda: next(run))
        delivery.wait_for(inside=WORKERS)
        _wait_until_full(run.snapshot)
        first = _show("t0, A and B at work", run.snapshot(), threading.active_count() - before)
        delivery.open("A")
        reading.result()
        second = _show("t1, A has ended", run.snapshot(), threading.active_count() - before)
        delivery.open()
        for _ in run:
            pass
    return first, second


def _crowd() -> Places:
    delivery = Delivery()
    before = threading.active_count()
    with (
        Callers(1) as reader,
        fan_out(
            delivery.deliver, delivery.members(CROWD), workers=WORKERS, capacity=CAPACITY
        ) as run,
    ):
        reader.start(lambda: next(run))
        delivery.wait_for(inside=WORKERS)
        shown = _wait_until_full(run.snapshot)
        threads = threading.active_count() - before - 1  # without the reader
        places = Places(
            variant=f"{CROWD} members, fan_out",
            at_work=str(len(shown.running)),
            queued=str(len(shown.queued)),
            held=str(len(shown.held)),
            pulled=delivery.pulled,
            threads=threads,
            waiting=threads - delivery.inside,
        )
        delivery.open()
    return places


def _threads_first() -> Places:
    """Start a thread per member, as far as is reasonable; count what is there then."""
    delivery = Delivery()
    permits = threading.Semaphore(WORKERS)
    threads = []

    def work(member: int) -> None:
        delivery.starts()
        with permits:
            delivery.deliver(member)

    try:
        for member in delivery.members(MOST_THREADS):
            thread = threading.Thread(target=work, args=(member,), daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        pass  # the machine has no more of them: what is there is counted
    delivery.wait_for(inside=WORKERS, threads=len(threads))
    places = Places(
        variant=f"threads first, {len(threads)} of {CROWD} started",
        at_work=str(delivery.inside),
        queued="",
        held="",
        pulled=delivery.pulled,
        threads=delivery.threads,
        waiting=delivery.threads - delivery.inside,
    )
    delivery.open()
    for thread in threads:
        thread.join(PATIENCE)
    return places


def _wait_until_full(snapshot: Callable[[], Snapshot]) -> Snapshot:
    """Return the first snapshot in which the producer holds a target."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.001)):
        shown = snapshot()
        if shown.held:
            return shown
        pause.wait(0.001)  # it is about to: nothing but its own speed is in its way
    raise TimeoutError("the fan-out never filled up")


def _show(variant: str, shown: Snapshot, threads: int) -> Places:
    groups = (shown.running, shown.queued, shown.held)
    at_work, queued, held = (" ".join(targets) for targets in groups)
    return Places(
        variant=variant,
        at_work=at_work,
        queued=queued,
        held=held,
        pulled=len(MEMBERS),
        threads=threads,
        waiting=threads - len(shown.running),
    )


def _places(places: Places) -> tuple[str, str, str]:
    return places.at_work, places.queued, places.held
