"""Several upserts in one refresh, functions of the user's own, and which database it all is."""

import pytest
from django.db import IntegrityError, connections, transaction

from django_vega import Refresh, Upsert, singleflight_refresh
from django_vega.core.errors import EmptyResponseError
from django_vega.models import RefreshState
from django_vega.writing.destination import Destination
from django_vega.writing.faults import InvalidUpsertError
from tests.writing.refreshing import refresh
from tests.writing.test_refresh import deadlock
from tests.writing_app.models import (
    Document,
    Quake,
    QuakeReport,
    Reading,
    Shared,
    Station,
    Tag,
)

pytestmark = pytest.mark.django_db(transaction=True)

STATIONS = Upsert(Station, ["code"], prune=Station.objects.all)
READINGS = Upsert("writing_app.Reading", ["station", "day"])
BOTH = (STATIONS, READINGS)
DAY = "2026-01-03"


def reading(station, value=1, day="2026-01-02"):
    """A row that belongs to another row of the response."""
    return Reading(station=station, day=day, value=value)


def test_several__rows_by_their_class():
    """Each row goes by the upsert of its class, parents first, and the counts are sums."""
    Station.objects.create(code="gone")
    s, t = Station(code="s"), Station(code="t")
    result = refresh([reading(t), s, t, reading(s), Station(code="s")], 1, upsert=BOTH)
    assert (result.rows, result.written, result.duplicates, result.pruned) == (4, 4, 1, 1)
    assert set(Reading.objects.values_list("station", flat=True)) == {"s", "t"}
    assert Station.objects.count() == 2
    assert refresh([reading(s, 5), s], 0, upsert=BOTH).outcome == "superseded"
    assert set(Reading.objects.values_list("value", flat=True)) == {1}


def test_several__one_transaction():
    """When the rows of one class fail, none of the other is written, and nothing is pruned."""
    Station.objects.create(code="old")
    station = Station(code="s")
    with pytest.raises(IntegrityError):
        refresh([station, reading(station), reading(station, value=None, day=DAY)], 1, upsert=BOTH)
    assert list(Station.objects.values_list("code", flat=True)) == ["old"]
    assert set(RefreshState.objects.values_list("fence", flat=True)) <= {0}


def test_several__guarded_and_unchanged():
    """Each upsert keeps its own options."""
    upserts = (Upsert(Shared, ["code"]), Upsert(Tag, ["name"], skip_unchanged=True))
    refresh([Shared(code="a"), Tag(name="t")], 9, key="one", upsert=upserts)
    result = refresh([Shared(code="a"), Tag(name="t"), Tag(name="u")], 5, key="two", upsert=upserts)
    assert (result.rows, result.written, result.guarded, result.unchanged) == (3, 1, 1, 1)


def test_several__proxies():
    """A proxy's instances go by the upsert of its table."""
    result = refresh([QuakeReport(code="a")], 1, upsert=(Upsert(Quake, ["code"]), READINGS))
    assert result.written == 1


def test_several__empty_response_of_one():
    """An upsert that prunes refuses a response without rows of its class."""
    with pytest.raises(EmptyResponseError, match=r"writing_app\.Station"):
        refresh([], 1, upsert=BOTH)


@pytest.mark.parametrize("row", [{"code": "s"}, Tag(name="x"), None, "text"])
def test_several__row_of_no_upsert(row):
    """Dicts have no class, and a row of another model has no upsert: which one, the error says."""
    with pytest.raises(TypeError, match=r"row 1 is .*instances of .*Station or .*\.Reading"):
        refresh([Station(code="s"), row], 1, upsert=BOTH)
    with pytest.raises(TypeError, match="returned None"):
        refresh(None, 1, upsert=BOTH)
    assert not Station.objects.exists()


@pytest.mark.parametrize(
    "upserts",
    [
        (Upsert(Quake, ["code"]), Upsert("writing_app.Quake", ["id"])),
        (Upsert(Quake, ["code"]), Upsert(QuakeReport, ["code"])),
    ],
)
def test_faults__two_upserts_of_one_table(upserts):
    """Rows of one table cannot go by two upserts; the first call says so."""
    with pytest.raises(InvalidUpsertError, match="two upserts write the table of") as caught:
        Destination(upserts).database()
    assert [fault.slug for fault in caught.value.faults] == ["several-upserts-of-a-model"]


class Split:
    def db_for_write(self, model, **hints):
        return "other" if model is Document else None


class NoFences:
    def allow_migrate(self, db, app_label, **hints):
        return app_label != "django_vega"


class FencesElsewhere:
    def db_for_write(self, model, **hints):
        return "other" if model is RefreshState else None


@pytest.mark.parametrize(
    ("router", "slug"), [(Split, "several-databases"), (NoFences, "no-fence-table")]
)
def test_faults__databases(router, slug, settings):
    """Upserts on two databases, or on one without fences, are refused at the first call."""
    settings.DATABASE_ROUTERS = [f"tests.writing.test_destination.{router.__name__}"]
    upserts = (Upsert(Quake, ["code"]), Upsert(Document, ["slug"]))
    with pytest.raises(InvalidUpsertError) as caught:
        Destination(upserts).database()
    assert [fault.slug for fault in caught.value.faults] == [slug]


@pytest.mark.parametrize("can_upsert", [True, False])
def test_faults__database_without_upsert_or_guard(can_upsert, monkeypatch):
    """A database that cannot upsert, or that the guard does not know, is refused by name."""
    connection = connections["default"]
    monkeypatch.setattr(type(connection.features), "supports_update_conflicts", can_upsert)
    monkeypatch.setattr(type(connection), "vendor", "unheard-of")
    slug = "no-row-guard" if can_upsert else "no-upsert"
    with pytest.raises(InvalidUpsertError) as caught:
        Destination((Upsert(Shared, ["code"]),)).database()
    assert [fault.slug for fault in caught.value.faults] == [slug]
    if can_upsert:
        assert Destination((Upsert(Quake, ["code"]),)).database() == "default"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_write__database_of_the_fences(settings):
    """A function of the user's own is fenced where the router writes the fences."""
    settings.DATABASE_ROUTERS = ["tests.writing.test_destination.FencesElsewhere"]
    seen = []

    def write(value, generation):
        seen.append((value, connections["other"].in_atomic_block, generation))

    assert refresh("value", 3, upsert=write).outcome == "written"
    assert seen == [("value", True, 3)]
    assert RefreshState.objects.using("other").get().fence == 3


def save(value, generation):
    """Write what upserts cannot."""
    Tag.objects.create(name=f"{value} of {generation}")
    return {"saved": value}


def test_write__value_and_counts():
    """Its return value is the record's; what it wrote nobody else knows."""
    result = refresh("x", 3, upsert=save)
    assert (result.outcome, result.value) == ("written", {"saved": "x"})
    counts = (result.rows, result.written, result.guarded, result.unchanged, result.duplicates)
    assert counts == (None,) * 5
    late = refresh("y", 2, upsert=save)
    assert (late.outcome, late.value, late.written, late.rows) == ("superseded", None, 0, None)
    assert list(Tag.objects.values_list("name", flat=True)) == ["x of 3"]


def test_write__fails():
    """What it raises undoes what it wrote, and the fence."""

    def fail(value, generation):
        save(value, generation)
        raise LookupError(value)

    refresh("good", 1, upsert=save)
    with pytest.raises(LookupError):
        refresh("bad", 2, upsert=fail)
    assert Tag.objects.count() == 1
    assert RefreshState.objects.get().fence == 1


def test_write__again_after_a_collision():
    """After a collision it runs again with the same value: an iterator was read before."""
    given, pulled = [], []

    def rows():
        pulled.append(connections["default"].in_atomic_block)
        yield from "ab"

    def collide_once(value, generation):
        given.append(value)
        if len(given) == 1:
            raise deadlock()
        return len(value)

    refresh("", 1, upsert=save)
    assert refresh(rows(), 2, upsert=collide_once).value == 2
    assert (given, pulled) == ([["a", "b"]] * 2, [False])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "'upsert'.*'write'"),
        ({"upsert": STATIONS, "write": save}, TypeError, "not both"),
        ({"upsert": []}, ValueError, "would write nothing"),
        ({"upsert": [STATIONS, Quake]}, TypeError, "a list of them"),
        ({"upsert": {STATIONS}}, TypeError, "a list of them"),
        ({"write": "save"}, TypeError, "write='save'"),
    ],
)
def test_options__at_decoration(options, error, message):
    """What is wrong whatever the models raises where the decorator stands."""
    with pytest.raises(error, match=message):
        singleflight_refresh(key="k", **options)


def test_options__write_that_runs_later():
    """A function whose body runs when somebody awaits or iterates it would write nothing."""

    async def later(value, generation): ...

    def generated(value, generation):
        yield

    async def both(value, generation):
        yield

    for write in (later, generated, both):
        with pytest.raises(TypeError, match="no async function and no generator"):
            singleflight_refresh(key="k", write=write)


@singleflight_refresh(key="stations:{region}", upsert=[Upsert(Station, ["code"]), READINGS])
def stations(region):
    """Two stations with a reading each."""
    for code in ("s", "t"):
        station = Station(code=f"{region}-{code}", name=region)
        yield station
        yield reading(station)


@singleflight_refresh(key="numbers:{count}", write=save)
def numbers(count):
    """Anything that is not rows."""
    return count


@singleflight_refresh(key="anumbers:{count}", write=save)
async def anumbers(count):
    """Anything that is not rows, fetched by a coroutine."""
    return count


def test_decorated__several():
    """A decorated function may return rows of several models."""
    result = stations("north")
    assert (result.outcome, result.rows, result.written) == ("written", 4, 4)
    assert stations.status("north").state == "ok"


def test_decorated__write():
    """A decorated function may write by itself, and all callers get what that returned."""
    result = numbers(5)
    assert isinstance(result, Refresh)
    assert (result.outcome, result.value) == ("written", {"saved": 5})
    assert numbers.status(5).generation == result.generation
    with transaction.atomic(), pytest.raises(Exception, match="inside transaction"):
        numbers(6)


@singleflight_refresh(
    key="pages:{region}:{page}",
    upsert=Upsert(
        Quake,
        ["code"],
        prune=lambda region, page=1: Quake.objects.filter(place=f"{region} {page}"),
    ),
)
def pages(region, page=1):
    """One page of a region."""
    return [Quake(code=f"{region} {page} {n}", place=f"{region} {page}") for n in SEEN[region]]


SEEN = {}


class Repository:
    """A method whose scope needs its object."""

    region = "mine"

    @singleflight_refresh(
        key="pages:{self.region}:{page}",
        upsert=Upsert(
            Quake,
            ["code"],
            prune=lambda self, page: Quake.objects.filter(place=f"{self.region} {page}"),
        ),
    )
    def pages(self, page=1):
        """One page."""
        return pages.raw(self.region, page)


def test_decorated__prune_gets_the_arguments():
    """Prune is called as the function was, defaults and self included."""
    SEEN.update(alaska=[1, 2], chile=[1], mine=[1, 2])
    assert pages("alaska").pruned == pages("chile").pruned == Repository().pages().pruned == 0
    SEEN.update(alaska=[2], mine=[1])
    assert pages(region="alaska").pruned == 1
    assert Repository().pages().pruned == 1
    assert set(Quake.objects.values_list("code", flat=True)) == {
        "alaska 1 2",
        "chile 1 1",
        "mine 1 1",
    }


def test_decorated__empty_response_fails():
    """An empty response is a failure that the status tells."""
    SEEN.update(alaska=[])
    with pytest.raises(EmptyResponseError):
        pages("alaska")
    status = pages.status("alaska")
    assert (status.state, status.error.partition(":")[0]) == ("failed", "EmptyResponseError")
