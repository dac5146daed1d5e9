"""All processes that share a Redis: one server, Sentinel or Cluster. Needs the extra ``redis``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from django_vega.backends.base import BackendUnavailableError, SharedBackend
from django_vega.backends.connections import Connections
from django_vega.backends.inbox import Inbox
from django_vega.backends.local import next_local_generation
from django_vega.backends.locations import InvalidLocationError, locate
from django_vega.backends.scripts import Scripts


class RedisBackend(Scripts, SharedBackend):
    """Coordinates the calls of all processes that share a Redis.

    Args:
        options: More for the connection, as in the ``OPTIONS`` of a cache.
        location: An alias of CACHES whose server is used, a URL, or a list of URLs of a Cluster.

    Raises:
        InvalidLocationError: One cannot connect to that. Nothing connects before the first call.
    """

    option_names = None

    def __init__(self, options: Mapping[str, Any], location: object = None) -> None:
        SharedBackend.__init__(self, options, location)
        self.connections = Connections(location, options)
        Scripts.__init__(self, _Client(self.connections))

    @classmethod
    def fault(cls, options: Mapping[str, Any], location: object) -> tuple[str, str] | None:
        """Return what is wrong with these settings and what to do, else None; connects nowhere."""
        try:
            locate(location, options)
        except InvalidLocationError as error:
            return str(error), "Use an alias of CACHES, or redis://host:6379/0"
        return None

    def next_generation(self) -> int:
        """Return a generation above every one that this process has issued or seen.

        For calls that run without the server. A flight gets its own from the server's clock.
        """
        return next_local_generation()

    def inbox(self, process: str) -> Inbox:
        """Return a new subscription to the hints for a process."""
        return Inbox(self.connections, process)

    def eviction_policy(self) -> str | None:
        """Return ``maxmemory-policy`` where it throws keys away; a Cluster is asked at one node."""
        info = self._client.execute_command("INFO", "memory")
        policy = str(_info(info).get("maxmemory_policy", "noeviction"))
        return None if policy == "noeviction" else policy

    def ping(self) -> None:
        """Do nothing, with the server's help."""
        self._client.execute_command("PING")

    def close(self) -> None:
        """Close the connections; the next command opens new ones."""
        self.connections.close()


class _Client:
    """Says in the words of `SharedBackend` that the server did not answer."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return self._connections.execute_command(*args, **options)
        except NoScriptError:
            raise
        except RedisError as error:
            raise BackendUnavailableError(
                f"the Redis server of a shared alias did not do {args[0]} "
                f"({type(error).__name__}: {error})"
            ) from error


def _info(reply: Any) -> dict[str, Any]:
    """Return what INFO said; of a Cluster what one of its nodes did."""
    first = next(iter(reply.values()), None) if isinstance(reply, dict) else None
    return first if isinstance(first, dict) else reply
