"""The upstream as an HTTP server on the loopback interface, on a port of its own."""

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import parse_qs, urlsplit

from example_project.upstream.catalog import Catalog
from example_project.upstream.gates import Gate
from example_project.upstream.ledger import Ledger, Weather


class Upstream:
    """Serves the USGS week, slowly, sometimes not at all, and newer at every request.

    ==========================  ==================  ===============================================
    path                        key                 answer
    ==========================  ==================  ===============================================
    /quakes/ak?cursor=head      quakes:ak:head      a page of a region
    /search?text=alaska         search              the newest events whose place contains the text
    /unread/ak                  unread:ak           a count
    /cursors                    (not counted)       the pages of every region
    /stats                      (not counted)       requests started, per key
    ==========================  ==================  ===============================================

    Use it as a context manager; it serves from a thread until the block ends.

    Attributes:
        weather: Latency and failures. May be replaced at any time; requests that have started keep
            what they drew.
    """

    def __init__(self, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self.catalog = Catalog()
        self._ledger = Ledger()
        self._gates_lock = threading.Lock()
        self._gates: list[Gate] = []  # under _gates_lock
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="upstream",
            daemon=True,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """The address as a URL, without a trailing slash."""
        host, port = self.address
        return f"http://{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @contextmanager
    def gate(
        self, pattern: str = "*", on_arrival: Callable[[], None] | None = None
    ) -> Iterator[Gate]:
        """Hold every request whose key matches ``pattern``; at the end of the block all go.

        Args:
            pattern: Shell-style pattern over the keys, such as ``quakes:ak:*``.
            on_arrival: Called on the request's thread each time one has arrived.
        """
        gate = Gate(pattern, on_arrival)
        with self._gates_lock:
            self._gates.append(gate)
        try:
            yield gate
        finally:
            with self._gates_lock:
                self._gates.remove(gate)
            gate.open()

    def reset(self) -> None:
        """Forget all counts and versions: the next answer of every key is version 1 again."""
        self._ledger = Ledger()

    def stats(self) -> dict[str, int]:
        """Return how many requests of each key have started, as ``/stats`` does."""
        return self._ledger.stats()

    def newest_version(self, key: str) -> int:
        """Return the newest version that a request of this key was given; 0 when none was."""
        return self._ledger.newest_version(key)

    def answer(self, target: str) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return status and JSON document for a request target such as ``/unread/ak``."""
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        match url.path.strip("/").split("/"):
            case ["stats"]:
                return HTTPStatus.OK, self.stats()
            case ["cursors"]:
                return HTTPStatus.OK, self.catalog.cursors()
            case ["quakes", region]:
                cursor = query.get("cursor", "head")
                return self._serve(
                    f"quakes:{region}:{cursor}",
                    lambda version: self.catalog.page(region, cursor, version),
                )
            case ["search"]:
                text = query.get("text", "")
                return self._serve("search", lambda version: self.catalog.search(text, version))
            case ["unread", region]:
                return self._serve(
                    f"unread:{region}", lambda version: self.catalog.unread(region, version)
                )
            case _:
                return HTTPStatus.NOT_FOUND, {"error": f"there is nothing at {url.path!r}"}

    def _serve(
        self, key: str, compose: Callable[[int], dict[str, Any]]
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        ticket = self._ledger.start(key, self.weather)
        with self._gates_lock:
            gates = [gate for gate in self._gates if gate.matches(key)]
        try:
            for gate in gates:
                gate.hold()
        except TimeoutError as error:
            return HTTPStatus.GATEWAY_TIMEOUT, {"error": str(error)}
        # The network's time. Nothing depends on it: who needs an order uses a gate.
        time.sleep(ticket.latency)
        if ticket.version is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": f"{key} is unavailable, ask again"}
        try:
            return HTTPStatus.OK, compose(ticket.version)
        except LookupError as error:
            return HTTPStatus.NOT_FOUND, {"error": str(error)}


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128  # a stampede connects at once; the default of 5 would refuse some

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, document = cast("_Server", self.server).upstream.answer(self.path)
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Stay silent: the terminal belongs to the demo."""
