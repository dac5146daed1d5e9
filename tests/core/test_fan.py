"""Where the targets of a fan-out are: every interleaving is a list of steps."""

import pickle

import pytest

from django_vega.core.fan import Accounting, Limits, Outcome, Snapshot
from django_vega.core.places import Fan, Item, Move


class Play:
    """A fan whose targets are letters, and whose workers begin at once."""

    def __init__(self, workers=2, capacity=3, when_full="wait", timeout=None):
        self.fan = Fan(workers, capacity, when_full, timeout=timeout)
        self.items = {}
        self.now = 0.0
        self.started = ""
        self.astray = ""

    def offer(self, targets):
        """Pull each letter; return the outcomes that come at once."""
        outcomes = []
        for target in targets:
            self.items[target] = Item(target, 1)
            outcomes.append(self.fan.offer(self.items[target]))
            self.perform()
        return [outcome for outcome in outcomes if outcome is not None]

    def finish(self, target, status="done", value=None):
        self.fan.finish(self.items[target], status, value)
        self.perform()

    def read(self):
        """Return the target and status of the next outcome, or the move."""
        found = self.fan.read(has_pulled=True, may_pull=False)
        self.perform()
        return found if isinstance(found, Move) else (found.target, found.status)

    def at(self, now):
        """Let the clock show ``now``."""
        self.now = now
        self.fan.tick(now)
        self.perform()

    def perform(self):
        while self.fan.has_effects:
            effects = self.fan.drain()
            self.astray += "".join(item.target for item in effects.astray)
            for item in effects.ready:
                self.started += item.target
                assert self.fan.begin(item, self.now)

    def picture(self):
        """Running, queued, held and unread, as text."""
        shown = self.fan.snapshot()
        groups = (shown.running, shown.queued, shown.held, shown.unread)
        return " | ".join("".join(group) for group in groups)


def test_six_targets__two_workers_and_a_queue_of_three():
    """A and B run, C D E are queued, F is held; when A ends, worker 1 has C, and F is queued."""
    play = Play()
    assert play.offer("ABCDEF") == []
    assert play.fan.snapshot() == Snapshot(
        running=("A", "B"),
        queued=("C", "D", "E"),
        held=("F",),
        unread=(),
        limits=Limits(workers=2, capacity=3),
    )
    assert play.fan.accounting() == Accounting(running=2, queued=3, held=1)

    play.finish("A")
    assert play.fan.snapshot() == Snapshot(
        running=("C", "B"),
        queued=("D", "E", "F"),
        held=(),
        unread=("A",),
        limits=Limits(workers=2, capacity=3),
    )
    assert play.read() == ("A", "done")
    assert play.fan.accounting() == Accounting(done=1, running=2, queued=3)


def test_limits__say_what_may_be_unfinished():
    """Two workers and a queue of three admit five, and the producer holds a sixth."""
    assert (Limits(2, 3).admitted, Limits(2, 3).pulled) == (5, 6)


def test_a_slot__belongs_to_the_worker_that_became_free():
    """When B ends first, worker 2 has C, and A stays worker 1's."""
    play = Play()
    play.offer("ABCDEF")
    play.finish("B")
    assert play.picture() == "AC | DEF |  | B"


def test_reject__reports_at_once_what_finds_no_room():
    """The sixth target is not admitted, keeps no place, and is not started later."""
    play = Play(when_full="reject")
    assert play.offer("ABCDEFG") == [Outcome("F", "not_admitted"), Outcome("G", "not_admitted")]
    assert play.picture() == "AB | CDE |  | "
    for target in "ABCDE":
        play.finish(target)
        play.read()
    assert play.started == "ABCDE"
    assert play.fan.accounting() == Accounting(done=5, not_admitted=2)


def test_no_capacity__hands_each_outcome_from_hand_to_hand():
    """With capacity 0 nothing is queued or unread: a worker keeps its target until it is read."""
    play = Play(workers=1, capacity=0)
    play.offer("AB")
    play.finish("A")
    assert play.picture() == "A |  | B | "
    assert play.read() == ("A", "done")
    assert play.picture() == "B |  |  | "


def test_unread_outcomes__stop_the_workers():
    """Beyond ``capacity`` unread outcomes a worker keeps its own, and starts nothing."""
    play = Play(workers=2, capacity=1)
    play.offer("ABCD")
    play.finish("A")
    play.finish("B")
    assert play.started == "ABC"
    assert play.picture() == "CB | D |  | A"
    play.finish("C")
    assert play.picture() == "CB | D |  | A"
    assert [play.read(), play.read()] == [("A", "done"), ("B", "done")]
    assert play.picture() == "D |  |  | C"


def test_reading__pulls_one_target_per_outcome_where_there_is_room():
    """The reader pulls first, then returns what is there; it does not pull again before it."""
    play = Play()
    play.offer("A")
    play.finish("A")
    assert play.fan.read(has_pulled=False, may_pull=True) is Move.PULL
    assert play.fan.read(has_pulled=False, may_pull=False) == Outcome("A", "done")
    assert play.fan.read(has_pulled=True, may_pull=True) is Move.PULL
    play.offer("BCDEFG")
    assert play.fan.read(has_pulled=False, may_pull=True) is Move.WAIT


def test_the_end__comes_when_all_pulled_targets_are_read():
    """Without more targets the reader waits for the last outcome, and then it is over."""
    play = Play()
    play.offer("A")
    play.fan.exhausted = True
    assert play.read() is Move.WAIT
    play.finish("A")
    assert [play.read(), play.read()] == [("A", "done"), Move.END]


def test_a_source_that_has_nothing_yet__is_no_end():
    """While the targets may go on the reader waits."""
    play = Play()
    assert play.fan.read(has_pulled=False, may_pull=False) is Move.WAIT


def test_timeout__reports_the_target_and_lets_another_worker_take_its_slot():
    """At its time A is unknown, its worker is astray, and its late end is nothing."""
    play = Play(timeout=5)
    play.offer("ABC")
    play.now = 3
    play.finish("B")
    assert play.started == "ABC"
    play.at(5)
    assert play.picture() == "C |  |  | BA"
    assert (play.astray, play.fan.snapshot().overdue) == ("A", ("A",))
    assert [play.read(), play.read()] == [("B", "done"), ("A", "unknown")]
    play.finish("A")
    assert play.fan.snapshot().overdue == ()
    assert play.fan.accounting() == Accounting(done=1, unknown=1, running=1)


def test_timeout__says_so_in_the_outcome():
    """An unknown target carries a TimeoutError with the seconds; it has no value."""
    play = Play(timeout=5)
    play.offer("A")
    play.at(6)
    outcome = play.fan.read(has_pulled=True, may_pull=False)
    assert (outcome.status, outcome.value) == ("unknown", None)
    assert isinstance(outcome.error, TimeoutError)
    assert str(outcome.error) == "ran for 5 s without an end (timeout=5)"


def test_timeouts_of_many__never_let_more_than_twice_the_workers_run():
    """With two bodies astray, two more that are overdue keep their slots until one returns."""
    play = Play(timeout=5, capacity=9)
    play.offer("ABCDEFGH")
    play.at(5)
    assert (play.started, play.astray) == ("ABCD", "AB")
    play.at(10)
    assert (play.started, play.astray) == ("ABCD", "AB")
    assert play.fan.snapshot().overdue == ("C", "D", "A", "B")
    assert play.fan.accounting() == Accounting(unknown=4, queued=4)
    play.finish("A")
    assert (play.started, play.astray) == ("ABCDE", "ABC")
    play.finish("D")
    assert play.started == "ABCDEF"
    assert play.fan.snapshot().overdue == ("B", "C")


def test_timeout__while_nobody_reads():
    """An outcome that finds no room keeps the slot, and goes astray when it is read."""
    play = Play(workers=1, capacity=1, timeout=5)
    play.offer("ABC")
    play.finish("A")
    play.at(5)
    assert play.picture() == "B | C |  | A"
    assert play.fan.accounting() == Accounting(done=1, running=1, queued=1)
    assert play.read() == ("A", "done")
    assert (play.picture(), play.astray) == ("C |  |  | B", "B")


def test_timeout__of_a_body_that_returns_before_its_outcome_finds_room():
    """It stays unknown, and leaves its slot when it is read."""
    play = Play(workers=1, capacity=1, timeout=5)
    play.offer("ABC")
    play.finish("A")
    play.at(5)
    play.finish("B")
    assert play.picture() == "B | C |  | A"
    assert [play.read(), play.read()] == [("A", "done"), ("B", "unknown")]
    assert (play.picture(), play.astray) == ("C |  |  | ", "")


def test_the_deadline__reports_everything_in_the_order_of_its_age():
    """Done, running, queued and held end as done, unknown, not started and not admitted."""
    play = Play()
    play.fan.deadline = 10.0
    play.offer("ABCDEF")
    play.finish("A")
    play.offer("G")
    play.at(9.9)
    assert play.fan.accounting() == Accounting(done=1, running=2, queued=3, held=1)
    play.at(10)
    assert [play.read() for _ in range(8)] == [
        ("A", "done"),
        ("B", "unknown"),
        ("C", "unknown"),
        ("D", "not_started"),
        ("E", "not_started"),
        ("F", "not_started"),
        ("G", "not_admitted"),
        Move.END,
    ]
    assert play.fan.accounting() == Accounting(done=1, unknown=2, not_started=3, not_admitted=1)
    assert play.fan.snapshot().overdue == ("B", "C")
    play.finish("B")
    play.finish("C")
    assert play.fan.snapshot().overdue == ()


def test_the_deadline__knows_what_is_in_a_workers_hands():
    """A body that returned before it is done, though its outcome had found no room."""
    play = Play(workers=1, capacity=0)
    play.fan.deadline = 10.0
    play.offer("A")
    play.finish("A")
    play.at(10)
    assert [play.read(), play.read()] == [("A", "done"), Move.END]


def test_a_function_is_not_called__after_the_deadline_or_the_end():
    """A worker that comes for a target that was given up meanwhile must not begin."""
    for end in ("deadline", "close"):
        fan = Fan(1, 1)
        item = Item("A")
        fan.offer(item)
        if end == "close":
            fan.close()
        else:
            fan.deadline = 0.0
            fan.tick(0.0)
        assert not fan.begin(item, 0.0)
        assert fan.accounting() == Accounting(not_started=1)


def test_closing__drops_what_waits_and_counts_what_runs_when_it_is_over():
    """Queued and held targets never start; a running one is done or failed as it comes."""
    play = Play()
    play.offer("ABCDEF")
    play.fan.close()
    assert play.fan.accounting() == Accounting(running=2, not_started=3, not_admitted=1)
    assert play.read() is Move.END
    play.finish("A")
    play.finish("B", "failed")
    assert play.started == "AB"
    assert play.fan.accounting() == Accounting(done=1, failed=1, not_started=3, not_admitted=1)
    assert play.fan.snapshot().unread == ()


def test_closing__waits_for_nobody_whose_time_is_over():
    """What keeps its slot beyond its time is astray from then on, however many there are."""
    play = Play(workers=1, timeout=5)
    play.offer("AB")
    play.at(5)
    play.at(10)
    assert play.astray == "A"
    play.fan.close()
    play.perform()
    assert (play.astray, play.fan.is_running) == ("AB", False)


def test_a_closed_fan__still_heeds_timeout_and_deadline():
    """Its running targets are unknown at their time: nobody waits for them any longer."""
    play = Play(timeout=5)
    play.fan.deadline = 7.0
    play.offer("A")
    play.at(4)
    play.offer("B")
    play.fan.close()
    assert play.fan.due() == 5
    play.at(5)
    assert play.fan.due() == 7
    play.at(7)
    assert play.fan.accounting() == Accounting(unknown=2)
    assert (play.fan.due(), play.fan.is_running) == (None, False)


def test_a_target_that_comes_too_late__is_not_admitted():
    """Pulled while the fan was closed, it is counted and not run."""
    play = Play()
    play.fan.close()
    assert play.offer("A") == [Outcome("A", "not_admitted")]
    assert play.fan.accounting() == Accounting(not_admitted=1)


def test_a_refused_target__is_failed_and_counted():
    """It takes no place."""
    play = Play()
    error = ValueError("too heavy")
    assert play.fan.refuse(Item("A"), error) == Outcome("A", "failed", None, error)
    assert play.fan.accounting() == Accounting(failed=1)


class Tokens:
    """Tokens that are there when the test says so; remembers who asked."""

    def __init__(self, *there):
        self.there = list(there)
        self.asked = []

    def __call__(self, item):
        self.asked.append(item.target)
        return item.target in self.there


def test_a_target_without_tokens__waits_at_the_head_of_the_queue():
    """No worker is taken, later targets do not pass it, and it is asked for once."""
    tokens = Tokens("A", "C", "D")
    fan = Fan(2, 1, take=tokens)
    items = [Item(target) for target in "ABCD"]
    fan.offer(items[0])
    fan.offer(items[1])
    assert (fan.snapshot().running, fan.snapshot().queued) == (("A",), ("B",))
    fan.offer(items[2])
    assert (fan.snapshot().queued, fan.snapshot().held) == (("B",), ("C",))
    assert fan.is_asking(items[1])
    fan.grant(items[1])
    assert (fan.snapshot().running, fan.snapshot().queued) == (("A", "B"), ("C",))
    assert tokens.asked == ["A", "B"]


def test_a_target_without_tokens__waits_in_the_producers_hands_without_a_queue():
    """With capacity 0 it is held, and starts from there."""
    fan = Fan(2, 0, take=Tokens())
    item = Item("A")
    fan.offer(item)
    assert fan.snapshot().held == ("A",)
    fan.grant(item)
    assert fan.snapshot().running == ("A",)


def test_a_target_without_tokens__is_rejected_where_it_finds_no_room():
    """It leaves the line for them."""
    fan = Fan(2, 0, "reject", take=Tokens())
    item = Item("A")
    assert fan.offer(item) == Outcome("A", "not_admitted")
    assert not fan.is_asking(item)


@pytest.mark.parametrize("end", ["close", "deadline"])
def test_a_target_in_line_for_tokens__leaves_it_at_the_end(end):
    """It never started, and tokens that come later are not its own."""
    fan = Fan(1, 1, take=Tokens())
    fan.deadline = 1.0
    item = Item("A")
    fan.offer(item)
    fan.close() if end == "close" else fan.tick(1.0)
    assert not fan.is_asking(item)
    assert fan.accounting() == Accounting(not_started=1)


@pytest.mark.parametrize("end", ["finish", "timeout", "deadline", "close"])
def test_tokens_go_back__on_every_path(end):
    """Once: when the body ends, at its time, at the deadline, or when it never began."""
    fan = Fan(1, 1, timeout=5, take=Tokens("A"))
    item = Item("A")
    fan.offer(item)
    freed = list(fan.drain().freed)
    if end == "close":
        fan.close()
    else:
        fan.begin(item, 0.0)
    fan.deadline = 3.0 if end == "deadline" else None
    if end in {"timeout", "deadline"}:
        fan.tick(5.0)
    fan.finish(item, "done")
    freed += fan.drain().freed
    assert freed == [item]


def test_records__are_frozen_and_picklable():
    """An outcome, a snapshot and an account travel to other processes as they are."""
    outcome = Outcome("A", "failed", None, ValueError("x"))
    copied = pickle.loads(pickle.dumps(outcome))
    assert (copied.target, copied.status, copied.value) == ("A", "failed", None)
    assert repr(copied.error) == "ValueError('x')"
    for record, name in (
        (Outcome("A", "done", 1), "status"),
        (Snapshot(("A",), (), (), (), Limits(2, 3)), "running"),
        (Accounting(done=1), "done"),
    ):
        assert pickle.loads(pickle.dumps(record)) == record
        with pytest.raises(AttributeError):
            setattr(record, name, None)


def test_the_account__adds_up_to_what_was_pulled():
    """Each pulled target is counted exactly once."""
    assert Accounting(1, 2, 3, 4, 5, 6, 7, 8).pulled == 36
