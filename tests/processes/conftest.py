"""Servers and crews for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends import servers
from tests.backends.conftest import (  # noqa: F401 - fixtures
    installed,
    own_server,
    sentinel_setup,
)
from tests.processes.crew import Crew, crew

NO_DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


def alias(location: object, **more: Any) -> dict[str, Any]:
    """Return an alias on a server, with a lease that a test can wait for."""
    return {
        "BACKEND": "django_vega.backends.redis.RedisBackend",
        "LOCATION": location,
        "LEASE": 1.5,
        **more,
    }


@pytest.fixture(scope="module")
def eight(
    installed: None,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Crew]:
    """Eight processes on one server; each test uses a key of its own."""
    folder: Path = tmp_path_factory.mktemp("eight")
    with (
        servers.server(folder) as server,
        crew(8, alias(server.url), NO_DATABASE) as started,
    ):
        yield started


@pytest.fixture
def redis_cluster(
    installed: None,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[servers.Server]]:
    """A Cluster whose nodes the test may kill."""
    with servers.cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes
