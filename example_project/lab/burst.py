"""A burst: calls on one key, made on the server, as browsers serialise equal requests."""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django_vega import CallCancelled, VegaError, checkpoint
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.strategies import Strategy, StrategyName
from example_project.lab.asking import ask
from example_project.lab.journal import CallSeen, Journal
from example_project.lab.runs import spawn

PAGE = "home"


@dataclass(eq=False)
class Burst:
    """Calls that are made one after the other on one key.

    Without spacing they all overlap, whatever the machine does: no function returns before every
    call has arrived. With spacing a function takes its time and no more.

    Args:
        strategy: What decides on the calls.
        calls: How many.
        spacing: Seconds from one call to the next.
        duration: Seconds that the function takes.
        run: Part of the key.
    """

    strategy: Strategy | StrategyName | CoordinatorFunction
    calls: int
    spacing: float
    duration: float
    run: str
    journal: Journal = field(default_factory=Journal)
    _is_open: bool = False  # under the journal's lock

    def play(self) -> None:
        """Make the calls and wait until each caller has its answer."""
        journal = self.journal
        self._is_open = self.spacing > 0
        callers = []
        with journal.listening():
            began = time.monotonic()
            for number in range(self.calls):
                due = began + number * self.spacing
                journal.wait_for(lambda: False, max(due - time.monotonic(), 0))
                seen = journal.add(PAGE)
                callers.append(spawn(partial(self._call, seen)))
                # In call order, that is: each one is where it stays before the next one comes.
                journal.wait_for(partial(_is_in_place, seen))
            with journal.changed:
                self._is_open = True
                journal.changed.notify_all()
            for caller in callers:
                caller.join()

    def state(self) -> dict[str, Any]:
        """Return calls, executions and events, JSON-ready."""
        journal = self.journal
        with journal.changed:
            return {
                "calls": [seen.as_dict() for seen in journal.calls],
                "executions": journal.executions,
                "joined": journal.joined,
                "events": [vars(line) for line in journal.lines],
            }

    def _call(self, seen: CallSeen) -> None:
        function = ask.with_options(strategy=self.strategy)
        got = ""
        with self.journal.asking(seen):
            try:
                got = str(function(PAGE, self.run, partial(self._body, seen)))
            except CallCancelled as error:
                got = f"CallCancelled({error.reason})"
            except VegaError as error:
                got = f"{type(error).__name__}: {error}"
            finally:
                self.journal.note(seen, got=got)

    def _body(self, seen: CallSeen) -> str:
        journal = self.journal
        journal.begins()
        journal.wait_for(lambda: self._is_open or seen.settled is not None)
        # A cancelled one leaves early: it sees its cancellation at the checkpoint.
        journal.wait_for(lambda: seen.settled is not None, self.duration)
        journal.note(seen, body_ended=time.time())
        checkpoint()
        return f"value {seen.number}"


def _is_in_place(seen: CallSeen) -> bool:
    return seen.has_arrived or seen.ended is not None
