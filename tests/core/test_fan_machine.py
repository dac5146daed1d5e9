"""A fan-out in every order of steps that Hypothesis can think of, and mutants that it must find."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_vega.core import places
from django_vega.core.places import Item
from tests.core import mutation

ENDS = {"done", "failed"}


class Body:
    """An item as the model sees it."""

    def __init__(self, item):
        self.item = item
        self.started = self.begun_at = self.ended = None
        self.may_be = {"not_started", "not_admitted"}  # statuses that would be true
        self.reported = None


class FanMachine(RuleBasedStateMachine):
    """Whatever the order of steps, the promises hold."""

    module = places

    @initialize(
        workers=st.integers(1, 3),
        capacity=st.integers(0, 3),
        rejects=st.booleans(),
        timeout=st.sampled_from([None, 2]),
        tokens=st.sampled_from([None, 1, 3]),
        deadline=st.sampled_from([None, None, 8]),
    )
    def begin(self, workers, capacity, rejects, timeout, tokens, deadline):
        self.workers, self.capacity, self.timeout = workers, capacity, timeout
        self.rejects = rejects
        self.tokens = tokens
        self.fan = self.module.Fan(
            workers,
            capacity,
            "reject" if rejects else "wait",
            timeout=timeout,
            take=None if tokens is None else self.take,
        )
        self.fan.deadline = deadline
        self.now = 0
        self.bodies = []
        self.start_order = []
        self.holding = set()
        self.asked = []

    def take(self, item):
        assert item not in self.asked
        self.asked.append(item)
        if self.tokens:
            self.tokens -= 1
            self.holding.add(item)
            return True
        return False

    def body_of(self, item):
        return next(body for body in self.bodies if body.item is item)

    def perform(self):
        while self.fan.has_effects:
            effects = self.fan.drain()
            for item in effects.ready:
                body = self.body_of(item)
                assert body.started is None
                body.started = True
                self.start_order.append(item.target)
            for item in effects.freed:
                self.holding.remove(item)
                self.tokens += 1

    def report(self, outcome):
        body = self.bodies[outcome.target]
        assert body.reported is None
        assert outcome.status in body.may_be, (outcome.status, body.may_be)
        body.reported = outcome.status

    def running(self):
        """Return the bodies that really run."""
        return [body for body in self.bodies if body.begun_at is not None and not body.ended]

    @precondition(lambda self: not self.fan.snapshot().held)
    @rule()
    def pull(self):
        was_over = self.fan.over
        shown = self.fan.snapshot()
        item = Item(len(self.bodies), 1)
        self.bodies.append(Body(item))
        outcome = self.fan.offer(item)
        self.perform()
        if outcome is not None:
            assert was_over or (self.rejects and len(shown.queued) == self.capacity)
            self.report(outcome)

    @precondition(lambda self: any(body.started for body in self.bodies))
    @rule(data=st.data())
    def a_worker_comes(self, data):
        ready = [b for b in self.bodies if b.started and b.begun_at is None and not b.ended]
        if not ready:
            return
        body = data.draw(st.sampled_from(ready))
        was_over = self.fan.over
        if self.fan.begin(body.item, self.now):
            assert not was_over
            body.begun_at = self.now
            body.may_be = {"unknown"}
        else:
            assert was_over
            body.ended = True
        self.perform()

    @precondition(lambda self: self.running())
    @rule(data=st.data(), status=st.sampled_from(sorted(ENDS)))
    def a_body_ends(self, data, status):
        body = data.draw(st.sampled_from(self.running()))
        body.ended = True
        if body.may_be == {"unknown"} and not self.is_late(body):
            body.may_be = {status}
        self.fan.finish(body.item, status)
        self.perform()

    def is_late(self, body):
        late = self.timeout is not None and self.now >= body.begun_at + self.timeout
        return late or (self.fan.deadline is not None and self.now >= self.fan.deadline)

    @rule()
    def time_passes(self):
        self.now += 1
        self.fan.tick(self.now)
        self.perform()
        for body in self.running():
            if self.is_late(body):
                assert body.item.place in {"expired", "astray"}

    @precondition(lambda self: self.tokens)
    @rule()
    def tokens_come(self):
        asking = [body.item for body in self.bodies if self.fan.is_asking(body.item)]
        assert len(asking) <= 1
        for item in asking:
            self.tokens -= 1
            self.holding.add(item)
            self.fan.grant(item)
            self.perform()

    @rule(may_pull=st.booleans(), has_pulled=st.booleans())
    def read(self, may_pull, has_pulled):
        unread = self.fan.snapshot().unread
        found = self.fan.read(has_pulled, may_pull)
        self.perform()
        move = self.module.Move
        if not isinstance(found, move):
            assert found.target == unread[0] if unread else self.capacity == 0
            self.report(found)
        elif found is move.END:
            assert self.fan.over
        elif found is move.PULL:
            assert may_pull
            assert not self.fan.snapshot().held
        else:
            assert not unread

    @precondition(lambda self: len(self.bodies) > 5)
    @rule()
    def close(self):
        self.fan.close()
        self.perform()

    @invariant()
    def everything_is_bounded(self):
        if not hasattr(self, "fan"):
            return
        shown = self.fan.snapshot()
        assert len(shown.running) <= self.workers
        assert len(shown.queued) <= self.capacity
        assert len(shown.held) <= (0 if self.rejects else 1)
        if self.fan.over:
            assert shown.queued == shown.held == ()
        else:
            assert len(shown.unread) <= self.capacity
        assert self.fan.over or len(self.running()) <= 2 * self.workers
        late = {body.item.target for body in self.running() if body.item.place != "running"}
        assert set(shown.overdue) == late

    @invariant()
    def every_target_is_counted_once(self):
        if not hasattr(self, "fan"):
            return
        count = self.fan.accounting()
        assert count.pulled == len(self.bodies)
        shown = self.fan.snapshot()
        assert (count.running, count.queued, count.held) == tuple(
            len(targets) for targets in (shown.running, shown.queued, shown.held)
        )
        read = Counter(body.reported for body in self.bodies if body.reported)
        for status in places.STATUSES:
            assert getattr(count, status) >= read[status]
        if not self.fan.closed:
            assert sum(read.values()) + len(shown.unread) + len(shown.running) + len(
                shown.queued
            ) + len(shown.held) == len(self.bodies)

    @invariant()
    def nobody_waits_for_nothing(self):
        if not hasattr(self, "fan") or self.fan.over:
            return
        shown = self.fan.snapshot()
        first = next(iter((*shown.queued, *shown.held)), None)
        slots = [self.fan.at(number) for number in range(self.workers)]
        if first is not None and not self.fan.is_asking(self.bodies[first].item):
            assert None not in slots
        assert not shown.held or len(shown.queued) == self.capacity
        for item in slots:
            # A slot is kept by who runs, who has no room for an outcome, or beyond the bound.
            if item is not None and item.place == "finished":
                assert len(shown.unread) == self.capacity
            if item is not None and item.place == "expired" and item.outcome is None:
                assert len(self.running()) >= self.workers + 1

    @invariant()
    def targets_start_in_order_and_hold_their_tokens_while_they_run(self):
        if not hasattr(self, "fan"):
            return
        assert self.start_order == sorted(self.start_order)
        if self.tokens is not None:
            assert self.holding == {
                body.item for body in self.bodies if body.item.place in {"ready", "running"}
            }


# Longer stories than the table has, and fewer of them.
SEARCH = settings(mutation.SEARCH, max_examples=2_000, stateful_step_count=40)


def test_promises_hold__in_every_order_of_steps():
    """Bounds, order, tokens and the account hold whatever happens when."""
    run_state_machine_as_test(
        FanMachine, settings=settings(SEARCH, max_examples=150, derandomize=False)
    )


MUTANTS = {
    "the queue has one place more": (
        "elif self._held is not None and len(self._queue) < self.limits.capacity:",
        "elif self._held is not None and len(self._queue) <= self.limits.capacity:",
    ),
    "unread outcomes have one place more": (
        "if self.over or (len(self._unread) < self.limits.capacity and not self._hands):",
        "if self.over or (len(self._unread) <= self.limits.capacity and not self._hands):",
    ),
    "an outcome without room frees its worker": (
        "            item.outcome = outcome\n            self._hands.append(item)",
        (
            "            self._settle(item)\n            item.outcome = outcome\n"
            "            self._hands.append(item)"
        ),
    ),
    "any number of bodies goes astray": (
        "if len(self._astray) >= self.limits.workers and not self.over:",
        "if False:",
    ),
    "no body goes astray": (
        "if len(self._astray) >= self.limits.workers and not self.over:",
        "if not self.over:",
    ),
    "a body that comes back relieves nobody": ("            self._relieve()\n", ""),
    "queued targets are not dropped": ("        while self._queue:\n", "        while False:\n"),
    "a given up target begins": ('if item.place != "ready":', 'if item.place == "astray":'),
    "the newest target starts first": (
        "self._queue.popleft()\n                else",
        "self._queue.pop()\n                else",
    ),
    "reading promotes nobody": (
        (
            "        if self._hands and len(self._unread) < self.limits.capacity:\n"
            "            self._put_down()\n"
        ),
        "",
    ),
    "reading lets nobody go on": (
        "            self._put_down()\n        self._advance()\n        return outcome",
        "            self._put_down()\n        return outcome",
    ),
    "tokens stay with who expired": (
        '        item.place = "expired"\n        self._free(item)\n',
        '        item.place = "expired"\n',
    ),
    "tokens stay with who ended": (
        "            self._running.pop(item, None)\n            self._free(item)\n",
        "            self._running.pop(item, None)\n",
    ),
    "a target in line is asked for again": (
        "if not item.has_tokens and item is not self._asking:",
        "if not item.has_tokens:",
    ),
    "a late end counts": (
        '        if item.place == "astray":\n            del self._astray[item]\n',
        (
            '        if item.place == "astray":\n            del self._astray[item]\n'
            "            self._ends[status] += 1\n"
        ),
    ),
    "the held target is forgotten at the end": (
        '            self._drop(item, "not_admitted")\n',
        "            pass\n",
    ),
    "an expired body that returns frees its slot unread": (
        "        if item.outcome is not None:\n            if item.place",
        "        if item.outcome is not None and item in self._expired:\n            if item.place",
    ),
}


def mutated(old, new):
    """Return the state machine over the source with one text in place of another."""
    module = mutation.execute(places, old, new)
    return type("Machine", (FanMachine,), {"module": module})


def test_no_mutant_is_found__when_nothing_is_changed():
    """What the other tests find is the change."""
    line = "class Fan:\n"
    run_state_machine_as_test(mutated(line, line), settings=settings(SEARCH, max_examples=100))


@pytest.mark.once
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found__when_a_rule_is_broken(name):
    """Each broken rule fails the machine."""
    machine = mutated(*MUTANTS[name])
    with pytest.raises(Exception):  # noqa: B017, PT011 - whichever check or assertion comes first
        run_state_machine_as_test(machine, settings=SEARCH)
