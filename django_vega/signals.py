"""Django signals, one per event type; the sender is the decorated function, unbound.

Each receiver gets ``event``, the frozen event object. Sent outside every lock; a receiver that
raises is logged and changes nothing.
"""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

call_created = Signal()
call_parked = Signal()
call_queued = Signal()
call_running = Signal()
call_settled = Signal()
call_skipped = Signal()
coordination_reuse = Signal()
coordination_restart = Signal()
coordination_queued = Signal()
coordination_dropped = Signal()
coordination_orphaned_intent = Signal()
coordination_solo = Signal()
shaper_swallowed = Signal()
lease_lost = Signal()
refresh_written = Signal()
refresh_superseded = Signal()
refresh_failed = Signal()

BY_EVENT_TYPE: Final[dict[str, Signal]] = {
    "call:created": call_created,
    "call:parked": call_parked,
    "call:queued": call_queued,
    "call:running": call_running,
    "call:settled": call_settled,
    "call:skipped": call_skipped,
    "coordination:reuse": coordination_reuse,
    "coordination:restart": coordination_restart,
    "coordination:queued": coordination_queued,
    "coordination:dropped": coordination_dropped,
    "coordination:orphaned-intent": coordination_orphaned_intent,
    "coordination:solo": coordination_solo,
    "shaper:swallowed": shaper_swallowed,
    "lease:lost": lease_lost,
    "refresh:written": refresh_written,
    "refresh:superseded": refresh_superseded,
    "refresh:failed": refresh_failed,
}
