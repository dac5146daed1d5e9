"""Looks again: at flights of other processes, at calls that are parked, at leases.

A flight of another process is there as a *stand-in*: a call without a body.
"""

from __future__ import annotations

import random
from typing import Final

from django_vega.backends.base import BackendUnavailableError
from django_vega.backends.codecs import error_of, reason_of, value_of
from django_vega.backends.local import see_generation
from django_vega.backends.protocol import Done, Ended, Follow, Holder, Leader, Lost, Outcome
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.call import Call
from django_vega.core.entry import Effects
from django_vega.core.events import LeaseLostEvent
from django_vega.core.lease import Lease
from django_vega.core.strategies import serialize
from django_vega.runtime.announcer import Outbox
from django_vega.runtime.link import Link

# Seconds between two looks at a flight of another process, whatever hints there were; ± 20 %.
_LOOK: Final = 1.5


class Lookout:
    """Finds out how calls stand, and makes that steps of the table.

    Args:
        link: To the server.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.flights = link.flights
        self.reset()

    def reset(self) -> None:
        """Look at nothing, as a forked child has to."""
        self._due: dict[Call, float] = {}

    def leader(self, call: Call, reply: Follow) -> Call:
        """Return the flight of this process that the server means, or a stand-in for another's."""
        table, holder = self.flights.table, reply.holder
        if holder.process == self._link.process:
            own = table.found(call.slot, reply.generation, here=True)
            if own is not None:
                return own
        stand_in = table.found(call.slot, reply.generation, here=False)
        if stand_in is None:
            stand_in = self.flights.new_call(call.site, call.key, None, call.runtime)
            stand_in.parent = None
            stand_in.process = holder.process.partition("/")[0]
            table.stand_in(stand_in, reply.generation, holder.age)
            self._due[stand_in] = self._next_look(holder)
        return stand_in

    def look_at(self, slot: tuple[str, str]) -> None:
        """Find out how the calls of a key stand."""
        with self.flights.lock:
            calls = tuple(self.flights.table.calls(slot))
        for call in calls:
            self.look(call)

    def look(self, call: Call) -> bool:
        """Find out how a call stands: a stand-in, one that is parked, or one that leads.

        Returns:
            Whether the server answered.
        """
        outbox: Outbox = []
        try:
            self.flights.abandon_if_lost(call, outbox)
            if call.process is not None:
                self._look_at_stand_in(call, outbox)
            elif call.lease is not None:
                if call.state == "parked":
                    self._look_at_parked(call, call.lease, outbox)
                elif call.generation is not None:
                    self._renew(call, call.lease, outbox)
        except BackendUnavailableError as error:
            self._link.lose_touch(error)
            return False
        finally:
            self.flights.announcer.flush(outbox)
        return True

    def due(self) -> tuple[list[Call], float]:
        """Return the stand-ins to look at now, and the seconds until the next one."""
        with self.flights.lock:
            now = self.flights.clock.monotonic()
            for call in [call for call in self._due if call.settled]:
                del self._due[call]
            ready = [call for call, at in self._due.items() if at <= now]
            rest = [at - now for at in self._due.values() if at > now]
            return ready, min(rest, default=_LOOK)

    def leased(self) -> list[Call]:
        """Return the calls of this process that the server knows."""
        with self.flights.lock:
            return [call for call in self.flights.table.calls() if call.lease is not None]

    def _look_at_stand_in(self, call: Call, outbox: Outbox) -> None:
        assert call.generation is not None
        reply = self._link.backend.look(
            self._link.hash(call.slot), self._link.intent(call), want=call.generation
        )
        if isinstance(reply, Follow):
            with self.flights.lock:
                self._due[call] = self._next_look(reply.holder)
        elif isinstance(reply, Done):
            self._conclude(call, reply.outcome, outbox)
        else:
            self.flights.settle(call, "abandon", outbox, reason="abandoned")

    def _conclude(self, call: Call, outcome: Outcome, outbox: Outbox) -> None:
        settle = self.flights.settle
        if outcome.kind == "cancelled":
            settle(call, "cancel", outbox, reason=reason_of(outcome))
        elif outcome.kind == "error":
            settle(call, "fail", outbox, error=error_of(outcome))
        else:
            try:
                value = value_of(outcome, self._link.codec)
            except Exception as error:  # noqa: BLE001 - every follower gets it
                settle(call, "fail", outbox, error=error)
            else:
                settle(call, "succeed", outbox, value=value)

    def _look_at_parked(self, call: Call, lease: Lease, outbox: Outbox) -> None:
        strategy = call.site.options.strategy
        if isinstance(strategy, CoordinatorFunction):
            strategy = serialize()
        reply = self._link.admit(call, strategy)
        if not isinstance(reply, Leader | Ended):
            return
        with self.flights.lock:
            if call.state != "parked":
                # It left meanwhile, and says so after this request was answered.
                return
            if isinstance(reply, Leader):
                see_generation(reply.generation)
                effects = self.flights.table.lead(call, reply.generation)
            else:
                lease.lost = reply.reason
                effects = self.flights.table.cancel(call, reply.reason) or Effects()
        self.flights.perform(effects, outbox)

    def _renew(self, call: Call, lease: Lease, outbox: Outbox) -> None:
        strategy = call.site.options.strategy
        limit = None if isinstance(strategy, CoordinatorFunction) else strategy.limit
        assert call.generation is not None
        lease.beat += 1
        sent_at = self.flights.clock.monotonic()
        reply = self._link.backend.renew(
            lease.key_hash,
            self._link.intent(call, lease),
            generation=call.generation,
            limit=limit,
            beat=lease.beat,
        )
        if not isinstance(reply, Lost):
            lease.renew(sent_at)
            return
        if call.settled or lease.lost is not None or reply.reason in {"settled", "abandoned"}:
            return
        lease.lost = reply.reason
        if lease.was_cancelled:
            self.flights.cancel(call, outbox, reply.reason)
        else:
            with self.flights.lock:
                self.flights.table.close(call)
            self.flights.announcer.announce(outbox, LeaseLostEvent, call, reason=reply.reason)

    def _next_look(self, holder: Holder) -> float:
        pause = min(_LOOK * random.uniform(0.8, 1.2), max(0.05, holder.left))
        return self.flights.clock.monotonic() + pause
