"""Servers for the tests of this folder: one alone and one Cluster per worker, when needed."""

import itertools
from collections.abc import Iterator

import pytest

from django_vega.backends.connections import Connections
from tests import services
from tests.backends import servers
from tests.backends.desk import Desk


@pytest.fixture(scope="session")
def installed() -> None:
    """Skip where there is no redis-server, unless somebody insists on it."""
    if servers.is_installed():
        return
    reason = "no redis-server on PATH: tests that start their own cannot run"
    if services.REDIS.name in services.names("VEGA_REQUIRE", services.SERVICES, default=""):
        pytest.fail(f"required: Redis ({reason})")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def redis_server(
    installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Server]:
    """A server that all tests of the worker share; each uses keys of its own."""
    with servers.server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(
    installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[servers.Server]]:
    """A Cluster that all tests of the worker share; each uses keys of its own."""
    with servers.cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture
def own_server(
    installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Server]:
    """A server that the test may pause, flush or kill."""
    with servers.server(tmp_path_factory.mktemp("own")) as server:
        yield server


@pytest.fixture
def sentinel_setup(
    installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.SentinelSetup]:
    """A master, a replica and a Sentinel that the test may kill."""
    with servers.sentinel_setup(tmp_path_factory.mktemp("sentinel")) as setup:
        yield setup


@pytest.fixture(scope="session", params=["single", "cluster"])
def location(request: pytest.FixtureRequest) -> object:
    """LOCATION of one server, then of a Cluster."""
    if request.param == "single":
        return request.getfixturevalue("redis_server").url
    nodes = request.getfixturevalue("redis_cluster")
    return [f"redis+cluster://127.0.0.1:{node.port}" for node in nodes]


@pytest.fixture(scope="session")
def connections(location: object) -> Iterator[Connections]:
    """Connections to one server, then to a Cluster."""
    connections = Connections(location)
    yield connections
    connections.close()


_numbers = itertools.count(1)


@pytest.fixture
def desk(connections: Connections, request: pytest.FixtureRequest) -> Desk:
    """A key of the test's own, where every script runs twice."""
    return Desk(connections, f"{next(_numbers)}:{request.node.name}")
