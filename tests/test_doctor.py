"""`manage.py vega doctor`: what it finds on live servers, and what it leaves there."""

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_vega.models import RefreshState
from tests.backends.conftest import installed, own_server  # noqa: F401 - fixtures
from tests.backends.servers import Server
from tests.test_command import Terminal

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.databases,
]


def doctor(settings: Any, stdout: io.StringIO | None = None, **alias: Any) -> list[list[str]]:
    """Run it with one alias beside the default; return the cells of the rows about that.

    Functions of other tests may have faults that the checks name: it fails exactly where one does.
    """
    settings.DJANGO_VEGA = {"default": {}, "probed": alias}
    stdout = stdout or io.StringIO()
    code = 0
    try:
        call_command("vega", "doctor", stdout=stdout)
    except CommandError as error:
        code = error.returncode
    rows = [line.split("\t") for line in stdout.getvalue().splitlines()]
    if not stdout.isatty():
        assert code == any(row[2] == "failed" for row in rows)
    return [row for row in rows if row[0] in {"alias probed", "database default", "where"}]


def test_local__says_that_it_is_one_process(settings: Any) -> None:
    """A row for the alias, one for the fence of each database, under headings."""
    head, alias, database = doctor(settings)
    assert head == ["where", "probe", "result", "detail", "what to do"]
    assert alias[1:4] == [
        "backend",
        "ok",
        "coordinates this process only; the fence protects rows from all of them",
    ]
    assert database[1:4] == ["fence", "ok", "an older generation is refused"]
    assert not RefreshState.objects.exists()


def test_redis__is_tried(settings: Any, own_server: Server) -> None:  # noqa: F811
    """Each probe works on a live server, and nothing that does not expire is left."""
    rows = doctor(
        settings, BACKEND="django_vega.backends.redis.RedisBackend", LOCATION=own_server.url
    )
    found = {row[1]: row[2] for row in rows if row[0] == "alias probed"}
    assert found == dict.fromkeys(["reachable", "election", "expiry", "clock", "eviction"], "ok")
    assert all(own_server.client.ttl(key) > 0 for key in own_server.client.scan_iter())


def test_redis__evicts(settings: Any, own_server: Server) -> None:  # noqa: F811
    """A warning, with what to do, is no failure."""
    own_server.client.config_set("maxmemory-policy", "allkeys-lru")
    rows = doctor(
        settings, BACKEND="django_vega.backends.redis.RedisBackend", LOCATION=own_server.url
    )
    (eviction,) = [row for row in rows if row[1] == "eviction"]
    assert eviction[2:] == ["warning", "maxmemory-policy is allkeys-lru", "Set it to noeviction"]


def test_redis__is_gone(settings: Any, own_server: Server) -> None:  # noqa: F811
    """The row says what to do, the other rows are there, and the exit code says so."""
    own_server.kill()
    head, row, database = doctor(
        settings, BACKEND="django_vega.backends.redis.RedisBackend", LOCATION=own_server.url
    )
    assert head[0] == "where"
    assert row[1:3] == ["reachable", "failed"]
    assert "Look at the server" in row[4]
    assert database[2] == "ok"


def test_terminal__is_aligned(settings: Any) -> None:
    """For people: columns, no tabs."""
    stdout = Terminal()
    doctor(settings, stdout)
    assert "\t" not in stdout.getvalue()
    assert "coordinates this process only" in stdout.getvalue()
