"""What this process says to the server of a shared backend, and when it cannot."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from django_vega.backends.base import BackendUnavailableError, SharedBackend
from django_vega.backends.codecs import Codec
from django_vega.backends.protocol import Admission, Intent, Leader
from django_vega.core.call import Call
from django_vega.core.entry import Effects
from django_vega.core.keys import key_hash
from django_vega.core.lease import Lease
from django_vega.core.strategies import Strategy
from django_vega.runtime.announcer import Outbox

if TYPE_CHECKING:
    from django_vega.runtime.flights import Flights

logger = logging.getLogger("django_vega")

OnBackendError: TypeAlias = Literal["local", "raise", "run"]

# Seconds that the server keeps an outcome for those who look late.
RETAIN: Final = 20.0
# Seconds in which a parked call takes the place that it is offered.
_CLAIM: Final = 2.0
# Threads that make requests for event loops.
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the processes of an alias get on.

    Attributes:
        prefix: ``KEY_PREFIX``; what it tells apart does not meet.
        lease: Seconds that the server believes in a leader without a renewal.
        codec: How values travel.
        on_error: What becomes of calls while the server cannot be reached.
    """

    prefix: str
    lease: float
    codec: Codec
    on_error: OnBackendError


class Link:
    """What this process has to do with the server.

    Everything here is read and written under the lock of the flights, which is never held while a
    request is made.

    Args:
        flights: The table of this process.
        backend: The server.
        sharing: How the processes get on.
    """

    def __init__(self, flights: Flights, backend: SharedBackend, sharing: Sharing) -> None:
        self.flights = flights
        self.backend = backend
        self.lease = sharing.lease
        self.codec = sharing.codec
        self.on_error = sharing.on_error
        self._prefix = sharing.prefix
        self.reset()

    def reset(self) -> None:
        """Be nobody yet, as a forked child has to."""
        # A process id comes again, after a restart or in another container.
        self.process = f"{self.flights.process}/{uuid.uuid4().hex[:12]}"
        self._executors = [
            ThreadPoolExecutor(1, thread_name_prefix="vega-request") for _ in range(_THREADS)
        ]
        #: Whether the server could not be reached, how often that began, and when it last did.
        self.is_down = False
        self.outages = 0
        self._down_since = 0.0
        #: Calls of the last outage that were decided on without the server.
        self.uncoordinated = 0
        self._later: deque[Callable[[], object]] = deque()
        # Reentrant: what is said later may have something to say first.
        self._sending = threading.RLock()

    # What is said

    def admit(self, call: Call, strategy: Strategy, *, is_solo: bool = False) -> Admission:
        """Send a call's request, after what this process still has to say."""
        self.send_later()
        lease = self.lease_of(call, is_solo=is_solo)
        capacity = call.site.options.capacity
        when_full: Any = strategy.when_full
        if when_full == "queue" and not call.site.options.waits:
            capacity = 0
        elif when_full == "reuse" and call.site.options.next:
            when_full = "next"
        elif when_full == "reuse" and not call.site.options.waits:
            when_full = "drop"
        sent_at = self.flights.clock.monotonic()
        reply = self.backend.admit(
            lease.key_hash,
            self.intent(call, lease),
            limit=strategy.limit,
            when_full=when_full,
            capacity=capacity,
        )
        if isinstance(reply, Leader):
            lease.renew(sent_at)
        return reply

    def executor(self, call: Call) -> Executor:
        """Return the thread that makes the requests of a key for event loops, in their order."""
        return self._executors[hash(call.slot) % _THREADS]

    def later(self, request: Callable[[], object]) -> None:
        """Make a request soon, and in any case before the next one of this process."""
        self._later.append(request)
        try:
            self._executors[0].submit(self.send_later)
        except RuntimeError:
            pass  # it is shut down; `close` sends what is left

    def send_later(self) -> None:
        """Make the requests that are waiting, in their order; from any thread but a loop's."""
        with self._sending:
            while self._later:
                request = self._later.popleft()
                if self.is_down:
                    continue  # the server forgets by itself, by the end of the lease
                try:
                    request()
                except BackendUnavailableError as error:
                    self.lose_touch(error)

    def hash(self, slot: tuple[str, str]) -> str:
        """Return what the server calls a key."""
        return key_hash(self._prefix, *slot)

    def lease_of(self, call: Call, *, is_solo: bool = False) -> Lease:
        """Return what a call has at the server, from its first request on."""
        if call.lease is None:
            hashed = self.hash(call.slot)
            about = {
                "function": call.site.function,
                "strategy": call.site.options.strategy.name,
                "is_async": call.site.is_async,
                "scope": call.site.scope,
            }
            call.lease = Lease(
                self._token(call, is_solo=is_solo),
                hashed,
                json.dumps(about).encode(),
                self.lease,
                self.flights.clock.monotonic,
            )
        return call.lease

    def intent(self, call: Call, lease: Lease | None = None) -> Intent:
        """Return how the server is told of a call; one without a lease only looks."""
        return Intent(
            self._token(call) if lease is None else lease.token,
            self.process,
            lease=self.lease,
            retain=RETAIN,
            claim=min(_CLAIM, self.lease),
            key=call.shown_key,
            about=b"" if lease is None else lease.about,
        )

    def _token(self, call: Call, *, is_solo: bool = False) -> str:
        mark = "+" if is_solo else ""  # the other token is spent
        return f"{self.process}{mark}#{call.id}"

    def slots(self) -> dict[str, tuple[str, str]]:
        """Return the keys that this process has to do with, by what the server calls them."""
        with self.flights.lock:
            return {
                call.lease.key_hash if call.lease is not None else self.hash(call.slot): call.slot
                for call in self.flights.table.calls()
                if call.lease is not None or call.process is not None
            }

    # When the server cannot be reached

    def lose_touch(self, error: BackendUnavailableError) -> None:
        """Go on without the server, until `regain_touch`."""
        with self.flights.lock:
            if self.is_down:
                return
            self.is_down = True
            self.outages += 1
            self._down_since = self.flights.clock.monotonic()
            self.uncoordinated = 0
            calls = tuple(self.flights.table.calls())
        logger.warning(
            "%s; ON_BACKEND_ERROR=%r until it is back (outage %s of this process)",
            error,
            self.on_error,
            self.outages,
        )
        outbox: Outbox = []
        for call in calls:
            if call.process is not None:
                self.flights.settle(call, "abandon", outbox, reason="abandoned")
            elif call.state == "parked" and call.lease is not None:
                self._unpark(call, outbox)
        self._tell_later(outbox)

    def count_uncoordinated(self) -> None:
        """Count a call that is decided on without the server."""
        with self.flights.lock:
            self.uncoordinated += 1

    def _unpark(self, call: Call, outbox: Outbox) -> None:
        call.lease = None
        self.count_uncoordinated()
        with self.flights.lock:
            if call.state != "parked":
                return
            if self.on_error == "local":
                effects = self.flights.table.release(call.slot)
            elif self.on_error == "run":
                effects = self.flights.table.lead(call, self.backend.next_generation())
            else:
                # Before it is settled: its caller takes no lock to see both.
                call.error = BackendUnavailableError(f"{call.shown_key}: the server is gone")
                effects = self.flights.table.cancel(call, "abandoned") or Effects()
        self.flights.perform(effects, outbox)

    def _tell_later(self, outbox: Outbox) -> None:
        """Hand events to the host from a thread that may block."""
        if outbox:
            try:
                self._executors[0].submit(self.flights.announcer.flush, outbox)
            except RuntimeError:
                self.flights.announcer.flush(outbox)

    def regain_touch(self) -> None:
        """Coordinate by the server again."""
        with self.flights.lock:
            self.is_down = False
            lasted = self.flights.clock.monotonic() - self._down_since
        logger.warning(
            "the server is back after %.1f s; meanwhile %s calls were decided on without it "
            "(ON_BACKEND_ERROR=%r), now they are coordinated over processes again",
            lasted,
            self.uncoordinated,
            self.on_error,
        )

    def close(self) -> None:
        """Say what is left to say."""
        # A request under way would open a connection that nobody closes any more.
        is_own = threading.current_thread().name.startswith("vega-request")
        for executor in self._executors:
            executor.shutdown(wait=not is_own)
        self.send_later()
        self.backend.close()
