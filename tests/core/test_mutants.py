"""Whoever breaks an invariant of the table sees red: each mutant fails the checks it is to fail.

A mutant is the source of the table, or of the graph of waits, with one text in place of another.
"""

import types
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from django_vega.core import table, waits
from tests.core import test_waits
from tests.core.mutation import CONFIRM, SEARCH, execute
from tests.core.stage import Stage
from tests.core.stories import DECISIONS, FOUR_CALLS, LATE_ENDS, RULES
from tests.core.test_machine import TableMachine

Failed = pytest.fail.Exception  # what `pytest.raises` raises when nothing was


def machine(table_class, search=SEARCH):
    """Run the state machine."""
    run_state_machine_as_test(
        type("Machine", (TableMachine,), {"table_class": table_class}), settings=search
    )


def simulation(table_class, search=SEARCH):
    """Compare the refusals of waits with a simulation."""

    @search
    @given(st.lists(test_waits.NEW_CALL, max_size=14))
    def agrees(steps):
        test_waits.check_against_simulation(steps, table_class)

    agrees()


def stories(table_class, search=SEARCH):
    """Play every literal story of the table."""
    for story in (
        *FOUR_CALLS.values(),
        *RULES.values(),
        *LATE_ENDS.values(),
        *DECISIONS.values(),
    ):
        Stage(table_class).play(*story)


def refusals(table_class, search=SEARCH):
    """Play every literal story of the graph of waits."""
    for name in test_waits.REFUSED:
        test_waits.check_refusal(name, table_class)


@dataclass
class Mutant:
    """One text for another, and the checks that must notice."""

    module: types.ModuleType
    old: str
    new: str
    checks: tuple

    def table_class(self):
        """Return the table with the fault in it."""
        broken = execute(self.module, self.old, self.new)
        if self.module is waits:
            graph = broken.WaitGraph
            broken = execute(table, "WaitGraph(self._ahead)", "NewWaitGraph(self._ahead)")
            broken.NewWaitGraph = graph
        return broken.Table


MUTANTS = {
    "removal without identity: whatever the key holds goes": Mutant(
        table,
        """        elif call in entry.flights:
            entry.flights.remove(call)
""",
        """        elif entry.flights:
            entry.flights.pop()
""",
        (machine, stories),
    ),
    "a body's late end takes the newer flight along": Mutant(
        table,
        """        if entry is not None and entry.forget(call):
""",
        """        if entry is not None and entry.forget(call):
            entry.flights.clear()
""",
        (machine, stories),
    ),
    "a body's late end forgets the key": Mutant(
        table,
        """        entry = self._entries.get(call.slot)
        if entry is not None and entry.forget(call):
""",
        """        entry = self._entries.pop(call.slot, None)
        if entry is not None and entry.forget(call):
""",
        (machine, stories),
    ),
    "settle and removal are two steps: a caller joins a settled flight": Mutant(
        table,
        """        elif call in entry.flights:
            entry.flights.remove(call)
""",
        """        for flight in [f for f in entry.flights if f.settled and f is not call]:
            entry.flights.remove(flight)
""",
        (machine, stories),
    ),
    "the waiters are not kept for the one who tells them": Mutant(
        table,
        "effects.settled.append((call, tuple(waiters or ())))",
        "effects.settled.append((call, ()))",
        (machine, stories),
    ),
    "the waiters are no snapshot: one that leaves meanwhile changes it": Mutant(
        table,
        """        waiters, call.waiters = call.waiters, None
        call.step(step)
        effects.settled.append((call, tuple(waiters or ())))
""",
        """        waiters = call.waiters
        call.step(step)
        effects.settled.append((call, {} if waiters is None else waiters))
""",
        (machine,),
    ),
    "the waiters are told again at the body's late end": Mutant(
        table,
        """        if entry is not None and entry.forget(call):
""",
        """        if entry is not None and entry.forget(call):
            effects.settled.append((call, ()))
""",
        (machine, stories),
    ),
    "a follower that leaves takes all others along": Mutant(
        table,
        "leader.waiters.pop(waiter, None)",
        "leader.waiters.clear()",
        (machine,),
    ),
    "an idle key is kept": Mutant(
        table,
        "        if entry.is_idle():\n",
        "        if entry.is_idle() and entry.version % 2:\n",
        (machine, stories),
    ),
    "a body that stops does not hold the queue": Mutant(
        table,
        "has_room = len(self._bodies_ahead(parked, entry)) < _queue_limit(parked)",
        "has_room = len(entry.flights) < _queue_limit(parked)",
        (machine, stories),
    ),
    "who is turned away has cancelled its peers": Mutant(
        table,
        "            return self.turn_away(call)  # in whose favour should a peer be cancelled?\n",
        "            effects = self.turn_away(call)\n"
        "            doomed = [peer for peer in peers if peer.id in decision.cancel_ids]\n"
        "            for peer in doomed:\n"
        '                self._cancel(peer, "abort", effects)\n'
        "            return effects\n",
        (stories,),
    ),
    "threads that need the next run wait for nobody": Mutant(
        table,
        "            if not (ahead or call.lease) or not all(",
        "            if call.thread or not all(",
        (stories,),
    ),
    "the queue is a stack": Mutant(
        table,
        "entry.parked.append(call)",
        "entry.parked.appendleft(call)",
        (machine, stories),
    ),
    "cancel_all ends the flights before it voids the queues": Mutant(
        table,
        """            for call in tuple(self._entries[slot].parked):
                self._cancel(call, parked, effects)
        for slot in chosen:
            for call in tuple(self._entries[slot].flights):
                if call.state in _CANCELLABLE:
                    self._cancel(call, flights, effects)
            self._release(slot, effects)
""",
        """            for call in tuple(self._entries[slot].flights):
                if call.state in _CANCELLABLE:
                    self._cancel(call, flights, effects)
            self._release(slot, effects)
        for slot in [slot for slot in chosen if slot in self._entries]:
            for call in tuple(self._entries[slot].parked):
                self._cancel(call, parked, effects)
            self._release(slot, effects)
""",
        (machine, stories),
    ),
    "what is being written can be cancelled": Mutant(
        table,
        "        if call.state not in _CANCELLABLE:\n            return None\n",
        "        if call.settled:\n            return None\n"
        "        if call.state == 'writing':\n            call.state = 'running'\n",
        (machine, stories),
    ),
    "what was cancelled begins to write": Mutant(
        table,
        """        if call.state != "running":
            return False
        call.step("write")
""",
        """        if call.state != "running":
            return call.reason == "abort"
        call.step("write")
""",
        (machine, stories),
    ),
    "restart with a limit does not count what is being written": Mutant(
        table,
        "surplus = len(peers) - strategy.limit + 1",
        "surplus = sum(peer.state in _CANCELLABLE for peer in peers) - strategy.limit + 1",
        (machine, stories),
    ),
    "restart cancels the newest": Mutant(
        table,
        "doomed = [peer for peer in peers if peer.state in _CANCELLABLE][:surplus]",
        "doomed = [peer for peer in peers if peer.state in _CANCELLABLE][-surplus:]",
        (machine, stories),
    ),
    "a decision on an old picture is applied": Mutant(
        table,
        "if version != (0 if entry is None else entry.version):",
        "if version > (0 if entry is None else entry.version):",
        (machine,),
    ),
    "a body's end gives the key no new version": Mutant(
        table,
        """        if entry is not None and entry.forget(call):
            self._touch(call)
""",
        """        if entry is not None and entry.forget(call):
            pass
""",
        (machine,),
    ),
    "a joiner takes a generation": Mutant(
        table,
        """        call.leader = leader
""",
        """        call.leader = leader
        self._next_generation()
""",
        (machine,),
    ),
    "a call that was cancelled gets its late value": Mutant(
        table,
        """        if not call.settled:
            call.after(step)""",
        """        if call.state != "success":
            call.state = "running"
            call.after(step)""",
        (machine, stories),
    ),
    "one circle is enough: what was seen once is taken for free": Mutant(
        waits,
        "    stuck = {*waits, *inside}\n",
        "    stuck = {c for c, (targets, _) in waits.items() if inside & {*targets}} | inside\n"
        "    return stuck\n",
        (simulation, refusals),
    ),
    "any one of two places is enough": Mutant(
        table,
        "return bodies, len(bodies) - lowest + 1",
        "return bodies, 1",
        (simulation, refusals),
    ),
    "all places of a queue are needed": Mutant(
        table,
        "return bodies, len(bodies) - lowest + 1",
        "return bodies, len(bodies)",
        (simulation,),
    ),
    "those ahead in the queue are overlooked": Mutant(
        table,
        "lowest = min(map(_queue_limit, (*self._line_ahead(parked, entry), parked)))",
        "lowest = _queue_limit(parked)",
        (simulation, refusals),
    ),
    "only the innermost flight waits": Mutant(
        waits,
        "        for call in chain:\n            self._edges.setdefault",
        "        for call in chain[:1]:\n            self._edges.setdefault",
        (refusals,),
    ),
    "re-entry into the queue is overlooked": Mutant(
        table,
        "            if chain:\n                self.waits.check(chain, call)\n",
        "",
        (simulation, refusals),
    ),
}


@pytest.mark.parametrize("check", [machine, stories, simulation, refusals])
def test_check__passes_on_the_table_itself(check):
    """What turns red for a mutant is green for the original."""
    check(table.Table, CONFIRM)


def test_mutant__without_a_fault():
    """A table made from its source as mutants are is green: red is the fault's doing."""
    sound = Mutant(waits, "stuck = {*waits, *inside}", "stuck = {*inside, *waits}", ())
    for check in (stories, refusals):
        check(sound.table_class())


@pytest.mark.once
@pytest.mark.parametrize(
    ("mutant", "check"),
    [(name, check) for name, mutant in MUTANTS.items() for check in mutant.checks],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_mutant__turns_a_check_red(mutant, check):
    """The check fails, by an assertion or by an exception out of the table."""
    broken = MUTANTS[mutant].table_class()
    with pytest.raises((AssertionError, ValueError, KeyError, IndexError, RuntimeError, Failed)):
        check(broken)
