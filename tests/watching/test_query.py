"""Watching a query with ``for``: what is given first, what is a change, and what never is."""

import asyncio
import contextlib
from datetime import date
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Count, Exists, OuterRef, Value
from django.test import TestCase

from django_vega import SynchronousCallError
from django_vega.changes import announce, tables_of
from django_vega.runtime.watching import hub
from django_vega.watching.query import watch
from tests.gates import raising
from tests.integration.repository import Repository
from tests.watching.stage import END, Stage, codes, present, quake, quakes
from tests.writing_app.models import Child, Page, Parent, Quake, QuakeReport, Reading, Station

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]


class Undo(Exception):
    """Rolls a block back."""


def watching(queryset: Any) -> Any:
    """Begin an iteration that waits for nothing: it ends where another one would wait."""
    return iter(watch(queryset, timeout=0))


def changes(queryset: Any, change: Any) -> bool:
    """Tell whether a watcher of the queryset gets a result after the change."""
    rows = watching(queryset)
    next(rows)
    change()
    return next(rows, END) != END


# What is given first


def test_first_result_is_what_is_stored__at_once():
    """The list begins with what is stored, and ends here as nothing changes."""
    quake("a")
    quake("b")
    assert [codes(rows) for rows in watch(Quake.objects.order_by("code"), timeout=0)] == [
        ["a", "b"]
    ]


def test_empty_table__one_empty_list():
    """A table without rows gives its empty list once."""
    assert list(watch(Quake.objects.all(), timeout=0)) == [[]]


def test_watch_alone__runs_no_query(django_assert_num_queries):
    """Nothing is asked before the iteration, and one query then."""
    with django_assert_num_queries(0):
        found = watch(Quake.objects.all(), timeout=0)
    with django_assert_num_queries(1):
        assert list(found) == [[]]
    assert repr(found) == "<watch of writing_app.Quake>"


def test_evaluated_queryset__is_read_anew():
    """Rows that the queryset has cached are not what a watcher gets."""
    queryset = Quake.objects.all()
    assert list(queryset) == []
    quake("a")
    assert [codes(rows) for rows in watch(queryset, timeout=0)] == [["a"]]


# What counts as a change


def test_save_update_and_delete__each_gives_the_new_result():
    """A created, a saved and a deleted row are a change each, told at once in autocommit."""
    rows = watching(quakes(Stage()))
    assert codes(next(rows)) == []
    one = quake("a")
    assert codes(next(rows)) == ["a"]
    one.code = "b"
    one.save()
    assert codes(next(rows)) == ["b"]
    one.delete()
    assert codes(next(rows)) == []
    assert next(rows, END) == END


def test_delete_of_a_queryset__is_a_change():
    """Rows deleted in bulk are collected, because somebody listens; so they are seen."""
    quake("a")
    assert changes(Quake.objects.all(), Quake.objects.all().delete)


def test_delete_by_cascade__is_a_change():
    """Rows that go with another row are a change of theirs."""
    station = Station.objects.create(code="s")
    Reading.objects.create(station=station, day=date(2026, 1, 1))
    assert changes(Reading.objects.all(), station.delete)


def test_change_that_leaves_the_result_as_it_was__gives_it_again():
    """As a query of Room does: the table changed, so the result is given."""
    one = quake("a")
    rows = watching(Quake.objects.filter(code="none"))
    assert next(rows) == []
    one.save()
    assert next(rows) == []
    assert next(rows, END) == END


def test_other_model__is_no_change():
    """What does not occur in the query changes nothing, and costs no query."""
    assert not changes(Quake.objects.all(), lambda: Station.objects.create(code="s"))


def test_bulk_writes__only_when_announced():
    """Writes without signals are not seen by themselves; announcing them is enough."""
    one = quake("a")

    def write() -> None:
        Quake.objects.bulk_create([Quake(code="b")])
        Quake.objects.filter(pk=one.pk).update(code="c")

    assert not changes(Quake.objects.all(), write)
    assert changes(Quake.objects.all(), lambda: announce("default", [Quake]))


def test_proxy_and_its_model__are_the_same_rows():
    """A row saved through a proxy is a change of the model, and the other way round."""
    assert changes(Quake.objects.all(), lambda: QuakeReport.objects.create(code="a"))
    assert changes(QuakeReport.objects.all(), lambda: quake("b"))


def test_children_and_parents__share_tables():
    """A row of a child is in its parents' tables too; one of a parent is in none of the child's."""
    assert tables_of(Child) == {Child._meta.db_table, Parent._meta.db_table}
    assert tables_of(Parent) == {Parent._meta.db_table}


@pytest.mark.parametrize(
    "queryset",
    [
        Reading.objects.select_related("station"),
        Reading.objects.filter(station__name="x"),
        Reading.objects.order_by("station__name"),
        Reading.objects.filter(station__in=Station.objects.filter(name="x")),
        Reading.objects.annotate(found=Exists(Station.objects.filter(pk=OuterRef("station")))),
        Quake.objects.values_list("code").union(Station.objects.values_list("code")),
    ],
    ids=["select_related", "filter", "order_by", "in", "exists", "union"],
)
def test_other_models_of_the_query__count(queryset):
    """Models that are joined, or stand in a subquery or a union, are watched too."""
    assert changes(queryset, lambda: Station.objects.create(code="s"))


def test_many_to_many__its_changes_count():
    """Adding, removing, clearing, and deleting either end change what depends on the relation."""
    user, group = User.objects.create(username="u"), Group.objects.create(name="g")
    for queryset in (User.objects.filter(groups=group), User.objects.filter(groups__name="g")):
        user.groups.clear()
        rows = watching(queryset)
        assert next(rows) == []
        user.groups.add(group)
        assert next(rows) == [user]
        user.groups.remove(group)
        assert next(rows) == []
        group.user_set.add(user)
        assert next(rows) == [user]
        group.user_set.clear()
        assert next(rows) == []
        assert next(rows, END) == END
    user.groups.add(group)
    rows = watching(User.objects.filter(groups=group))
    assert next(rows) == [user]
    group.delete()
    assert next(rows) == []


# After the commit only


def test_transaction__told_after_its_commit():
    """Nothing is told inside the block; after it, what was written."""
    rows = watching(quakes(Stage()))
    next(rows)
    with transaction.atomic():
        quake("a")
        with transaction.atomic():
            quake("b")
        assert [one.watched.version for one in present()] == [0]  # not told yet
    assert codes(next(rows)) == ["a", "b"]


def test_rollback__nothing_is_told():
    """What was rolled back gives nothing, and costs no query."""
    stage = Stage()
    rows = watching(quakes(stage))
    next(rows)
    with contextlib.suppress(Undo), transaction.atomic():
        quake("a")
        announce("default", [Quake])
        raise Undo
    assert next(rows, END) == END
    assert stage.queries == 1


def test_savepoint_rollback__nothing_is_told():
    """What only a savepoint had is no change when the rest commits."""
    rows = watching(Quake.objects.all())
    next(rows)
    with transaction.atomic():
        Station.objects.create(code="s")
        with contextlib.suppress(Undo), transaction.atomic():
            quake("a")
            raise Undo
    assert next(rows, END) == END


def test_autocommit_switched_off__saving_works():
    """Where nothing tells of commits nothing is told; saving is not disturbed by watchers."""
    rows = watching(Quake.objects.all())
    next(rows)
    transaction.set_autocommit(False)
    try:
        quake("a")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert next(rows, END) == END


def test_inside_a_transaction__raises():
    """A transaction would see no later commit, and would share what may be rolled back."""
    found = watch(Quake.objects.all(), timeout=0)
    rows = iter(found)
    next(rows)
    quake("a")
    with transaction.atomic():
        for begin in (lambda: list(found), lambda: next(rows)):
            with pytest.raises(transaction.TransactionManagementError, match="out of the block"):
                begin()
    assert next(rows, END) == END


class InTestCase(TestCase):
    """What happens inside the transaction of a TestCase."""

    def test_in_a_test_case__commits_are_told_by_capture_on_commit_callbacks(self) -> None:
        """Callbacks run where they are captured; the case's own transaction is nobody's."""
        rows = watching(Quake.objects.order_by("code"))
        assert next(rows) == []
        with self.captureOnCommitCallbacks(execute=True):
            quake("a")
        assert codes(next(rows)) == ["a"]
        rows.close()
        # Gone with the test, so not kept for the next one.
        assert len(hub) == 0


# Refreshes


def test_failed_refresh__gives_nothing():
    """A refresh that fails, or that the database refuses, gives no list, above all no empty one."""
    quake("a")
    rows = watching(Quake.objects.order_by("code"))
    assert codes(next(rows)) == ["a"]
    with pytest.raises(ConnectionError):
        Repository(raising(ConnectionError("down"))).refresh("alaska")
    with pytest.raises(IntegrityError):
        Repository(lambda: [{"code": "b", "place": None}]).refresh("alaska")
    assert next(rows, END) == END


# What can be watched


@pytest.mark.parametrize(
    ("queryset", "expected"),
    [
        (Quake.objects.order_by("code")[1:2].values("code"), [{"code": "b"}]),
        (Quake.objects.order_by("-code").values_list("code"), [("c",), ("b",), ("a",)]),
        (Quake.objects.order_by("code").values_list("code", flat=True)[:2], ["a", "b"]),
        (Quake.objects.order_by().values_list("place").distinct(), [("",)]),
        (Quake.objects.values("place").annotate(n=Count("pk")), [{"place": "", "n": 3}]),
        (Quake.objects.annotate(n=Value(None)).values("place").distinct(), [{"place": ""}]),
        (Quake.objects.none(), []),
        (Quake.objects.filter(pk__in=[]), []),
    ],
    ids=["slice", "tuples", "flat", "distinct", "grouped", "not selected", "none", "nothing"],
)
def test_any_queryset__gives_the_list_that_it_evaluates_to(queryset, expected):
    """Slices, dicts, tuples, groups and empty querysets give what `list` of them would."""
    for code in "abc":
        quake(code)
    rows = watching(queryset)
    assert next(rows) == expected
    quake("d").delete()
    assert next(rows) == expected


@pytest.mark.parametrize(
    "given", [Quake, Quake.objects, [], "quakes", None, Quake.objects.raw("SELECT 1 AS id")]
)
def test_no_queryset__raises_with_the_way_out(given):
    """Anything but a queryset is refused at once; the message says what to pass."""
    with pytest.raises(TypeError, match=r"Pass its \.all|Pass Quake\.objects\.all|pass a queryset"):
        watch(given)


@pytest.mark.parametrize("timeout", ["5", True])
def test_timeout__that_is_no_number(timeout):
    """A timeout is a number of seconds."""
    with pytest.raises(TypeError, match="seconds"):
        watch(Quake.objects.all(), timeout=timeout)


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
def test_timeout__out_of_range(timeout):
    """A timeout is not below 0, and no end is None."""
    with pytest.raises(ValueError, match="None for no end"):
        watch(Quake.objects.all()).with_timeout(timeout)


def test_running_loop__for_is_refused():
    """On a running event loop `for` would block it; the error names `async for`."""

    async def main() -> None:
        with pytest.raises(SynchronousCallError, match="async for") as caught:
            next(iter(watch(Quake.objects.all())))
        assert isinstance(caught.value, SynchronousOnlyOperation)

    asyncio.run(main())


# Errors


def test_error_of_the_query__ends_the_iteration(monkeypatch):
    """What the query raises is raised, and not remembered: the next iteration reads."""
    queryset = Page.objects.all()
    with connection.schema_editor() as editor:
        editor.execute("ALTER TABLE writing_app_page RENAME TO writing_app_gone")
    try:
        rows = watching(queryset)
        with pytest.raises(DatabaseError) as caught:
            next(rows)
        assert isinstance(caught.value.__cause__, DatabaseError)
        assert next(rows, END) == END
    finally:
        with connection.schema_editor() as editor:
            editor.execute("ALTER TABLE writing_app_gone RENAME TO writing_app_page")
    assert list(watch(queryset, timeout=0)) == [[]]
