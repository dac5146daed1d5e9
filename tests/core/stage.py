"""A table on a stage: calls with names, steps as words, and a picture of what is there."""

import itertools

from django_vega.core.admission import Decision, coordinator
from django_vega.core.call import Call, CallSite, Options
from django_vega.core.entry import Effects
from django_vega.core.strategies import NONE, Strategy
from django_vega.core.table import Table

WHEN_FULL = {
    "dedupe": "reuse",
    "bounded": "reuse",
    "restart": "cancel",
    "serialize": "queue",
    "exhaust": "drop",
}


def strategy(text):
    """Return the strategy of a name and a limit, as in ``restart(2)``."""
    name, _, limit = text.rstrip(")").partition("(")
    return NONE if name == "none" else Strategy(int(limit or 1), WHEN_FULL[name])


@coordinator("of-the-test")
def asked(ctx):
    raise AssertionError("the stage applies decisions itself")


class Stage:
    """A table with its clock, its generations and the calls that were made, by name.

    Args:
        table_class: The table, or a mutant of it.
        options: Options of the table.
    """

    def __init__(self, table_class=Table, **options):
        self.now = 100.0
        self.generations = itertools.count(1)
        self.table = table_class(lambda: next(self.generations), lambda: self.now, **options)
        self.named = {}
        self._ids = itertools.count(1)

    # Calls

    def make(
        self,
        name,
        rule="dedupe",
        *,
        key="k",
        scope="s",
        inside=None,
        predecessor=None,
        thread=None,
        is_async=False,
        pooled=False,
        capacity=100,
        next=False,  # noqa: A002 - the name of the option
        while_busy="wait",
    ):
        """Return a new idle call and remember it by its name."""
        rule = strategy(rule) if isinstance(rule, str) else rule
        options = Options(rule, capacity=capacity, next=next, while_busy=while_busy)
        site = CallSite("f", scope, options, is_async=is_async)
        call = self.named[name] = Call(
            self._ids.__next__(),
            site,
            key,
            lambda call: None,
            None,
            created_at=self.now,
            parent=None if inside is None else self.named[inside],
            predecessor=None if predecessor is None else self.named[predecessor],
            thread=thread,
            pool="pool" if pooled else None,
        )
        return call

    def name(self, call):
        """Return the name of a call."""
        return next(name for name, known in self.named.items() if known is call)

    # Steps, each of which returns what it did, in words

    def admit(self, name, rule="dedupe", **more):
        """Make a call and admit it, as its runner does: with its waiter and its edges."""
        call = self.make(name, rule, **more)
        return self._placed(call, lambda chain: self.table.admit(call, chain))

    def apply(self, name, choice, *, reuse=None, cancel="", version=None, **more):
        """Make a call whose coordinator decides so, on the present picture or an older one."""
        call = self.make(name, asked, **more)
        current, peers = self.table.peers(call.slot)
        decision = Decision(
            choice,
            peer_id=None if reuse is None else self.named[reuse].id,
            cancel_ids=tuple(peer.id for peer in peers if self.name(peer) in cancel.split()),
        )
        version = current if version is None else version
        return self._placed(call, lambda chain: self.table.apply(call, decision, version, chain))

    def _placed(self, call, step):
        chain = call.parent.chain() if call.parent is not None else ()
        effects = step(chain)
        waits_for = call.leader or (call if call.state == "parked" else None)
        if waits_for is not None:
            if call.leader is not None:
                self.table.attach(call.leader, self.name(call))
            self.table.waits.begin(chain, waits_for)
        return self.told(effects)

    def settle(self, name, step="succeed", **more):
        """Let the body of a call end."""
        return self.told(self.table.settle(self.named[name], step, **more))

    def cancel(self, name, reason="abort"):
        """Cancel a call."""
        return self.told(self.table.cancel(self.named[name], reason))

    def cancel_all(self, where=None):
        """Cancel everything."""
        return self.told(
            self.table.cancel_all(flights="abort", parked="admission-reset", where=where)
        )

    def leave(self, name, leader):
        """Let a follower go."""
        self.table.leave(self.named[leader], name)
        return ""

    def run(self, name):
        """Let a worker claim a queued call."""
        return "" if self.table.run(self.named[name]) else "refused"

    def write(self, name):
        """Let a call begin to write."""
        return "" if self.table.begin_writing(self.named[name]) else "refused"

    # What is to be seen

    def told(self, effects: Effects | None) -> str:
        """Say what a step left to do: whom it settled, with their waiters, and released."""
        if effects is None:
            return "refused"
        words = []
        for call, waiters in effects.settled:
            reason = f" ({call.reason})" if call.reason else ""
            tells = f" tells {' '.join(waiters)}" if waiters else ""
            words.append(f"{self.name(call)} {call.state}{reason}{tells}")
        words += [f"{self.name(call)} released" for call in effects.released]
        if effects.move in {"solo", "busy"}:
            words.append(effects.move)
        return ", ".join(words)

    def picture(self) -> str:
        """Say what is in the table: flights, then parked calls, then stopping bodies, by key."""
        return ", ".join(
            f"{self.name(call)} {'stopping' if call.settled else call.state}"
            for call in self.table.calls()
        )

    def play(self, *story: tuple[str, str, str]) -> None:
        """Take steps; after each compare what it told and what is in the table.

        Args:
            story: Step, what it tells, picture. A step is a method of the stage with its
                arguments: ``"admit b restart"``, ``"admit c dedupe inside=b"``.
        """
        for number, (step, told, picture) in enumerate(story, 1):
            method, *words = step.split()
            pairs = dict(word.split("=") for word in words if "=" in word)
            more = {name: int(v) if v.isdigit() else v for name, v in pairs.items()}
            flags = {word: True for word in words if word in {"is_async", "pooled", "next"}}
            arguments = [word for word in words if "=" not in word and word not in flags]
            try:
                really = getattr(self, method)(*arguments, **more, **flags)
            except Exception as error:
                really = type(error).__name__
            assert (really, self.picture()) == (told, picture), f"step {number}: {step}"
            check_invariants(self.table)


def check_invariants(table: Table) -> None:
    """Compare everything in the table with what must always be so."""
    for slot, entry in table._entries.items():
        assert not entry.is_idle(), f"{slot} is kept for nothing (invariant 4)"
        everyone = [*entry.flights, *entry.parked, *entry.stopping]
        assert len(set(everyone)) == len(everyone), f"{slot} holds a call twice"
        assert {call.slot for call in everyone} == {slot}
        assert all(call.state in {"queued", "running", "writing"} for call in entry.flights), (
            "a settled call is still a flight (invariant 1)"
        )
        assert all(call.state == "parked" for call in entry.parked)
        assert all(call.state == "cancelled" and not call.ended for call in entry.stopping)
        assert all(call.waiters is None for call in entry.stopping)
        assert all(call.generation is None for call in entry.parked)
        assert all(call.generation is not None for call in entry.flights)
        if entry.parked:
            assert entry.occupants(), f"{slot} has a queue that nobody will release"
