"""Says what happened: events for the bus at once, for the host when nothing is locked."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from django_vega.core.call import Call, CallSite
from django_vega.core.clock import Clock
from django_vega.core.entry import Effects
from django_vega.core.events import (
    CallParked,
    CallQueued,
    CallRunning,
    CallSettled,
    CallSkipped,
    CoordinationDropped,
    CoordinationEvent,
    CoordinationQueued,
    CoordinationRestart,
    CoordinationReuse,
    CoordinationSolo,
    Event,
    ShaperSwallowed,
    get_event_bus,
)

# Events with the object they are sent for, to be handed to the host outside every lock.
Outbox: TypeAlias = "list[tuple[Event, Any]]"


class Host(Protocol):
    """What the framework around the coordinator has to offer."""

    def wants(self, event_type: str) -> bool:
        """Whether somebody listens to this type of event."""

    def send(self, event: Event, source: Any) -> None:
        """Hand an event to synchronous listeners."""

    async def asend(self, event: Event, source: Any) -> None:
        """Hand an event to listeners from an event loop."""

    def pool_item(self) -> AbstractContextManager[None]:
        """Surround one piece of work on a thread of the pool."""

    def synchronous_call_error(self, message: str) -> Exception:
        """Return the framework's error for a wait that would block what it needs."""


class Announcer:
    """Builds events, only when somebody listens.

    Args:
        host: Takes them from an outbox, outside every lock.
        clock: The time.
        process: ``host:pid``.
    """

    def __init__(self, host: Host, clock: Clock, process: str) -> None:
        self._host = host
        self._clock = clock
        self._process = process
        self._bus = get_event_bus()

    def announce(self, outbox: Outbox, kind: type[Event], call: Call, **data: Any) -> None:
        """Publish an event on the bus and leave it in the outbox for the host."""
        self._announce(outbox, kind, call.site, key=call.key, call_id=call.id, data=data)

    def announce_swallowed(self, outbox: Outbox, site: CallSite, key: str, shaper: str) -> None:
        """Say that a shaper kept an invocation from becoming a call."""
        data = {"shaper": shaper}
        self._announce(outbox, ShaperSwallowed, site, key=key, call_id=0, data=data)

    def _announce(
        self,
        outbox: Outbox,
        kind: type[Event],
        site: CallSite,
        *,
        key: str,
        call_id: int,
        data: dict[str, Any],
    ) -> None:
        for_host = self._host.wants(kind.type)
        if not for_host and not self._bus.wants(kind.type):
            return
        event = kind(
            key=site.display(key),
            call_id=call_id,
            coordinator=site.options.strategy.name,
            function=site.function,
            at=self._clock.time(),
            process=self._process,
            **data,
        )
        self._bus.publish(event)
        if for_host:
            outbox.append((event, site.source))

    def announce_draft(self, outbox: Outbox, call: Call, draft: CoordinationEvent) -> None:
        """Publish what a coordinator emitted, with the call's own data filled in."""
        own = set(draft.__dataclass_fields__) - set(Event.__dataclass_fields__)
        self.announce(outbox, type(draft), call, **{name: getattr(draft, name) for name in own})

    def announce_running(self, call: Call, outbox: Outbox) -> None:
        """Say that the call's function begins."""
        self.announce(outbox, CallRunning, call)

    def announce_settled(self, call: Call, outbox: Outbox) -> None:
        """Say what the call came to."""
        self.announce(
            outbox,
            CallSettled,
            call,
            state=call.state,
            reason=call.reason,
            duration=self._clock.monotonic() - call.created_at,
        )
        if call.site.epilogue is not None and call.started_at is not None:
            told = call.site.epilogue(call)
            if told is not None:
                self.announce(outbox, told[0], call, **told[1])

    def announce_move(self, call: Call, effects: Effects, outbox: Outbox) -> None:
        """Say what the admission of a call did to it and to its peers."""
        if call.leader is not None:
            self.announce(outbox, CoordinationReuse, call, peer_id=call.leader.id)
            self.announce_settled(call, outbox)
        elif call.state == "parked":
            self.announce(outbox, CallParked, call)
            self.announce(outbox, CoordinationQueued, call)
        elif effects.move == "drop":
            self.announce(outbox, CoordinationDropped, call)
            self.announce_settled(call, outbox)
        elif effects.move == "busy":
            answer = call.site.options.while_busy
            self.announce(outbox, CallSkipped, call, answer=answer)
            self.announce_settled(call, outbox)
        elif effects.move == "solo":
            self.announce(outbox, CoordinationSolo, call)
        here = (peer.id for peer, _ in effects.settled)
        cancelled = tuple(dict.fromkeys((*effects.cancelled_ids, *here)))
        if cancelled:
            self.announce(outbox, CoordinationRestart, call, cancelled_call_ids=cancelled)
        if call.state == "queued":
            self.announce(outbox, CallQueued, call)

    def flush(self, outbox: Outbox) -> None:
        """Hand the collected events to the host."""
        while outbox:
            self._host.send(*outbox.pop(0))

    async def aflush(self, outbox: Outbox) -> None:
        """Hand the collected events to the host, from an event loop."""
        while outbox:
            await self._host.asend(*outbox.pop(0))
