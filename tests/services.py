"""The servers that tests use: where they are, whether they answer, and who insists on them.

A server that does not answer costs its tests, and one line says so. Under
`VEGA_REQUIRE=postgres,mariadb` the same is a failure. `python -m tests.services` prints the
databases to test on, for `make test`.

No import of Django or pytest here: the settings of the tests read their addresses from this.
"""

import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

__all__ = [
    "DATABASES",
    "MARIADB",
    "POSTGRES",
    "REDIS",
    "SERVICES",
    "Service",
    "databases_to_test",
    "refusals",
    "skip_lines",
]

# Seconds for one connection. Loopback answers in milliseconds; a packet filter never does.
CONNECT_TIMEOUT = 5


@dataclass(frozen=True)
class Service:
    """A server (or a browser) that some tests need.

    Args:
        name: As `VEGA_REQUIRE` and `VEGA_DATABASES` spell it.
        label: As people spell it.
        probe: Gets the service; returns why it cannot be used, or None when it can.
        host: Where it listens; empty, like port and user, where there is no such thing.
    """

    name: str
    label: str
    probe: "Callable[[Service], str | None]"
    host: str = ""
    port: int = 0
    user: str = ""

    def why_missing(self) -> str | None:
        """Why tests cannot use it, or None when they can."""
        return self.probe(self)

    def unreachable(self, error: Exception) -> str:
        """The reason to give after a connection failed with `error`."""
        # Drivers put the cause last, after addresses and error numbers, and advice below.
        cause = str(error.args[-1]).partition("\n")[0].rpartition(": ")[2].strip()
        return f"{self.host}:{self.port} not reachable: {cause}"


def probe_postgres(service: Service) -> str | None:
    """Log in to PostgreSQL."""
    try:
        import psycopg
    except ImportError as error:
        return f"psycopg cannot be imported: {error}"
    try:
        psycopg.connect(
            host=service.host,
            port=service.port,
            user=service.user,
            dbname="postgres",
            connect_timeout=CONNECT_TIMEOUT,
        ).close()
    except psycopg.OperationalError as error:
        return service.unreachable(error)
    return None


def probe_mariadb(service: Service) -> str | None:
    """Log in to MariaDB or MySQL."""
    try:
        import MySQLdb
    except ImportError as error:
        return f"mysqlclient cannot be imported: {error}"
    try:
        MySQLdb.connect(
            host=service.host,
            port=service.port,
            user=service.user,
            connect_timeout=CONNECT_TIMEOUT,
        ).close()
    except MySQLdb.OperationalError as error:
        return service.unreachable(error)
    return None


def probe_redis(service: Service) -> str | None:
    """Ask Redis for a PONG; no client library needed."""
    try:
        with socket.create_connection((service.host, service.port), CONNECT_TIMEOUT) as server:
            server.sendall(b"PING\r\n")
            answer = server.recv(64)
    except OSError as error:
        return service.unreachable(error)
    # A server that wants a password answers too.
    if answer.startswith((b"+PONG", b"-NOAUTH")):
        return None
    return f"{service.host}:{service.port} answered {answer!r} to PING"


def probe_browser(service: Service) -> str | None:
    """Look for what browser tests need, once there are any."""
    if not (Path(__file__).parent / "browser").is_dir():
        return None
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    if shutil.which("chromium") is None:
        return "no chromium on PATH"
    return None


def address(name: str, default_port: int, default_user: str) -> tuple[str, int, str]:
    """Host, port and user of a database, from `VEGA_<name>_HOST`, `_PORT` and `_USER`."""
    return (
        os.environ.get(f"VEGA_{name}_HOST", "127.0.0.1"),
        int(os.environ.get(f"VEGA_{name}_PORT", default_port)),
        os.environ.get(f"VEGA_{name}_USER", default_user),
    )


REDIS_URL = os.environ.get("VEGA_REDIS_URL", "redis://127.0.0.1:6379")

POSTGRES = Service("postgres", "PostgreSQL", probe_postgres, *address("POSTGRES", 5432, "postgres"))
MARIADB = Service("mariadb", "MariaDB", probe_mariadb, *address("MARIADB", 3306, "root"))
REDIS = Service(
    "redis",
    "Redis",
    probe_redis,
    urlsplit(REDIS_URL).hostname or "127.0.0.1",
    urlsplit(REDIS_URL).port or 6379,
)
BROWSER = Service("browser", "a browser", probe_browser)

SERVICES = {service.name: service for service in (POSTGRES, MARIADB, REDIS, BROWSER)}

# What `VEGA_DB` may be; tests marked `databases` run on each. SQLite is no server: always there.
DATABASES = ("sqlite", POSTGRES.name, MARIADB.name)


def names(variable: str, allowed: Collection[str], default: str) -> list[str]:
    """The comma-separated names that an environment variable holds.

    Raises:
        ValueError: One of them is none of `allowed`: a typing error must not pass as "skip".
    """
    given = [name.strip() for name in os.environ.get(variable, default).split(",") if name.strip()]
    for name in given:
        if name not in allowed:
            raise ValueError(f"{variable} names {name!r}; allowed are {', '.join(allowed)}")
    return given


def refusals() -> list[str]:
    """One line for each service that `VEGA_REQUIRE` names and that cannot be used."""
    required = [SERVICES[name] for name in names("VEGA_REQUIRE", SERVICES, default="")]
    return [
        f"required: {service.label} ({reason})"
        for service in required
        if (reason := service.why_missing()) is not None
    ]


def why_skipped(database: str) -> str | None:
    """Why no tests run on `database` ("sqlite", "postgres", "mariadb"), or None if they do."""
    if database not in names("VEGA_DATABASES", DATABASES, default=",".join(DATABASES)):
        return f"VEGA_DATABASES={os.environ['VEGA_DATABASES']}"
    return SERVICES[database].why_missing() if database in SERVICES else None


def skip_lines() -> list[str]:
    """One line for each database server on which no tests run."""
    return [
        f"skipped: {service.label} ({reason})"
        for service in (POSTGRES, MARIADB)
        if (reason := why_skipped(service.name)) is not None
    ]


def databases_to_test() -> list[str]:
    """The databases that were asked for and can be used, SQLite first."""
    return [database for database in DATABASES if why_skipped(database) is None]


def main() -> None:
    """Print the databases to test on; end with a message where tests must not begin."""
    try:
        if refused := refusals():
            sys.exit("\n".join(refused))
        if not (databases := databases_to_test()):
            sys.exit("\n".join(["no database to test on", *skip_lines()]))
    except ValueError as error:
        sys.exit(str(error))
    print(*databases)


if __name__ == "__main__":
    main()
