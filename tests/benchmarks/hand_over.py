"""What coordination over processes costs: ``python -m tests.benchmarks.hand_over``.

Starts a Redis server of its own. Tells how long it takes from the end of a leader's function until
a follower in another process has the value, as a ratio against the hand-over of redis-py's `Lock`
in the same run; the round trips of a call that meets nobody, by the server's count; and how many
commands a process sends per second while it waits.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from tests.backends import servers
from tests.processes.conftest import NO_DATABASE, alias
from tests.processes.crew import Crew, crew


def main() -> None:
    """Measure, print the table, and the same as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31, help="hand-overs of each kind (31)")
    parser.add_argument("--idle", type=float, default=6, help="seconds to count commands (6)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.server(Path(folder)) as server,
        crew(2, alias(server.url, LEASE=10), NO_DATABASE) as two,
    ):
        found: dict[str, Any] = {
            "trips": uncontended(two, server),
            "ours_ms": hand_overs(two, options.rounds),
            "lock_ms": lock_hand_overs(server.port, options.rounds),
            "idle_commands_per_second": idle(two, server, options.idle),
        }
    found["lock / ours"] = round(found["lock_ms"] / found["ours_ms"], 1)
    for name, value in found.items():
        sys.stdout.write(f"  {name:<28} {value}\n")
    sys.stdout.write(json.dumps(found) + "\n")


def hand_overs(two: Crew, rounds: int) -> float:
    """Return the median ms from the end of a function to its value in the other process."""
    took = []
    for number in range(rounds):
        key = f"hand-over-{number}"
        two.arrive(key, [["sync"], []])
        two.arrive(key, [[], ["sync"]])
        two.members[0].do(do="open", key=key)
        two.results(key)
        (ended,) = two.history("ended", key=key)
        got = [one for one in two.history("got", key=key) if one["process"] == 1]
        took.append(got[0]["at"] - ended["at"])
    return round(statistics.median(took) * 1000, 2)


def lock_hand_overs(port: int, rounds: int) -> float:
    """Return the median ms from a release to the other process's acquisition of a lock."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    other = spawn.Process(target=_acquire, args=(port, rounds, theirs))
    other.start()
    lock = redis.Redis(port=port).lock("benchmark", timeout=30, thread_local=False)
    took = []
    for _ in range(rounds):
        lock.acquire()
        ours.send("go")
        ours.recv()
        time.sleep(0.02)  # it waits by now, at any point of its pause
        released_at = time.monotonic()
        lock.release()
        took.append(ours.recv() - released_at)
    other.join()
    return round(statistics.median(took) * 1000, 2)


def _acquire(port: int, rounds: int, pipe: Any) -> None:
    lock = redis.Redis(port=port).lock("benchmark", timeout=30, thread_local=False)
    for _ in range(rounds):
        pipe.recv()
        pipe.send("waiting")
        lock.acquire()
        acquired_at = time.monotonic()
        lock.release()
        pipe.send(acquired_at)


def uncontended(two: Crew, server: servers.Server) -> float:
    """Return how many scripts a call runs that meets nobody."""
    two.open("alone")
    two.call("alone", [["sync"], []])
    two.results("alone")
    before = _scripts(server)
    for _ in range(20):
        two.call("alone", [["sync"], []])
        two.results("alone")
    return (_scripts(server) - before) / 20


def idle(two: Crew, server: servers.Server, seconds: float) -> float:
    """Return the commands per second of a process whose callers wait for another one."""
    two.arrive("idle", [["sync"], []])
    two.arrive("idle", [[], ["sync"] * 4])
    before, began = _commands(server), time.monotonic()
    time.sleep(seconds)
    count = _commands(server) - before - 1
    two.open("idle")
    two.results("idle")
    return round(count / (time.monotonic() - began) / 2, 2)


def _scripts(server: servers.Server) -> int:
    return int(server.client.info("commandstats")["cmdstat_evalsha"]["calls"])


def _commands(server: servers.Server) -> int:
    """Return the commands that clients sent, without those that scripts ran."""
    stats = server.client.info("commandstats")
    return sum(
        int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "ping")
    )


if __name__ == "__main__":
    main()
