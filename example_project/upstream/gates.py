"""Gates: hold requests at the upstream, and let them answer in an order of one's own."""

import threading
from collections.abc import Callable
from fnmatch import fnmatchcase

# Longer than anything here takes, shorter than a build's patience: a script that went wrong ends.
PATIENCE = 30.0


class Gate:
    """Holds the requests whose key matches a pattern; each already has its version.

    Requests are numbered from 1 in the order in which they arrive at this gate. So a script can let
    a newer answer overtake an older one, exactly, without sleeping::

        with upstream.gate("quakes:*") as gate:
            start(old); gate.wait_for(1)
            start(new); gate.wait_for(2)
            gate.release(2)  # the new answer is back first ...
            gate.release(1)  # ... and the old one arrives last
    """

    def __init__(self, pattern: str, on_arrival: Callable[[], None] | None = None) -> None:
        self.pattern = pattern
        self._on_arrival = on_arrival
        self._changed = threading.Condition()
        # All three under _changed.
        self._arrived = 0
        self._released: set[int] = set()
        self._is_open = False

    def matches(self, key: str) -> bool:
        """Whether a request with this key has to stop here."""
        return fnmatchcase(key, self.pattern)

    def hold(self) -> None:
        """Stop until released. Called by the server, on the request's own thread.

        Raises:
            TimeoutError: Nobody released it in time.
        """
        with self._changed:
            self._arrived += 1
            number = self._arrived
            self._changed.notify_all()
        if self._on_arrival is not None:
            self._on_arrival()
        with self._changed:
            if not self._changed.wait_for(lambda: self._may_pass(number), PATIENCE):
                raise TimeoutError(
                    f"request {number} waited {PATIENCE} s at the gate {self.pattern!r}; "
                    "release it, or open the gate"
                )

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` requests in all have arrived.

        Raises:
            TimeoutError: Fewer came in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._arrived >= count, PATIENCE):
                raise TimeoutError(
                    f"{self._arrived} of {count} requests arrived at the gate {self.pattern!r} "
                    f"within {PATIENCE} s"
                )

    def release(self, number: int) -> None:
        """Let the request with this number go, whether or not it has arrived yet."""
        with self._changed:
            self._released.add(number)
            self._changed.notify_all()

    def open(self) -> None:
        """Let everything go, now and later."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def _may_pass(self, number: int) -> bool:
        return self._is_open or number in self._released
