"""One call: its states as data, its record, and the frozen picture that others get to see."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from django_vega.core.errors import CallCancelled, LeaseLost
from django_vega.core.lease import Lease

if TYPE_CHECKING:
    from django_vega.core.admission import CoordinatorFunction
    from django_vega.core.events import Event
    from django_vega.core.outcome import RefreshOutcome
    from django_vega.core.shapers import Shaper
    from django_vega.core.strategies import Strategy

State: TypeAlias = Literal[
    "idle", "parked", "queued", "running", "writing", "success", "error", "cancelled"
]
WhileBusy: TypeAlias = Literal["wait", "raise", "skip", "stale"]
OnLastLeave: TypeAlias = Literal["keep", "cancel"]
Step: TypeAlias = Literal[
    "park", "queue", "run", "write", "succeed", "fail", "drop", "cancel", "abandon"
]

# The whole life of a call. A step that is missing here is illegal: it raises and changes nothing.
# ``cancel`` is missing from ``writing`` on purpose: what is being written ends as success.
TRANSITIONS: Final[dict[State, dict[Step, State]]] = {
    "idle": {
        "park": "parked",
        "queue": "queued",
        "run": "running",
        "succeed": "success",
        "fail": "error",
        "drop": "cancelled",
    },
    "parked": {"queue": "queued", "run": "running", "cancel": "cancelled"},
    "queued": {"run": "running", "cancel": "cancelled", "abandon": "cancelled"},
    "running": {
        "write": "writing",
        "succeed": "success",
        "fail": "error",
        "cancel": "cancelled",
        "abandon": "cancelled",
    },
    "writing": {"succeed": "success", "fail": "error", "abandon": "cancelled"},
    "success": {},
    "error": {},
    "cancelled": {},
}

SETTLED: Final = frozenset({"success", "error", "cancelled"})

# Ends that are the own caller's, or its loop's: they are no outcome for those who followed.
LEFT: Final = frozenset({"abandoned", "wait-timeout", "caller-gone"})


class IllegalStep(RuntimeError):
    """A call was asked to take a step that its state does not allow; nothing changed."""


class Unset(enum.Enum):
    """The absence of an argument whose None means something."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


class CallRuntime(Protocol):
    """Who runs a call and lets others wait for it."""

    def result(self, call: Call, timeout: float | None | Unset) -> Any:
        """Block until the call settles."""

    def wait(self, call: Call) -> Generator[Any, None, Any]:
        """Return the iterator that ``await call`` drives."""

    def cancel(self, call: Call) -> bool:
        """Cancel the call."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a call runs under; a running flight keeps the options it started with.

    Attributes:
        strategy: The rule for same-key calls.
        timeout: Seconds that a follower or a parked caller waits; None is without limit.
        capacity: Parked calls per key when the strategy queues; None is unbounded.
        in_atomic: What a refresh does inside its caller's transaction.
        fresh_for: Seconds after a success in which a refresh is not run again.
        while_busy: What a caller does that meets a flight: ``wait``, ``raise``, ``skip`` or
            ``stale``.
        on_last_leave: What becomes of a flight that nobody waits for any more: ``keep``,
            ``cancel``.
        shaper: Stands in front of the strategy, or None.
        force: Whether a recent success is no reason not to run.
        next: Whether the caller needs a run that began after it asked.
        origin: Option name to where its value came from: ``call``, ``policy``, ``decorator``,
            ``alias`` or ``built-in``.
    """

    strategy: Strategy | CoordinatorFunction
    timeout: float | None = 30.0
    capacity: int | None = 100
    in_atomic: str = "refuse"
    fresh_for: float = 0.0
    while_busy: WhileBusy = "wait"
    on_last_leave: OnLastLeave = "keep"
    shaper: Shaper | None = None
    force: bool = False
    next: bool = False
    origin: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def waits(self) -> bool:
        """Whether a caller waits for a flight that it meets; one that needs the next run does."""
        return self.while_busy == "wait" or self.next


@dataclass(frozen=True, slots=True, eq=False)
class CallSite:
    """Where calls come from: one function in one scope under one set of options.

    Attributes:
        function: Dotted name of the coordinated function.
        scope: Whose keys they are.
        options: What its calls run under.
        is_async: Whether the function is ``async def``.
        source: The decorated object; signals are sent for it.
        display: Turns a key into the text that people may see.
        for_follower: Turns the leader's value into a follower's; None passes it on as it is.
        answer: Gives what a caller gets whose call was ``skipped`` or answered ``stale``, by its
            key; None where such callers get an error.
        epilogue: Names the event class and data that follow the settled event of a call that ran.
    """

    function: str
    scope: str
    options: Options
    is_async: bool = False
    source: Any = None
    display: Callable[[str], str] = str
    for_follower: Callable[[Any], Any] | None = None
    answer: Callable[[str, RefreshOutcome], Any] | None = None
    epilogue: Callable[[Call], tuple[type[Event], dict[str, Any]] | None] | None = None


class Call:
    """One invocation of a coordinated function with a key.

    The state says whether this call executed; `result` says whether its caller got what it wanted:
    a deduped call is ``cancelled`` (reason ``dedupe``) and still returns the leader's value.
    """

    # Written by the table, under the lock of the flights, unless a line says otherwise.
    __slots__ = (
        "__weakref__",
        "body",  # asyncio task of the flight; written by the loop that runs it
        "caller",  # waiter of the call's own caller, while that caller waits
        "caller_gone",  # an async caller left; written by its loop
        "closed",  # takes no followers any more, and is nobody's peer: what it comes to is known
        "created_at",
        "ended",  # the body has returned, or never began
        "error",  # what the body raised; after a cancellation written by the body's runner
        "generation",
        "heir",  # of an abandoned call: whose outcome its followers get
        "id",
        "key",
        "leader",  # the call whose outcome this one shares
        "is_needed",  # somebody who joined needs it to run, however recent the last success
        "lease",  # what the call has at the server of a shared backend; None where it needs none
        "parent",  # the call inside of which this one was made
        "permit",  # gives the pool's place back; written by the submitter
        "pool",  # where a submitted call runs; None for a call on its caller's own thread or loop
        "predecessor",  # the abandoned call whose follower made this one
        "process",  # where the body is, of a stand-in for a flight of another process; else None
        "reason",
        "runtime",
        "site",
        "stands_for",  # the submitted follower whose own function this call runs in the end
        "started_at",
        "state",
        "thread",  # ident of the thread that runs, or waits to run, a sync call
        "value",
        "waiters",  # an ordered set; None until the first follower arrives
        "work",  # the function with its arguments; dropped when the body has returned
    )

    def __init__(
        self,
        call_id: int,
        site: CallSite,
        key: str,
        work: Callable[[Call], Any] | None,
        runtime: CallRuntime,
        *,
        created_at: float,
        parent: Call | None = None,
        predecessor: Call | None = None,
        thread: int | None = None,
        pool: Any = None,
    ) -> None:
        self.id = call_id
        self.site = site
        self.key = key
        self.work: Callable[[Call], Any] | None = work
        self.runtime = runtime
        self.created_at = created_at
        self.parent = parent
        self.predecessor = predecessor
        self.heir: Call | None = None
        self.stands_for: Call | None = None
        self.thread = thread
        self.pool = pool
        self.lease: Lease | None = None
        self.process: str | None = None
        self.permit: Callable[[], None] | None = None
        self.state: State = "idle"
        self.reason: str | None = None
        self.generation: int | None = None
        self.started_at: float | None = None
        self.leader: Call | None = None
        self.waiters: dict[Any, None] | None = None
        self.caller: Any = None
        self.caller_gone = False
        self.closed = False
        self.is_needed = False
        self.body: Any = None
        self.ended = False
        self.value: Any = None
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"<Call {self.id} {self.shown_key} {self.state}{reason}>"

    @property
    def slot(self) -> tuple[str, str]:
        """The scope and key: what makes two calls the same work."""
        return self.site.scope, self.key

    @property
    def shown_key(self) -> str:
        """The key as people may see it."""
        return self.site.display(self.key)

    @property
    def settled(self) -> bool:
        """Whether the call has its one outcome; a follower has, from the moment it joins."""
        return self.state in SETTLED

    @property
    def was_left(self) -> bool:
        """Whether whoever was to run the call went away, so that its followers are on their own."""
        return self.reason in LEFT

    @property
    def cancel_reason(self) -> str | None:
        """Why the call was cancelled, else None."""
        return self.reason

    def step(self, step: Step) -> None:
        """Go over to the state that ``step`` leads to.

        Raises:
            IllegalStep: The state does not allow it; nothing changed.
        """
        self.state = self.after(step)

    def after(self, step: Step) -> State:
        """Return the state that ``step`` leads to, without going there.

        Raises:
            IllegalStep: The state does not allow it.
        """
        try:
            return TRANSITIONS[self.state][step]
        except KeyError:
            raise IllegalStep(f"{self!r} cannot {step}") from None

    def chain(self) -> tuple[Call, ...]:
        """Return this call and those that it runs inside of, while their bodies run."""
        chain: list[Call] = []
        call: Call | None = self
        while call is not None:
            # Calls that spawn their successors would otherwise keep all their ancestors alive.
            while call.parent is not None and call.parent.ended:
                call.parent = call.parent.parent
            if not call.ended:
                chain.append(call)
            call = call.parent
        return tuple(chain)

    def done(self) -> bool:
        """Whether `result` returns, or raises the outcome, without waiting."""
        previous, last = self, self
        while last.leader is not None:
            previous, last = last, last.leader
        own = last is self or last.stands_for is previous
        return last.settled and (own or not last.was_left)

    def last_leader(self) -> Call:
        """Return the call whose outcome this one gets; itself when it follows nobody."""
        call = self
        while call.leader is not None:
            call = call.leader
        return call

    def result(self, timeout: float | None | Unset = UNSET) -> Any:
        """Wait until the call settles and return its value; repeatable, from any thread.

        Args:
            timeout: Seconds from now; None waits without limit. Default: the call's own.

        Raises:
            WaitTimeout: The time passed first. The flight goes on; only this waiter left.
            CallCancelled: The call was cancelled before it produced a value.
            SynchronousCallError: The wait would block a running event loop, or a thread that an
                async flight of this process may need.
        """
        return self.runtime.result(self, timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.runtime.wait(self)

    def cancel(self) -> bool:
        """Cancel the call and settle it at once; its followers are told.

        Returns:
            False when it was settled already or is writing; then nothing changed.
        """
        return self.runtime.cancel(self)


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """A frozen picture of a call that is in flight, parked or stopping.

    Attributes:
        id: The call's id.
        key: The rendered key.
        scope: Whose key it is.
        function: Dotted name of the function.
        strategy: Name of the strategy or coordinator that decided.
        state: ``idle``, ``parked``, ``queued``, ``running``, ``writing`` or ``stopping``.
        reason: Why a stopping call was cancelled, else None.
        generation: Orders flights; None until the call is admitted.
        age: Seconds since the call was created.
        joined: How many callers wait for its outcome now, besides its own.
        is_async: Whether it is a task of an event loop.
        process: ``host:pid``.
    """

    id: int
    key: str
    scope: str
    function: str
    strategy: str
    state: str
    reason: str | None
    generation: int | None
    age: float
    joined: int
    is_async: bool
    process: str


current: ContextVar[Call | None] = ContextVar("django_vega_call", default=None)


def current_call() -> Call | None:
    """Return the `Call` of the flight that this code runs in, else None.

    Tasks and threads that copied the context count as inside while the flight's body runs.
    """
    call = current.get()
    return None if call is None or call.ended else call


def checkpoint() -> None:
    """Stop here if the flight that this code runs in was cancelled; outside of one do nothing.

    Sync code has no other point at which it notices; the write of a refresh is one by itself.

    Raises:
        CallCancelled: The flight was cancelled; its caller gets the same.
        LeaseLost: On a shared backend, when the flight could not renew its lease.
    """
    call = current_call()
    if call is None:
        return
    if call.state == "cancelled":
        raise CallCancelled(call.reason or "abort", call.shown_key)
    if call.lease is not None and call.lease.is_over:
        raise LeaseLost(call.shown_key, call.lease.lost or "not renewed in time")
