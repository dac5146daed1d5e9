"""The lab over HTTP: every tab, the tables of the contract, and what bad input is told."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interpreters import ROOT

# Answers one request per line. The example has models of its own, so it has a process of its own.
SCRIPT = """
import json, sys
import django
django.setup()
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
visitors = {}
for line in sys.stdin:
    visitor, method, path, data, accept = json.loads(line)
    client = visitors.setdefault(visitor, Client(SERVER_NAME="localhost"))
    answer = getattr(client, method)(path, data, HTTP_ACCEPT=accept, follow=True)
    print(json.dumps([answer.status_code, answer.content.decode()]), flush=True)
"""

TABS = ["coordinators", "own", "panel", "compare", "walk", "fan-out"]

OWN = "success"
DEDUPED = "cancelled(dedupe)"
ABORTED = "cancelled(abort)"
DROPPED = "cancelled(exhaust-dropped)"
ORPHANED = "cancelled(orphaned-intent)"
CANCELLED = "CallCancelled(abort)"
LEFT_OUT = "CallCancelled(exhaust-dropped)"


def value(*numbers: int) -> list[str]:
    return [f"value {number}" for number in numbers]


# Strategy to executions, states, what the callers get, coordination events by caller.
FOUR_CALLS: dict[str, tuple[int, list[str], list[str], list[tuple[str, int]]]] = {
    "none": (4, [OWN] * 4, value(1, 2, 3, 4), []),
    "dedupe": (
        1,
        [OWN, DEDUPED, DEDUPED, DEDUPED],
        value(1, 1, 1, 1),
        [("reuse", 2), ("reuse", 3), ("reuse", 4)],
    ),
    "restart": (
        4,
        [ABORTED, ABORTED, ABORTED, OWN],
        [CANCELLED, CANCELLED, CANCELLED, "value 4"],
        [("restart", 2), ("restart", 3), ("restart", 4)],
    ),
    "serialize": (
        4,
        [OWN] * 4,
        value(1, 2, 3, 4),
        [("queued", 2), ("queued", 3), ("queued", 4)],
    ),
    "exhaust": (
        1,
        [OWN, DROPPED, DROPPED, DROPPED],
        ["value 1", LEFT_OUT, LEFT_OUT, LEFT_OUT],
        [("dropped", 2), ("dropped", 3), ("dropped", 4)],
    ),
    "bounded(2)": (
        2,
        [OWN, OWN, DEDUPED, DEDUPED],
        value(1, 2, 1, 1),
        [("reuse", 3), ("reuse", 4)],
    ),
}

FOUR_ANSWERS = [
    ["none", 4, 0, 0, 0, "yes", "runs again"],
    ["mutex", 4, 0, 2, 0, "no", "runs its own"],
    ["singleflight", 3, 1, 0, 0, "yes", "runs again"],
    ["cache", 3, 0, 0, 1, "yes", "stored result"],
]


@dataclass(frozen=True)
class Answer:
    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of all rows of all tables, as text."""
        rows = re.findall(r"<tr>(.*?)</tr>", self.text, re.DOTALL)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
        return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in row] for row in cells]


class Visitor:
    """Somebody with a browser, with or without JavaScript."""

    def __init__(self, name: str, example: subprocess.Popen[str]) -> None:
        self.name = name
        self._example = example

    def get(self, path: str, accept: str = "text/html") -> Answer:
        return self._ask("get", path, {}, accept)

    def post(self, path: str, accept: str = "text/html", **data: Any) -> Answer:
        return self._ask("post", path, data, accept)

    def play(self, slug: str, **data: Any) -> Any:
        """Start a run by the form, wait for the page, and return the run's document."""
        page = self.post(f"/lab/{slug}/", **data)
        assert page.status == 200, page.text
        return self.run(page)

    def run(self, page: Answer) -> Any:
        """Return the document of the run that a page shows."""
        (url,) = re.findall(r'data-run-url="([^"]*)"', page.text)
        return {**self.get(url).json, "url": url, "page": page}

    def act(self, run: Any, action: str, target: str = "") -> Any:
        """Press a button of a run's page."""
        page = self.post(f"{run['url']}act/", action=action, value=target)
        assert page.status == 200, page.text
        return self.run(page)

    def _ask(self, method: str, path: str, data: dict[str, Any], accept: str) -> Answer:
        assert self._example.stdin is not None
        assert self._example.stdout is not None
        line = json.dumps([self.name, method, path, data, accept])
        self._example.stdin.write(f"{line}\n")
        self._example.stdin.flush()
        return Answer(*json.loads(self._example.stdout.readline()))


JSON = "application/json"


@pytest.fixture(scope="module")
def example(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[subprocess.Popen[str], None, None]:
    """The example, with the lab mounted."""
    folder = tmp_path_factory.mktemp("lab")
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "VEGA_EXAMPLE_DB": str(folder / "example.sqlite3"),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def visitors(
    example: subprocess.Popen[str], request: pytest.FixtureRequest
) -> Callable[[str], Visitor]:
    return lambda name: Visitor(f"{request.node.name} {name}", example)


@pytest.fixture
def visitor(visitors: Callable[[str], Visitor]) -> Visitor:
    return visitors("one")


@pytest.mark.parametrize("slug", TABS)
def test_every_tab_renders__no_inline_code(visitor, slug):
    """Each tab has its form and links to all tabs, and nothing inline that a CSP refuses."""
    page = visitor.get(f"/lab/{slug}/")
    assert page.status == 200
    assert re.findall(r'<a href="/lab/([\w-]+)/"', page.text) == TABS
    assert f'<a href="/lab/{slug}/" aria-current="page">' in page.text
    assert 'method="post"' in page.text
    assert_nothing_inline(page)


def assert_nothing_inline(page: Answer) -> None:
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page.text)
    assert all(' src="' in tag for tag in re.findall(r"<script[^>]*>", page.text))
    ids = re.findall(r'\sid="([^"]*)"', page.text)
    assert len(ids) == len(set(ids))


def test_index__leads_to_the_first_tab(visitor):
    """The lab itself shows the coordinators."""
    assert "<h1>Coordinators</h1>" in visitor.get("/lab/").text


@pytest.mark.parametrize("strategy", FOUR_CALLS)
def test_four_calls__as_the_contract_says(visitor, strategy):
    """Four calls at once come out as in the contract: in the document and on the page."""
    run = visitor.play("coordinators", strategy=strategy, calls=4, spacing=0, duration=30)
    executions, states, got, coordination = FOUR_CALLS[strategy]
    assert run["over"]
    assert run["executions"] == executions
    assert [call["outcome"] for call in run["calls"]] == states
    assert [call["got"] for call in run["calls"]] == got
    assert told(run) == coordination
    assert {event["coordinator"] for event in run["events"]} == {strategy}
    assert f"Executions: <strong>{executions}</strong>" in run["page"].text
    shown = [row for row in run["page"].rows if len(row) == 4]
    assert [[row[0], row[2], row[3]] for row in shown[1:]] == [
        [str(number), *cells] for number, cells in enumerate(zip(states, got, strict=True), 1)
    ]
    assert_nothing_inline(run["page"])


def told(run: Any) -> list[tuple[str, int]]:
    """Type and caller of each coordination event."""
    family = "coordination:"
    return [
        (event["type"].removeprefix(family), event["number"])
        for event in run["events"]
        if event["type"].startswith(family)
    ]


def test_restart__cancelled_ids_by_number(visitor):
    """The log says which calls a restart cancelled, three in all."""
    run = visitor.play("coordinators", strategy="restart", calls=4, spacing=0, duration=0)
    restarts = [it for it in run["events"] if it["type"] == "coordination:restart"]
    assert [event["detail"] for event in restarts] == ["#1", "#2", "#3"]


def test_serialize__one_after_the_other(visitor):
    """The lanes of serialized calls do not overlap, and each shows how long it was parked."""
    run = visitor.play("coordinators", strategy="serialize", calls=3, spacing=0, duration=20)
    lanes = [lane["bars"] for lane in run["lanes"]]
    assert [[bar["state"] for bar in bars] for bars in lanes] == [
        ["success"],
        ["parked", "success"],
        ["parked", "success"],
    ]
    ran = [bars[-1] for bars in lanes]
    assert all(first["end"] <= then["start"] for first, then in itertools.pairwise(ran))


def test_lanes__hollow_and_joined(visitor):
    """The leader's bar counts those who joined; theirs are cancelled ones."""
    run = visitor.play("coordinators", strategy="dedupe", calls=3, spacing=0, duration=0)
    bars = [lane["bars"][0] for lane in run["lanes"]]
    assert [(bar["state"], bar["joined"]) for bar in bars] == [
        ("success", 2),
        ("cancelled", 0),
        ("cancelled", 0),
    ]
    assert all(bar["end"] is not None for bar in bars)


def test_spacing__calls_that_do_not_overlap(visitor):
    """A call that comes when the first one is over runs again: dedupe is no cache."""
    run = visitor.play("coordinators", strategy="dedupe", calls=2, spacing=300, duration=0)
    assert [call["outcome"] for call in run["calls"]] == [OWN, OWN]
    assert run["executions"] == 2


def test_burst_is_live__started_with_json(visitor):
    """With JavaScript the answer comes at once and names where to look; that ends as over."""
    visitor.get("/lab/coordinators/")
    answer = visitor.post(
        "/lab/coordinators/", accept=JSON, strategy="dedupe", calls=4, spacing=0, duration=200
    )
    assert answer.status == 201
    run = answer.json
    assert not run["over"]
    while not run["over"]:
        run = visitor.get(run["url"], accept=JSON).json
    assert [call["outcome"] for call in run["calls"]] == FOUR_CALLS["dedupe"][1]
    assert "cancelled(dedupe)" in run["html"]
    assert run["id"] in run["address"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_bounded_by_hand__equals_the_built_in(visitor, limit):
    """The handwritten bounded does in every cell what the built-in one does; at 1 it is dedupe."""
    run = visitor.play("own", coordinator="bounded", limit=limit, calls=4, duration=0)
    assert run["equal"] is True
    assert run["executions"] == run["built_in"]["executions"] == limit
    assert cells(run) == cells(run["built_in"])
    assert "Equal, cell by cell." in run["page"].text
    assert {event["coordinator"] for event in run["events"]} == {f"bounded({limit}) by hand"}
    if limit == 1:
        dedupe = visitor.play("coordinators", strategy="dedupe", calls=4, spacing=0, duration=0)
        assert cells(run) == cells(dedupe)


def cells(run: Any) -> list[Any]:
    """What has to be equal of two bursts."""
    calls = [(call["outcome"], call["got"], call["leader"]) for call in run["calls"]]
    return [run["executions"], calls, told(run)]


def test_forgetful__orphans(visitor):
    """A coordinator that does nothing: no execution, None for everybody, an event for each."""
    run = visitor.play("own", coordinator="forgetful", limit=1, calls=4, duration=0)
    assert run["executions"] == 0
    assert [call["outcome"] for call in run["calls"]] == [ORPHANED] * 4
    assert [call["got"] for call in run["calls"]] == ["None"] * 4
    assert told(run) == [("orphaned-intent", number) for number in (1, 2, 3, 4)]
    for number in (1, 2, 3, 4):
        types = [event["type"] for event in run["events"] if event["number"] == number]
        assert types == ["call:created", "coordination:orphaned-intent", "call:settled"]


@pytest.mark.parametrize(
    ("mode", "counters"),
    [
        ("plain", {"calls": 4, "requests": 4, "joined": 0}),
        ("singleflight", {"calls": 4, "requests": 2, "joined": 2}),
    ],
)
def test_panel__three_buttons_and_another_key(visitor, mode, counters):
    """Three calls of one key share a request under singleflight; another key starts its own."""
    run = visitor.play("panel", mode=mode, clock="by-hand")
    for button in ("open", "pull", "header", "suggest"):
        run = visitor.act(run, "press", button)
    assert run["counters"] == counters
    pages = [request["page"] for request in run["requests"]]
    assert pages.count("suggest") == 1
    for _ in range(6):
        assert not run["over"]
        run = visitor.act(run, "tick")
    assert run["over"]
    assert run["clock_ms"] == 1200
    assert [request["left"] for request in run["requests"]] == [0] * len(pages)
    assert all(call["got"] for call in run["calls"])
    assert_nothing_inline(run["page"])


def test_panel__a_request_that_begins_later_ends_later(visitor):
    """Each request takes six ticks of its own; a call after the end starts another one."""
    run = visitor.play("panel", mode="singleflight", clock="by-hand")
    run = visitor.act(run, "press", "open")
    run = visitor.act(run, "tick")
    run = visitor.act(run, "press", "suggest")
    for _ in range(5):
        run = visitor.act(run, "tick")
    assert [(it["page"], it["left"]) for it in run["requests"]] == [("home", 0), ("suggest", 1)]
    run = visitor.act(run, "press", "pull")
    assert run["counters"] == {"calls": 3, "requests": 3, "joined": 0}


def test_panel__the_clock_runs(visitor):
    """Without hands the clock ticks by itself, until nothing is in flight any more."""
    run = visitor.play("panel", mode="singleflight", clock="runs")
    run = visitor.act(run, "press", "open")
    while not run["over"]:
        run = visitor.run(visitor.get(f"/lab/panel/?run={run['id']}"))
    assert run["clock_ms"] == 1200
    assert run["calls"][0]["got"] == "page 1 of home"
    assert visitor.post(f"{run['url']}act/", action="tick").status == 400


def test_panel__too_many_in_flight(visitor):
    """The thirteenth call at once is refused, with a message."""
    run = visitor.play("panel", mode="plain", clock="by-hand")
    for _ in range(12):
        run = visitor.act(run, "press", "open")
    refused = visitor.post(f"{run['url']}act/", action="press", value="open")
    assert refused.status == 400
    assert "12 calls are in flight" in refused.text


def test_compare__as_promised(visitor):
    """What the four answers make of the four calls is the table of the specification."""
    run = visitor.play("compare", duration=0)
    assert [list(line.values()) for line in run["table"]] == FOUR_ANSWERS
    assert run["as_promised"] is True
    assert run["page"].rows[1:] == [[str(cell) for cell in line] for line in FOUR_ANSWERS]
    assert len(run["lanes"]) == 16


def test_walk__eight_steps(visitor):
    """One flight with three waiters: table, waiters, work and executions at every step."""
    run = visitor.play("walk")
    seen = [picture(run)]
    for _ in range(7):
        run = visitor.act(run, "next")
        seen.append(picture(run))
    assert seen == [
        (1, None, "", "not begun", 0),
        (2, 0, "A", "begun", 1),
        (3, 0, "A", "waits for upstream", 1),
        (4, 1, "AB", "waits for upstream", 1),
        (5, 2, "ABC", "waits for upstream", 1),
        (6, 2, "ABC", "has the answer", 1),
        (7, None, "", "over", 1),
        (8, None, "", "over", 1),
    ]
    assert [call["outcome"] for call in run["calls"]] == [OWN, DEDUPED, DEDUPED]
    assert [call["got"] for call in run["calls"]] == ["the home page"] * 3
    assert visitor.post(f"{run['url']}act/", action="next").status == 400


def picture(run: Any) -> tuple[int, int | None, str, str, int]:
    """Step, how many joined the flight in the table, waiters, work, executions."""
    joined = run["table"][0]["joined"] if run["table"] else None
    return run["step"], joined, "".join(run["waiters"]), run["work"], run["executions"]


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_walk__one_waiter_is_cancelled(visitor, name):
    """Whoever is cancelled goes alone, the first caller too: one request, the others are served."""
    run = visitor.play("walk")
    for _ in range(4):
        run = visitor.act(run, "next")
    run = visitor.act(run, "cancel", name)
    others = "ABC".replace(name, "")
    assert run["step"] == 5
    assert "".join(run["waiters"]) == others
    assert [flight["state"] for flight in run["table"]] == ["running"]
    assert visitor.post(f"{run['url']}act/", action="cancel", value=name).status == 400
    for _ in range(3):
        run = visitor.act(run, "next")
    got = {call["name"]: call["got"] for call in run["calls"]}
    assert got == {name: "CancelledError", **dict.fromkeys(others, "the home page")}
    assert run["executions"] == 1


def test_walk__all_are_cancelled(visitor):
    """A flight that nobody waits for goes on to its end."""
    run = visitor.play("walk")
    for _ in range(4):
        run = visitor.act(run, "next")
    for name in "ABC":
        run = visitor.act(run, "cancel", name)
    assert (run["waiters"], len(run["table"])) == ([], 1)
    for _ in range(3):
        run = visitor.act(run, "next")
    assert (run["table"], run["executions"], run["over"]) == ([], 1, True)


def test_fan_out__places(visitor):
    """Two at work, three queued, the sixth held; when A has ended, C takes its worker."""
    run = visitor.play("fan-out")
    assert places(run) == ("AB", "CDE", "F")
    assert run["admitted"] == 5
    run = visitor.act(run, "release", "A")
    assert places(run) == ("CB", "DEF", "")
    assert run["outcomes"] == [{"target": "A", "status": "done"}]
    run = visitor.act(run, "release", "E")
    assert places(run) == ("CB", "DEF", "")
    run = visitor.act(run, "release", "B")
    assert places(run) == ("CD", "EF", "")
    run = visitor.act(run, "release", "C")
    # The gate of E was open before its turn.
    assert places(run) == ("FD", "", "")
    run = visitor.act(run, "release-all")
    assert run["over"]
    assert run["accounting"]["done"] == 6
    assert visitor.post(f"{run['url']}act/", action="release", value="A").status == 400


def places(run: Any) -> tuple[str, str, str]:
    running, queued, held = ("".join(run[name]) for name in ("running", "queued", "held"))
    return running, queued, held


@pytest.mark.parametrize(
    ("slug", "data", "complaint"),
    [
        ("coordinators", {"calls": 13}, "less than or equal to 12"),
        ("coordinators", {"calls": 0}, "greater than or equal to 1"),
        ("coordinators", {"calls": "many"}, "whole number"),
        ("coordinators", {"duration": 2001}, "less than or equal to 2000"),
        ("coordinators", {"spacing": -1}, "greater than or equal to 0"),
        ("coordinators", {"strategy": "newest"}, "newest is not one of the available choices"),
        ("own", {"limit": 5}, "less than or equal to 4"),
        ("own", {"coordinator": "dedupe"}, "dedupe is not one of the available choices"),
        ("panel", {"mode": "both"}, "both is not one of the available choices"),
        ("compare", {"duration": 2001}, "less than or equal to 2000"),
    ],
)
@pytest.mark.parametrize("accept", ["text/html", JSON])
def test_bad_choice__refused(visitor, slug, data, complaint, accept):
    """A choice out of bounds is answered 400 with the reason, and nothing is started."""
    good = {
        "coordinators": {"strategy": "none", "calls": 1, "spacing": 0, "duration": 0},
        "own": {"coordinator": "bounded", "limit": 1, "calls": 1, "duration": 0},
        "panel": {"mode": "plain", "clock": "runs"},
        "compare": {"duration": 0},
    }
    refused = visitor.post(f"/lab/{slug}/", accept=accept, **{**good[slug], **data})
    assert refused.status == 400
    text = refused.json["error"] if accept == JSON else refused.text
    assert complaint in text
    assert "data-run-url" not in refused.text


def test_foreign_run__not_there(visitors):
    """A run belongs to its visitor: for others it is not there, to look at or to act on."""
    run = visitors("one").play("walk")
    other = visitors("other")
    for refused in (
        other.get(run["url"]),
        other.get(f"/lab/walk/?run={run['id']}"),
        other.post(f"{run['url']}act/", action="next"),
        other.post(f"{run['url']}act/", accept=JSON, action="next"),
        visitors("one").get("/lab/run/nothing/"),
        visitors("one").get(f"/lab/panel/?run={run['id']}"),
    ):
        assert refused.status == 404
        assert "somebody else" in refused.text
    assert visitors("one").get(run["url"]).json["step"] == 1


@pytest.mark.parametrize(
    ("slug", "action", "target"),
    [
        ("panel", "press", "everything"),
        ("panel", "", ""),
        ("walk", "back", ""),
        ("walk", "cancel", "A"),
        ("fan-out", "release", "G"),
        ("fan-out", "release", "AB"),
    ],
)
def test_unknown_action__refused(visitor, slug, action, target):
    """An action that there is not is answered 400 with a message."""
    run = visitor.play(slug, mode="plain", clock="runs")
    refused = visitor.post(f"{run['url']}act/", action=action, value=target)
    assert refused.status == 400
    assert 'role="alert"' in refused.text
    told = visitor.post(f"{run['url']}act/", accept=JSON, action=action, value=target)
    assert (told.status, bool(told.json["error"])) == (400, True)


def test_another_run__closes_the_one_before(visitor):
    """Starting anew lets go of what waited in the visitor's earlier run of that tab."""
    first = visitor.play("fan-out")
    visitor.play("fan-out")
    run = visitor.get(first["url"]).json
    while not run["over"]:
        run = visitor.get(first["url"]).json
    assert run["accounting"]["done"] == 6


def test_static_files__nothing_foreign():
    """The page's files load nothing from elsewhere, and write no styles into the page."""
    for file in (Path(ROOT) / "example_project" / "lab" / "static").rglob("*.*"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"(src|href|url|import|fetch)\W{1,3}https?:", text)
        assert ".style" not in text
        assert "eval(" not in text
