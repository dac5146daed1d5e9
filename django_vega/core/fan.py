"""What callers see of a fan-out: outcomes, snapshots, the account.

Source: the seed "concurrency-composition", sections 1 to 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

Status: TypeAlias = Literal["done", "failed", "unknown", "not_started", "not_admitted"]
WhenFull: TypeAlias = Literal["wait", "reject"]

T = TypeVar("T")
R = TypeVar("R")

STATUSES: Final[tuple[Status, ...]] = ("done", "failed", "unknown", "not_started", "not_admitted")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T, R]):
    """What became of one target.

    Attributes:
        target: Which one; outcomes come in the order of completion, not of the targets.
        status: ``done``: the function returned; not that the far side has seen it. ``failed``: this
            target raised; not that others did. ``unknown``: it started and there is no final
            evidence; not that it had no effect. ``not_started``: it was queued and never began.
            ``not_admitted``: it never entered queue or worker.
        value: What the function returned; None unless ``done``.
        error: What it raised, when ``failed``; when ``unknown``, why nobody waited any longer (a
            TimeoutError, a CancelledError); else None.
    """

    target: T
    status: Status
    value: R | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a fan-out.

    Attributes:
        workers: How many targets run at once.
        capacity: How many more may be queued; also, how many outcomes may be unread.
    """

    workers: int
    capacity: int

    @property
    def admitted(self) -> int:
        """How many targets may be admitted and not finished."""
        return self.workers + self.capacity

    @property
    def pulled(self) -> int:
        """How many targets may be pulled and not finished: the admitted, and the one held."""
        return self.admitted + 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where the targets of a fan-out are that are not over.

    Attributes:
        running: By worker, without idle ones. A worker whose outcome finds no room among the unread
            keeps its target.
        queued: Admitted, in order.
        held: Pulled and not admitted: at most one.
        unread: Those whose outcome nobody has read yet, in order.
        limits: The bounds.
        overdue: Their time is over, and their bodies still run: ``unknown``, read or not. Beyond as
            many as there are workers they keep their worker's place until they return.
    """

    running: tuple[Any, ...]
    queued: tuple[Any, ...]
    held: tuple[Any, ...]
    unread: tuple[Any, ...]
    limits: Limits
    overdue: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Accounting:
    """How many of the pulled targets came to what; read or unread, each is counted once."""

    done: int = 0
    failed: int = 0
    unknown: int = 0
    running: int = 0
    queued: int = 0
    held: int = 0
    not_started: int = 0
    not_admitted: int = 0

    @property
    def pulled(self) -> int:
        """How many targets were pulled: the sum of all."""
        ends = self.done + self.failed + self.unknown + self.not_started + self.not_admitted
        return ends + self.running + self.queued + self.held
