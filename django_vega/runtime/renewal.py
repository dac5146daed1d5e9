"""The threads of a process that keep its calls alive at the server of a shared backend.

They are threads, also where everything else is a task: a body that holds up its loop for longer
than a lease must not lose it. Where gevent has made greenlets of threads, a `Pacemaker` helps out.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from django_vega.backends.base import BackendUnavailableError
from django_vega.backends.protocol import Hint, Subscribed
from django_vega.runtime.pacemaker import Pacemaker, patched_threads
from django_vega.runtime.remote import Remote

logger = logging.getLogger("django_vega")

# Heartbeats per lease.
_BEATS: Final = 3
# Seconds between two attempts to reach a server that is gone.
_PROBE: Final = 0.5
# Seconds in which the leaders of other processes restore their leases at a server that is back.
_GRACE: Final = 0.5
# Seconds after which a thread looks whether it is still needed.
_LONGEST_WAIT: Final = 0.2


class Renewal:
    """Renews leases in one thread, and follows the hints in another, once there is a call.

    Args:
        remote: Whose calls.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._inbox = remote.link.backend.inbox(remote.link.process)
        monkey = patched_threads()
        self._pacemaker = None if monkey is None else Pacemaker(remote, monkey)
        remote.on_call = self.start

    def start(self) -> None:
        """Have the threads run."""
        if self._threads:
            return
        with self._lock:
            if self._threads or self._closed.is_set():
                return
            self._threads = [
                threading.Thread(target=work, name=f"vega-{name}", daemon=True)
                for name, work in (("heartbeat", self._beat), ("inbox", self._listen))
            ]
            for thread in self._threads:
                thread.start()
            if self._pacemaker is not None:
                self._pacemaker.start()

    def stop(self) -> None:
        """Let the threads end soon; from anywhere, a garbage collector included."""
        self._closed.set()
        self._inbox.stop()
        if self._pacemaker is not None:
            self._pacemaker.stop()

    def close(self) -> None:
        """End the threads, and wait for that."""
        self.stop()
        with self._lock:
            threads = self._threads
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        if threads and self._pacemaker is not None:
            self._pacemaker.join()

    def _beat(self) -> None:
        remote = self._remote
        while not self._closed.wait(_PROBE if remote.link.is_down else remote.link.lease / _BEATS):
            try:
                if remote.link.is_down:
                    self._probe()
                else:
                    self._renew_all()
            except Exception:
                logger.exception("a heartbeat failed")

    def _renew_all(self) -> None:
        began = self._remote.link.flights.clock.monotonic()
        for call in self._remote.lookout.leased():
            if not self._remote.lookout.look(call):
                return
        if self._pacemaker is not None:
            self._pacemaker.renewed_at = began

    def _probe(self) -> None:
        remote = self._remote
        try:
            remote.link.backend.ping()
        except BackendUnavailableError:
            return
        self._renew_all()
        if not self._closed.wait(_GRACE):
            remote.link.regain_touch()
            self._renew_all()

    def _listen(self) -> None:
        remote = self._remote
        while not self._closed.is_set():
            try:
                ready, pause = remote.lookout.due()
                for call in () if remote.link.is_down else ready:
                    remote.lookout.look(call)
                self._follow(self._inbox.receive(min(pause, _LONGEST_WAIT)))
            except Exception:
                logger.exception("the inbox failed")
                self._closed.wait(_PROBE)
        self._inbox.close()

    def _follow(self, told: Subscribed | Hint | None) -> None:
        remote = self._remote
        if told is None or remote.link.is_down:
            return
        slots = remote.link.slots()
        hashes = slots if isinstance(told, Subscribed) else {told.key_hash} & slots.keys()
        for hashed in hashes:
            remote.lookout.look_at(slots[hashed])
