"""One process: the table is all there is, and the database fence protects the rows from others."""

from __future__ import annotations

import os
import threading

from django_vega.backends.base import Backend
from django_vega.core.clock import HybridClock, SystemClock

# One clock for all aliases of the process: they may write the same rows.
_lock = threading.Lock()
_generations = HybridClock(SystemClock())


def next_local_generation() -> int:
    """Return a generation above every one that this process has issued or seen; thread-safe."""
    with _lock:
        return _generations.next()


def see_generation(generation: int) -> None:
    """Note a generation that a server has issued to this process."""
    with _lock:
        _generations.see(generation)


class LocalBackend(Backend):
    """Coordinates the threads and event loops of one process, and nothing across processes."""

    def next_generation(self) -> int:
        """Return a generation above every earlier one of this process."""
        return next_local_generation()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it when the process was forked
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
