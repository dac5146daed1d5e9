"""The end of a flight, or of its wait, as the server hears of it."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from django_vega.backends.base import BackendUnavailableError
from django_vega.backends.codecs import (
    UnfitValueError,
    cancelled_outcome,
    error_outcome,
    value_outcome,
)
from django_vega.backends.protocol import Lost, Outcome
from django_vega.core.call import Call, Step
from django_vega.runtime.announcer import Outbox
from django_vega.runtime.link import RETAIN, Link
from django_vega.runtime.steps import Steps


class Endings:
    """Tells the server what calls of this process came to.

    Args:
        link: To the server.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.flights = link.flights

    def settlement(
        self,
        call: Call,
        step: Step,
        outbox: Outbox,
        *,
        value: Any = None,
        error: BaseException | None = None,
        reason: str | None = None,
    ) -> Steps[None]:
        """Give a flight its outcome: at the server first, then here; see `Flights.settle`."""
        flights, lease = self.flights, call.lease
        with flights.lock:
            flights.table.close(call)
        if lease is not None and call.state != "cancelled" and lease.lost is None:
            outcome = self._outcome(step, value, error, reason)
            assert call.generation is not None
            try:
                reply = yield partial(
                    self._link.backend.settle,
                    lease.key_hash,
                    lease.token,
                    call.generation,
                    outcome,
                    retain=RETAIN,
                )
            except BackendUnavailableError as unavailable:
                self._link.lose_touch(unavailable)
            else:
                if isinstance(reply, Lost):
                    lease.lost = reply.reason
            call.lease = None
            if lease.was_cancelled and call.state == "running":
                step, value, reason = "cancel", None, lease.lost
        flights.settle(call, step, outbox, value=value, error=error, reason=reason)

    def _outcome(
        self, step: Step, value: Any, error: BaseException | None, reason: str | None
    ) -> Outcome:
        if step == "succeed":
            try:
                return value_outcome(value, self._link.codec)
            except UnfitValueError as unfit:
                return error_outcome(unfit, self.flights.process)
        if error is not None and step == "fail":
            return error_outcome(error, self.flights.process)
        return cancelled_outcome(reason or "abort")

    def give_up(self, call: Call) -> None:
        """Tell the server that a body has ended, or that nobody runs it, without an outcome."""
        lease, call.lease = call.lease, None
        if lease is not None:
            self._link.later(partial(self._link.backend.abandon, lease.key_hash, lease.token))

    def note_cancelled(self, call: Call) -> None:
        """Tell the server of a call that was cancelled here; a running body keeps its place."""
        lease = call.lease
        if lease is None:
            return
        if lease.lost is not None:  # it was the server that said so
            if call.ended:
                self.give_up(call)
            return
        lease.lost = call.reason
        if call.reason == "shutdown":
            self.give_up(call)
            return
        if call.ended:
            call.lease = None
        backend = self._link.backend
        if call.generation is None:
            self._link.later(partial(backend.leave, lease.key_hash, lease.token, ""))
            return
        self._link.later(
            partial(
                backend.settle,
                lease.key_hash,
                lease.token,
                call.generation,
                cancelled_outcome(call.reason or "abort"),
                retain=RETAIN,
                stopping=0.0 if call.ended else self._link.lease,
            )
        )

    def cancel(self, slot: tuple[str, str], parked_reason: str = "abort") -> int:
        """Cancel the calls of a key in all other processes; returns how many that were."""
        self._link.send_later()
        hashed = self._link.hash(slot)
        try:
            cancelled = self._link.backend.cancel(
                hashed,
                f"{self._link.process}#cancel-{uuid.uuid4().hex}",
                parked_reason=parked_reason,
            )
        except BackendUnavailableError as error:
            self._link.lose_touch(error)
            return 0
        return sum(one.process != self._link.process for one in cancelled)
