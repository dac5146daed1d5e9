"""A missing service is a failure for who insists on it, a line that says so for others."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module in an environment where no VEGA variable is set but those given."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VEGA_")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def closed_port() -> Iterator[str]:
    """A port that is taken, so that nobody else listens there, and that refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield str(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("name", "label", "variable", "address"),
    [
        ("postgres", "PostgreSQL", "VEGA_POSTGRES_PORT", "{port}"),
        ("redis", "Redis", "VEGA_REDIS_URL", "redis://127.0.0.1:{port}/3"),
    ],
)
def test_no_database_to_test_on__required_service_is_missing(
    name: str, label: str, variable: str, address: str, closed_port: str
) -> None:
    """`make test` gets no databases, and a line that names the service and where it should be."""
    moved = {variable: address.format(port=closed_port)}

    asked = run("tests.services", VEGA_REQUIRE=name, **moved)

    assert asked.returncode == 1
    assert asked.stdout == ""
    assert f"required: {label} (127.0.0.1:{closed_port} not reachable: " in asked.stderr


def test_no_test_runs__required_service_is_missing(closed_port: str) -> None:
    """Pytest itself refuses too, before the first test."""
    ended = run(
        "pytest", "tests/test_threads.py", VEGA_REQUIRE="postgres", VEGA_POSTGRES_PORT=closed_port
    )

    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "required: PostgreSQL" in ended.stderr
    assert "passed" not in ended.stdout


def test_no_test_runs__the_chosen_database_is_missing(closed_port: str) -> None:
    """`VEGA_DB` is a wish as clear as `VEGA_REQUIRE`."""
    ended = run(
        "pytest", "tests/test_threads.py", VEGA_DB="postgres", VEGA_POSTGRES_PORT=closed_port
    )

    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "VEGA_DB=postgres: PostgreSQL" in ended.stderr


def test_tests_run_and_a_line_tells__database_is_missing(closed_port: str) -> None:
    """Without `VEGA_REQUIRE` the summary says which database got no tests, and why."""
    ended = run("pytest", "tests/test_threads.py", VEGA_POSTGRES_PORT=closed_port)

    assert ended.returncode == pytest.ExitCode.OK
    assert f"skipped: PostgreSQL (127.0.0.1:{closed_port} not reachable: " in ended.stdout


def test_sqlite_alone__servers_left_out_by_name() -> None:
    """`VEGA_DATABASES` leaves servers out, reachable or not."""
    assert run("tests.services", VEGA_DATABASES="sqlite").stdout.split() == ["sqlite"]


@pytest.mark.parametrize("variable", ["VEGA_REQUIRE", "VEGA_DATABASES"])
def test_refused_with_the_allowed_names__name_is_unknown(variable: str) -> None:
    """A typing error does not pass as "nothing required"."""
    asked = run("tests.services", **{variable: "postgre"})

    assert asked.returncode == 1
    assert f"{variable} names 'postgre'; allowed are " in asked.stderr
