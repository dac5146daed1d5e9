"""Coordinators of users' own over processes: snapshot, decide, compare and set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from django_vega.backends.protocol import (
    Admission,
    Cancelled,
    Dropped,
    Holder,
    Leader,
    Stale,
    Ticket,
)
from django_vega.core.admission import CoordinationContext, CoordinatorFunction, Decision
from django_vega.core.call import Call, FlightRecord
from django_vega.core.errors import CoordinationProtocolError
from django_vega.runtime.admissions import Admissions, Applicant, id_of
from django_vega.runtime.link import Link
from django_vega.runtime.steps import Steps

# A coordinator whose key changes this often while it decides changes the key itself.
_MOST_QUESTIONS: Final = 100


class Questions:
    """Asks coordinators what a call does.

    Args:
        link: To the server.
        admissions: Make what was decided a step of the table.
    """

    def __init__(self, link: Link, admissions: Admissions) -> None:
        self._link = link
        self._admissions = admissions
        self.flights = link.flights

    def ask(self, applicant: Applicant) -> Steps[Any]:
        """Ask the call's coordinator, until the key is as it saw it."""
        call, chain, outbox = applicant.call, applicant.chain, applicant.outbox
        coordinator = call.site.options.strategy
        assert isinstance(coordinator, CoordinatorFunction)
        lease = self._link.lease_of(call)
        for _ in range(_MOST_QUESTIONS):
            yield self._link.send_later
            snapshot = yield partial(self._link.backend.snapshot, lease.key_hash)
            with self.flights.lock:
                self.flights.refuse_closed(call)
                intent = self.flights.record(call)
            tickets = {
                id_of(ticket.token, self._link.process): ticket
                for ticket in (*snapshot.flights, *snapshot.parked)
            }
            peers = [self._record(number, ticket, call) for number, ticket in tickets.items()]
            context = CoordinationContext(intent, peers, call.site.options)
            returned = coordinator(context)
            decision = context.decision()
            if decision.choice is None:
                return self.flights.orphan(call, coordinator, returned, outbox)
            is_taken = decision.choice in {"reuse", "queue"} and bool(tickets)
            if is_taken and not call.site.options.waits:
                holder = _holder(next(iter(tickets.values())))
                effects = self._admissions.apply(applicant, Dropped(holder), decision.reason)
            else:
                self._refuse_own_of(decision, tickets, chain)
                request = partial(self._decide, call, decision, tickets, snapshot.version)
                done = yield from self._admissions.request(applicant, request, decision.reason)
                if done is None:
                    continue
                effects = done
                with self.flights.lock:
                    chosen = [tickets[number] for number in decision.cancel_ids]
                    self._admissions.cancel(
                        call, [_cancelled(ticket) for ticket in chosen], effects
                    )
            self._admissions.tell(applicant, effects)
            for event in decision.events:
                self.flights.announcer.announce_draft(outbox, call, event)
            return None
        raise CoordinationProtocolError(
            f"coordinator {coordinator.name!r} was asked {_MOST_QUESTIONS} times for "
            f"{call.shown_key} and the key changed each time: it must be pure and quick"
        )

    def _decide(
        self, call: Call, decision: Decision, tickets: dict[int, Ticket], version: int
    ) -> Admission | Stale:
        lease = self._link.lease_of(call)
        assert decision.choice is not None
        sent_at = self.flights.clock.monotonic()
        reply = self._link.backend.apply(
            lease.key_hash,
            self._link.intent(call, lease),
            version=version,
            choice=decision.choice,
            capacity=call.site.options.capacity,
            peer="" if decision.peer_id is None else tickets[decision.peer_id].token,
            cancel=[tickets[number].token for number in decision.cancel_ids],
        )
        if isinstance(reply, Leader):
            lease.renew(sent_at)
        return reply

    def _refuse_own_of(
        self, decision: Decision, tickets: dict[int, Ticket], chain: Sequence[Call]
    ) -> None:
        own = {peer.lease.token: peer for peer in chain if peer.lease is not None}
        touched = [*decision.cancel_ids, *([decision.peer_id] if decision.peer_id else [])]
        for number in touched:
            peer = own.get(tickets[number].token)
            if peer is not None:
                with self.flights.lock:
                    self.flights.table.waits.check(chain, peer)

    def _record(self, number: int, ticket: Ticket, call: Call) -> FlightRecord:
        about = json.loads(ticket.about or b"{}")
        return FlightRecord(
            id=number,
            key=call.shown_key,
            scope=call.site.scope,
            function=about.get("function", ""),
            strategy=about.get("strategy", ""),
            state="running" if ticket.generation else "parked",
            reason=None,
            generation=ticket.generation,
            age=ticket.age,
            joined=0,
            is_async=about.get("is_async", False),
            process=ticket.process.partition("/")[0],
        )


def _cancelled(ticket: Ticket) -> Cancelled:
    return Cancelled(ticket.token, ticket.process, ticket.generation)


def _holder(ticket: Ticket) -> Holder:
    return Holder(ticket.process, ticket.generation, ticket.age, ticket.left)
