"""The tests' own servers: they end with their block, and their absence is told or a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.backends import servers

ROOT = Path(__file__).parents[2]


def run_one_test(tmp_path, **variables):
    """Run a test that needs a server, where no redis-server is to be found."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VEGA_")}
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
            "tests/backends/test_four_calls.py::test_four_calls__none[single]",
        ],
        cwd=ROOT,
        env={**inherited, **variables, "PATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_tests_are_skipped_and_a_line_tells__no_redis_server(tmp_path):
    """Who has no redis-server loses these tests and reads why."""
    ended = run_one_test(tmp_path)
    assert ended.returncode == pytest.ExitCode.OK
    assert "1 skipped" in ended.stdout
    assert "no redis-server on PATH" in ended.stdout


def test_tests_fail__no_redis_server_and_redis_is_required(tmp_path, redis_server):
    """`VEGA_REQUIRE=redis` insists on it, however well another server answers."""
    ended = run_one_test(tmp_path, VEGA_REQUIRE="redis", VEGA_REDIS_URL=redis_server.url)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert "required: Redis (no redis-server on PATH" in ended.stdout


def test_server__ends_with_its_block(installed, tmp_path):
    """Also when the block raises; nothing listens there any more."""
    block = servers.server(tmp_path)
    server = block.__enter__()
    assert server.client.ping()
    assert not block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert server.process.poll() is not None
    with pytest.raises(redis.ConnectionError):
        server.client.ping()
    server.client.close()


def test_server__takes_another_port__first_one_is_taken(
    installed, tmp_path, redis_server, monkeypatch
):
    """Between looking for a port and listening on it, somebody else may have come."""
    free = next(servers._candidates())
    monkeypatch.setattr(servers, "_candidates", lambda: iter([redis_server.port, free]))
    with servers.server(tmp_path) as server:
        assert server.port == free
        assert server.client.info("server")["process_id"] == server.process.pid


def test_server__starts_empty(redis_server, installed, tmp_path):
    """It keeps nothing, so a test finds nothing of another run."""
    with servers.server(tmp_path) as server:
        assert server.client.dbsize() == 0
