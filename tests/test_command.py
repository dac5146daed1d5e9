"""`manage.py vega`: what it shows and deletes, for people and for programs, and its exit codes."""

import io
import json
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, execute_from_command_line
from django.db import connection, connections, transaction
from django.test import override_settings
from django.utils import timezone

from django_vega import Upsert, coordinated, singleflight_refresh
from django_vega.core.keys import key_hash
from django_vega.models import RefreshState
from tests import threads
from tests.gates import TIMEOUT, Gate
from tests.writing_app.models import Quake

EVERYWHERE = pytest.mark.django_db(databases=["default", "other"])
DAY = timedelta(days=1)
NOW_US = 1_000_000 * int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@coordinated(key="shown:{x}", ignore=["body"])
def shown(x: int, body: Callable[[], Any]) -> Any:
    return body()


@singleflight_refresh(key="pruned:{x}", upsert=Upsert(Quake, ["code"]))
def pruned(x: int) -> list[Quake]:
    return [Quake(code=str(x))]


def vega(*arguments: str, stdout: io.StringIO | None = None) -> str:
    """Run the command; return what it printed."""
    stdout = stdout or io.StringIO()
    call_command("vega", *arguments, stdout=stdout)
    return stdout.getvalue()


def refused(*arguments: str) -> tuple[int, str]:
    """Run the command, which fails; return its exit code and message."""
    with pytest.raises(CommandError) as caught:
        vega(*arguments)
    return caught.value.returncode, str(caught.value)


def exit_code(*arguments: str) -> int:
    """Run the command as the shell does; return the code of the process."""
    try:
        execute_from_command_line(["manage.py", "vega", *arguments])
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def state(
    key: str, finished: timedelta | None, *, using: str = "default", **fields: Any
) -> RefreshState:
    """Store the state of a key whose refresh finished so long ago."""
    values = {
        "scope": "tests",
        "finished_at": timezone.now() - finished if finished is not None else None,
        "state": "ok" if finished is not None else "",
    } | fields
    row = RefreshState(key_hash=key_hash("", values["scope"], key), key=key, **values)
    row.save(using=using, force_insert=True)
    return row


def keys(using: str = "default") -> set[str]:
    """Return the keys that are stored."""
    return set(RefreshState.objects.using(using).values_list("key", flat=True))


@pytest.fixture
def own_databases(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, django_db_setup: None, django_db_blocker: Any
) -> Generator[None]:
    """Three databases of the test's own: a good one, one without tables, one that is not there."""
    names = {"good": "good.sqlite3", "empty": "empty.sqlite3", "broken": "missing/broken.sqlite3"}
    declared = {
        alias: {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / name)}
        for alias, name in names.items()
    }
    configured = connections.configure_settings({"default": {}, **declared})
    for alias in names:
        monkeypatch.setitem(connections.settings, alias, configured[alias])
    with django_db_blocker.unblock():
        call_command("migrate", "django_vega", database="good", verbosity=0)
        yield
        for alias in names:
            connections[alias].close()
            del connections[alias]


# prune


@EVERYWHERE
def test_prune__deletes_what_finished_long_ago() -> None:
    """Only keys whose last refresh finished before go, on every database; counts are printed."""
    state("old", 31 * DAY)
    state("older", 300 * DAY, state="failed", error="it was long ago")
    state("young", 29 * DAY)
    state("unfinished", None)
    state("other-old", 40 * DAY, using="other")
    state("other-young", DAY, using="other")
    assert vega("prune", "--older-than", "30d") == "database\tdeleted\ndefault\t2\nother\t1\n"
    assert keys() == {"young", "unfinished"}
    assert keys("other") == {"other-young"}
    assert vega("prune", "--older-than", "30d") == "database\tdeleted\ndefault\t0\nother\t0\n"


@EVERYWHERE
def test_prune__only_the_named_database() -> None:
    """--database leaves the others alone."""
    for using in ("default", "other"):
        state("old", 31 * DAY, using=using)
    printed = vega("prune", "--older-than", "4w", "--database", "other", "--database", "other")
    assert printed == "database\tdeleted\nother\t1\n"
    assert keys() == {"old"}


def test_prune__unknown_database() -> None:
    """An alias that is not in DATABASES ends with code 2."""
    assert "otter" in refused("prune", "--older-than", "4w", "--database", "otter")[1]
    assert exit_code("prune", "--older-than", "4w", "--database", "otter") == 2


@EVERYWHERE
def test_prune__more_than_one_transaction_takes() -> None:
    """Any number of keys goes, a limited number at a time; a terminal sees how far it is."""
    finished = timezone.now() - 3 * DAY
    RefreshState.objects.bulk_create(
        RefreshState(key_hash=f"{number:064}", key=str(number), scope="", finished_at=finished)
        for number in range(2501)
    )
    stderr = Terminal()
    stdout = Terminal()
    call_command("vega", "prune", "--older-than", "1d", stdout=stdout, stderr=stderr)
    assert keys() == set()
    assert stdout.getvalue() == "database  deleted\ndefault   2501\nother     0\n"
    assert stderr.getvalue().split("\r")[1::2] == [
        "default: 1000 deleted",
        "default: 2000 deleted",
        "default: 2501 deleted",
    ]


@EVERYWHERE
def test_prune__spares_a_fence_that_moved_lately() -> None:
    """A key that was released, or whose refresh has started, is alive whatever has finished."""
    ago = {days: timezone.now() - days * DAY for days in (1, 3)}
    state("moved", 40 * DAY, fence=int(ago[1].timestamp() * 1_000_000))
    state("still", 40 * DAY, fence=int(ago[3].timestamp() * 1_000_000))
    state("started", None, fence=int(ago[1].timestamp() * 1_000_000))
    state("abandoned", None, fence=int(ago[3].timestamp() * 1_000_000))
    state("created", None)
    call_command("vega", "prune", older_than="2d", stdout=io.StringIO())
    assert keys() == {"moved", "started", "created"}


@EVERYWHERE
def test_prune__spares_keys_in_flight_of_this_process() -> None:
    """A key that is being worked on here keeps its row, however old; with its prefix and scope."""
    scope = f"{__name__}.shown"
    with override_settings(DJANGO_VEGA={"default": {"KEY_PREFIX": "blue"}}):
        gate = Gate()
        with threads.start(lambda: shown(1, gate)) as running:
            assert gate.entered.wait(TIMEOUT)
            state("live", 40 * DAY, scope=scope)
            live = RefreshState.objects.get(key="live")
            live.delete()
            live.key_hash = key_hash("blue", scope, "shown:1")
            live.save(force_insert=True)
            state("shown:1", 40 * DAY, scope=scope)
            assert "default\t1\n" in vega("prune", "--older-than", "30d")
            assert keys() == {"live"}
            gate.open()
        running.result()
        assert "default\t1\n" in vega("prune", "--older-than", "30d")


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_prune__the_key_works_afterwards() -> None:
    """A pruned key begins anew: its status is idle, and its next refresh is written."""
    first = pruned(1)
    RefreshState.objects.update(
        finished_at=timezone.now() - 40 * DAY, fence=NOW_US - 40 * 86_400_000_000
    )
    vega("prune", "--older-than", "30d")
    assert pruned.status(1).state == "idle"
    second = pruned(1)
    assert (first.outcome, second.outcome) == ("written", "written")


@pytest.mark.databases
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_prune__passes_over_a_fence_that_a_flight_holds() -> None:
    """A row that a refresh has locked is about to be new: neither deleted nor waited for."""
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("SQLite has one lock for the whole database")
    state("held", 40 * DAY)
    state("idle", 40 * DAY)
    gate = Gate()

    def hold() -> None:
        with transaction.atomic():
            RefreshState.objects.filter(key="held").update(finished_at=timezone.now())
            gate()

    with threads.start(hold) as holding:
        assert gate.entered.wait(TIMEOUT)
        assert "default\t1\n" in vega("prune", "--older-than", "30d")
        gate.open()
    holding.result()
    assert keys() == {"held"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("23h", "under a day. A pruned key has no fence"),
        ("0d", "under a day"),
        ("86399s", "under a day"),
        ("30", "is no duration"),
        ("-3d", "is no duration"),
        ("d", "is no duration"),
        ("3 d", "is no duration"),
        ("", "is no duration"),
        ("1.5d", "is no duration"),
        ("40000d", "more than a hundred years"),
        ("9" * 400 + "d", "more than a hundred years"),
        ("9" * 5000 + "w", "more than a hundred years"),
    ],
)
def test_prune__refuses_a_duration(text: str, message: str) -> None:
    """What is no duration, and what is under a day, ends with code 2 before anything is deleted."""
    code, told = refused("prune", f"--older-than={text}")
    assert message in told
    assert code == 1  # argparse's error as call_command() raises it
    assert exit_code("prune", f"--older-than={text}") == 2


@EVERYWHERE
@pytest.mark.parametrize("text", ["1d", "24h", "1440m", "86400s", "12h12h", "1w", "23h60m"])
def test_prune__takes_a_duration(text: str) -> None:
    """Weeks, days, hours, minutes and seconds, added up, of at least a day."""
    state("old", 8 * DAY)
    vega("prune", "--older-than", text)
    assert keys() == set()


def test_prune__refuses_a_duration_from_code() -> None:
    """`call_command()` with an option is held to the same."""
    with pytest.raises(CommandError, match="under a day"):
        call_command("vega", "prune", older_than="23h")


def test_prune__requires_an_age() -> None:
    """There is no default: how long a status matters is the project's to say."""
    assert "--older-than" in refused("prune")[1]


@pytest.mark.usefixtures("own_databases")
def test_prune__a_database_that_fails() -> None:
    """The others are pruned all the same, and the exit code is 3."""
    state("old", 31 * DAY, using="good")
    stdout = io.StringIO()
    databases = [part for alias in ("broken", "good") for part in ("--database", alias)]
    with pytest.raises(CommandError, match="'broken': unable to open") as caught:
        vega("prune", "--older-than", "30d", *databases, stdout=stdout)
    assert caught.value.returncode == 3
    assert stdout.getvalue() == "database\tdeleted\ngood\t1\n"
    assert keys("good") == set()


@pytest.mark.usefixtures("own_databases")
def test_prune__a_database_without_the_table() -> None:
    """One that was never migrated is passed over, unless it was named."""
    stdout = io.StringIO()
    with pytest.raises(CommandError) as caught:
        vega("prune", "--older-than", "36500d", stdout=stdout)
    assert "'empty'" not in str(caught.value)
    assert stdout.getvalue() == "database\tdeleted\ndefault\t0\nother\t0\ngood\t0\n"
    code, message = refused("prune", "--older-than", "30d", "--database", "empty")
    assert (code, "'empty': it has no table django_vega_refreshstate" in message) == (3, True)


# show


@EVERYWHERE
def test_show__stored_status() -> None:
    """Each scope that has the key is a row, from every database; nothing else is shown."""
    state("quakes:ak", DAY, scope="a.refresh", generation_written=7, fence=9)
    state("quakes:ak", DAY, scope="b.refresh", state="failed", error="Boom: no\tanswer\n\x1b[2J")
    state("quakes:ak", None, scope="a.refresh", using="other")
    state("quakes:ak:2", DAY)
    head, *lines = [line.split("\t") for line in vega("show", "quakes:ak").splitlines()]
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    assert [(row["kind"], row["where"], row["scope"], row["state"]) for row in rows] == [
        ("stored", "default", "a.refresh", "ok"),
        ("stored", "default", "b.refresh", "failed"),
        ("stored", "other", "a.refresh", "idle"),
    ]
    assert [row["generation"] for row in rows] == ["7", "", ""]
    # One line each, and nothing that would steer a terminal.
    assert rows[1]["error"] == r"Boom: no\tanswer\n\x1b[2J"
    assert datetime.fromisoformat(rows[0]["finished_at"]).tzinfo == UTC
    only = vega("show", "quakes:ak", "--scope", "b.refresh").splitlines()
    assert len(only) == 2


@EVERYWHERE
def test_show__flights_of_this_process() -> None:
    """A flight is a row too, with its state, its age and who joined it."""
    gate = Gate()
    with threads.start(lambda: shown(2, gate)) as running:
        assert gate.entered.wait(TIMEOUT)
        head, line = (line.split("\t") for line in vega("show", "shown:2").splitlines())
        document = json.loads(vega("show", "shown:2", "--json"))
        assert refused("show", "shown:2", "--scope", "elsewhere")[0] == 1
        gate.open()
    running.result()
    row = dict(zip(head, line, strict=True))
    assert (row["kind"], row["where"], row["state"], row["joined"]) == (
        "flight",
        "default",
        "running",
        "0",
    )
    assert row["scope"] == f"{__name__}.shown"
    (flight,) = document["flights"]
    assert (flight["key"], flight["strategy"], flight["state"]) == ("shown:2", "dedupe", "running")
    assert flight["generation"] == int(row["generation"])
    assert document["stored"] == []


@EVERYWHERE
def test_show__json() -> None:
    """One document, with everything that is stored."""
    started = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    state(
        "quakes:ak",
        DAY,
        state="failed",
        error="Boom: no answer",
        generation_written=7,
        fence=9,
        started_at=started,
    )
    document = json.loads(vega("show", "quakes:ak", "--json"))
    (stored,) = document["stored"]
    assert datetime.fromisoformat(stored.pop("finished_at")) < timezone.now() - DAY / 2
    assert stored == {
        "database": "default",
        "key": "quakes:ak",
        "scope": "tests",
        "state": "failed",
        "generation": 7,
        "fence": 9,
        "started_at": "2026-01-02T03:04:05+00:00",
        "error": "Boom: no answer",
    }
    assert (document["key"], document["scope"], document["flights"]) == ("quakes:ak", None, [])


def mask(key: str) -> str:
    """Show the namespace of a key only."""
    return f"{key.partition(':')[0]}:***"


@EVERYWHERE
def test_show__masked_keys() -> None:
    """A masked key is found by what it is, alone, and by what is displayed, with all that look so.

    The key that was typed is never printed in place of the mask.
    """
    for account in (1, 2):
        row = state(f"oauth:{account}", DAY, scope=f"scope-{account}")
        RefreshState.objects.filter(pk=row.pk).update(key="oauth:***")
    with override_settings(DJANGO_VEGA={"default": {"KEY_DISPLAY": mask}}):
        (one,) = json.loads(vega("show", "oauth:2", "--json"))["stored"]
        both = json.loads(vega("show", "oauth:***", "--json"))["stored"]
    assert (one["key"], one["scope"]) == ("oauth:***", "scope-2")
    assert [row["scope"] for row in both] == ["scope-1", "scope-2"]


@EVERYWHERE
def test_show__terminal() -> None:
    """People see columns."""
    state("quakes:ak", DAY, scope="a")
    state("quakes:ak", DAY, scope="a.longer.scope", fence=3)
    head, first, second = vega("show", "quakes:ak", stdout=Terminal()).splitlines()
    assert head.index("state") == first.index("ok") == second.index("ok")
    assert "\t" not in head


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_show__nothing_known(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown key ends with code 1, and stderr says where it was looked for."""
    state("quakes:ak", DAY)
    code, message = refused("show", "quakes:AK")
    assert code == 1
    assert "nothing is known of 'quakes:AK'" in message
    assert "(default, other)" in message
    assert exit_code("show", "quakes:hv", "--json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["stored"] == []
    assert "nothing is known of 'quakes:hv'" in captured.err
    assert exit_code("show", "quakes:ak") == 0


@pytest.mark.usefixtures("own_databases")
def test_show__a_database_that_fails() -> None:
    """What the others know is shown, and the exit code is 3."""
    state("quakes:ak", DAY, using="good")
    stdout = io.StringIO()
    with pytest.raises(CommandError, match="'broken': unable to open") as caught:
        vega("show", "quakes:ak", stdout=stdout)
    assert caught.value.returncode == 3
    assert len(stdout.getvalue().splitlines()) == 2


# The command itself


def test_command__needs_a_subcommand() -> None:
    """Alone it does nothing, and says what there is."""
    assert exit_code() == 2
    assert exit_code("shwo") == 2


@pytest.mark.parametrize("name", ["show", "prune"])
def test_command__help_documents_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each subcommand lists its exit codes, one per line."""
    assert exit_code(name, "--help") == 0
    printed = capsys.readouterr().out
    lines = printed.partition("exit codes:\n")[2].splitlines()
    assert lines[0].startswith("  0  ")
    assert any(line.startswith("  3  a database failed") for line in lines)


@EVERYWHERE
@pytest.mark.parametrize("arguments", [("show", "x"), ("prune", "--older-than", "9d")])
def test_command__wrong_setting(arguments: tuple[str, ...]) -> None:
    """A faulty setting is told as `manage.py check` tells it, with code 2; nothing is deleted."""
    state("x", 40 * DAY)
    with override_settings(DJANGO_VEGA={"default": {"WORKERS": 0}}):
        code, message = refused(*arguments)
    assert (code, "WORKERS" in message) == (2, True)
    assert keys() == {"x"}
