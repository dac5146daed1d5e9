"""System checks of aliases that processes share."""

import sys
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_vega import conf, coordinated
from tests.backends.conftest import installed, own_server  # noqa: F401 - fixtures
from tests.backends.servers import Server

REDIS = "django_vega.backends.redis.RedisBackend"


def found(*, deploy: bool = False, **alias: Any) -> list[tuple[str, str, str]]:
    """Return id, message and hint of what is found about one alias."""
    with override_settings(DJANGO_VEGA={"default": {}, "shared": alias}):
        messages = checks.run_checks(tags=["django_vega"], include_deployment_checks=deploy)
    return [
        (str(one.id).removeprefix("django_vega."), one.msg, str(one.hint))
        for one in messages
        if "shared" in one.msg
    ]


@pytest.mark.parametrize(
    "location",
    [
        "redis://127.0.0.1:6379/0",
        "unix:///run/redis.sock?db=1",
        "rediss://user:secret@redis.example:6380/2",
        ["redis+cluster://127.0.0.1:7000", "redis+cluster://127.0.0.1:7001"],
    ],
)
def test_location__in_order(location: Any) -> None:
    """What one can connect to is accepted, and nothing connects."""
    assert found(BACKEND=REDIS, LOCATION=location) == []


def test_location__of_a_cache() -> None:
    """The alias of a cache stands for its server and its options; own options come on top."""
    caches = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "redis": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://127.0.0.1:6379/3",
            "OPTIONS": {"PASSWORD": "secret", "SOCKET_TIMEOUT": 2},
        },
    }
    setting = {
        "default": {"BACKEND": REDIS, "LOCATION": "redis", "OPTIONS": {"SOCKET_TIMEOUT": 0.5}}
    }
    with override_settings(CACHES=caches):
        aliases, faults = conf.examine(setting)
        assert faults == []
        alias = aliases["default"]
        assert alias.location == "redis://127.0.0.1:6379/3"
        assert alias.options == {"PASSWORD": "secret", "SOCKET_TIMEOUT": 0.5}
        assert (alias.lease, alias.codec.name, alias.on_backend_error) == (10.0, "json", "local")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"BACKEND": REDIS}, "LOCATION=None", "alias of CACHES"),
        ({"BACKEND": REDIS, "LOCATION": "redis://x/0", "OPTIONS": ["x"]}, "a list", "a dict"),
        ({"BACKEND": REDIS, "LOCATION": "redis", "OPTIONS": ["x"]}, "a list", "a dict"),
        ({"BACKEND": REDIS, "LOCATION": "redsi"}, "redsi", "Did you mean 'redis'?"),
        ({"BACKEND": REDIS, "LOCATION": "http://x"}, "begin it with one of redis://", "CACHES"),
        ({"BACKEND": REDIS, "LOCATION": "redis://x/0", "LEASE": 0.5}, "LEASE", "at least 1"),
        ({"BACKEND": REDIS, "LOCATION": "redis://x/0", "LEASE": "10"}, "LEASE", "at least 1"),
        ({"BACKEND": REDIS, "LOCATION": "redis://x/0", "CODEC": "jsn"}, "did you mean 'json'", ""),
        (
            {"BACKEND": REDIS, "LOCATION": "redis://x/0", "ON_BACKEND_ERROR": "ignore"},
            "'ignore'",
            "Use 'local' or 'raise' or 'run'",
        ),
        ({"LOCATION": "redis://x/0"}, "says nothing to LocalBackend", "Leave it out"),
        ({"CODEC": "json"}, "says nothing to LocalBackend", "Leave it out"),
        ({"BACKEND": REDIS, "LOCATION": "redis://x/0", "TIMEOUT": None}, "share", "seconds"),
        (
            {"BACKEND": REDIS, "LOCATION": "redis://x/0", "OPTIONS": {"socket_timeout": None}},
            "socket_timeout=None",
            "",
        ),
    ],
)
def test_e004__what_does_not_fit(options: dict[str, Any], message: str, hint: str) -> None:
    """Each fault is found by the check, with the way out, and raised at the first call."""
    caches = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "redis": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://x/0"},
    }

    @coordinated(key="work")
    def work() -> None: ...

    with override_settings(CACHES=caches):
        ((fault_id, said, what_to_do),) = found(**options)
        assert fault_id == "E004"
        assert message in said
        assert hint in what_to_do
        with (
            override_settings(DJANGO_VEGA={"default": options}),
            pytest.raises(ImproperlyConfigured),
        ):
            work()


def test_e002__the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without redis-py the hint names the extra."""
    for name in [name for name in sys.modules if name.startswith("django_vega.backends.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.exceptions", None)
    assert [one[0] for one in found(BACKEND=REDIS, LOCATION="redis://x/0")] == ["E002"]


def test_w003__a_short_lease() -> None:
    """Below three seconds a pause of the process loses it."""
    ((fault_id, message, _),) = found(BACKEND=REDIS, LOCATION="redis://x/0", LEASE=2)
    assert (fault_id, "2 s" in message) == ("W003", True)
    assert found(BACKEND=REDIS, LOCATION="redis://x/0", LEASE=3) == []


def test_w010__pickle_and_queues_without_a_bound() -> None:
    """What trusts everybody, and what takes everything, is named."""
    ((fault_id, message, hint),) = found(BACKEND=REDIS, LOCATION="redis://x/0", CODEC="pickle")
    assert fault_id == "W010"
    assert "run code" in message
    assert '"json"' in hint
    ((fault_id, message, _),) = found(CAPACITY=None)
    assert (fault_id, "CAPACITY=None" in message) == ("W010", True)


def test_w007__a_server_that_evicts(own_server: Server, tmp_path: Path) -> None:  # noqa: F811
    """Asked of the live server, at deployment only; one that is gone is not judged."""
    options: dict[str, Any] = {"BACKEND": REDIS, "LOCATION": own_server.url}
    assert found(deploy=True, **options) == []
    for policy in ("allkeys-lru", "volatile-ttl"):
        own_server.client.config_set("maxmemory-policy", policy)
        ((fault_id, message, _),) = found(deploy=True, **options)
        assert (fault_id, policy in message) == ("W007", True)
        assert found(**options) == []
    own_server.kill()
    assert found(deploy=True, **options) == []
