"""Coordinators of users' own: a pure function looks at the peers and records one decision."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from django_vega.core.call import LEFT, FlightRecord, Options
from django_vega.core.errors import CoordinationProtocolError
from django_vega.core.events import COORDINATION_EVENTS, CoordinationEvent

Choice: TypeAlias = Literal["proceed", "reuse", "queue", "drop"]

# Ends after which the caller gets a value all the same, or goes on by itself.
_NO_DROP: Final = frozenset({"busy", "dedupe", "orphaned-intent"}) | LEFT


@dataclass(frozen=True, slots=True)
class Decision:
    """What a coordinator recorded for one call.

    Attributes:
        choice: None when it decided nothing.
        peer_id: Whose outcome to share, with ``reuse``.
        reason: Why the call is dropped, with ``drop``.
        cancel_ids: Peers to cancel.
        events: Coordination events of its own.
    """

    choice: Choice | None
    peer_id: int | None = None
    reason: str = "exhaust-dropped"
    cancel_ids: tuple[int, ...] = ()
    events: tuple[CoordinationEvent, ...] = ()


class CoordinationContext:
    """All that a coordinator can see and touch.

    Its methods record a decision; the decision is applied afterwards, if the key has not changed
    meanwhile. Otherwise the coordinator is asked again with a fresh context.
    """

    def __init__(
        self, intent: FlightRecord, peers: Sequence[FlightRecord], options: Options
    ) -> None:
        self._intent = intent
        self._peers = tuple(peers)
        self._options = options
        self._choice: Choice | None = None
        self._peer_id: int | None = None
        self._reason = "exhaust-dropped"
        self._cancel_ids: list[int] = []
        self._events: list[CoordinationEvent] = []

    @property
    def intent(self) -> FlightRecord:
        """This call, in state ``idle``."""
        return self._intent

    @property
    def key(self) -> str:
        """The rendered key."""
        return self._intent.key

    @property
    def function(self) -> str:
        """Dotted name of the called function."""
        return self._intent.function

    @property
    def options(self) -> Options:
        """What the call runs under."""
        return self._options

    def peers(self) -> tuple[FlightRecord, ...]:
        """Return the other unsettled calls of the key, oldest first, never the intent itself."""
        return self._peers

    def proceed(self) -> None:
        """Let the call run."""
        self._decide("proceed")

    def reuse(self, peer: FlightRecord) -> None:
        """Share the outcome of ``peer``, one of `peers`."""
        self._require_peer(peer)
        if peer.id in self._cancel_ids:
            raise CoordinationProtocolError(
                f"reuse() of call {peer.id} after cancel() of it: it will have no value"
            )
        self._decide("reuse")
        self._peer_id = peer.id

    def queue(self) -> None:
        """Park the call until no flight of the key is left and those parked before it have run."""
        self._decide("queue")

    def drop(self, reason: str = "exhaust-dropped") -> None:
        """End the call as cancelled with this reason; its caller gets `CallCancelled`."""
        if not isinstance(reason, str) or not reason:
            raise CoordinationProtocolError(f"drop(reason={reason!r}): pass a text that says why")
        if reason in _NO_DROP:
            raise CoordinationProtocolError(
                f"drop(reason={reason!r}): that says that the call was not dropped; pass another"
            )
        self._decide("drop")
        self._reason = reason

    def cancel(self, peer: FlightRecord) -> None:
        """Cancel ``peer``, one of `peers`, when the decision is applied."""
        self._require_peer(peer)
        if peer.id == self._peer_id:
            raise CoordinationProtocolError(
                f"cancel() of call {peer.id} after reuse() of it: it will have no value"
            )
        self._cancel_ids.append(peer.id)

    def emit(self, event: CoordinationEvent) -> None:
        """Publish a coordination event of this call when the decision is applied.

        Raises:
            CoordinationProtocolError: It is of another type; diagnostics of your own go to
                ``get_event_bus().publish(...)``.
        """
        if not isinstance(event, COORDINATION_EVENTS):
            allowed = ", ".join(cls.__name__ for cls in COORDINATION_EVENTS)
            raise CoordinationProtocolError(
                f"emit({event!r}): a coordinator emits {allowed}; publish diagnostics of your own "
                "with get_event_bus().publish(...)"
            )
        self._events.append(event)

    def decision(self) -> Decision:
        """Return what was recorded so far."""
        return Decision(
            self._choice,
            self._peer_id,
            self._reason,
            tuple(self._cancel_ids),
            tuple(self._events),
        )

    def _decide(self, choice: Choice) -> None:
        if self._choice is not None:
            raise CoordinationProtocolError(
                f"{choice}() after {self._choice}(): a coordinator decides exactly once; the first "
                "decision stands if you catch this"
            )
        self._choice = choice

    def _require_peer(self, peer: FlightRecord) -> None:
        if peer not in self._peers:
            raise CoordinationProtocolError(
                f"call {getattr(peer, 'id', peer)!r} is not one of peers(): pass a record that "
                "this context gave you"
            )


@dataclass(frozen=True, slots=True)
class CoordinatorFunction:
    """A coordinator with its name, as `coordinator` makes it; pass it as ``strategy=``."""

    name: str
    function: Callable[[CoordinationContext], Any] = field(repr=False)

    def __call__(self, ctx: CoordinationContext) -> Any:
        """Run the coordinator on a context."""
        return self.function(ctx)


def coordinator(
    name: str,
) -> Callable[[Callable[[CoordinationContext], Any]], CoordinatorFunction]:
    """Make a function of one `CoordinationContext` usable as ``strategy=``.

    The function runs outside every lock on a snapshot and may be called more than once for one
    call: it must be pure and quick.

    Args:
        name: Shown in events and in the admin.

    Raises:
        ValueError: The name is empty.
        TypeError: The function is async or a generator: a coordinator cannot wait.
    """
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"coordinator({name!r}): pass a name, it labels this coordinator's events")

    def decorate(function: Callable[[CoordinationContext], Any]) -> CoordinatorFunction:
        if not callable(function):
            raise TypeError(f"coordinator {name!r}: {function!r} is not callable")
        if _waits(function) or _waits(type(function).__call__):
            raise TypeError(
                f"coordinator {name!r}: {function!r} must be a plain def; it decides on a "
                "snapshot and cannot wait"
            )
        return CoordinatorFunction(name, function)

    return decorate


def _waits(function: object) -> bool:
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or inspect.isgeneratorfunction(function)
    )
