"""The feed over HTTP: what a client is told, also when something is wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interpreters import ROOT

# The requests of a test, one after the other, at the example with an upstream of its own; last what
# that upstream has counted.
SCRIPT = """
import json, sys
import django
django.setup()
from django.core.management import call_command
from django.test import Client, override_settings
from example_project.upstream import Upstream, Weather

call_command("migrate", verbosity=0)
failure_rate, *requests = json.loads(sys.argv[1])
answers = []
with Upstream(Weather(latency=(0, 0), failure_rate=failure_rate)) as upstream:
    with override_settings(UPSTREAM=upstream.url):
        for method, path in requests:
            answer = Client(SERVER_NAME="localhost").generic(method, path)
            answers.append([answer.status_code, answer.json() if answer.content else None])
print(json.dumps([answers, upstream.stats()]))
"""

PATHS = {"sync": "/api/quakes/ak/head/refresh/", "async": "/api/quakes/ak/head/arefresh/"}

Ask = Callable[..., tuple[list[tuple[int, Any]], dict[str, int]]]


@pytest.fixture(params=PATHS.values(), ids=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    def ask(*requests: tuple[str, str], failure_rate: float = 0.0) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps([failure_rate, *requests])],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "example_project.settings",
                "VEGA_EXAMPLE_DB": str(tmp_path / "example.sqlite3"),
            },
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout)

    return ask


def test_fresh_for__no_number_of_seconds(ask: Ask, path: str):
    """It answers 400 and says what was passed; the upstream is not asked."""
    given = ["soon", "-1", "nan", "inf"]
    answers, upstream = ask(*[("POST", f"{path}?fresh_for={one}") for one in given])
    assert [status for status, _ in answers] == [400] * len(given)
    assert all(one in told["error"] for one, (_, told) in zip(given, answers, strict=True))
    assert upstream == {}


def test_upstream__fails(ask: Ask, path: str):
    """It answers 502 with the reason of the upstream."""
    [(status, told)], _ = ask(("POST", path), failure_rate=1.0)
    assert status == 502
    assert "unavailable" in told["error"]


def test_method__that_changes_nothing(ask: Ask, path: str):
    """A GET is answered with 405 and refreshes nothing."""
    [(status, _)], upstream = ask(("GET", path))
    assert (status, upstream) == (405, {})


def test_refresh__then_fresh(ask: Ask, path: str):
    """It tells what was written; within ``fresh_for`` the upstream is not asked again."""
    answers, upstream = ask(("POST", path), ("POST", f"{path}?fresh_for=60"))
    assert [(status, told["outcome"]) for status, told in answers] == [
        (200, "written"),
        (200, "fresh"),
    ]
    assert answers[0][1]["rows"] == 100
    assert upstream == {"quakes:ak:head": 1}
