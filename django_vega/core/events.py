"""What happens to calls, as frozen objects, and the one bus that carries them."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

logger = logging.getLogger("django_vega")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to one call.

    A coordinator that emits an event leaves these fields out; they are filled in for it.

    Attributes:
        key: The rendered key, as ``KEY_DISPLAY`` shows it.
        call_id: The call's id, unique within ``process``.
        coordinator: Name of the strategy or coordinator that decided on the call.
        function: Dotted name of the coordinated function.
        at: Seconds since the epoch.
        process: ``host:pid``.
    """

    type: ClassVar[str]

    key: str = ""
    call_id: int = 0
    coordinator: str = ""
    function: str = ""
    at: float = 0.0
    process: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCreated(Event):
    """A coordinated function was called."""

    type: ClassVar[str] = "call:created"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParked(Event):
    """A coordinator holds the call; it may not run yet."""

    type: ClassVar[str] = "call:parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallQueued(Event):
    """The call may run and waits for a worker of the pool."""

    type: ClassVar[str] = "call:queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRunning(Event):
    """The call's function begins."""

    type: ClassVar[str] = "call:running"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettled(Event):
    """The call got its one outcome.

    Attributes:
        state: ``success``, ``error`` or ``cancelled``.
        reason: Why it was cancelled, else None.
        duration: Seconds since the call was created.
    """

    type: ClassVar[str] = "call:settled"

    state: str
    reason: str | None = None
    duration: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSkipped(Event):
    """The call met a flight, and its ``while_busy`` is not to wait.

    Attributes:
        answer: What its caller gets instead: ``raise``, ``skip`` or ``stale``.
    """

    type: ClassVar[str] = "call:skipped"

    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShaperSwallowed(Event):
    """A shaper kept an invocation from becoming a call, so ``call_id`` is 0.

    Attributes:
        shaper: ``debounce``: it shares the outcome of the run that fires. ``throttle``: it is
            skipped.
    """

    type: ClassVar[str] = "shaper:swallowed"

    shaper: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationReuse(Event):
    """The call shares a peer's outcome.

    Attributes:
        peer_id: Id of the call whose outcome it gets.
    """

    type: ClassVar[str] = "coordination:reuse"

    peer_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationRestart(Event):
    """The call cancelled peers and runs in their place.

    Attributes:
        cancelled_call_ids: Ids of the peers it cancelled.
    """

    type: ClassVar[str] = "coordination:restart"

    cancelled_call_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationQueued(Event):
    """The call was parked behind its peers."""

    type: ClassVar[str] = "coordination:queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationDropped(Event):
    """The call was dropped because a peer is in flight."""

    type: ClassVar[str] = "coordination:dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationOrphanedIntent(Event):
    """A coordinator returned without a decision."""

    type: ClassVar[str] = "coordination:orphaned-intent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationSolo(Event):
    """A thread met only flights that it must not wait for, and leads a flight of its own."""

    type: ClassVar[str] = "coordination:solo"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLostEvent(Event):
    """A leader learnt from the server that it leads no more, though its body still runs.

    Attributes:
        reason: ``taken``, ``released``, or what the server says otherwise.
    """

    type: ClassVar[str] = "lease:lost"

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshWritten(Event):
    """A refresh committed its rows.

    Attributes:
        generation: The flight's generation.
        rows: Distinct rows of the response.
        written: How many of them were written.
    """

    type: ClassVar[str] = "refresh:written"

    generation: int
    rows: int | None = None
    written: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshSuperseded(Event):
    """A refresh wrote nothing because a newer one had written.

    Attributes:
        generation: The flight's generation.
    """

    type: ClassVar[str] = "refresh:superseded"

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshFailed(Event):
    """A refresh failed; the rows are as before.

    Attributes:
        generation: The flight's generation.
        error: Type and message of what was raised.
    """

    type: ClassVar[str] = "refresh:failed"

    generation: int
    error: str


CoordinationEvent: TypeAlias = (
    CoordinationReuse
    | CoordinationRestart
    | CoordinationQueued
    | CoordinationDropped
    | CoordinationOrphanedIntent
    | CoordinationSolo
)
COORDINATION_EVENTS: Final = (
    CoordinationReuse,
    CoordinationRestart,
    CoordinationQueued,
    CoordinationDropped,
    CoordinationOrphanedIntent,
    CoordinationSolo,
)
EVENT_TYPES: Final[dict[str, type[Event]]] = {
    cls.type: cls
    for cls in (
        CallCreated,
        CallParked,
        CallQueued,
        CallRunning,
        CallSettled,
        CallSkipped,
        *COORDINATION_EVENTS,
        ShaperSwallowed,
        LeaseLostEvent,
        RefreshWritten,
        RefreshSuperseded,
        RefreshFailed,
    )
}

Receiver: TypeAlias = Callable[[Any], object]


class EventBus:
    """Carries events to receivers, in the thread that caused them, outside every lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced as a whole, under the lock; read without it.
        self._receivers: tuple[tuple[Receiver, frozenset[str] | None], ...] = ()

    def subscribe(
        self, receiver: Receiver, types: Iterable[str] | None = None
    ) -> Callable[[], None]:
        """Call ``receiver`` with every event, or with those of the given types.

        A receiver that raises is logged and changes nothing. It runs in the thread or event loop
        that caused the event and must be quick.

        Args:
            receiver: Takes the event object.
            types: Event types such as ``"call:settled"``; default all, own diagnostics included.

        Returns:
            A function that ends the subscription; calling it twice does no harm.

        Raises:
            TypeError: ``receiver`` is not callable, or ``types`` is a single string.
            ValueError: A type of django-vega's own families (``call:``, …) does not exist.
        """
        if not callable(receiver):
            raise TypeError(f"receiver={receiver!r} is not callable: pass a function of one event")
        if isinstance(types, str):
            raise TypeError(f"types={types!r}: pass a list of event types, [{types!r}]")
        types = None if types is None else tuple(types)
        _refuse_misspelt(types or ())
        entry = (receiver, None if types is None else frozenset(types))
        with self._lock:
            self._receivers = (*self._receivers, entry)

        def unsubscribe() -> None:
            with self._lock:
                self._receivers = tuple(kept for kept in self._receivers if kept is not entry)

        return unsubscribe

    def wants(self, event_type: str) -> bool:
        """Whether somebody listens to events of this type."""
        receivers = self._receivers
        return bool(receivers) and any(
            types is None or event_type in types for _, types in receivers
        )

    def publish(self, event: Any) -> None:
        """Hand ``event`` to its receivers; own diagnostics need a ``type`` of their own."""
        for receiver, types in self._receivers:
            if types is None or event.type in types:
                try:
                    receiver(event)
                except Exception:
                    logger.exception("receiver %r of %s raised", receiver, event.type)


def _refuse_misspelt(types: Iterable[str]) -> None:
    families = {known.partition(":")[0] for known in EVENT_TYPES}
    for name in types:
        if name not in EVENT_TYPES and name.partition(":")[0] in families:
            close = difflib.get_close_matches(name, EVENT_TYPES, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Use one of {sorted(EVENT_TYPES)}"
            raise ValueError(f"there is no event type {name!r}, so it would never arrive. {hint}")


_bus = EventBus()


def get_event_bus() -> EventBus:
    """Return the process's one event bus."""
    return _bus


subscribe = _bus.subscribe
