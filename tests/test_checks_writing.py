"""System checks of what refreshes write: each fault by its id, and raised at the first call."""

import gc
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError, connections, transaction
from django.test import override_settings

from django_vega import InAtomicBlockError, Upsert, singleflight_refresh
from django_vega.writing.faults import InvalidUpsertError
from tests.checks_app.models import (
    Article,
    ArticleListing,
    Code,
    Crowded,
    Feature,
    GuardedArticle,
    Nickname,
)
from tests.writing_app.models import Named, Quake, TwiceShared

ELSEWHERE = "elsewhere"
IMMEDIATE = {"transaction_mode": "IMMEDIATE", "timeout": 20}


class Router:
    """Writes the models of the checks to the database of a test's own."""

    def db_for_write(self, model: type[Any], **hints: Any) -> str | None:
        return ELSEWHERE if model._meta.app_label == "checks_app" else None


class FenceRouter(Router):
    """Writes the fences there, too."""

    def db_for_write(self, model: type[Any], **hints: Any) -> str | None:
        return ELSEWHERE


class ClosedFenceRouter(FenceRouter):
    """Writes the fences where nobody may create them."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False


class ClosedRouter(Router):
    """Lets nobody migrate there."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == ELSEWHERE else None


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., None]]:
    """Declare the database that the models of the checks are written to; nobody connects to it."""

    def declare(engine: str, **options: Any) -> None:
        declared = {"ENGINE": f"django.db.backends.{engine}", "NAME": "nowhere", **options}
        configured = connections.configure_settings({"default": {}, ELSEWHERE: declared})
        monkeypatch.setitem(connections.settings, ELSEWHERE, configured[ELSEWHERE])

    with override_settings(DATABASE_ROUTERS=[Router()]):
        yield declare
        if ELSEWHERE in connections.settings:
            connections[ELSEWHERE].close()
            del connections[ELSEWHERE]


@pytest.fixture(autouse=True)
def _forget_functions() -> Generator[None]:
    """Leave no faulty function to the checks of other tests: each refers to itself."""
    yield
    gc.collect()


def refresh_with(upsert: Any, key: str = "articles:{x}", **options: Any) -> Any:
    """Decorate a function that must not run."""

    @singleflight_refresh(key=key, upsert=upsert, **options)
    def refresh(x: int) -> list[Any]:
        raise AssertionError("the function must not run")

    return refresh


def refresh_with_write() -> Any:
    """Decorate a function that must not run, and whose value nobody upserts."""

    @singleflight_refresh(key="written:{x}", write=lambda value, generation: None)
    def refresh(x: int) -> list[Any]:
        raise AssertionError("the function must not run")

    return refresh


def found(databases: list[str] | None = None) -> list[checks.CheckMessage]:
    """Return what is said about the functions of this module."""
    gc.collect()
    tag = "django_vega" if databases is None else checks.Tags.database
    messages = checks.run_checks(tags=[tag], databases=databases)
    return [one for one in messages if __name__ in one.msg]


def ids() -> list[str]:
    """Return the ids alone, without the prefix."""
    return [str(one.id).removeprefix("django_vega.") for one in found()]


# Upserts and models


FAULTS = [
    ({"unique_fields": ["title"]}, "E005", "no unique constraint", "use one of"),
    ({"unique_fields": ["slugg"]}, "E005", "unique_fields name 'slugg'", "Did you mean 'slug'?"),
    ({"unique_fields": ["related"]}, "E005", "no column", "column of their own"),
    ({"update_fields": ["titel"]}, "E006", "update_fields name 'titel'", "Did you mean 'title'?"),
    ({"update_fields": ["related"]}, "E006", "no column", "column of their own"),
    ({"update_fields": ["id"]}, "E006", "is the primary key", "Leave it out"),
    ({"update_fields": ["slug"]}, "E006", "is in unique_fields", "Leave it out"),
    ({"update_fields": ["created_at"]}, "E006", "is auto_now_add", "Leave it out"),
    (
        {"model": Nickname, "unique_fields": ["text"]},
        "E009",
        "'text' of checks_app.Nickname may be NULL",
        "NOT NULL",
    ),
    ({"update_fields": ["lowered"]}, "E009", "computed by the database", "Leave it out"),
    ({"model": Feature}, "E010", "in the table of checks_app.Article", "Make the parent abstract"),
    (
        {"model": GuardedArticle, "skip_unchanged": True},
        "E010",
        "skip_unchanged on checks_app.GuardedArticle, which has a GenerationField",
        "Leave skip_unchanged out",
    ),
    ({"model": GuardedArticle, "update_fields": ["generation"]}, "E006", "own gen", "Leave it out"),
    ({"unique_fields": ["slug", "title"]}, "E005", "covers exactly (slug, title)", "use one of"),
    ({"model": Code, "unique_fields": ["lowered"]}, "E005", "has no such field", "It has"),
    ({"model": Named}, "E010", "writing_app.Named is abstract", "inherits from it"),
    (
        {"model": TwiceShared, "unique_fields": ["code"]},
        "E010",
        "more than one GenerationField: (generation, other)",
        "Keep one",
    ),
    ({"model": "checks_app.Artikel"}, "E010", "there is no model", "in INSTALLED_APPS"),
]


@pytest.mark.parametrize(("options", "fault_id", "message", "hint"), FAULTS)
def test_faults__reported_and_raised_at_the_first_call(
    options: dict[str, Any], fault_id: str, message: str, hint: str
) -> None:
    """What is wrong with an `Upsert` has its id, and ends the first call before the function."""
    refresh = refresh_with(Upsert(**({"model": Article, "unique_fields": ["slug"]} | options)))
    (error,) = found()
    assert (error.id, error.level) == (f"django_vega.{fault_id}", checks.ERROR)
    assert message in error.msg
    assert refresh.definition.name in error.msg
    assert hint in str(error.hint)
    with pytest.raises(InvalidUpsertError) as caught:
        refresh(1)
    assert message in str(caught.value)
    assert hint in str(caught.value)


def test_faults__all_of_them() -> None:
    """An upsert that is wrong twice is reported twice."""
    refresh = refresh_with(Upsert(Article, ["nope"], update_fields=["neither"]))
    assert ids() == ["E005", "E006"]
    assert refresh is not None
    del refresh
    refresh = refresh_with(Upsert(GuardedArticle, ["generation"]))
    assert ids() == ["E005", "E005"]
    assert refresh is not None


def test_faults__of_an_upsert_that_functions_share() -> None:
    """One `Upsert` on two functions is reported once, with the names of both."""
    upsert = Upsert(Article, ["title"])

    @singleflight_refresh(key="one:{x}", upsert=upsert)
    def first(x: int) -> list[Any]:
        return []

    @singleflight_refresh(key="other:{x}", upsert=upsert)
    def second(x: int) -> list[Any]:
        return []

    (error,) = found()
    assert f"{first.definition.name} and {second.definition.name}" in error.msg


def test_silence__sound_upserts(database: Callable[..., None]) -> None:
    """Nothing is said about upserts that fit their model and their database."""
    database("sqlite3", OPTIONS=IMMEDIATE)
    refreshes = [
        refresh_with(Upsert(Article, ["slug"]), "one:{x}"),
        refresh_with(Upsert(GuardedArticle, ["slug"], update_fields=["title"]), "two:{x}"),
        refresh_with(Upsert(Crowded, ["slug"]), "three:{x}"),
    ]
    assert found() == []
    assert len(refreshes) == 3


# W006


def test_w006__two_refreshes_of_one_model() -> None:
    """A model that two refreshes write, and whose rows know no generation, is named with both."""
    one = refresh_with(Upsert(Article, ["slug"]), "one:{x}")

    @singleflight_refresh(key="other:{x}", upsert=Upsert(ArticleListing, ["slug"]))
    def other(x: int) -> list[Any]:
        return []

    (warning,) = found()
    assert (warning.id, warning.level) == ("django_vega.W006", checks.WARNING)
    assert "checks_app.Article is written by" in warning.msg
    assert one.definition.name in warning.msg
    assert other.definition.name in warning.msg
    assert "GenerationField()" in str(warning.hint)


def test_w006__silent_with_a_generation_field() -> None:
    """Rows that know their generation are guarded, however many refreshes write them."""
    refreshes = [
        refresh_with(Upsert(GuardedArticle, ["slug"]), f"{key}:{{x}}") for key in ("one", "other")
    ]
    assert found() == []
    assert len(refreshes) == 2


def test_w006__silent_where_both_have_the_same_keys() -> None:
    """A sync and an async form of one refresh, sharing scope and key, pass the same fences."""
    sync = refresh_with(Upsert(Article, ["slug"]), scope="articles")

    @singleflight_refresh(key="articles:{x}", upsert=Upsert(Article, ["slug"]), scope="articles")
    async def arefresh(x: int) -> list[Any]:
        return []

    assert found() == []
    assert (sync, arefresh) is not None


# E007, W004, W008, W009: what is known without a connection


def test_e007__database_that_cannot_upsert(database: Callable[..., None]) -> None:
    """A database without upsert is an error for every refresh that writes to it, and its call."""
    database("dummy")
    refresh = refresh_with(Upsert(Article, ["slug"]))
    (error,) = found()
    assert (error.id, error.level) == ("django_vega.E007", checks.ERROR)
    assert refresh.definition.name in error.msg
    assert f"the database {ELSEWHERE!r}" in error.msg
    assert "cannot update on conflict" in error.msg
    assert "PostgreSQL" in str(error.hint)
    with pytest.raises(InvalidUpsertError, match="cannot update on conflict"):
        refresh(1)


def test_e007__database_that_cannot_guard_rows(
    database: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row guard knows three kinds of database; on another one a guarded model is an error."""
    database("sqlite3", OPTIONS=IMMEDIATE)
    monkeypatch.setattr(connections[ELSEWHERE], "vendor", "duckdb")
    guarded = refresh_with(Upsert(GuardedArticle, ["slug"]), "one:{x}")
    plain = refresh_with(Upsert(Article, ["slug"]), "other:{x}")
    (error,) = found()
    assert error.id == "django_vega.E007"
    assert "GuardedArticle has a GenerationField" in error.msg
    with pytest.raises(InvalidUpsertError, match="row guard"):
        guarded(1)
    assert plain is not None


def test_e007__models_on_several_databases(database: Callable[..., None]) -> None:
    """Upserts of one refresh whose models a router sends to two databases are an error."""
    database("sqlite3", OPTIONS=IMMEDIATE)
    refresh = refresh_with([Upsert(GuardedArticle, ["slug"]), Upsert(Quake, ["code"])])
    (error,) = found()
    assert error.id == "django_vega.E007"
    assert "one transaction holds one database" in error.msg
    with pytest.raises(InvalidUpsertError, match="one transaction holds one database"):
        refresh(1)


def test_e010__two_upserts_of_one_table(database: Callable[..., None]) -> None:
    """Two upserts of one refresh that write the same table are an error."""
    database("sqlite3", OPTIONS=IMMEDIATE)
    refresh = refresh_with([Upsert(Article, ["slug"]), Upsert(ArticleListing, ["slug"])])
    (error,) = found()
    assert error.id == "django_vega.E010"
    assert "two upserts write the table of checks_app.Article" in error.msg
    with pytest.raises(InvalidUpsertError, match="two upserts write the table"):
        refresh(1)


def test_e007__database_that_cannot_create_fences(
    database: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever writes the rows: a database in which no fence can be created is an error."""
    database("dummy")
    monkeypatch.setattr(connections[ELSEWHERE].features, "supports_ignore_conflicts", False)
    refresh = refresh_with_write()
    with override_settings(DATABASE_ROUTERS=[FenceRouter()]):
        (error,) = found()
        assert (error.id, error.level) == ("django_vega.E007", checks.ERROR)
        assert error.msg.startswith("the write= of ")
        assert refresh.definition.name in error.msg
        assert f"the database {ELSEWHERE!r}" in error.msg
        with pytest.raises(InvalidUpsertError, match="cannot ignore conflicts"):
            refresh(1)


@pytest.mark.parametrize(
    ("atomic_requests", "in_atomic", "expected"),
    [(True, "refuse", ["W004"]), (True, "solo", []), (False, "refuse", [])],
)
def test_w004__atomic_requests(
    database: Callable[..., None], atomic_requests: bool, in_atomic: str, expected: list[str]
) -> None:
    """A refresh that refuses transactions, on a database where every view has one, is warned of."""
    database("sqlite3", OPTIONS=IMMEDIATE, ATOMIC_REQUESTS=atomic_requests)
    refresh = refresh_with(Upsert(Article, ["slug"]), in_atomic=in_atomic)
    messages = found()
    assert [one.id for one in messages] == [f"django_vega.{one}" for one in expected]
    for warning in messages:
        assert warning.level == checks.WARNING
        assert refresh.definition.name in warning.msg
        assert "InAtomicBlockError" in warning.msg
        assert "non_atomic_requests" in str(warning.hint)


def test_w008__other_unique_keys_on_mysql(database: Callable[..., None]) -> None:
    """On MySQL and MariaDB each unique key beside `unique_fields` is named, if it exists there."""
    pytest.importorskip("MySQLdb")
    database("mysql")
    refreshes = [
        refresh_with(Upsert(Crowded, ["slug"]), "one:{x}"),
        refresh_with(Upsert(Code, ["name"]), "two:{x}"),
        refresh_with(Upsert(GuardedArticle, ["slug"]), "three:{x}"),
    ]
    warnings = found()
    assert {(one.id, one.level) for one in warnings} == {("django_vega.W008", checks.WARNING)}
    named = {one.msg.partition("another one by ")[2].partition(")")[0] + ")" for one in warnings}
    assert named == {"(number)", "(shelf, place)", "(place, number)", "(crowded_lowered)", "(code)"}
    assert all("silence" in str(one.hint) for one in warnings)
    assert len(refreshes) == 3


def test_w004__raised_inside_a_transaction(
    database: Callable[..., None], tmp_path: Path, django_db_blocker: Any
) -> None:
    """What the warning says comes true: in a view's transaction the first call raises."""
    database(
        "sqlite3",
        NAME=str(tmp_path / "elsewhere.sqlite3"),
        OPTIONS=IMMEDIATE,
        ATOMIC_REQUESTS=True,
    )
    refresh = refresh_with(Upsert(Article, ["slug"]))
    assert ids() == ["W004"]
    with (
        django_db_blocker.unblock(),
        transaction.atomic(using=ELSEWHERE),
        pytest.raises(InAtomicBlockError),
    ):
        refresh(1)


@pytest.mark.parametrize(
    ("options", "in_atomic", "expected"),
    [
        ({"timeout": 4.9}, "refuse", ["'elsewhere' wait 4.9 s for each other"]),
        ({"timeout": 5}, "refuse", []),
        ({}, "refuse", []),
        ({}, "solo", ["in_atomic='solo'"]),
        ({"transaction_mode": "deferred"}, "solo", ["in_atomic='solo'"]),
        ({"transaction_mode": "immediate"}, "solo", []),
        ({"transaction_mode": "EXCLUSIVE"}, "solo", []),
        ({"timeout": 0}, "solo", ["in_atomic='solo'", "wait 0 s"]),
    ],
)
def test_w009__sqlite(
    database: Callable[..., None], options: dict[str, Any], in_atomic: str, expected: list[str]
) -> None:
    """SQLite that gives up early, or that lets a solo refresh fail after a read, is warned of."""
    database("sqlite3", OPTIONS=options)
    refresh = refresh_with(Upsert(Article, ["slug"]), in_atomic=in_atomic)
    warnings = found()
    assert [(one.id, one.level) for one in warnings] == [
        ("django_vega.W009", checks.WARNING)
    ] * len(expected)
    for warning, message in zip(warnings, expected, strict=True):
        assert message in warning.msg
        assert refresh.definition.name in warning.msg
        assert "OPTIONS" in str(warning.hint)


def test_in_atomic__silent_where_the_setting_is_wrong() -> None:
    """A faulty setting is reported alone: what refreshes make of it cannot be known."""
    refresh = refresh_with(Upsert(Article, ["title"]))
    with override_settings(DJANGO_VEGA={"default": {"WORKERS": 0}}):
        assert found() == []
    with override_settings(DJANGO_VEGA={"default": {}, "other": {}}):
        assert ids() == ["E005"]
    assert refresh is not None


# E008: needs a connection


def asked() -> list[tuple[str | None, int]]:
    """Return id and level of what is said about the database of the test."""
    return [(one.id, one.level) for one in found([ELSEWHERE])]


@pytest.fixture
def empty_database(
    database: Callable[..., None], tmp_path: Path, django_db_blocker: Any
) -> Generator[None]:
    """A database of the test's own, in which nothing has been created."""
    database("sqlite3", NAME=str(tmp_path / "elsewhere.sqlite3"), OPTIONS=IMMEDIATE)
    with django_db_blocker.unblock():
        yield
        connections[ELSEWHERE].close()


@pytest.mark.usefixtures("empty_database")
def test_e008__no_table_for_fences() -> None:
    """A missing table is a warning while `migrate` can create it, and an error afterwards.

    `migrate` runs the same checks first: as an error this one would forbid its own remedy.
    """
    refresh = refresh_with(Upsert(Article, ["slug"]))
    assert asked() == [("django_vega.E008", checks.WARNING)]
    (warning,) = found([ELSEWHERE])
    assert "no table django_vega_refreshstate" in warning.msg
    assert refresh.definition.name in warning.msg
    assert "migrate django_vega --database elsewhere" in str(warning.hint)

    # Functions that other tests have left behind may use an alias that is gone.
    with override_settings(SILENCED_SYSTEM_CHECKS=["django_vega.E003"]):
        migrate = {"database": ELSEWHERE, "verbosity": 0, "skip_checks": False}
        call_command("migrate", "django_vega", **migrate)
    assert asked() == []

    with connections[ELSEWHERE].cursor() as cursor:
        cursor.execute("DROP TABLE django_vega_refreshstate")
    assert asked() == [("django_vega.E008", checks.ERROR)]
    with pytest.raises(SystemCheckError, match="E008"):
        call_command("check", databases=[ELSEWHERE])


@pytest.mark.usefixtures("empty_database")
def test_e008__router_that_lets_nobody_create_it() -> None:
    """Where a router keeps `migrate` from ever creating the table, nobody needs to ask."""
    refresh = refresh_with(Upsert(Article, ["slug"]))
    with override_settings(DATABASE_ROUTERS=[ClosedRouter()]):
        (error,) = found()
        assert (error.id, error.level) == ("django_vega.E008", checks.ERROR)
        assert "allow_migrate()" in str(error.hint)
        assert asked() == []
        with pytest.raises(InvalidUpsertError, match="allows no RefreshState"):
            refresh(1)


@pytest.mark.usefixtures("empty_database")
def test_e008__router_that_lets_nobody_create_it_for_write() -> None:
    """A refresh that writes by itself needs the table as well."""
    refresh = refresh_with_write()
    with override_settings(DATABASE_ROUTERS=[ClosedFenceRouter()]):
        (error,) = found()
        assert (error.id, error.level) == ("django_vega.E008", checks.ERROR)
        assert error.msg.startswith("the write= of ")
        assert refresh.definition.name in error.msg
        with pytest.raises(InvalidUpsertError, match="allows no RefreshState"):
            refresh(1)


@pytest.mark.usefixtures("empty_database")
def test_e008__first_call_without_the_table() -> None:
    """Where the table is missing the first call raises what the database says of it."""

    @singleflight_refresh(key="articles:{x}", upsert=Upsert(Article, ["slug"]))
    def refresh(x: int) -> list[Any]:
        return []

    assert asked() == [("django_vega.E008", checks.WARNING)]
    with pytest.raises(DatabaseError, match="django_vega_refreshstate"):
        refresh(1)


@pytest.mark.usefixtures("empty_database")
def test_e008__only_databases_that_are_asked_about_and_written_to() -> None:
    """Without --database nothing is asked; a database that no refresh writes to needs no table."""
    assert asked() == []
    refresh = refresh_with(Upsert(Article, ["slug"]))
    assert found() == []
    assert found([]) == []
    assert [one.id for one in found([ELSEWHERE])] == ["django_vega.E008"]
    assert refresh is not None


def test_write__is_checked_too(database: Callable[..., None]) -> None:
    """A refresh that writes by itself, where the router sends fences, is warned of as well."""
    database("sqlite3", OPTIONS={"timeout": 1})

    refresh = refresh_with_write()
    with override_settings(DATABASE_ROUTERS=[FenceRouter()]):
        assert {one.id for one in found() if "wait 1 s" in one.msg} == {"django_vega.W009"}
        assert any(refresh.definition.name in one.msg for one in found())


def test_e008__silent_where_the_database_does_not_answer(
    database: Callable[..., None], tmp_path: Path, django_db_blocker: Any
) -> None:
    """A database that cannot be reached is no finding about its tables."""
    database("sqlite3", NAME=str(tmp_path / "missing" / "folder.sqlite3"), OPTIONS=IMMEDIATE)
    refresh = refresh_with(Upsert(Article, ["slug"]))
    with django_db_blocker.unblock():
        assert asked() == []
    assert refresh is not None
