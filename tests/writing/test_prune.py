"""Pruning: what a response no longer has goes, and nothing beyond its scope."""

import inspect
import pickle
import re

import pytest
from django.db import connections
from django.db.models import ProtectedError
from django.db.models.signals import post_delete

from django_vega.core.errors import EmptyResponseError
from django_vega.models import RefreshState
from django_vega.writing import prune as prune_module
from django_vega.writing.upsert import Upsert
from tests.writing.refreshing import refresh, rolled_back
from tests.writing_app.models import (
    Note,
    Page,
    Placement,
    Quake,
    QuakeReport,
    Shared,
    Station,
    Tag,
)

pytestmark = pytest.mark.django_db(transaction=True)


def page_of(number):
    """The rows of a page."""
    return Page.objects.filter(page=number)


PAGES = Upsert(Page, ["code"], prune=page_of)


def write(codes, page, generation=1, *, upsert=PAGES, **options):
    """Write one page of a list."""
    arguments = inspect.signature(page_of).bind(page)
    rows = [{"code": code, "page": page} for code in codes]
    return refresh(
        rows, generation, key=f"page:{page}", upsert=upsert, arguments=arguments, **options
    )


def pages():
    """Return the codes of each page."""
    return {
        number: "".join(sorted(page_of(number).values_list("code", flat=True)))
        for number in set(Page.objects.values_list("page", flat=True))
    }


def test_scope__of_a_page():
    """Rows of the page that the response lacks are deleted; other pages stay."""
    write("abc", 1)
    write("xyz", 2)
    result = write("bd", 1, 2)
    assert (result.rows, result.written, result.pruned) == (2, 2, 2)
    assert pages() == {1: "bd", 2: "xyz"}


def test_scope__row_moves_to_another_page():
    """A row that turned up on another page belongs there, and its old page leaves it alone."""
    write("abc", 1)
    write("cd", 2)
    assert write("ab", 1, 2).pruned == 0
    assert pages() == {1: "ab", 2: "cd"}


def test_scope__superseded():
    """A page that comes late neither writes nor deletes."""
    write("ab", 1, 5)
    result = write("c", 1, 4)
    assert (result.outcome, result.pruned) == ("superseded", 0)
    assert pages() == {1: "ab"}


def test_scope__rolled_back():
    """Deleted rows come back with the transaction that deleted them."""
    write("ab", 1)
    with rolled_back():
        assert write("a", 1, 2).pruned == 1
    assert pages() == {1: "ab"}


def test_scope__of_the_constructor():
    """Without arguments prune is called with none; a proxy's queryset is as good."""
    Quake.objects.create(code="old")
    upsert = Upsert(Quake, ["code"], prune=QuakeReport.objects.all)
    assert refresh([{"code": "a"}], 1, upsert=upsert).pruned == 1
    assert Quake.objects.get().code == "a"


def test_scope__joined_and_repeated():
    """A queryset over joins that yields a row twice prunes it once."""
    write("ab", 1)
    for _ in range(2):
        for page in Page.objects.all():
            Note.objects.create(page=page)
    joined = Upsert(Page, ["code"], prune=lambda: Page.objects.filter(notes__isnull=False))
    assert refresh([{"code": "a"}], 2, upsert=joined).pruned == 1
    assert set(Page.objects.values_list("code", flat=True)) == {"a"}


@pytest.mark.parametrize("size", [0, 1])
def test_empty__response(size):
    """An empty response raises before anything happens, unless it is allowed."""
    write("ab", 1)
    with pytest.raises(EmptyResponseError, match=r"writing_app\.Page.*allow_empty=True") as caught:
        write("", 1, 2, begin_writing=lambda: pytest.fail("nothing is to be written"))
    assert pickle.loads(pickle.dumps(caught.value)).model == "writing_app.Page"
    assert pages() == {1: "ab"}
    assert RefreshState.objects.get().fence == 1
    allowed = Upsert(Page, ["code"], prune=page_of, allow_empty=True)
    result = write("c" * size, 1, 2, upsert=allowed)
    assert (result.outcome, result.pruned) == ("written", 2)
    assert pages() == ({1: "c"} if size else {})


def test_newer__rows_are_spared():
    """Rows that a newer generation wrote through another key are not deleted."""
    scope = Upsert(Shared, ["code"], prune=Shared.objects.all)
    refresh([{"code": c} for c in "abc"], 3, key="one", upsert=scope)
    refresh([{"code": "b"}], 9, key="two", upsert=Upsert(Shared, ["code"]))
    Shared.objects.create(code="by hand")
    result = refresh([{"code": "a"}], 5, key="one", upsert=scope)
    assert (result.written, result.guarded, result.pruned) == (1, 0, 2)
    assert dict(Shared.objects.values_list("code", "generation")) == {"a": 5, "b": 9}


def test_newer__comes_between_reading_and_deleting(monkeypatch):
    """A row that a newer generation writes after the scope was read is spared as well."""
    scope = Upsert(Shared, ["code"], prune=Shared.objects.all)
    refresh([{"code": c} for c in "ab"], 3, key="one", upsert=scope)
    delete = prune_module._delete

    def overtaken(alias, *args):
        Shared.objects.filter(code="b").update(generation=9)
        return delete(alias, *args)

    monkeypatch.setattr(prune_module, "_delete", overtaken)
    assert refresh([{"code": "a"}], 5, key="one", upsert=scope).pruned == 0
    assert Shared.objects.count() == 2


def test_cascades__are_not_counted():
    """What goes along is not counted, signals are sent, and the children of a row go with it."""
    write("abc", 1)
    a, b = page_of(1).filter(code__in="ab")
    Note.objects.create(page=a)
    child = Page.objects.create(code="child", page=7, parent=b)
    gone = []

    def note_gone(instance, **_):
        gone.append(instance.code)

    post_delete.connect(note_gone, sender=Page)
    try:
        assert write("c", 1, 2).pruned == 2
    finally:
        post_delete.disconnect(note_gone, sender=Page)
    assert sorted(gone) == ["a", "b", child.code]
    assert (pages(), Note.objects.count()) == ({1: "c"}, 0)


def test_cascades__protected():
    """A row that is protected fails the refresh, and all of it."""
    write("ab", 1)
    a, b = page_of(1).order_by("code")
    Note.objects.create(page=b, kept_by=a)
    with pytest.raises(ProtectedError):
        write("bc", 1, 2)
    assert pages() == {1: "ab"}
    assert RefreshState.objects.get().fence == 1


def test_keys__composite():
    """Composite primary keys are pruned as others are."""
    station = Station.objects.create(code="s")
    upsert = Upsert(Placement, ["station", "position"], prune=Placement.objects.all)
    refresh([Placement(station=station, position=n) for n in range(5)], 1, upsert=upsert)
    result = refresh([Placement(station=station, position=n) for n in (3, 9)], 2, upsert=upsert)
    assert result.pruned == 4
    assert set(Placement.objects.values_list("position", flat=True)) == {3, 9}


def test_keys__that_the_database_takes_for_the_same():
    """A row that was just written under another spelling of its key is not deleted."""
    Quake.objects.create(code="a", place="old")
    upsert = Upsert(Quake, ["code"], prune=Quake.objects.all)
    result = refresh([{"code": "A", "place": "new"}], 1, upsert=upsert)
    insensitive = connections["default"].vendor == "mysql"
    assert list(Quake.objects.values_list("code", "place")) == [
        ("a" if insensitive else "A", "new")
    ]
    assert result.pruned == (0 if insensitive else 1)


@pytest.mark.parametrize(
    ("prune", "message"),
    [
        (lambda: None, "prune returned None. Return a queryset of writing_app.Quake"),
        (lambda: [1], r"prune returned \[1\]"),
        (Tag.objects.all, "queryset of writing_app.Tag, but the rows are written to"),
        (lambda: Quake.objects.all()[:5], "a slice of writing_app.Quake"),
    ],
)
def test_scope__is_no_queryset_of_the_model(prune, message):
    """Anything but a whole queryset of the model is refused before something is written."""
    with pytest.raises(TypeError, match=message):
        refresh([{"code": "a"}], 1, upsert=Upsert(Quake, ["code"], prune=prune))
    assert not Quake.objects.exists()


def test_scope__raises():
    """What prune raises is the caller's to see, and nothing was written."""

    def broken():
        raise LookupError("no such page")

    with pytest.raises(LookupError):
        refresh([{"code": "a"}], 1, upsert=Upsert(Quake, ["code"], prune=broken))
    assert not Quake.objects.exists()


@pytest.mark.once
def test_size__hundred_thousand_rows():
    """100,000 rows are written in one refresh, and all but one are deleted in the next."""
    upsert = Upsert(Tag, ["name"], prune=Tag.objects.all)
    result = refresh(({"name": f"{n:06}"} for n in range(100_000)), 1, upsert=upsert)
    assert (result.rows, result.written) == (100_000, 100_000)
    assert Tag.objects.count() == 100_000
    assert refresh([{"name": "000007"}], 2, upsert=upsert).pruned == 99_999
    assert Tag.objects.get().name == "000007"


@pytest.mark.parametrize(
    ("prune", "function"),
    [
        (lambda: None, lambda: None),
        (lambda region, page=1: None, lambda region, page: None),
        (lambda region, page: None, lambda region, page="head": None),
        (lambda _self, where, page: None, lambda self, region, page: None),
        (lambda region, /, page: None, lambda region, page, /: None),
        (lambda region, page, strict=True: None, lambda region, page: None),
        (lambda region, *, page: None, lambda region, *, page: None),
        (lambda region, page: None, lambda region, *, page: None),
        (lambda region, **options: None, lambda region, *, page: None),
        (lambda *args, **kwargs: None, lambda region, page=1, *args, x, **kwargs: None),
        (lambda *given: None, lambda region, page: None),
        (Page.objects.all, lambda: None),
    ],
)
def test_signature__fits(prune, function):
    """Prune may have other names, defaults, and more that is optional; then it can be called."""
    signature = inspect.signature(function)
    assert prune_module.signature_fault(prune, signature) is None
    parameters = signature.parameters.values()
    call = signature.bind(
        *(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)),
        **{p.name: p.name for p in parameters if p.kind is p.KEYWORD_ONLY},
    )
    prune(*call.args, **call.kwargs)


def test_signature__unknown():
    """What a callable without a signature takes nobody knows before it is called."""
    assert prune_module.signature_fault(dict, inspect.signature(page_of)) is None


@pytest.mark.parametrize(
    ("prune", "function", "why"),
    [
        (Page.objects.all, lambda region: None, "too many positional arguments"),
        (lambda region, page: None, lambda region: None, "missing a required argument: 'page'"),
        (lambda page: None, lambda self, page: None, "too many positional arguments"),
        (lambda page, x=1: None, lambda self, page: None, "its 'page' would get 'self'"),
        (lambda page, region: None, lambda region, page: None, "its 'page' would get 'region'"),
        (lambda *, page: None, lambda page: None, "too many positional arguments"),
        (lambda region: None, lambda region, *, page: None, "argument 'page'"),
        (lambda region: None, lambda region, *more: None, r"it takes no \*more\."),
        (lambda region: None, lambda region, **more: None, r"it takes no \*\*more\."),
        (lambda *args: None, lambda *args, **more: None, r"it takes no \*\*more\."),
    ],
)
def test_signature__does_not_fit(prune, function, why):
    """Prune that some call of the function would fail, or that would mix arguments up, is told."""
    fault = prune_module.signature_fault(prune, inspect.signature(function))
    assert re.search(why, fault)
    assert "self or cls included" in fault


def test_signature__names_of_the_function():
    """The message says what prune gets, without defaults and types."""

    def refresh(self, region: str, /, *args: int, page: int = 1, **more: int) -> None: ...

    fault = prune_module.signature_fault(page_of, inspect.signature(refresh))
    assert "with (self, region, *args, page, **more): " in fault


class ToOther:
    def db_for_write(self, model, **hints):
        return "other" if model is Quake else None


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_databases__scope_is_read_where_rows_are_written(settings):
    """The queryset is read on the write database, whatever it would have read from."""
    settings.DATABASE_ROUTERS = ["tests.writing.test_prune.ToOther"]
    Quake.objects.using("default").create(code="stays")
    Quake.objects.using("other").create(code="goes")
    upsert = Upsert(Quake, ["code"], prune=lambda: Quake.objects.using("default"))
    assert refresh([{"code": "a"}], 1, upsert=upsert).pruned == 1
    assert list(Quake.objects.using("default").values_list("code", flat=True)) == ["stays"]
    assert list(Quake.objects.using("other").values_list("code", flat=True)) == ["a"]
