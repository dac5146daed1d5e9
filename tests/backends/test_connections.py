"""Connections: single server, Sentinel and Cluster, what they try again, and forks."""

import contextlib
import os
import pickle
import socket
import threading

import pytest
import redis

from django_vega.backends.connections import Connections, pause
from django_vega.backends.inbox import Inbox
from django_vega.backends.protocol import Hint, Subscribed
from tests import threads
from tests.backends.servers import until


@pytest.fixture
def silent_listener():
    """A socket whose connections the kernel accepts, and which nobody serves."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        listener.setblocking(False)
        yield listener


def connections_made(listener):
    """Take and count the connections that were made to a listener."""
    number = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            number += 1
    return number


def test_execute_command__bytes_in_bytes_out(connections):
    """Nothing is decoded, on one server and on a Cluster."""
    connections.execute_command("SET", "bytes", b"\xff\0")
    assert connections.execute_command("GET", "bytes") == b"\xff\0"


@pytest.mark.parametrize("protocol", [2, 3])
def test_execute_command__either_protocol(redis_server, protocol):
    """RESP2 and RESP3 answer alike, and both tell of hints."""
    connections = Connections(f"{redis_server.url}?protocol={protocol}")
    assert connections.execute_command("EVAL", "return {1, 'two', {3}}", 0) == [1, b"two", [3]]
    inbox = Inbox(connections, f"protocol-{protocol}")
    got = []
    until(lambda: got.append(inbox.receive(0.1)) or Subscribed() in got, "subscribed")
    connections.execute_command("PUBLISH", f"vega:inbox:protocol-{protocol}", "k")
    until(lambda: got.append(inbox.receive(0.1)) or Hint("k") in got, "the hint")
    inbox.close()
    connections.close()


def test_execute_command__tries_four_times__server_is_silent(silent_listener):
    """Each attempt has its own timeout; then the error says so. Retries do not multiply."""
    port = silent_listener.getsockname()[1]
    connections = Connections(f"redis://127.0.0.1:{port}", {"SOCKET_TIMEOUT": 0.05})
    with pytest.raises(redis.TimeoutError):
        connections.execute_command("PING")
    assert connections_made(silent_listener) == 4


def test_execute_command__raises_one_family_of_errors__nobody_is_there():
    """Of one server and of a Cluster: `RedisError`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for scheme in ("redis", "redis+cluster"):
            with pytest.raises(redis.ConnectionError):
                Connections(f"{scheme}://127.0.0.1:{port}").execute_command("GET", "k")


def test_execute_command__goes_on__connection_was_killed(own_server):
    """A connection that broke while idle costs one attempt."""
    connections = Connections(own_server.url)
    connections.execute_command("PING")
    own_server.client.execute_command("CLIENT KILL TYPE normal SKIPME yes")
    assert connections.execute_command("SET", "k", "v")
    connections.close()


def test_execute_command__does_not_try_again__refused(own_server):
    """What the server does not understand, or who may not ask, is no matter of patience."""
    own_server.client.config_set("requirepass", "secret")
    before = own_server.client.info("stats")["total_connections_received"]
    with pytest.raises(redis.AuthenticationError):
        Connections(own_server.url).execute_command("PING")
    wrong = own_server.url.replace("//", "//:wrong@")
    with pytest.raises(redis.AuthenticationError):
        Connections(wrong).execute_command("PING")
    # One of ours each.
    assert own_server.client.info("stats")["total_connections_received"] <= before + 3
    right = Connections(own_server.url, {"PASSWORD": "secret"})
    with pytest.raises(redis.ResponseError):
        right.execute_command("NOPE")
    right.close()


def test_connections__are_of_a_pool_of_their_own(redis_server):
    """Two aliases with one URL share nothing, and each keeps its options."""
    one = Connections(redis_server.url)
    other = Connections(redis_server.url, {"SOCKET_TIMEOUT": 3})
    assert one.client().connection_pool is not other.client().connection_pool
    assert one.client().connection_pool.connection_kwargs["socket_timeout"] == 1
    assert one.client().connection_pool.connection_kwargs["socket_connect_timeout"] == 1
    assert one.client().connection_pool.connection_kwargs["health_check_interval"] == 5
    assert other.client().connection_pool.connection_kwargs["socket_timeout"] == 3


def test_connections__one_client__threads_ask_at_once(redis_server):
    """However many threads come first together, they share one client."""
    connections = Connections(redis_server.url)
    clients = threads.run_together(*[connections.client] * 8)
    assert len({id(client) for client in clients}) == 1
    connections.close()


def test_fork__child_uses_nothing_of_the_parents(redis_server):
    """The child gets a client of its own, even when a thread held the lock while forking."""
    connections = Connections(redis_server.url)
    parents = connections.execute_command("CLIENT", "ID")
    reader, writer = os.pipe()
    held, release = threading.Event(), threading.Event()

    def hold():
        with connections._lock:
            held.set()
            assert release.wait(threads.TIMEOUT)

    with threads.start(hold):
        assert held.wait(threads.TIMEOUT)
        child = os.fork()
        if child == 0:  # pragma: no cover - measured in the parent alone
            try:
                told = connections.execute_command("CLIENT", "ID")
            except BaseException as error:
                told = error
            os.write(writer, pickle.dumps(told))
            os._exit(0)
        release.set()
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        childs = pickle.load(pipe)
    assert os.waitpid(child, 0) == (child, 0)
    assert isinstance(childs, int)
    assert childs != parents
    assert connections.execute_command("CLIENT", "ID") == parents
    connections.close()


def test_sentinel__finds_the_master_again__failover(sentinel_setup):
    """Commands and inbox follow the master to the replica that took over."""
    setup = sentinel_setup
    options = {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "SENTINELS": [("127.0.0.1", setup.sentinel.port)],
    }
    connections = Connections(f"redis://{setup.service}/0", options)
    inbox = Inbox(connections, "p")
    got = []
    until(lambda: got.append(inbox.receive(0.1)) or Subscribed() in got, "subscribed")
    assert connections.execute_command("SET", "k", "v")
    assert setup.master.client.get("k") == b"v"

    setup.master.kill()

    def moved():
        try:
            return connections.execute_command("SET", "k", "again")
        except redis.RedisError:
            return False

    until(moved, "the replica leads")
    assert setup.replica.client.get("k") == b"again"
    got.clear()
    until(lambda: got.append(inbox.receive(0.1)) or Subscribed() in got, "subscribed again")
    connections.execute_command("PUBLISH", "vega:inbox:p", "k")
    until(lambda: got.append(inbox.receive(0.1)) or Hint("k") in got, "the hint")
    inbox.close()
    connections.close()


def test_pause__is_jittered_and_bounded():
    """Attempts of many processes spread, and none waits long."""
    pauses = [pause(attempt) for attempt in range(100)]
    assert len(set(pauses)) > 90
    assert 0 <= min(pauses) <= max(pauses) <= 0.5
