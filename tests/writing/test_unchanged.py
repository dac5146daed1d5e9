"""skip_unchanged: what the database holds already is not written again."""

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from django.db import connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_vega.writing.upsert import Upsert
from tests.writing.refreshing import refresh
from tests.writing_app.models import Document, Quake, Sample, Station, Tag, Ticket, Word

pytestmark = pytest.mark.django_db

QUAKES = Upsert(Quake, ["code"], skip_unchanged=True)
SAMPLES = Upsert(Sample, ["code"], skip_unchanged=True)
LONG_AGO = datetime(2001, 2, 3, tzinfo=UTC)
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def test_counts__some_changed():
    """Only new and different rows are written; the counts add up."""
    refresh([{"code": c, "place": "x"} for c in "abcd"], 1, upsert=QUAKES)
    Quake.objects.update(modified_at=LONG_AGO)
    rows = [{"code": c, "place": "x"} for c in "abe"] + [{"code": "c", "place": "y"}]
    result = refresh(rows, 2, upsert=QUAKES)
    assert (result.rows, result.written, result.unchanged, result.guarded) == (4, 2, 2, 0)
    moved = set(Quake.objects.exclude(modified_at=LONG_AGO).values_list("code", flat=True))
    assert moved == {"c", "e"}


def test_counts__nothing_changed():
    """A response without news is no statement but the fence and the reading."""
    rows = [{"code": c} for c in "abc"]
    refresh(rows, 1, upsert=QUAKES)
    with CaptureQueriesContext(connections["default"]) as queries:
        result = refresh(rows, 2, upsert=QUAKES)
    assert (result.outcome, result.written, result.unchanged) == ("written", 0, 3)
    assert not any("INSERT" in query["sql"] for query in queries)


def test_counts__more_rows_than_a_statement_takes():
    """Rows are read in chunks."""
    rows = [{"code": f"{n:05}", "magnitude": float(n)} for n in range(3000)]
    refresh(rows, 1, upsert=QUAKES)
    rows[7] = rows[7] | {"magnitude": 7.5}
    result = refresh(rows, 2, upsert=QUAKES)
    assert (result.written, result.unchanged) == (1, 2999)


@pytest.mark.parametrize(
    ("first", "same"),
    [
        ({"count": 5}, {"count": "5"}),
        ({"amount": Decimal("1.5")}, {"amount": "1.50"}),
        ({"amount": Decimal("1.5")}, {"amount": 1.5}),
        ({"amount": Decimal("1.234")}, {"amount": Decimal("1.234")}),
        ({"ratio": 0.1}, {"ratio": "0.1"}),
        ({"ratio": 1}, {"ratio": 1.0}),
        ({"flag": True}, {"flag": 1}),
        ({"seen_at": MOMENT}, {"seen_at": MOMENT.astimezone(timezone(timedelta(hours=5)))}),
        ({"seen_at": MOMENT}, {"seen_at": MOMENT.isoformat()}),
        ({"day": date(2026, 1, 2)}, {"day": "2026-01-02"}),
        ({"uid": uuid.UUID(int=7)}, {"uid": str(uuid.UUID(int=7))}),
        ({"data": {"b": [1, None], "a": "x"}}, {"data": {"a": "x", "b": (1, None)}}),
        ({"data": [True, 1.5]}, {"data": [True, 1.5]}),
        ({"raw": b"\x00\xff"}, {"raw": bytearray(b"\x00\xff")}),
        ({"wait": timedelta(microseconds=1)}, {"wait": timedelta(microseconds=1)}),
        ({"station_id": "s"}, {"station": Station(code="s")}),
        ({"text": None}, {}),
        ({"text": "é "}, {"text": "é "}),
    ],
)
def test_values__same(first, same):
    """Equal values are equal in whatever way they are written."""
    Station.objects.create(code="s")
    refresh([{"code": "a"} | first], 1, upsert=SAMPLES)
    assert refresh([{"code": "a"} | same], 2, upsert=SAMPLES).unchanged == 1


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"text": None}, {"text": ""}),
        ({"text": "a"}, {"text": "A"}),
        ({"text": "a"}, {"text": "a "}),
        ({"text": "5"}, {"text": "5.0"}),
        ({"count": 1}, {"count": 2}),
        ({"amount": Decimal("1.50")}, {"amount": Decimal("1.51")}),
        ({"ratio": 0.1}, {"ratio": 0.1 + 1e-16}),
        ({"seen_at": MOMENT}, {"seen_at": MOMENT + timedelta(microseconds=1)}),
        ({"seen_at": MOMENT}, {"seen_at": None}),
        ({"data": {"a": 1}}, {"data": {"a": True}}),
        ({"data": {"a": 1}}, {"data": {"a": 1.5}}),
        ({"data": {"a": [1, 2]}}, {"data": {"a": [2, 1]}}),
        ({"data": {"a": None}}, {"data": {}}),
        ({"raw": b"\x00"}, {"raw": b"\x01"}),
        ({"seen_at": MOMENT}, {"seen_at": Now()}),
        ({"station_id": "s"}, {"station_id": None}),
    ],
)
def test_values__different(first, other):
    """What differs is written, however small; so is what only the database can tell."""
    Station.objects.create(code="s")
    refresh([{"code": "a"} | first], 1, upsert=SAMPLES)
    result = refresh([{"code": "a"} | other], 2, upsert=SAMPLES)
    assert (result.unchanged, result.written) == (0, 1)


def test_update_fields__only_they_count():
    """A difference in a column that is not updated is none."""
    upsert = Upsert(Quake, ["code"], update_fields=["place"], skip_unchanged=True)
    refresh([{"code": "a", "place": "x", "magnitude": 1.0}], 1, upsert=upsert)
    assert refresh([{"code": "a", "place": "x", "magnitude": 2.0}], 2, upsert=upsert).unchanged == 1


@pytest.mark.parametrize(
    ("model", "name"), [(Tag, "name"), (Word, "text")], ids=["unique field", "primary key"]
)
def test_nothing_to_update__what_exists_is_unchanged(model, name):
    """Of a model without other columns only new rows are written."""
    upsert = Upsert(model, [name], skip_unchanged=True)
    refresh([{name: "a"}], 1, upsert=upsert)
    result = refresh([{name: "a"}, {name: "b"}], 2, upsert=upsert)
    assert (result.written, result.unchanged) == (1, 1)
    assert model.objects.count() == 2


def test_primary_key__of_unchanged_rows():
    """Instances that were not written know their key as well as those that were."""
    refresh([{"code": "b"}, {"code": "c"}], 1, upsert=QUAKES)
    rows = [Quake(code=c) for c in "abcb"]
    refresh(rows, 2, upsert=QUAKES)
    assert {(row.pk, row.code) for row in rows} == set(Quake.objects.values_list("pk", "code"))
    assert not any(row._state.adding for row in rows)


@pytest.mark.parametrize(
    ("upsert", "row"),
    [
        (Upsert(Document, ["slug"], skip_unchanged=True), {"slug": "a"}),
        (Upsert(Ticket, ["tenant", "code"], skip_unchanged=True), {"tenant": 1, "code": "a"}),
    ],
)
def test_primary_key__made_in_python(upsert, row):
    """A default of the key that met an existing row is replaced by the row's own."""
    refresh([row], 1, upsert=upsert)
    instance = upsert.model(**row)
    assert refresh([instance], 2, upsert=upsert).unchanged == 1
    assert instance.pk == upsert.model.objects.get().pk
