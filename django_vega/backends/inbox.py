"""The inbox of a process: one subscription that tells when to look again."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from redis.exceptions import ConnectionError  # noqa: A004 - it is what redis-py means by it

from django_vega.backends.connections import TRANSIENT, Connections, pause
from django_vega.backends.protocol import Hint, Subscribed
from django_vega.backends.scripts import inbox_channel

# Seconds of silence after which the server is asked whether it is there, and then given up.
SILENCE: Final = 5.0


class Inbox:
    """The subscription of one process, read by one thread. It comes back by itself when it breaks.

    Args:
        connections: Where to subscribe.
        process: Whose inbox; see `Intent.process`.
    """

    def __init__(self, connections: Connections, process: str) -> None:
        self._connections = connections
        self._channel = inbox_channel(process)
        self._closed = threading.Event()
        self._failures = 0
        # Of the present subscription, if there is one.
        self._client: Any = None
        self._pubsub: Any = None
        self._heard_at = 0.0
        self._asked = False

    def receive(self, timeout: float) -> Subscribed | Hint | None:
        """Wait for the next thing to do.

        Args:
            timeout: Seconds; connecting may add its own timeout.

        Returns:
            `Subscribed` each time the server has acknowledged a subscription: from then on no hint
            is missed. None when there was nothing in time, or the server cannot be reached now.
        """
        try:
            message = self._next_message(timeout)
        except (*TRANSIENT, OSError):
            self._drop()
            self._closed.wait(min(timeout, pause(self._failures)))
            self._failures += 1
            return None
        if message is None:
            return None
        self._heard_at, self._asked = time.monotonic(), False
        if message["type"] == "subscribe":
            self._failures = 0
            return Subscribed()
        return Hint(message["data"].decode()) if message["type"] == "message" else None

    def stop(self) -> None:
        """Let a `receive` that waits for the server to come back return; from any thread."""
        self._closed.set()

    def close(self) -> None:
        """End the subscription; from the thread that reads."""
        self._closed.set()
        self._drop()

    def _next_message(self, timeout: float) -> Any:
        if self._pubsub is None:
            self._client = self._connections.subscriber()
            self._pubsub = self._client.pubsub()
            self._pubsub.subscribe(self._channel)
            self._heard_at, self._asked = time.monotonic(), False
        silence = time.monotonic() - self._heard_at
        if silence > 2 * SILENCE:
            raise ConnectionError(f"no answer for {silence:.1f} s")
        if silence > SILENCE and not self._asked:
            self._pubsub.ping()
            self._asked = True
        return self._pubsub.get_message(timeout=timeout)

    def _drop(self) -> None:
        pubsub, client = self._pubsub, self._client
        self._pubsub = self._client = None
        if pubsub is not None:
            pubsub.close()
        if client is not None:
            client.close()
