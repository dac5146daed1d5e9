"""Connections to Redis, of this package alone: one server, Sentinel or Cluster.

A cache's own pool is not shared: its timeouts, its retries and its idea of a Cluster are made for
something that may be missing.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 - in this module it is what redis-py means by it
    ReadOnlyError,
    RedisClusterException,
    TimeoutError,  # noqa: A004
    TryAgainError,
)
from redis.sentinel import Sentinel

from django_vega.backends.locations import Location, locate

RETRIES: Final = 3
LONGEST_PAUSE: Final = 0.5  # seconds between two attempts, at most

TRANSIENT: Final = (
    ConnectionError,
    TimeoutError,
    ReadOnlyError,  # a failover made the server a replica; the next attempt finds the master
    ClusterDownError,
    TryAgainError,
    RedisClusterException,
)


class Connections:
    """The connections of one alias. Threads may share them.

    A child process that was forked gets its own: nothing of the parent's is used.

    Args:
        location: See `locate`.
        options: See `locate`.

    Raises:
        InvalidLocationError: One cannot connect to that. Nothing connects before the first command.
    """

    def __init__(self, location: object, options: Mapping[str, Any] | None = None) -> None:
        self.location = locate(location, options)
        self.reset()
        _everyone.add(self)

    def reset(self) -> None:
        """Forget all connections without a word to the server, as a forked child has to."""
        self._lock = threading.Lock()
        self._client: Any = None

    def close(self) -> None:
        """Close the connections; the next command opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command and return its reply, in bytes.

        It may be executed again when the connection broke before the reply came.

        Raises:
            RedisError: The server refused, or could not be reached in four attempts.
        """
        for attempt in range(RETRIES):
            try:
                return self._attempt(*args, **options)
            except AuthenticationError:
                raise
            except TRANSIENT:
                time.sleep(pause(attempt))
        try:
            return self._attempt(*args, **options)
        except RedisClusterException as error:
            # It has no base class in common with the others.
            raise ConnectionError(str(error)) from error

    def client(self) -> Any:
        """Return the client of redis-py, which does not try again by itself."""
        with self._lock:
            if self._client is None:
                self._client = _connect(self.location)
            return self._client

    def subscriber(self) -> redis.Redis:
        """Return a new client of one server that is told of everything published."""
        if self.location.kind != "cluster":
            return _connect_single(self.location)
        # Every node of a Cluster is. ClusterPubSub would stay with one that is gone.
        node = random.choice(self.client().get_primaries())
        return redis.Redis(host=node.host, port=node.port, **self.location.arguments)

    def _attempt(self, *args: Any, **options: Any) -> Any:
        return self.client().execute_command(*args, **options)


def pause(attempt: int) -> float:
    """Return the seconds to wait after a failed attempt, jittered; the first is number 0."""
    return random.uniform(0, min(LONGEST_PAUSE, 0.05 * 2**attempt))


def _connect(location: Location) -> Any:
    if location.kind != "cluster":
        return _connect_single(location)
    make_node: Any = ClusterNode  # not every release of redis-py gives it types
    nodes = [make_node(*node) for node in location.nodes]
    return RedisCluster(startup_nodes=nodes, **location.arguments)


def _connect_single(location: Location) -> redis.Redis:
    if location.kind == "single":
        pool = ConnectionPool.from_url(location.url, **location.arguments)
        return redis.Redis(connection_pool=pool)
    make_sentinel: Any = Sentinel
    sentinel = make_sentinel(
        list(location.nodes),
        sentinel_kwargs=dict(location.sentinel_arguments),
        **location.arguments,
    )
    master: redis.Redis = sentinel.master_for(location.service)
    return master


# Whose connections a forked child must not use.
_everyone: weakref.WeakSet[Connections] = weakref.WeakSet()


def _reset_all() -> None:
    for connections in list(_everyone):
        connections.reset()


os.register_at_fork(after_in_child=_reset_all)
