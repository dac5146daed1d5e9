"""The contract of backends, kept by those of this package."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_vega.testing.contract import BackendContract
from tests.backends import servers
from tests.backends.conftest import (  # noqa: F401 - fixtures
    installed,
    location,
    redis_cluster,
    redis_server,
)

REDIS = "django_vega.backends.redis.RedisBackend"


class TestLocal(BackendContract):
    """One process."""

    def alias(self) -> dict[str, Any]:
        return {"BACKEND": "django_vega.backends.local.LocalBackend"}


class TestRedis(BackendContract):
    """One server, and a Cluster of three nodes."""

    @pytest.fixture(autouse=True)
    def on(self, location: Any) -> None:  # noqa: F811
        self.location = location

    def alias(self) -> dict[str, Any]:
        return {"BACKEND": REDIS, "LOCATION": self.location}


@pytest.fixture(scope="module")
def sentinel(
    installed: None,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.SentinelSetup]:
    """A master, a replica and a Sentinel."""
    with servers.sentinel_setup(tmp_path_factory.mktemp("sentinel")) as setup:
        yield setup


class TestSentinel(BackendContract):
    """A master that Sentinel names."""

    @pytest.fixture(autouse=True)
    def on(self, sentinel: servers.SentinelSetup) -> None:
        self.setup = sentinel

    def alias(self) -> dict[str, Any]:
        return {
            "BACKEND": REDIS,
            "LOCATION": f"redis://{self.setup.service}/0",
            "OPTIONS": {"SENTINELS": [("127.0.0.1", self.setup.sentinel.port)]},
        }
