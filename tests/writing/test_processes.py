"""Several processes refresh at once: each ends written or superseded, and the newest stands."""

from functools import partial

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


def test_processes__rows_with_and_without_a_primary_key(options):
    """Whoever brings which keys, rows are written in one order: no deadlock reaches a caller."""
    Quake.objects.bulk_create(Quake(code=str(n)) for n in range(30))
    outcomes = crowd.run(crowd.refresh_mixed_rows_in_opposite_order, 4, options)
    assert outcomes == {"written": 160}
    assert Quake.objects.count() == 30


@pytest.mark.parametrize(("size", "rounds"), [(2, 40), (4, 40), (8, 50)])
def test_hammer__newest_generation_wins(size, rounds):
    """Processes write the same rows through different keys: every row is its newest writer's."""
    verdicts = crowd.run(partial(crowd.hammer, size=size, rounds=rounds), size, {})
    # 40 rows at least, in each round: of the three sizes together more than 5,000.
    assert set(verdicts) == {"right"}
    assert verdicts["right"] >= 40 * rounds


def test_hammer__without_the_guard():
    """The test of the test: with the guard taken out, many rows are an older writer's."""
    work = partial(crowd.hammer, size=4, rounds=20, guarded=False)
    verdicts = crowd.run(work, 4, {})
    assert verdicts["wrong"] > 50
