"""Coordination over processes: who else may run a call, as the server of a shared backend says.

Callers wait in the table of their own process only; here is what turns the server's answers into
steps of that table, and the table's steps into requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django_vega.backends.base import SharedBackend
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.call import Call
from django_vega.runtime.admissions import Admissions, Applicant
from django_vega.runtime.announcer import Outbox
from django_vega.runtime.endings import Endings
from django_vega.runtime.link import Link, Sharing
from django_vega.runtime.lookout import Lookout
from django_vega.runtime.questions import Questions
from django_vega.runtime.steps import Steps

if TYPE_CHECKING:
    from django_vega.runtime.flights import Flights


class Remote:
    """The other processes of one alias.

    Args:
        flights: The table of this process.
        backend: The server.
        sharing: How the processes get on.
    """

    def __init__(self, flights: Flights, backend: SharedBackend, sharing: Sharing) -> None:
        self.link = Link(flights, backend, sharing)
        self.lookout = Lookout(self.link)
        self.endings = Endings(self.link)
        self._admissions = Admissions(self.link, self.lookout)
        self._questions = Questions(self.link, self._admissions)
        #: Called for each call: whoever keeps calls alive at the server has something to do.
        self.on_call: Callable[[], None] = lambda: None

    def reset(self) -> None:
        """Be nobody yet, as a forked child has to."""
        self.link.reset()
        self.lookout.reset()
        self._admissions.reset()

    def admission(
        self,
        call: Call,
        outbox: Outbox,
        make_waiter: Callable[..., Any],
        make_turn: Callable[[], Any],
    ) -> Steps[Any]:
        """Let the strategy decide over all processes; see `Flights.admit`.

        Args:
            call: As there.
            outbox: As there.
            make_waiter: As there.
            make_turn: Makes the waiter of a call that waits for its turn to ask.
        """
        self.on_call()
        chain = call.parent.chain() if call.parent is not None else ()
        applicant = Applicant(call, chain, outbox, make_waiter, make_turn)
        is_asked = isinstance(call.site.options.strategy, CoordinatorFunction)
        ask = self._questions.ask if is_asked else self._admissions.ask
        return self._admissions.admit(applicant, ask)
