"""Coordinate concurrent calls of the same work in Django: one fetch, many callers, no stale write.

Importing this package touches no settings and no models, and starts no thread.
"""

from django_vega.core.admission import CoordinationContext
from django_vega.core.admission import coordinator as _coordinator
from django_vega.core.call import Call, FlightRecord, checkpoint, current_call
from django_vega.core.errors import (
    Busy,
    CallCancelled,
    CoordinationProtocolError,
    DeadlockError,
    DuplicateRowError,
    EmptyResponseError,
    InAtomicBlockError,
    IncompleteKeyError,
    KeyTemplateError,
    LeaderError,
    LeaseLost,
    NotAdmitted,
    OrphanedIntentError,
    QueueFull,
    ReentrantCallError,
    RemoteCallError,
    UnstableKeyError,
    VegaError,
    WaitTimeout,
)
from django_vega.core.events import get_event_bus, subscribe
from django_vega.core.fan import Outcome
from django_vega.core.outcome import Refresh, RefreshStatus
from django_vega.core.shapers import debounce, throttle
from django_vega.core.strategies import (
    DEDUPE,
    EXHAUST,
    NONE,
    RESTART,
    Strategy,
    bounded,
    serialize,
)
from django_vega.decorators import coordinated, singleflight_refresh
from django_vega.fanout import Budget, afan_out, fan_out
from django_vega.fields import GenerationField
from django_vega.handler import (
    SynchronousCallError,
    cancel,
    cancel_all,
    close,
    in_flight,
)
from django_vega.runtime.budget import BudgetTimeout, TooHeavy
from django_vega.watching.query import watch
from django_vega.writing.upsert import Upsert

# The imports above leave the module of that name here; the name belongs to the decorator.
coordinator = _coordinator

__version__ = "0.1.0"

__all__ = [
    "DEDUPE",
    "EXHAUST",
    "NONE",
    "RESTART",
    "Budget",
    "BudgetTimeout",
    "Busy",
    "Call",
    "CallCancelled",
    "CoordinationContext",
    "CoordinationProtocolError",
    "DeadlockError",
    "DuplicateRowError",
    "EmptyResponseError",
    "FlightRecord",
    "GenerationField",
    "InAtomicBlockError",
    "IncompleteKeyError",
    "KeyTemplateError",
    "LeaderError",
    "LeaseLost",
    "NotAdmitted",
    "OrphanedIntentError",
    "Outcome",
    "QueueFull",
    "ReentrantCallError",
    "Refresh",
    "RefreshStatus",
    "RemoteCallError",
    "Strategy",
    "SynchronousCallError",
    "TooHeavy",
    "UnstableKeyError",
    "Upsert",
    "VegaError",
    "WaitTimeout",
    "afan_out",
    "bounded",
    "cancel",
    "cancel_all",
    "checkpoint",
    "close",
    "coordinated",
    "coordinator",
    "current_call",
    "debounce",
    "fan_out",
    "get_event_bus",
    "in_flight",
    "serialize",
    "singleflight_refresh",
    "subscribe",
    "throttle",
    "watch",
]
