"""A real thread that renews leases where gevent has made greenlets of the others."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django_vega.backends.base import BackendUnavailableError, SharedBackend
from django_vega.backends.protocol import Lost
from django_vega.core.admission import CoordinatorFunction
from django_vega.core.call import Call
from django_vega.core.lease import Lease
from django_vega.runtime.remote import Remote

logger = logging.getLogger("django_vega")

# Note [A real thread beside greenlets]
#
# Under gevent the threads of `Renewal` are greenlets: they stand still while a body holds up the
# hub. A real thread in their place would share with the greenlets what they do not share with
# threads: the lock of the flights, the events of the waiters, the pool of connections, whose
# sockets belong to the hub that opened them. So all steps of the table stay with the greenlets, and
# the real thread does one thing, while they are late: it sends RENEW, over a backend of its own. It
# takes no lock of theirs and wakes nobody. It reads the table without the lock: what it finds too
# much is refused by the server, what it misses is new and has its whole lease before it. A refusal
# is for the greenlets to act on; until they can, the call stops believing by itself.


class Pacemaker:
    """Renews leases in a real thread while the greenlets of `Renewal` get no turn.

    Args:
        remote: Whose calls.
        monkey: The module ``gevent.monkey``.
    """

    def __init__(self, remote: Remote, monkey: Any) -> None:
        self._remote = remote
        #: Since when every lease has been renewed; written by the greenlet, read by the thread.
        self.renewed_at = float("-inf")
        self._start: Any = monkey.get_original("_thread", "start_new_thread")
        # Locks of the system, for want of events: released is set.
        allocate_lock: Any = monkey.get_original("_thread", "allocate_lock")
        self._stopped, self._ended = allocate_lock(), allocate_lock()
        for lock in (self._stopped, self._ended):
            lock.acquire()

    def start(self) -> None:
        """Begin to watch; once."""
        self.renewed_at = self._now()
        self._start(self._run, ())

    def stop(self) -> None:
        """Let the thread end soon; from anywhere, and more than once."""
        try:
            self._stopped.release()
        except RuntimeError:
            pass  # it was stopped before

    def join(self) -> None:
        """Wait for the end of a thread that was stopped; holds up the hub for a request at most."""
        with self._ended:
            pass

    def _run(self) -> None:
        link = self._remote.link
        backend = type(link.backend)(link.backend.options, link.backend.location)
        try:
            # A beat is due every third of a lease. One that is late by half of that is noticed by
            # two thirds, in time for a leader that believes for nine tenths.
            while not self._stopped.acquire(timeout=link.lease / 6):
                if not link.is_down and self._now() - self.renewed_at > link.lease / 2:
                    self._renew_all(backend)
        finally:
            backend.close()
            # What this thread waited in for its sockets.
            sys.modules["gevent"].get_hub().destroy(destroy_loop=True)
            self._ended.release()

    def _renew_all(self, backend: SharedBackend) -> None:
        try:
            calls = tuple(self._remote.link.flights.table.calls())
        except RuntimeError:
            return  # the table changed meanwhile, so the greenlets run
        try:
            for call in calls:
                if call.lease is not None and call.state != "parked":
                    self._renew(call, call.lease, backend)
        except BackendUnavailableError:
            pass  # the greenlets will see for themselves
        except Exception:
            logger.exception("a heartbeat failed")

    def _renew(self, call: Call, lease: Lease, backend: SharedBackend) -> None:
        if call.generation is None or lease.lost is not None:
            return
        strategy = call.site.options.strategy
        lease.beat += 1
        sent_at = self._now()
        reply = backend.renew(
            lease.key_hash,
            self._remote.link.intent(call, lease),
            generation=call.generation,
            limit=None if isinstance(strategy, CoordinatorFunction) else strategy.limit,
            beat=lease.beat,
        )
        if not isinstance(reply, Lost):
            lease.renew(sent_at)

    def _now(self) -> float:
        return self._remote.link.flights.clock.monotonic()


def patched_threads() -> Any:
    """Return ``gevent.monkey`` where it has made greenlets of threads, else None."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey if monkey is not None and monkey.is_module_patched("threading") else None
