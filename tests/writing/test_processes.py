"""Several processes refresh at once: each ends written or superseded, and the newest stands."""

import psycopg
import pytest
from django.db import connections

from django_vega.models import RefreshState
from tests.writing import crowd
from tests.writing_app.models import Quake

pytestmark = pytest.mark.django_db(transaction=True)

REPEATABLE_READ = {
    "postgresql": psycopg.IsolationLevel.REPEATABLE_READ,
    "mysql": "repeatable read",
}


@pytest.fixture(params=["the default", "repeatable read"])
def options(request):
    """OPTIONS of the database, for both isolation levels that people use."""
    if request.param == "the default":
        return {}
    vendor = connections["default"].vendor
    if vendor not in REPEATABLE_READ:
        pytest.skip("SQLite knows one isolation level")
    return {"isolation_level": REPEATABLE_READ[vendor]}


def test_processes__new_keys_at_once(options):
    """Six processes refresh 100 new keys together: no error, and each key shows its newest."""
    outcomes = crowd.run(crowd.refresh_new_keys, 6, options)
    assert outcomes["written"] + outcomes["superseded"] == outcomes.total() == 600
    assert outcomes["written"] >= 100
    newest = dict(RefreshState.objects.values_list("key", "generation_written"))
    assert len(newest) == 100
    for code, place in Quake.objects.values_list("code", "place"):
        assert place == str(newest[f"quakes:{code.split(':')[0]}"])
    assert Quake.objects.count() == 300


def test_processes__same_rows_in_any_order(options):
    """Six processes write the same rows in any order: no deadlock reaches a caller."""
    outcomes = crowd.run(crowd.refresh_the_same_rows, 6, options)
    assert outcomes == {"written": 300}
    assert Quake.objects.count() == 20
    assert len(set(Quake.objects.values_list("place", flat=True))) == 1
