"""What happened to the calls of a run, written down from the event bus."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from django_vega import subscribe
from django_vega.core.events import COORDINATION_EVENTS
from example_project.lab.asking import FUNCTIONS
from example_project.upstream import PATIENCE

# A call whose peers stand still has come as far as it can with one of these.
ARRIVED: Final = frozenset(
    {
        "call:running",
        "call:parked",
        "call:settled",
        "coordination:reuse",
        "coordination:dropped",
        "coordination:orphaned-intent",
    }
)
CALL_TYPES: Final = ("call:created", "call:parked", "call:queued", "call:running", "call:settled")
TYPES: Final = (*CALL_TYPES, *(kind.type for kind in COORDINATION_EVENTS))


@dataclass
class CallSeen:
    """One caller and its call. All times are seconds since the epoch, None while to come.

    Attributes:
        number: Which caller of the run, from 1.
        page: What it asks for.
        call_id: The id that the call has in events.
        state: The call's state.
        reason: Why it was cancelled.
        got: What the caller got.
        leader: Number of the call whose outcome it shares.
        has_arrived: Whether it runs, is held, or is over.
        asked: When the caller asked.
        parked: When it began to wait for its turn.
        started: When its own function began.
        settled: When the call had its outcome.
        body_ended: When its own function returned.
        ended: When the caller had its answer.
    """

    number: int
    page: str
    call_id: int | None = None
    state: str = "idle"
    reason: str | None = None
    got: str = ""
    leader: int | None = None
    has_arrived: bool = False
    asked: float | None = None
    parked: float | None = None
    started: float | None = None
    settled: float | None = None
    body_ended: float | None = None
    ended: float | None = None

    @property
    def outcome(self) -> str:
        """State and reason, as the contract writes them."""
        return f"{self.state}({self.reason})" if self.reason else self.state

    def as_dict(self) -> dict[str, Any]:
        """Return the call as JSON-ready data."""
        return {**asdict(self), "outcome": self.outcome}


@dataclass(frozen=True)
class Line:
    """One line of the event log.

    Attributes:
        at: Seconds since the epoch.
        type: The event's type.
        coordinator: Name of the strategy or coordinator.
        number: The caller's number.
        detail: Whom it reused, whom it cancelled, what it came to.
    """

    at: float
    type: str
    coordinator: str
    number: int
    detail: str


@dataclass(eq=False)
class Journal:
    """The calls of a run and their events.

    Every field, those of the calls included, is written under ``changed``, which is notified of
    each change.
    """

    calls: list[CallSeen] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    executions: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    _blocks: int = 0
    _unsubscribe: Callable[[], None] = field(init=False)

    def add(self, page: str) -> CallSeen:
        """Write down one more caller."""
        with self.changed:
            seen = CallSeen(len(self.calls) + 1, page)
            self.calls.append(seen)
            return seen

    @contextmanager
    def listening(self) -> Generator[None, None, None]:
        """Write events down while the block lasts; blocks may overlap."""
        with self.changed:
            self._blocks += 1
            if self._blocks == 1:
                self._unsubscribe = subscribe(self._receive, types=TYPES)
        try:
            yield
        finally:
            with self.changed:
                self._blocks -= 1
                if not self._blocks:
                    self._unsubscribe()

    @contextmanager
    def asking(self, seen: CallSeen) -> Generator[None, None, None]:
        """Take the call that is made inside the block for that of ``seen``."""
        token = _asking.set(seen)
        self.note(seen, asked=time.time())
        try:
            yield
        finally:
            _asking.reset(token)
            self.note(seen, ended=time.time())

    def note(self, seen: CallSeen, **values: Any) -> None:
        """Write values down for a call."""
        with self.changed:
            for name, value in values.items():
                setattr(seen, name, value)
            self.changed.notify_all()

    def begins(self) -> None:
        """Count a function that begins."""
        with self.changed:
            self.executions += 1
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float = PATIENCE) -> bool:
        """Wait until a condition over the journal holds; return whether it does."""
        with self.changed:
            return self.changed.wait_for(condition, timeout)

    @property
    def joined(self) -> int:
        """How many calls shared somebody else's outcome."""
        return sum(seen.leader is not None for seen in self.calls)

    def joined_to(self, seen: CallSeen) -> int:
        """How many calls shared the outcome of this one."""
        return sum(other.leader == seen.number for other in self.calls)

    def _receive(self, event: Any) -> None:
        if event.function not in FUNCTIONS:
            return
        with self.changed:
            # The caller's own thread or task tells of the creation, before anybody can meet it.
            asking = _asking.get()
            if event.type == "call:created" and any(seen is asking for seen in self.calls):
                assert asking is not None
                asking.call_id = event.call_id
            seen = self._with_id(event.call_id)
            if seen is not None:
                self._write(seen, event)
                self.changed.notify_all()

    def _with_id(self, call_id: int) -> CallSeen | None:
        return next((seen for seen in self.calls if seen.call_id == call_id), None)

    def _number(self, call_id: int) -> int | None:
        seen = self._with_id(call_id)
        return None if seen is None else seen.number

    def _write(self, seen: CallSeen, event: Any) -> None:
        detail = ""
        match event.type:
            case "call:parked":
                seen.state, seen.parked = "parked", event.at
            case "call:queued":
                seen.state = "queued"
            case "call:running":
                seen.state, seen.started = "running", event.at
            case "call:settled":
                seen.state, seen.reason, seen.settled = event.state, event.reason, event.at
                detail = seen.outcome
            case "coordination:reuse":
                seen.leader = self._number(event.peer_id)
                detail = f"#{seen.leader}"
            case "coordination:restart":
                detail = " ".join(f"#{self._number(it)}" for it in event.cancelled_call_ids)
        seen.has_arrived |= event.type in ARRIVED
        self.lines.append(Line(event.at, event.type, event.coordinator, seen.number, detail))


_asking: ContextVar[CallSeen | None] = ContextVar("lab_asking", default=None)
