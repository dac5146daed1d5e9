"""What the scripts answer: frozen records, times in seconds, no text of the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

OutcomeKind: TypeAlias = Literal["value", "error", "cancelled"]
Choice: TypeAlias = Literal["proceed", "reuse", "queue", "drop"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a flight came to.

    Attributes:
        kind: ``value`` and ``error`` were given by the leader; ``cancelled`` also by a script.
        payload: As the codec wrote it; of a cancelled flight the reason, as UTF-8.
    """

    kind: OutcomeKind
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Intent:
    """A call, or the calls of one process that share a place, as the scripts are told of it.

    Attributes:
        token: Names this participation, unique for all time; spent once it has ended. A spent one
            is remembered for 20 seconds.
        process: Whose inbox gets the hints.
        lease: Seconds that a flight, a parked ticket or a follower lives without asking again.
        retain: Seconds that an outcome is kept.
        claim: Seconds in which a parked ticket has to take the place that it was offered.
        floor: A generation from the database that the next one has to be above.
        key: Text of the key, for people.
        about: Opaque; what coordinators and the admin see of this call.
    """

    token: str
    process: str
    lease: float = 10.0
    retain: float = 20.0
    claim: float = 2.0
    floor: int = 0
    key: str = ""
    about: bytes = b""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who stands in the way.

    Attributes:
        process: Empty when there is nobody.
        generation: None while it is parked.
        age: Seconds since it started, or was parked.
        left: Seconds until its lease ends, unless it renews.
    """

    process: str
    generation: int | None
    age: float
    left: float


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A call that was cancelled; of a flight the database fence has to be moved.

    Attributes:
        generation: None of a parked ticket.
    """

    token: str
    process: str
    generation: int | None


@dataclass(frozen=True, slots=True)
class Leader:
    """The call runs. It renews, and settles or abandons.

    Attributes:
        cancelled: Peers that had to go for it.
    """

    generation: int
    cancelled: tuple[Cancelled, ...] = ()


@dataclass(frozen=True, slots=True)
class Follow:
    """The call waits for an outcome of this generation or a later one, and is registered for hints.

    Attributes:
        generation: What to ``want`` when looking again.
        holder: Who leads; look again when its lease ends.
    """

    generation: int
    holder: Holder


@dataclass(frozen=True, slots=True)
class Queued:
    """The call is parked. It has to ask again within its lease, and within the claim when hinted.

    Attributes:
        ahead: How many parked tickets are before it.
    """

    ahead: int
    holder: Holder


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome that was wanted is there."""

    generation: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Dropped:
    """There was no place, and the call does not wait; nothing was stored."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class Full:
    """The queue is at capacity; nothing was stored."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class Ended:
    """The token is spent.

    Attributes:
        reason: ``settled``, ``abandoned``, ``released``, or the reason of a cancellation.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The key is no longer at the version that was decided on; nothing was done."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease goes on.

    Attributes:
        restored: It had passed, or the server had forgotten it, and nobody newer was admitted.
    """

    restored: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome is the key's; whoever waits was told."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The call does not lead any more.

    Attributes:
        reason: ``taken`` (a newer one was admitted after the lease), ``released``, ``settled``,
            ``abandoned``, or the reason of a cancellation.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call in a `Snapshot`; attributes as in `Holder` and `Intent`."""

    token: str
    process: str
    generation: int | None
    age: float
    left: float
    about: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there was of a key at one moment.

    Attributes:
        version: For `Scripts.apply`; 0 for a key that nobody used lately. Never the same again.
        generation: The newest, 0 when none is known.
        key: Its text.
        flights: Those that run, oldest first.
        stopping: Those whose bodies have yet to end.
        parked: In the order of their turns.
        followers: Processes that wait.
    """

    version: int
    generation: int
    key: str
    flights: tuple[Ticket, ...]
    stopping: tuple[Ticket, ...]
    parked: tuple[Ticket, ...]
    followers: frozenset[str]


Admission: TypeAlias = Leader | Follow | Queued | Done | Dropped | Full | Ended


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Hints that were sent before may be lost: look at everything that is waited for."""


@dataclass(frozen=True, slots=True)
class Hint:
    """Something happened to a key: look at what is waited for there."""

    key_hash: str
