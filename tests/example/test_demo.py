import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 100.0  # seconds; the whole demo takes a few

Table = dict[str, dict[str, Any]]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """The example's environment, with its database in ``folder``."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "VEGA_EXAMPLE_DB": str(folder / "example.sqlite3"),
        **variables,
    }


def play(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as ``make demo`` does, on a database of its own."""
    return subprocess.run(
        [sys.executable, "-m", "example_project.demo", *arguments],
        cwd=ROOT,
        env=environment(folder, **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """All scenarios, played once from nothing."""
    return play(tmp_path_factory.mktemp("demo"), "--json", "--no-serve")


@pytest.fixture
def tables(everything: subprocess.CompletedProcess[str]) -> dict[str, Table]:
    """The rows of each scenario by variant."""
    return {
        scenario["name"]: {row["variant"]: row for row in scenario["rows"]}
        for scenario in json.loads(everything.stdout)["scenarios"]
    }


def numbers(row: dict[str, Any]) -> tuple[int, ...]:
    """What a row counts, in the order of the table; not the wait."""
    names = ("upstream_calls", "served", "joined", "cancelled", "rows_written", "stale_overwrites")
    return tuple(row[name] for name in names)


class TestScenarios:
    def test_every_promise_holds__from_an_empty_folder(
        self, everything: subprocess.CompletedProcess[str]
    ):
        """The scenarios hold, the exit code is 0, and stdout is one JSON document."""
        assert everything.returncode == 0, everything.stderr
        document = json.loads(everything.stdout)

        assert document["held"] is True
        assert {scenario["name"]: scenario["broken"] for scenario in document["scenarios"]} == {
            "stampede": [],
            "crossing": [],
            "pages": [],
            "typing": [],
            "compare": [],
            "fanout": [],
            "feed": [],
        }

    def test_stampede__20_callers(self, tables: dict[str, Table]):
        """Without vega 20 upstream calls and 20 writes; with it one of each, 19 callers join."""
        table = tables["stampede"]

        assert numbers(table["without vega"])[:5] == (20, 20, 0, 0, 2000)
        assert numbers(table["with vega"]) == (1, 20, 19, 0, 100, 0)
        assert numbers(table["with vega, async"]) == (1, 20, 19, 0, 100, 0)

    def test_crossing__the_old_answer_arrives_last(self, tables: dict[str, Table]):
        """Without vega the old answer overwrites all 100 rows; with it none is overwritten."""
        table = tables["crossing"]

        assert numbers(table["without vega"]) == (2, 2, 0, 0, 200, 100)
        assert numbers(table["with vega"]) == (2, 2, 0, 0, 100, 0)

    def test_crossing__of_two_keys_that_share_rows(self, tables: dict[str, Table]):
        """Without vega the old search overwrites the 96 rows it shares; the row guard spares them.

        The four events that only the search has found are written with its first, old answer.
        """
        table = tables["crossing"]

        assert numbers(table["two keys, without"]) == (3, 3, 0, 0, 300, 96)
        assert numbers(table["two keys, with vega"]) == (3, 3, 0, 0, 204, 0)

    def test_pages__of_one_list(self, tables: dict[str, Table]):
        """Without vega the page that comes second takes the first one's 100 rows with it."""
        table = tables["pages"]

        assert numbers(table["without vega"]) == (2, 2, 0, 0, 200, 0)
        assert numbers(table["with vega"]) == (2, 2, 0, 0, 200, 0)
        assert (table["without vega"]["rows_lost"], table["with vega"]["rows_lost"]) == (100, 0)

    def test_typing__six_keystrokes(self, tables: dict[str, Table]):
        """Restart starts all six, cancels five, and only the last one's rows are written."""
        table = tables["typing"]

        assert numbers(table["without vega"]) == (6, 6, 0, 0, 600, 100)
        assert numbers(table["with vega"]) == (6, 1, 0, 5, 100, 0)

    def test_feed__five_calls_in_three_variants(self, tables: dict[str, Table]):
        """5 upstream calls; 1 with 4 joined; 2 with 3 joined when the badge has its own key."""
        table = tables["feed"]

        assert numbers(table["without vega"])[:4] == (5, 5, 0, 0)
        assert numbers(table["with vega, one key"]) == (1, 5, 4, 0, 100, 0)
        assert numbers(table["with vega, badge apart"]) == (2, 5, 3, 0, 100, 0)

    def test_compare__six_columns_of_five_answers(self, tables: dict[str, Table]):
        """Who ran, joined, waited for a run of its own, or was given what is stored."""
        table = tables["compare"]

        assert {variant: tuple(row.values())[1:] for variant, row in table.items()} == {
            "none": (4, 0, 0, 0, "yes", "runs again"),
            "mutex": (4, 0, 2, 0, "no", "runs its own"),
            "singleflight": (3, 1, 0, 0, "yes", "runs again"),
            "cache": (3, 0, 0, 1, "yes", "stored result"),
            "cache, then singleflight": (2, 1, 0, 1, "yes", "stored result"),
        }

    def test_fanout__six_members_and_a_crowd(self, tables: dict[str, Table]):
        """The table of t0 and t1; a crowd takes two threads, or as many as it has members."""
        lines = [tuple(row.values()) for row in tables["fanout"].values()]

        assert lines[:3] == [
            ("t0, A and B at work", "A B", "C D E", "F", 6, 2, 0),
            ("t1, A has ended", "C B", "D E F", "", 6, 2, 0),
            ("10000 members, fan_out", "2", "3", "1", 6, 2, 0),
        ]
        *_, threads, waiting = lines[3]
        assert lines[3][0] == f"threads first, {threads} of 10000 started"
        assert waiting == threads - 2

    def test_waits_are_measured__in_every_row(self, tables: dict[str, Table]):
        """Every row of the scenarios about callers says how long they waited."""
        rows = [row for table in tables.values() for row in table.values() if "served" in row]

        assert len(rows) >= 12
        assert all(row["p95_wait_ms"] > 0 for row in rows)


class TestCommandLine:
    def test_one_scenario_can_be_picked__and_is_printed_as_a_table(self, tmp_path: Path):
        """``--scenario`` plays that one alone; without ``--json`` a table stands on stdout."""
        run = play(tmp_path, "--scenario", "crossing", "--no-serve")

        assert run.returncode == 0, run.stderr
        assert "[1/1] crossing" in run.stdout
        assert "stampede" not in run.stdout
        assert re.search(r"calls +served +joined .* written +overwrites +lost\n", run.stdout)
        assert re.search(r"  with vega +2 +2 .* 100 +0 +0\n", run.stdout)
        assert run.stdout.endswith("  held\n\n")

    def test_the_exit_code_is_1__when_a_promise_does_not_hold(self, tmp_path: Path):
        """With coordination turned off by a policy, the stampede says so and fails."""
        run = play(
            tmp_path,
            *("--scenario", "stampede", "--json", "--no-serve"),
            DJANGO_SETTINGS_MODULE="tests.example.policy_none",
        )

        assert run.returncode == 1, run.stderr
        document = json.loads(run.stdout)
        assert document["held"] is False
        broken = document["scenarios"][0]["broken"]
        assert {"claim": "upstream calls with vega", "expected": 1, "measured": 20} in broken
        assert "NOT HELD" in run.stderr

    def test_an_unknown_scenario_is_refused__with_the_names(self, tmp_path: Path):
        """A wrong name ends with exit code 2 and lists the scenarios."""
        run = play(tmp_path, "--scenario", "earthquake", "--no-serve")

        assert run.returncode == 2
        assert "stampede" in run.stderr

    def test_it_can_be_played_again__on_the_same_database(self, tmp_path: Path):
        """What the first run left does not change the second one's numbers."""
        runs = [play(tmp_path, "--scenario", "typing", "--json", "--no-serve") for _ in range(2)]

        assert [run.returncode for run in runs] == [0, 0]

    @pytest.mark.parametrize(
        "arguments",
        [("check", "--fail-level", "WARNING"), ("makemigrations", "--check", "--dry-run")],
        ids=["checks", "migrations"],
    )
    def test_the_project_is_in_order__for_django(self, tmp_path: Path, arguments: tuple[str, ...]):
        """``manage.py`` works; system checks say nothing, and no migration is missing."""
        run = subprocess.run(
            [sys.executable, "example_project/manage.py", *arguments],
            cwd=ROOT,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

        assert run.returncode == 0, run.stderr


class TestSite:
    def test_the_site_is_served__until_ctrl_c(self, tmp_path: Path):
        """After the scenarios the week is stored, the admin answers, and Ctrl-C ends with 0."""
        # Tests that run as a background job ignore SIGINT, and their children would inherit that.
        inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "example_project.demo", "--scenario", "feed", "--port", "0"],
                cwd=ROOT,
                env=environment(tmp_path),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, inherited)
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            printed = []
            url = None
            while url is None:
                line = process.stdout.readline()
                assert line, "".join(printed)
                printed.append(line)
                url = re.search(r"http://\S+/admin/", line)
            with urlopen(f"{url[0]}login/", timeout=10) as response:
                page = response.read().decode()
            with urlopen(f"{url[0].removesuffix('admin/')}static/admin/css/base.css", timeout=10):
                pass
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

        assert "Django administration" in page
        assert any("admin / admin" in line for line in printed)
        assert any("23 of 23 pages" in line for line in printed)
        with closing(sqlite3.connect(tmp_path / "example.sqlite3")) as database:
            assert database.execute("SELECT count(*) FROM feed_quake").fetchone() == (1707,)
            # Version 1 throughout: what was refused on the way has left no trace.
            assert database.execute(
                "SELECT magnitude FROM feed_quake WHERE usgs_id = 'ci37868143'"
            ).fetchone() == (2.0,)
