"""The row guard: a row belongs to the newest generation that wrote it, whatever the key."""

import pickle
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, connections, transaction

from django_vega.models import RefreshState
from django_vega.writing import guard
from django_vega.writing import rows as rows_module
from django_vega.writing.guard import RowGuardError
from django_vega.writing.rows import prepare
from django_vega.writing.upsert import Upsert
from tests.writing.refreshing import refresh, rolled_back
from tests.writing_app.models import (
    Account,
    Quake,
    Shared,
    SharedDocument,
    SharedTicket,
    SharedWord,
    Tag,
)

pytestmark = pytest.mark.django_db(transaction=True)

SHARED = Upsert(Shared, ["code"])


def write(rows, generation, *, key, upsert=SHARED):
    """Write rows of a key of one's own."""
    return refresh(rows, generation, key=key, upsert=upsert)


def stored():
    """Return what the guard decides on, by code."""
    return {
        row.code: (row.place, row.number, row.generation) for row in Shared.objects.order_by("code")
    }


@pytest.fixture(params=["told", "untold"])
def returning(request, monkeypatch):
    """Whether the database tells what it stored: MySQL does not."""
    if request.param == "untold":
        features = type(connections["default"].features)
        monkeypatch.setattr(features, "can_return_rows_from_bulk_insert", False)
    return request.param == "told"


def test_guard__older_answer_of_another_key(returning):
    """Where the stored generation is newer every column stays, in a row of its own each time."""
    write([{"code": c, "place": "new", "number": 1} for c in "bd"], 20, key="new")
    write([{"code": "e", "place": "old", "number": 2}], 5, key="older")
    result = write([{"code": c, "place": "mid", "number": 3} for c in "edcba"], 10, key="mid")
    assert (result.outcome, result.rows) == ("written", 5)
    assert (result.written, result.guarded) == (3, 2)
    assert stored() == {
        "a": ("mid", 3, 10),
        "b": ("new", 1, 20),
        "c": ("mid", 3, 10),
        "d": ("new", 1, 20),
        "e": ("mid", 3, 10),
    }
    assert dict(Shared.objects.values_list("code", "doubled"))["e"] == 6


def test_guard__same_generation():
    """A row of my own generation is not newer: a second try of the same flight writes it."""
    write([{"code": "a", "place": "first"}], 7, key="one")
    assert write([{"code": "a", "place": "second"}], 7, key="two").guarded == 0
    assert stored() == {"a": ("second", 0, 7)}


def test_guard__rows_of_others():
    """A row that no refresh has written is older than any."""
    Shared.objects.create(code="a", place="by hand")
    assert write([{"code": "a", "place": "x"}], 1, key="one").written == 1
    assert stored() == {"a": ("x", 0, 1)}


def test_guard__generation_is_not_the_callers():
    """Whatever generation rows come with, that of the flight is written."""
    brought = [{"code": "a", "generation": 99}, Shared(code="b", generation=99), Shared(code="c")]
    write(brought, 7, key="one")
    assert {generation for *_, generation in stored().values()} == {7}
    assert [row.generation for row in brought[1:]] == [7, 7]
    later = Shared(code="b", generation=0)
    assert write([later], 6, key="two").guarded == 1
    assert later.generation == 7


def test_guard__timestamps():
    """auto_now moves with the row and stays with a guarded one; auto_now_add always stays."""
    write([{"code": c} for c in "ab"], 5, key="one")
    long_ago = datetime(2001, 2, 3, tzinfo=UTC)
    Shared.objects.update(created_at=long_ago, modified_at=long_ago)
    Shared.objects.filter(code="b").update(generation=9)
    write([{"code": c} for c in "ab"], 6, key="two")
    moved, guarded = Shared.objects.order_by("code")
    assert moved.created_at == guarded.created_at == guarded.modified_at == long_ago
    assert moved.modified_at > long_ago


def test_guard__update_fields():
    """With update_fields the generation goes along, and the other columns stay."""
    upsert = Upsert(Shared, ["code"], update_fields=["place"])
    write([{"code": "a", "place": "old", "number": 1}], 5, key="one", upsert=upsert)
    write([{"code": "a", "place": "new", "number": 2}], 6, key="two", upsert=upsert)
    assert stored() == {"a": ("new", 1, 6)}
    assert write([{"code": "a", "place": "late"}], 5, key="three", upsert=upsert).guarded == 1


def test_guard__many_statements():
    """Counts and keys are right over statements that the database splits."""
    rows = [Shared(code=f"{n:05}", number=n) for n in range(2500)]
    write([Shared(code=f"{n:05}", place="new") for n in range(0, 2500, 3)], 20, key="new")
    result = write(rows, 10, key="old", upsert=Upsert(Shared, ["code"], batch_size=700))
    assert (result.rows, result.guarded, result.written) == (2500, 834, 1666)
    assert dict(Shared.objects.values_list("code", "pk")) == {row.code: row.pk for row in rows}


def test_guard__nothing_else_to_update(returning):
    """A model without other columns is guarded, counted, and added to."""
    upsert = Upsert(SharedWord, ["text"])
    write([{"text": "a"}, {"text": "b"}], 10, key="one", upsert=upsert)
    result = write([{"text": t} for t in "abc"], 5, key="two", upsert=upsert)
    assert (result.written, result.guarded) == (1, 2)
    assert dict(SharedWord.objects.values_list("text", "generation")) == {"a": 10, "b": 10, "c": 5}


def test_primary_key__auto(returning):
    """Guarded or written, an instance gets the key of its row, or none where nobody can tell."""
    old = [Shared.objects.create(code=c, generation=g) for c, g in (("b", 9), ("d", 0))]
    rows = [Shared(code=c) for c in "edcbab"]
    write(rows, 5, key="one")
    if not returning:
        assert {row.pk for row in rows} == {None}
        return
    assert {(row.pk, row.code) for row in rows} == set(Shared.objects.values_list("pk", "code"))
    assert (rows[1].pk, rows[3].pk, rows[5].pk) == (old[1].pk, old[0].pk, old[0].pk)


def test_primary_key__auto_given():
    """Rows with a key of the caller's and rows without one are written and told apart."""
    old = Shared.objects.create(code="b", generation=9)
    rows = [Shared(pk=old.pk + 1000, code="b"), Shared(pk=old.pk + 2000, code="a")]
    rows += [Shared(code="c"), Shared(code="0")]
    result = write(rows, 5, key="one")
    assert (result.written, result.guarded) == (3, 1)
    assert [rows[0].pk, rows[1].pk] == [old.pk, old.pk + 2000]
    assert {(row.pk, row.code) for row in rows} == set(Shared.objects.values_list("pk", "code"))


def test_primary_key__with_default(returning):
    """A UUID made in Python is replaced by that of the row, guarded or not."""
    old = [SharedDocument.objects.create(slug=s, generation=g) for s, g in (("b", 9), ("d", 0))]
    rows = [SharedDocument(slug=s, body="mine") for s in "abcd"]
    result = write(rows, 5, key="one", upsert=Upsert(SharedDocument, ["slug"]))
    assert (result.written, result.guarded) == (3, 1)
    assert (rows[1].pk, rows[3].pk) == (old[0].pk, old[1].pk)
    assert {row.slug: row.pk for row in rows} == dict(
        SharedDocument.objects.values_list("slug", "pk")
    )
    assert SharedDocument.objects.get(slug="b").body == ""


def test_primary_key__explicit():
    """A natural key is its own truth."""
    old = SharedDocument.objects.create(id=uuid.UUID(int=1), slug="x", generation=9)
    rows = [SharedDocument(id=uuid.UUID(int=n), slug=str(n)) for n in (1, 2)]
    result = write(rows, 5, key="one", upsert=Upsert(SharedDocument, ["id"]))
    assert (result.written, result.guarded) == (1, 1)
    assert [row.pk for row in rows] == [old.pk, uuid.UUID(int=2)]
    assert SharedDocument.objects.get(pk=old.pk).slug == "x"


def test_primary_key__composite(returning):
    """The open part of a composite key is that of the row, guarded or not."""
    old = SharedTicket.objects.create(tenant=1, code="b", generation=9)
    rows = [SharedTicket(tenant=tenant, code=code) for tenant in (1, 2) for code in "ab"]
    result = write(rows, 5, key="one", upsert=Upsert(SharedTicket, ["tenant", "code"]))
    assert (result.written, result.guarded) == (3, 1)
    assert rows[1].pk == old.pk
    assert set(SharedTicket.objects.values_list("tenant", "number", "code")) == {
        (row.tenant, row.number, row.code) for row in rows
    }


def test_rollback__generation_is_as_before():
    """A write that was rolled back leaves the generations of instances as they came."""
    new, loaded = Shared(code="a"), Shared.objects.create(code="b", generation=3)
    batch = prepare("default", SHARED, [new, loaded])
    with rolled_back():
        batch.write("default", 7)
    batch.restore()
    assert (new.generation, loaded.generation) == (0, 3)
    with transaction.atomic():
        assert batch.write("default", 2).guarded == 1
    assert (new.generation, loaded.generation) == (2, 3)


def without_clause(sql):
    return sql.replace("UPDATE SET", "UPDATE  SET").replace("KEY UPDATE", "KEY  UPDATE")


def with_two_clauses(sql):
    return f"{sql} /* {sql} */"


@pytest.mark.parametrize(
    ("change", "found"), [(without_clause, 0), (with_two_clauses, 2)], ids=["none", "two"]
)
def test_fail_closed__statement_is_another(change, found, monkeypatch):
    """Where the clause is not there exactly once nothing is written, and the error says why."""
    write([{"code": "a", "place": "good"}], 1, key="one")

    def tamper(execute, sql, params, many, context):
        sql = change(sql) if sql.startswith("INSERT") else sql
        return execute(sql, params, many, context)

    refused = pytest.raises(RowGuardError, match=f"{found} times instead of once")
    with connections["default"].execute_wrapper(tamper), refused as caught:
        write([{"code": "a", "place": "bad"}], 2, key="one")
    error = caught.value
    assert error.model == "writing_app.Shared"
    assert ("EXCLUDED" if connections["default"].vendor != "mysql" else "VALUE(") in error.expected
    assert pickle.loads(pickle.dumps(error)).args == error.args
    assert "Use Django 5.2, 6.0 or 6.1" in str(error)
    assert stored() == {"a": ("good", 0, 1)}
    assert RefreshState.objects.get().fence == 1


def test_fail_closed__statement_is_not_seen(monkeypatch):
    """A table by another name in the SQL goes unrecognised, and is rolled back all the same."""
    quoted = guard._Rewriter.__init__

    def misread(self, *args):
        quoted(self, *args)
        self._table = '"elsewhere"'

    monkeypatch.setattr(guard._Rewriter, "__init__", misread)
    with pytest.raises(RowGuardError, match="0 times"):
        write([{"code": "a"}], 2, key="one")
    assert stored() == {}


def test_crossing__without_the_guard(monkeypatch):
    """The test of the test: with the guard taken out, the older answer overwrites the newer."""

    def cross(new, old):
        write([{"code": "a", "place": "new"}], new, key=f"new {new}")
        write([{"code": "a", "place": "old"}], old, key=f"old {old}")
        return Shared.objects.get().place

    with monkeypatch.context() as patched:
        patched.setattr(rows_module, "guarded", lambda *args: nullcontext())
        assert cross(new=2, old=1) == "old"
    assert cross(new=4, old=3) == "new"


@pytest.mark.parametrize(
    ("rows", "upsert"),
    [
        ([{"email": "b", "number": 1, "name": "wrong"}], Upsert(Account, ["email"])),
        ([{"email": "a", "number": 2, "name": "wrong"}], Upsert(Account, ["number"])),
        ([{"email": "new", "number": 1, "name": "wrong"}], Upsert(Account, ["email"])),
    ],
)
def test_other_row__second_unique_key(rows, upsert):
    """A row that would hit another row by its second unique key is an error on every database."""
    Account.objects.create(email="a", number=1, name="first")
    Account.objects.create(email="b", number=2, name="second")
    with pytest.raises(IntegrityError):
        refresh(rows, 1, upsert=upsert)
    assert set(Account.objects.values_list("email", "number", "name")) == {
        ("a", 1, "first"),
        ("b", 2, "second"),
    }


def test_other_row__explicit_primary_key():
    """A primary key of another row never makes that row the one that is updated."""
    first, second = (Quake.objects.create(code=code, place="good") for code in "ab")
    row = Quake(pk=first.pk, code="b", place="x")
    if connections["default"].vendor == "mysql":
        with pytest.raises(IntegrityError, match="Leave the primary key out"):
            refresh([row], 1)
        assert set(Quake.objects.values_list("place", flat=True)) == {"good"}
        return
    refresh([row], 1)
    assert dict(Quake.objects.values_list("code", "place")) == {"a": "good", "b": "x"}
    assert row.pk == second.pk


def test_other_row__new_row_with_a_primary_key_that_is_taken():
    """A new row cannot have the primary key of one that exists."""
    first = Quake.objects.create(code="a", place="good")
    with pytest.raises(IntegrityError):
        refresh([Quake(pk=first.pk, code="new", place="x")], 1)
    assert Quake.objects.values_list("code", "place").get() == ("a", "good")


def test_other_row__nothing_to_update():
    """The check goes with statements that change nothing, too."""
    first, second = (Tag.objects.create(name=name) for name in "ab")
    row = Tag(pk=first.pk, name="b")
    if connections["default"].vendor == "mysql":
        with pytest.raises(IntegrityError):
            refresh([row], 1, upsert=Upsert(Tag, ["name"]))
    else:
        refresh([row], 1, upsert=Upsert(Tag, ["name"]))
        assert row.pk == second.pk
    assert set(Tag.objects.values_list("pk", "name")) == {(first.pk, "a"), (second.pk, "b")}


def test_statement_error__is_the_databases_own():
    """Errors of the statement that have nothing to do with the guard come through unchanged."""
    with pytest.raises(IntegrityError) as caught:
        write([{"code": "a", "place": None}], 1, key="one")
    assert "Leave the primary key out" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((8, 0, 20), "AS new ON DUPLICATE KEY UPDATE `name` = new.`name`"),
        ((8, 0, 11), "ON DUPLICATE KEY UPDATE `name` = VALUES(`name`)"),
    ],
)
def test_clause__mysql(version, expected):
    """MySQL's two ways to name the new row's values are recognised, as Django writes them."""
    connection = connections["default"]
    if connection.vendor != "mysql":
        pytest.skip("about the SQL of one vendor")
    fields = [Account._meta.get_field(name) for name in ("email", "name")]
    rewriter = guard._Rewriter(connection, Account, fields[:1], fields[1:], None)
    seen = []
    sql = f"INSERT INTO `writing_app_account` (`email`) VALUES (%s) {expected}"
    rewriter(lambda *args: seen.append(args[0]), sql, (), False, {})
    new = "new.`email`" if "new" in expected else "VALUES(`email`)"
    assert f"`writing_app_account`.`email` = {new}" in seen[0]
    assert seen[0].startswith(sql.partition(" ON ")[0].partition(" AS ")[0])
