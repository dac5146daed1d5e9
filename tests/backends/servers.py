"""Redis servers of the tests' own: alone, as a Cluster of three, and behind Sentinel.

They listen on free ports of the loopback, keep nothing, and end with their block. Ports below 32768
are none that the kernel gives away by itself; the bus of a Cluster listens 10,000 above.
"""

import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

EXECUTABLE = "redis-server"
# Seconds. Servers are there in tenths, a Cluster in two; a loaded machine may need more.
DEADLINE = 30.0


@dataclass
class Server:
    """One process of redis-server."""

    port: int
    process: subprocess.Popen[bytes]
    client: redis.Redis = field(repr=False)
    command: list[str] = field(repr=False, default_factory=list)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def pause(self) -> None:
        """Let it hang, with its connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait(DEADLINE)

    def start_again(self) -> None:
        """Start it on its port once more, empty, after it was killed."""
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert _answers(self.client, self.process), f"port {self.port} was taken meanwhile"


@dataclass
class SentinelSetup:
    """A master, its replica, and the one Sentinel that watches them."""

    master: Server
    replica: Server
    sentinel: Server
    service: str = "vega-Master"


def is_installed() -> bool:
    """Whether there is a redis-server to start."""
    return shutil.which(EXECUTABLE) is not None


def until(condition: Callable[[], object], what: str) -> None:
    """Poll until something is so.

    Raises:
        AssertionError: It is not, by the deadline.
    """
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE:.0f} s: {what}"
        time.sleep(0.01)


@contextmanager
def server(
    folder: Path, *arguments: str, config: str = "", sentinel: bool = False
) -> Iterator[Server]:
    """Start a server, and end it with the block.

    Args:
        folder: Where it may write.
        arguments: More of its command line.
        config: Text of a configuration file.
        sentinel: Whether it is to be a Sentinel.
    """
    for port in _candidates():
        here = folder / str(port)
        here.mkdir(parents=True)
        file = here / "redis.conf"
        common = f'port {port}\nbind 127.0.0.1\ndir "{here}"\n'
        file.write_text(common + config + ("" if sentinel else 'save ""\nappendonly no\n'))
        command = [EXECUTABLE, str(file), *(["--sentinel"] if sentinel else []), *arguments]
        with (here / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        client = redis.Redis(port=port, socket_timeout=5, socket_connect_timeout=5)
        started = Server(port, process, client, command)
        try:
            if _answers(client, process):
                yield started
                return
        finally:
            client.close()
            started.kill()
    raise AssertionError(f"no port on which {EXECUTABLE} starts; see the logs in {folder}")


@contextmanager
def cluster(folder: Path) -> Iterator[list[Server]]:
    """Start a Cluster of three nodes, each with a third of the slots."""
    with ExitStack() as stack:
        config = "cluster-enabled yes\ncluster-node-timeout 5000\n"
        nodes = [stack.enter_context(server(folder, config=config)) for _ in range(3)]
        slots = range(16384)
        for number, node in enumerate(nodes):
            node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            node.client.execute_command("CLUSTER ADDSLOTS", *slots[number::3])
        for node in nodes[1:]:
            nodes[0].client.execute_command("CLUSTER MEET", "127.0.0.1", node.port)
        until(lambda: all(map(_is_whole, nodes)), "the nodes form a Cluster")
        yield nodes


@contextmanager
def sentinel_setup(folder: Path) -> Iterator[SentinelSetup]:
    """Start a master, a replica, and a Sentinel that has found both."""
    with ExitStack() as stack:
        master = stack.enter_context(server(folder))
        replica = stack.enter_context(
            server(
                folder, config=f"replicaof 127.0.0.1 {master.port}\nrepl-diskless-sync-delay 0\n"
            )
        )
        name = SentinelSetup.service
        config = (
            f"sentinel monitor {name} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {name} 500\n"
            f"sentinel failover-timeout {name} 3000\n"
        )
        watcher = stack.enter_context(server(folder, config=config, sentinel=True))
        until(lambda: replica.client.info("replication")["master_link_status"] == "up", "a replica")
        until(
            lambda: watcher.client.info("sentinel")["master0"]["slaves"] == 1,
            "Sentinel knows the replica",
        )
        yield SentinelSetup(master, replica, watcher)


def _candidates() -> Iterator[int]:
    for port in random.Random().sample(range(20000, 30000), 100):
        if _is_free(port) and _is_free(port + 10000):
            yield port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _answers(client: redis.Redis, process: subprocess.Popen[bytes]) -> bool:
    """Wait for the server; False when it ended, as where its port was taken meanwhile."""
    there = False

    def is_decided() -> bool:
        nonlocal there
        try:
            # Another server may have got the port.
            there = client.info("server")["process_id"] == process.pid
        except redis.ConnectionError:
            there = False
        return there or process.poll() is not None

    until(is_decided, f"{EXECUTABLE} answers")
    return there


def _is_whole(node: Server) -> bool:
    info = node.client.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3"
