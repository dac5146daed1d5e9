"""What a function returned becomes distinct, ordered rows; callers' instances keep their truth."""

import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from django.db import IntegrityError, connections, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_vega.core.errors import DuplicateRowError
from django_vega.writing.rows import prepare
from django_vega.writing.upsert import Upsert
from tests.writing.refreshing import rolled_back
from tests.writing_app.models import (
    Blob,
    Document,
    Job,
    Placement,
    Quake,
    QuakeReport,
    Reading,
    Station,
    Tag,
    Ticket,
    Word,
)

QUAKES = Upsert(Quake, ["code"])


def write(upsert, rows, generation=1):
    """Prepare and write rows without a fence."""
    batch = prepare("default", upsert, rows)
    with transaction.atomic():
        batch.write("default", generation)
    batch.share_primary_keys()
    return batch


def keys(batch):
    """Return the unique keys of a batch in their order."""
    return list(batch._rows)


async def pages():
    """Yield a row, too late for a caller that does not await."""
    yield {"code": "a"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "returned None.*writing_app.Quake instances or dicts"),
        ("text", "returned 'text'"),
        (b"bytes", "returned b'bytes'"),
        (5, "returned 5"),
        (object, "returned <class 'object'>"),
        (Quake(code="a"), "returned one row, <Quake"),
        ({"code": "a"}, "returned one row, {'code': 'a'}"),
        (pages(), "Collect it first"),
        ([Quake(code="a"), None], "row 1 is None"),
        (["code"], "row 0 is 'code'.*instances of writing_app.Quake or dicts"),
        ([Tag(name="a")], "row 0 is <Tag"),
        ([["x" * 200]], "row 0 is .*… of type list"),
        ([{"code": "a"}, {"cod": "b"}], "row 1 makes no writing_app.Quake.*'cod'"),
        ([{1: "b"}], "row 0 makes no writing_app.Quake"),
    ],
)
def test_rows__of_the_wrong_type(rows, message):
    """Anything but an iterable of instances or dicts is refused, and the message says which row."""
    with pytest.raises(TypeError, match=message):
        prepare("default", QUAKES, rows)


@pytest.mark.parametrize(
    ("upsert", "row", "message"),
    [
        (QUAKES, {"code": None}, "row 0 has no value for 'code'"),
        (Upsert(Quake, ["id"]), {"code": "a"}, "row 0 has no value for 'id'"),
        (QUAKES, Quake(code=Now()), "row 0 has no value for 'code'"),
        (
            Upsert(Reading, ["station", "day"]),
            {"station": Station(), "day": date(2026, 1, 1)},
            "'station'.*save related objects",
        ),
        (Upsert(Quake, ["id"]), {"id": "x", "code": "a"}, "expected a number"),
        (Upsert(Reading, ["station", "day"]), {"station": "x", "day": "x"}, "Reading.station"),
    ],
)
def test_rows__without_a_usable_unique_key(upsert, row, message):
    """A row that nobody could recognise again is refused before anything is written."""
    if isinstance(row, dict) and isinstance(row.get("station"), Station):
        row["station"].pk = None
    with pytest.raises(ValueError, match=message):
        prepare("default", upsert, [row])


def test_rows__broken_value():
    """What a field says about a value is told with the index of its row."""
    with pytest.raises(ValueError, match="expected a number") as caught:
        prepare("default", Upsert(Quake, ["id"]), [{"id": 1}, {"id": "x"}])
    assert caught.value.__notes__ == ["in row 1 of the response"]


def test_rows__broken_relation():
    """What a model's constructor says is told with the index of its row, too."""
    with pytest.raises(ValueError, match=r"Reading\.station") as caught:
        prepare("default", Upsert(Reading, ["station", "day"]), [{"station": "not a station"}])
    assert caught.value.__notes__ == ["in row 0 of the response"]


def test_rows__generator_breaks():
    """What the iterable raises is the caller's to see, unchanged."""

    def rows():
        yield {"code": "a"}
        raise LookupError("page 2")

    with pytest.raises(LookupError, match="page 2"):
        prepare("default", QUAKES, rows())


@pytest.mark.parametrize(
    ("upsert", "one", "other"),
    [
        (QUAKES, {"code": 1}, {"code": "1"}),
        (Upsert(Quake, ["id"]), {"id": 1}, {"id": "1"}),
        (Upsert(Job, ["code"]), {"code": uuid.UUID(int=1)}, {"code": str(uuid.UUID(int=1))}),
        (
            Upsert(Reading, ["station", "day"]),
            {"station": Station(code="s"), "day": date(2026, 1, 2)},
            {"station_id": "s", "day": "2026-01-02"},
        ),
        (Upsert(Blob, ["digest"]), {"digest": b"1"}, {"digest": memoryview(b"1")}),
        (Upsert(Blob, ["digest"]), {"digest": b"1"}, {"digest": bytearray(b"1")}),
    ],
)
def test_duplicates__last_wins(upsert, one, other):
    """Two spellings of one unique key are one row, and the last of them stays."""
    batch = prepare("default", upsert, [one, other])
    assert (len(batch), batch.duplicates) == (1, 1)
    (kept,) = batch._rows.values()
    first = next(iter(other))
    assert getattr(kept, first) == other[first]


def test_duplicates__error():
    """With duplicates="error" they are refused, naming the key."""
    upsert = Upsert(Reading, ["station", "day"], duplicates="error")
    day = date(2026, 1, 2)
    rows = [{"station_id": "s", "day": day}, {"station_id": "t", "day": day}]
    assert len(prepare("default", upsert, rows)) == 2
    with pytest.raises(DuplicateRowError) as caught:
        prepare("default", upsert, [*rows, {"station_id": "t", "day": day}])
    assert caught.value.model == "writing_app.Reading"
    assert caught.value.unique_key == (("station_id", "t"), ("day", day))


def test_order__of_the_unique_key():
    """Rows are written in the order of their key, so that batches lock rows in one order."""
    batch = prepare("default", QUAKES, [{"code": code} for code in "cab"])
    assert keys(batch) == [("a",), ("b",), ("c",)]
    batch = prepare(
        "default", Upsert(Quake, ["id"]), [{"id": id_, "code": "x"} for id_ in (10, 9, "1")]
    )
    assert keys(batch) == [(1,), (9,), (10,)]


def test_order__values_that_do_not_compare(monkeypatch):
    """Values of several types, which a custom field may yield, still come in one fixed order."""
    monkeypatch.setattr(Quake._meta.get_field("code"), "get_prep_value", lambda value: value)
    values = ["b", 2, ("t", None), [1, {"x": 2}], "a", 1]
    orders = {
        tuple(keys(prepare("default", QUAKES, [Quake(code=value) for value in listed])))
        for listed in (values, values[::-1])
    }
    assert len(orders) == 1


def test_order__dicts_and_bytes(monkeypatch):
    """Values without a hash or an order can be told apart, and are equal when they are equal."""
    monkeypatch.setattr(Quake._meta.get_field("code"), "get_prep_value", lambda value: value)
    rows = [Quake(code={"x": [1], "y": 2}), Quake(code={"y": 2, "x": [1]}), Quake(code={"x": [2]})]
    assert len(prepare("default", QUAKES, rows)) == 2


@pytest.mark.django_db
def test_write__inserts_and_updates():
    """New rows are inserted, rows that exist take over the update fields and keep their key."""
    old = Quake.objects.create(code="b", place="then", magnitude=1.0)
    write(QUAKES, [Quake(code="c", place="now"), {"code": "b", "place": "now"}])
    assert list(Quake.objects.order_by("code").values_list("code", "place", "magnitude")) == [
        ("b", "now", None),
        ("c", "now", None),
    ]
    assert Quake.objects.get(code="b").pk == old.pk


@pytest.mark.django_db
def test_write__only_the_update_fields():
    """With update_fields an existing row keeps everything else."""
    Quake.objects.create(code="b", place="then", magnitude=1.0)
    write(Upsert(Quake, ["code"], update_fields=["magnitude"]), [{"code": "b", "magnitude": 2.0}])
    assert Quake.objects.values_list("place", "magnitude").get() == ("then", 2.0)


@pytest.mark.django_db
@pytest.mark.parametrize("update_fields", [None, ["place"]])
def test_write__timestamps(update_fields):
    """auto_now moves, though nobody lists it; auto_now_add stays."""
    write(QUAKES, [{"code": "a"}])
    long_ago = datetime(2001, 2, 3, tzinfo=timezone(timedelta(hours=1)))
    Quake.objects.update(created_at=long_ago, modified_at=long_ago)
    write(Upsert(Quake, ["code"], update_fields=update_fields), [{"code": "a", "place": "x"}])
    quake = Quake.objects.get()
    assert quake.created_at == long_ago
    assert quake.modified_at > long_ago


@pytest.mark.django_db
def test_write__proxy():
    """A proxy writes its table, and takes instances of both classes."""
    batch = write(Upsert(QuakeReport, ["code"]), [Quake(code="a"), QuakeReport(code="b")])
    assert (len(batch), QuakeReport.objects.count()) == (2, 2)


@pytest.mark.django_db
def test_write__nothing():
    """No rows are no statement."""
    with CaptureQueriesContext(connections["default"]) as queries:
        prepare("default", QUAKES, []).write("default", 1)
    assert len(queries) == 0


@pytest.mark.django_db
def test_write__batch_size():
    """A statement takes at most batch_size rows."""
    with CaptureQueriesContext(connections["default"]) as queries:
        write(Upsert(Quake, ["code"], batch_size=4), [{"code": str(n)} for n in range(10)])
    assert sum("INSERT" in query["sql"] for query in queries) == 3
    assert Quake.objects.count() == 10


@pytest.mark.django_db
def test_write__more_variables_than_a_statement_takes():
    """A response of 100,000 values is split as the database needs it, SQLite included."""
    rows = [Quake(code=f"{n:05}", place="x", magnitude=n) for n in range(20_000)]
    write(QUAKES, rows)
    assert Quake.objects.count() == 20_000
    assert dict(Quake.objects.values_list("code", "pk")) == {row.code: row.pk for row in rows}


@pytest.mark.django_db
def test_nothing_to_update__unique_fields_only():
    """A model of unique fields only: rows that exist stay, all get their primary key."""
    old = Tag.objects.create(name="b")
    rows = [Tag(name="a"), Tag(name="b"), Tag(name="c")]
    write(Upsert(Tag, ["name"]), rows)
    assert rows[1].pk == old.pk
    assert set(Tag.objects.values_list("pk", "name")) == {(row.pk, row.name) for row in rows}


@pytest.mark.django_db
def test_nothing_to_update__primary_key_only():
    """A model that is its primary key: what is missing is added."""
    Word.objects.create(text="b")
    write(Upsert(Word, ["text"]), [{"text": "a"}, {"text": "b"}])
    assert set(Word.objects.values_list("text", flat=True)) == {"a", "b"}
    station = Station.objects.create(code="s")
    for positions in ([1, 2], [2, 3]):
        rows = [Placement(station=station, position=position) for position in positions]
        write(Upsert(Placement, ["station", "position"]), rows)
    assert Placement.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_nothing_to_update__broken_foreign_key():
    """A row that the database drops without a word where conflicts are ignored is an error."""
    with pytest.raises(IntegrityError):
        write(Upsert(Placement, ["station", "position"]), [{"station_id": "no", "position": 1}])
    assert not Placement.objects.exists()


def in_database(model):
    """Return primary key and code of every row."""
    return set(model.objects.values_list("pk", "code"))


@pytest.mark.django_db
def test_primary_key__auto():
    """Instances get the key of their row: new, existing, and dropped as a duplicate."""
    old = Quake.objects.create(code="b")
    rows = [Quake(code=code) for code in "cbabd"]
    write(QUAKES, rows)
    assert [row.code for row in rows if row.pk == old.pk] == ["b", "b"]
    assert {(row.pk, row.code) for row in rows} == in_database(Quake)
    assert not any(row._state.adding for row in rows)
    assert {row._state.db for row in rows} == {"default"}


@pytest.mark.django_db
def test_primary_key__auto_without_returning(monkeypatch):
    """A database that tells no keys, as MySQL, leaves None and never a guess."""
    features = type(connections["default"].features)
    monkeypatch.setattr(features, "can_return_rows_from_bulk_insert", False)
    rows = [Quake(code="a"), Quake(code="b"), Quake(code="a")]
    write(QUAKES, rows)
    assert [row.pk for row in rows] == [None, None, None]
    assert Quake.objects.count() == 2


@pytest.mark.django_db
def test_primary_key__auto_given():
    """A key that the caller brought is used for a new row, and corrected for one that exists."""
    old = Quake.objects.create(code="b")
    rows = [Quake(pk=old.pk + 1000, code="b"), Quake(pk=old.pk + 2000, code="a"), Quake(code="c")]
    write(QUAKES, rows)
    assert [rows[0].pk, rows[1].pk] == [old.pk, old.pk + 2000]
    assert {(row.pk, row.code) for row in rows} == in_database(Quake)


@pytest.mark.django_db
def test_primary_key__with_default():
    """A UUID made in Python is right for a new row only; for others it is read again."""
    old = {n: Document.objects.create(slug=f"{n:04}") for n in range(0, 1200, 2)}
    rows = [Document(slug=f"{n:04}", body="new") for n in range(1200)]
    dropped = Document(slug="0000")
    write(Upsert(Document, ["slug"]), [dropped, *rows])
    assert dict(Document.objects.values_list("slug", "pk")) == {row.slug: row.pk for row in rows}
    assert all(rows[n].pk == document.pk for n, document in old.items())
    assert dropped.pk == old[0].pk


@pytest.mark.django_db
def test_primary_key__untold():
    """Where the row cannot be found under its key, the answer is None and not the default."""
    row = Document(slug="a")
    batch = prepare("default", Upsert(Document, ["slug"]), [row])
    batch.write("default", 1)
    Document.objects.all().delete()
    batch._find_primary_keys("default", batch._rows)
    assert row.pk is None


@pytest.mark.django_db
def test_primary_key__composite():
    """The open part of a composite key is read again, by several unique fields."""
    old = Ticket.objects.create(tenant=1, code="b")
    rows = [Ticket(tenant=tenant, code=code) for tenant in (1, 2) for code in "ab"]
    write(Upsert(Ticket, ["tenant", "code"]), rows)
    assert rows[1].pk == old.pk
    assert set(Ticket.objects.values_list("tenant", "number", "code")) == {
        (row.tenant, row.number, row.code) for row in rows
    }


@pytest.mark.django_db
def test_primary_key__foreign_key_and_date():
    """Keys over a foreign key and a date find their rows, however the caller spelled them."""
    Station.objects.create(code="s")
    upsert = Upsert(Reading, ["station", "day"])
    write(upsert, [{"station_id": "s", "day": "2026-01-02", "value": "1.5"}])
    rows = [
        Reading(pk=77, station_id="s", day="2026-01-02", value=2),
        Reading(pk=78, station_id="s", day=date(2026, 1, 3)),
    ]
    write(upsert, rows)
    assert set(Reading.objects.values_list("pk", "day", "value")) == {
        (rows[0].pk, date(2026, 1, 2), Decimal("2.00")),
        (78, date(2026, 1, 3), Decimal("0.00")),
    }
    assert rows[0].pk != 77


@pytest.mark.django_db
def test_database_values__defaults_and_generated():
    """Defaults of the database and generated columns are left to it."""
    upsert = Upsert(Job, ["code"], update_fields=["priority"])
    code = uuid.uuid4()
    write(upsert, [Job(code=code)])
    Job.objects.update(state="done")
    write(upsert, [Job(code=str(code), priority=4)])
    assert Job.objects.values_list("priority", "state", "doubled").get() == (4, "done", 8)


@pytest.mark.django_db(transaction=True)
def test_rollback__instances_are_as_before():
    """A write that was rolled back leaves no primary key behind; the next one starts anew."""
    existing = Quake.objects.create(code="z")
    new, given = Quake(code="a"), Quake(pk=existing.pk + 500, code="b")
    batch = prepare("default", QUAKES, [new, given, existing])
    with rolled_back():
        batch.write("default", 1)
    batch.restore()
    assert (new.pk, new._state.adding, new._state.db) == (None, True, None)
    assert (given.pk, given._state.adding) == (existing.pk + 500, True)
    assert (existing.pk, existing._state.adding) == (Quake.objects.get().pk, False)
    with transaction.atomic():
        batch.write("default", 1)
    assert {(row.pk, row.code) for row in (new, given, existing)} == in_database(Quake)


@pytest.mark.django_db(transaction=True)
def test_rollback__deferred_field():
    """A field that was not loaded before a write that was rolled back is not loaded after it."""
    Job.objects.create(code=uuid.uuid4(), state="old")
    row = Job.objects.defer("state").get()
    batch = prepare("default", Upsert(Job, ["code"]), [row])
    with rolled_back():
        batch.write("default", 1)
    batch.restore()
    assert row.get_deferred_fields() == {"state"}
    assert row.state == "old"


@pytest.mark.django_db(transaction=True)
def test_rollback__second_try():
    """A second try does not take over the keys that the first one was given."""
    rows = [Job(code=uuid.uuid4()), Job(code=uuid.uuid4(), state="old")]
    batch = prepare("default", Upsert(Job, ["code"]), rows)
    with rolled_back():
        batch.write("default", 1)
    Job.objects.create(pk=rows[0].pk + 1000, code=rows[0].code)
    with transaction.atomic():
        batch.write("default", 1)
    assert {(row.pk, row.code) for row in rows} == in_database(Job)
    assert sorted(Job.objects.values_list("state", flat=True)) == ["new", "old"]
