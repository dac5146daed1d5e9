"""The example behind web servers of four worker processes: 40 requests at once, one upstream call.

A round counts only when all of its requests overlapped: every one had been sent, and as many as the
workers take at once were committed, before the upstream answered the first.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import redis

from django_vega.backends.redis import RedisBackend
from django_vega.core.keys import key_hash
from example_project.upstream import Upstream, Weather
from tests import threads
from tests.backends.servers import Server, until
from tests.interpreters import ROOT
from tests.processes.crew import TIMEOUT
from tests.processes.web import JOINED, READY

pytestmark = pytest.mark.once

REQUESTS = 40
WORKERS = 4
PAGE = "/api/quakes/ak/head"


@dataclass(frozen=True)
class Kind:
    """A way to serve the example, and how many requests it works on at a time."""

    name: str
    command: tuple[str, ...]
    at_once: int = REQUESTS
    view: str = "refresh"
    #: Whether the application is built, and makes a call, before the workers are forked from it.
    is_preloaded: bool = False
    #: Whether a worker takes all that it can get, so that others may get nothing.
    is_greedy: bool = False


def gunicorn(worker: str, *arguments: str) -> tuple[str, ...]:
    """Return a command line; ten connections per worker, so that 40 need all four of them."""
    return (
        "gunicorn",
        "example_project.wsgi:application",
        *("-w", str(WORKERS), "-k", worker, "--worker-connections", "10", "-b", "fd://{fd}"),
        *arguments,
    )


SYNC = Kind("sync", gunicorn("sync"), at_once=WORKERS)
OVERLAPPING = [
    # Connections that are kept alive would count among the ten.
    Kind("gthread", gunicorn("gthread", "--threads", "10", "--keep-alive", "0")),
    Kind(
        "preload",
        gunicorn("gthread", "--threads", "10", "--keep-alive", "0", "--preload"),
        is_preloaded=True,
    ),
    Kind("gevent", gunicorn("gevent")),
    Kind(
        "uvicorn",
        (
            *("uvicorn", "example_project.asgi:application", "--fd", "{fd}"),
            # Workers that are made to stand still are not to be replaced.
            *("--workers", str(WORKERS), "--timeout-worker-healthcheck", "60"),
        ),
        view="arefresh",
        is_greedy=True,
    ),
]


@dataclass
class Site:
    """The example behind a web server, and what it asks."""

    kind: Kind
    port: int
    upstream: Upstream
    told: redis.Redis = field(repr=False)

    def round(self, requests: int, query: str = "") -> list[dict[str, Any]]:
        """Send requests, answer the first one when all are there, and return what they got.

        Raises:
            AssertionError: They were not all there, so the round is void.
        """
        at_once = min(requests, self.kind.at_once)
        self.told.delete(JOINED)
        clients = [Client(self.port, f"{PAGE}/{self.kind.view}/{query}") for _ in range(requests)]
        workers = [int(pid) for pid in self.told.lrange(READY, 0, -1)]
        running: list[threads.Running] = []
        before = self.upstream_calls()

        def committed() -> int:
            return self.upstream_calls() - before + self.told.llen(JOINED)

        with self.upstream.gate("quakes:*") as gate:

            def send(group: list[Client], there: int) -> None:
                running.extend(threads.start_together(*group))
                until(lambda: all(one.has_sent for one in group), "all requests are sent")
                until(lambda: committed() >= there, f"{there} ask the upstream or have joined")

            if self.kind.is_greedy:
                share = requests // WORKERS
                for turn, worker in enumerate(workers):
                    with alone(worker, workers):
                        send(clients[turn * share :][:share], (turn + 1) * share)
            else:
                send(clients, at_once)
            assert not any(one.ended_at for one in running), "void: somebody was answered before"
            gate.open()
            return threads.results(running, TIMEOUT)

    def upstream_calls(self) -> int:
        return sum(self.upstream.stats().values())


@contextmanager
def alone(worker: int, workers: list[int]) -> Iterator[None]:
    """Let one worker take all connections that come within the block, and the others none."""
    others = [pid for pid in workers if pid != worker]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


class Client:
    """One request over a connection of its own; called on a thread."""

    def __init__(self, port: int, path: str) -> None:
        self.has_sent = False
        self._port = port
        self._path = path

    def __call__(self) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
        try:
            connection.request("POST", self._path, headers={"Content-Length": "0"})
            self.has_sent = True
            response = connection.getresponse()
            return {"status": response.status, **json.loads(response.read())}
        finally:
            connection.close()


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with the example's tables."""
    file = tmp_path_factory.mktemp("example") / "example.sqlite3"
    subprocess.run(
        [sys.executable, "-m", "django", "migrate", "--verbosity", "0"],
        cwd=ROOT,
        env=environment(file, "example_project.settings"),
        check=True,
        timeout=TIMEOUT,
    )
    return file


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def site(kind: Kind, own_server: Server, migrated: Path, tmp_path: Path) -> Iterator[Site]:
    """The example behind the server that the test names, with all workers there."""
    pytest.importorskip(kind.command[0], reason=f"{kind.command[0]} is not installed")
    if kind.name == "gevent":
        pytest.importorskip("gevent", reason="gevent is not installed")
    file = Path(shutil.copy(migrated, tmp_path))
    with Upstream(Weather(latency=(0, 0))) as upstream, listener() as listening:
        variables = {
            **environment(file, "tests.processes.web"),
            "VEGA_EXAMPLE_UPSTREAM": upstream.url,
            "VEGA_EXAMPLE_REDIS": own_server.url,
        }
        if kind.is_preloaded:
            # The workers inherit a coordinator that is at work: threads, connections and a name.
            variables["VEGA_TEST_CALL"] = "1"
        with served(kind, listening, variables, tmp_path / "log"):
            started = Site(kind, listening.getsockname()[1], upstream, own_server.client)
            builds = 1 if kind.is_preloaded else WORKERS
            until(lambda: started.told.llen(READY) >= builds, f"{kind.name} is ready")
            yield started


def environment(file: Path, settings: str) -> dict[str, str]:
    """Return the variables of a process that serves the example from a database file."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": settings,
        "VEGA_EXAMPLE_DB": str(file),
    }


@contextmanager
def listener() -> Iterator[socket.socket]:
    """Listen on a free port, for a server that is handed the socket: nobody can take the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * REQUESTS) as listening:
        yield listening


@contextmanager
def served(
    kind: Kind, listening: socket.socket, variables: dict[str, str], log: Path
) -> Iterator[None]:
    """Run a web server; its log tells of no fault, and it ends when it is asked to."""
    module, *arguments = kind.command
    fd = listening.fileno()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *(one.format(fd=fd) for one in arguments)],
            cwd=ROOT,
            env=variables,
            pass_fds=[fd],
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield
        process.terminate()
        process.wait(TIMEOUT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # the session that was started above
            process.wait(TIMEOUT)
    assert "Traceback" not in log.read_text()


def check(answers: list[dict[str, Any]], outcomes: set[str]) -> None:
    """Find requests that were not answered, and workers that had none."""
    assert [answer["status"] for answer in answers] == [200] * len(answers)
    assert {answer["outcome"] for answer in answers} == outcomes
    assert len({answer["process"] for answer in answers}) == WORKERS


@pytest.mark.parametrize("kind", OVERLAPPING, ids=lambda kind: kind.name)
def test_one_upstream_call__for_40_requests(site: Site):
    """Requests that overlap share one flight over all workers; a later round runs anew."""
    first = site.round(REQUESTS)
    assert site.upstream_calls() == 1
    check(first, {"written"})
    assert [answer["led"] for answer in first].count(True) == 1
    second = site.round(REQUESTS)
    assert site.upstream_calls() == 2
    check(second, {"written"})
    generations = [{answer["generation"] for answer in answers} for answers in (first, second)]
    assert [len(one) for one in generations] == [1, 1]
    assert max(generations[0]) < min(generations[1])


@pytest.mark.parametrize("kind", [SYNC], ids=["sync"])
def test_one_upstream_call__one_request_per_worker(site: Site):
    """Where four of 40 requests run at a time, the others find the success of the four fresh.

    Singleflight alone cannot do it: what waits in front of a worker has joined nothing when the
    flight ends. So these ask with ``fresh_for``, and four that overlap show that it is not that
    which joins.
    """
    answers = site.round(REQUESTS, "?fresh_for=60")
    assert site.upstream_calls() == 1
    check(answers, {"written", "fresh"})
    assert [answer["outcome"] for answer in answers].count("written") == WORKERS
    check(site.round(WORKERS), {"written"})
    assert site.upstream_calls() == 2


LEASE = 1.0

# A process under gevent whose one body holds up the hub until it is told to go on: in one call that
# blocks, or computing all the time.
HUB = """
from gevent import monkey
monkey.patch_all()
import json, os, sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_vega"], DJANGO_VEGA={"default": json.loads(sys.argv[1])})
import django
django.setup()
import django_vega

select = monkey.get_original("select", "select")
timeout = {"blocks": None, "computes": 0}[sys.argv[2]]

@django_vega.coordinated(key="hub", scope="tests")
def hold_up():
    print("began", flush=True)
    while not select([0], [], [], timeout)[0]:
        pass
    django_vega.checkpoint()
    return "kept"

print(hold_up(), flush=True)
django_vega.close()
"""


@pytest.mark.parametrize("how", ["blocks", "computes"])
def test_lease__body_that_holds_up_the_hub_of_gevent(own_server: Server, how: str):
    """It lasts as long as the body: a real thread renews while no greenlet gets a turn."""
    pytest.importorskip("gevent", reason="gevent is not installed")
    alias = {
        "BACKEND": "django_vega.backends.redis.RedisBackend",
        "LOCATION": own_server.url,
        "LEASE": LEASE,
    }
    backend = RedisBackend({}, own_server.url)
    process = subprocess.Popen(
        [sys.executable, "-c", HUB, json.dumps(alias), how],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"

        def has_outlived_leases() -> bool:
            # One that was restored late would be young again.
            flights = backend.snapshot(key_hash("", "tests", "hub")).flights
            assert len(flights) == 1, "the lease is lost"
            return flights[0].age > 3 * LEASE

        until(has_outlived_leases, "the flight is older than three leases")
        assert process.communicate("go on\n", TIMEOUT) == ("kept\n", "")
    finally:
        process.kill()
        process.communicate()
        backend.close()
    assert process.returncode == 0
