"""The table of watched sets as a list of steps: no thread, no loop, no database."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from django_vega.core.watches import LINGER, PATIENCE, Result, Watches


class Table(Watches):
    """A table with one clock for all steps; results are whatever the test reads."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def come(self, key="k", topics=("t",)):
        self.forget(self.now)
        return self.join(key, topics)

    def ask(self, watcher, *, sends=False):
        found = self.look(watcher, watcher, self.now, sends=sends)
        return found.value if isinstance(found, Result) else found

    def read(self, watcher, value, **options):
        reading = self.claim(watcher)
        self.finish(reading, Result(reading.version, value, **options))

    def change(self, *topics):
        self.forget(self.now)
        self.changed(topics or ("t",))

    def go(self, watcher):
        self.leave(watcher, self.now)


@pytest.fixture
def table():
    return Table()


def test_first_watcher_reads_and_has_the_result__then_waits(table):
    """A result is handed over once; without a change there is nothing more to do."""
    one = table.come()
    assert table.ask(one) == "read"
    table.read(one, "rows")
    assert table.ask(one) == "rows"
    assert table.ask(one) == "wait"


def test_later_watcher_has_the_present_result__without_a_reading(table):
    """Who comes while nothing has changed needs no reading."""
    one, two = table.come(), None
    table.read(one, "rows")
    two = table.come()
    assert table.ask(two) == "rows"


def test_watchers_wait_for_the_one_who_reads__and_all_have_its_result(table):
    """While a reading runs nobody begins another, and its end wakes everybody who waits."""
    one, two, three = table.come(), table.come(), table.come()
    reading = table.claim(one)
    assert [table.ask(watcher) for watcher in (two, three)] == ["wait", "wait"]
    assert table.claim(two) is None
    table.finish(reading, Result(reading.version, "rows"))
    assert table.take_woken() == [two, three]
    assert [table.ask(watcher) for watcher in (one, two, three)] == ["rows"] * 3


def test_change_while_reading__one_more_reading(table):
    """However many changes come during a reading, there is exactly one after it; none is lost."""
    one = table.come()
    reading = table.claim(one)
    for _ in range(5):
        table.change()
    table.finish(reading, Result(reading.version, "before"))
    assert table.ask(one) == "before"
    assert table.ask(one) == "read"
    table.read(one, "after")
    assert [table.ask(one), table.ask(one)] == ["after", "wait"]


def test_newcomer_waits_for_a_reading_that_began_after_it__change_before_it_came(table):
    """A result that began before a change is not for who came after that change."""
    one = table.come()
    reading = table.claim(one)
    table.change()
    late = table.come()
    table.finish(reading, Result(reading.version, "before"))
    assert table.ask(one) == "before"
    assert table.ask(late) == "read"


def test_slow_watcher__has_the_latest_only(table):
    """Results that a watcher was too slow for are skipped."""
    fast, slow = table.come(), table.come()
    for value in ("first", "second", "third"):
        table.read(fast, value)
        assert table.ask(fast) == value
        table.change()
    assert [table.ask(slow), table.ask(slow)] == ["third", "read"]


def test_other_topics__change_nothing(table):
    """A set looks again only for what it is about."""
    quakes, both = table.come("quakes", ["quake"]), table.come("both", ["quake", "station"])
    for watcher in (quakes, both):
        table.read(watcher, "rows")
        table.ask(watcher)
    table.change("station", "nothing")
    assert (table.ask(quakes), table.ask(both)) == ("wait", "read")
    table.changed_all()
    assert (table.ask(quakes), table.ask(both)) == ("read", "read")


def test_error_reaches_those_who_were_there__and_nobody_after(table):
    """An error is handed to present watchers; who comes later has a reading of its own."""
    one, two = table.come(), table.come()
    reading = table.claim(one)
    error = ValueError("no")
    table.finish(reading, Result(reading.version, error=error))
    assert table.look(two, two, 0, sends=False).error is error
    late = table.come()
    assert table.ask(late) == "read"
    table.read(late, "rows")
    assert table.ask(late) == "rows"


def test_reading_that_is_given_up__the_next_one_reads(table):
    """When a reader is interrupted one of those who wait reads; what it had read counts no more."""
    one, two = table.come(), table.come()
    reading = table.claim(one)
    assert table.ask(two) == "wait"
    table.give_up(reading)
    assert table.take_woken() == [two]
    assert table.ask(two) == "read"
    table.finish(reading, Result(reading.version, "too late"))
    table.read(two, "rows")
    assert table.ask(two) == "rows"


def test_one_sends_for_a_thread__the_others_wait_for_it(table):
    """Of several async watchers one sends; when it goes away before it reads, the next one does."""
    one, two = table.come(), table.come()
    assert table.ask(one, sends=True) == "read"
    assert table.ask(two, sends=True) == "wait"
    table.stop_waiting(one)
    assert table.take_woken() == [two]
    assert table.ask(two, sends=True) == "read"
    table.go(two)
    assert table.ask(one, sends=True) == "read"


def test_thread_that_does_not_come__another_one_is_sent_for(table):
    """Nobody waits long for a thread that may never begin."""
    one, two = table.come(), table.come()
    table.ask(one, sends=True)
    table.now += PATIENCE
    assert table.ask(two, sends=True) == "read"
    table.read(two, "rows")
    assert table.claim(one) is None


def test_thread_waits_for_nobody_who_has_none(table):
    """A thread reads itself while an async watcher has only sent for one: that may be this one."""
    loop, thread = table.come(), table.come()
    assert table.ask(loop, sends=True) == "read"
    assert table.ask(thread) == "read"
    table.read(thread, "rows")
    assert table.claim(loop) is None
    assert table.ask(loop, sends=True) == "rows"


@pytest.mark.parametrize(("away", "expected"), [(LINGER - 0.1, "rows"), (LINGER, "read")])
def test_set_is_kept__for_five_seconds(table, away, expected):
    """Who comes back within 5 s has the kept result; then it is forgotten."""
    one = table.come()
    table.read(one, "rows")
    table.go(one)
    table.now += away
    assert table.ask(table.come()) == expected


def test_coming_back__begins_the_five_seconds_anew(table):
    """The time counts from the last leaving."""
    for _ in range(3):
        watcher = table.come()
        if table.ask(watcher) == "read":
            table.read(watcher, "rows")
        table.go(watcher)
        table.now += LINGER - 1
    assert table.ask(table.come()) == "rows"


@pytest.mark.parametrize("options", [{"keeps": False}, {"error": ValueError("no")}])
def test_result_that_is_worth_nothing__is_not_kept(table, options):
    """A set without a result for who comes back is forgotten when its last watcher leaves."""
    one = table.come()
    table.read(one, "rows", **options)
    table.go(one)
    assert len(table) == 0


def test_change_while_nobody_watches__the_set_is_forgotten(table):
    """A kept result that has become outdated is dropped at once."""
    one = table.come()
    table.read(one, "rows")
    table.go(one)
    table.change()
    assert len(table) == 0
    assert table.ask(table.come()) == "read"


def test_last_watcher_leaves_while_reading__the_result_is_kept(table):
    """A reading that began is worth something to who comes back, unless a change came."""
    one = table.come()
    reading = table.claim(one)
    table.go(one)
    table.finish(reading, Result(reading.version, "rows"))
    assert table.ask(table.come()) == "rows"
    two = table.come("other")
    reading = table.claim(two)
    table.go(two)
    table.change()
    table.finish(reading, Result(reading.version, "rows"))
    assert table.ask(table.come("other")) == "read"


def test_nothing_is_kept__after_ten_thousand_sets(table):
    """Sets that nobody came back to are gone with all that was kept for them."""
    for number in range(10_000):
        watcher = table.come(number, [number, "all"])
        table.read(watcher, "rows")
        table.go(watcher)
        table.now += 0.01
    assert len(table) <= LINGER / 0.01
    table.now += LINGER
    table.change("nothing")
    assert len(table) == 0
    assert not table.is_watched("all")
    assert [len(vars(table)[name]) for name in ("_sets", "_by_topic", "_ends", "_to_wake")] == [
        0
    ] * 4


def test_watcher_of_another_table__joins_anew(table):
    """A watcher that a forked child inherits is none of the child's; it neither hangs nor harms."""
    watcher = Table().come()
    assert table.ask(watcher) == "join"
    table.go(watcher)
    assert len(table) == 0


class Machine(RuleBasedStateMachine):
    """Any order of steps: each watcher ends with what is committed, and sees it grow only."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.committed = 0
        self.here = []
        self.reading = None
        self.seen = {}

    def pick(self, number):
        return self.here[number % len(self.here)]

    def read_now(self):
        """What a query that reads at this moment finds."""
        return self.committed

    @rule()
    def come(self):
        if len(self.here) < 4:
            watcher = self.table.come()
            self.here.append(watcher)
            self.seen[watcher] = (self.committed, False)

    @rule()
    def change(self):
        self.committed += 1
        self.table.change()

    @precondition(lambda self: self.here)
    @rule(number=st.integers(0, 3), sends=st.booleans())
    def look(self, number, sends):
        watcher = self.pick(number)
        found = self.table.look(watcher, watcher, self.table.now, sends=sends)
        if isinstance(found, Result):
            # Never older than at arrival, never older than the one before.
            assert found.value >= self.seen[watcher][0]
            self.seen[watcher] = (found.value, True)

    @precondition(lambda self: self.here)
    @rule(number=st.integers(0, 3))
    def begin(self, number):
        reading = self.table.claim(self.pick(number))
        if reading is not None:
            assert self.reading is None
            self.reading = reading, self.read_now()

    @precondition(lambda self: self.reading)
    @rule(late=st.booleans())
    def end(self, late):
        reading, value = self.reading
        self.reading = None
        # A query may see what was committed after it began, too.
        value = self.read_now() if late else value
        self.table.finish(reading, Result(reading.version, value))

    @precondition(lambda self: self.reading)
    @rule()
    def give_up(self):
        self.table.give_up(self.reading[0])
        self.reading = None

    @precondition(lambda self: self.here)
    @rule(number=st.integers(0, 3))
    def go(self, number):
        watcher = self.pick(number)
        self.here.remove(watcher)
        self.table.go(watcher)

    @rule(seconds=st.sampled_from([0.5, PATIENCE, LINGER]))
    def pass_time(self, seconds):
        if self.here or self.reading is None:
            self.table.now += seconds

    @invariant()
    def nobody_is_forgotten(self):
        """Everybody who waits has been woken, or somebody is at work for it."""
        woken = self.table.take_woken()
        assert all(watcher in self.here for watcher in woken)

    def teardown(self):
        """Left alone, everybody gets what is committed."""
        if self.reading is not None:
            self.table.give_up(self.reading[0])
        for watcher in self.here:
            for _ in range(3):
                self.table.now += PATIENCE
                found = self.table.look(watcher, watcher, self.table.now, sends=True)
                if isinstance(found, Result):
                    self.seen[watcher] = (found.value, True)
                elif found == "read":
                    self.table.read(watcher, self.read_now())
            assert self.seen[watcher] == (self.committed, True)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=100, stateful_step_count=40)
