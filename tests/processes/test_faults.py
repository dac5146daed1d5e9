"""What goes wrong with processes and servers: nobody hangs, and nothing stale is handed out.

Each test says what is broken and when, and fails where that did not hit anything. `Crew.results`
looks for outcomes that are older than their callers.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from tests.backends.servers import SentinelSetup, Server, until
from tests.processes.conftest import NO_DATABASE, alias
from tests.processes.crew import Crew, crew
from tests.writing_app.models import Quake

pytestmark = pytest.mark.once

LEASE = 1.5
# What DESIGN section 5 promises after the end of a lease, and a loaded machine on top.
SOON = 10.0
FOUR = [["sync"] * 2 + ["async"] * 2] * 4


@pytest.fixture
def four(own_server: Server) -> Iterator[Crew]:
    """Four processes on a server that the test may break."""
    with crew(4, alias(own_server.url), NO_DATABASE) as started:
        yield started


def led_by_one(four: Crew, key: str, **options: Any) -> None:
    """Let member 0 lead a flight with two callers, and the others follow with four each."""
    four.arrive(key, [["sync"] * 2, [], [], []], **options)
    four.call(key, [[], ["sync"] * 4, ["async"] * 4, ["sync"] * 4], **options)
    four.wait(lambda: four.count("coordination:reuse", key=key) == 13, "the others follow")


def wait_for_successor(four: Crew, key: str, *, after: float) -> None:
    """Wait until another process leads the key, and look when that was."""
    four.wait(lambda: four.leader(key) is not four.members[0], f"somebody takes {key} over")
    began = four.history("began", key=key)[-1]
    assert began["at"] - after < LEASE + SOON


def test_kill__of_the_leader(four: Crew):
    """Its followers elect another leader when its lease is over, and all that live get a value."""
    led_by_one(four, "killed")
    four.members[0].kill()
    killed_at = four.history()[-1]["at"]
    wait_for_successor(four, "killed", after=killed_at)
    four.open("killed")
    results = four.results("killed")
    # On a machine under load a successor may lose its lease as well.
    first, *later = (one["generation"] for one in four.history("began", key="killed"))
    assert len(results) == 12
    assert {one["generation"] for one in results} <= set(later)
    assert first < min(later)


def test_kill__of_the_head_of_a_queue(four: Crew):
    """Those who are parked behind a process that was killed run when its lease is over."""
    four.arrive("queue", [["sync"], [], [], []], strategy="serialize")
    four.call("queue", [[], ["sync"], ["async"], ["sync"]], strategy="serialize")
    four.wait(lambda: four.count("call:parked", key="queue") == 3, "three are parked")
    four.members[0].kill()
    four.open("queue")
    assert len({one["generation"] for one in four.results("queue")}) == 3


def test_kill__of_a_parked_process(four: Crew):
    """A ticket whose process is gone does not hold up those behind it."""
    four.arrive("ticket", [["sync"], [], [], []], strategy="serialize")
    for number in (1, 2, 3):
        four.members[number].do(
            do="call", number=str(number), kind="sync", key="ticket", strategy="serialize"
        )
        four.wait(
            lambda number=number: four.count("call:parked", key="ticket") == number, "it is parked"
        )
    four.members[1].kill()
    four.open("ticket")
    assert len({one["generation"] for one in four.results("ticket")}) == 3


def test_stop__of_the_leader_beyond_its_lease(four: Crew):
    """It is taken for dead; when it goes on, its own callers get what it came to, nobody else."""
    led_by_one(four, "stopped")
    four.members[0].stop()
    stopped_at = four.history()[-1]["at"]
    wait_for_successor(four, "stopped", after=stopped_at)
    four.members[0].resume()
    four.wait(lambda: four.count("lease:lost", key="stopped") >= 1, "it learns that it was taken")
    four.open("stopped")
    results = four.results("stopped")
    first, *later = (one["generation"] for one in four.history("began", key="stopped"))
    assert {one["generation"] for one in results if one["process"] == 0} == {first}
    assert {one["generation"] for one in results if one["process"] != 0} <= set(later)


def test_stop__of_a_follower(four: Crew):
    """It finds its outcome when it goes on."""
    led_by_one(four, "slow")
    four.members[1].stop()
    four.open("slow")
    four.wait(lambda: four.count("got", key="slow") == 10, "the others are told")
    four.members[1].resume()
    assert len({one["generation"] for one in four.results("slow")}) == 1


def test_long__work_beyond_the_lease_and_every_timeout_of_a_client(four: Crew):
    """A leader that renews leads on, and followers on default options wait for it."""
    led_by_one(four, "long")
    began = four.history("began", key="long")[0]["at"]
    # Calls of another key, one after the other, pass the time; each of them is a lease of its own.
    number = 0
    while four.history()[-1]["at"] - began < 3 * LEASE:
        number += 1
        key = f"meanwhile-{number}"
        four.arrive(key, [[], ["sync"], [], []])
        four.open(key)
        four.results(key)
    four.open("long")
    assert len({one["generation"] for one in four.results("long")}) == 1
    assert four.count("lease:lost") == 0


def test_flush__of_the_server(four: Crew, own_server: Server):
    """The leader restores its lease, or a second one runs beside it: everybody is told in time."""
    led_by_one(four, "flushed")
    assert own_server.client.dbsize() > 0
    own_server.client.flushall()
    four.open("flushed")
    assert len(four.results("flushed")) == 14


def test_flush__of_its_scripts(four: Crew, own_server: Server):
    """They are sent once more."""
    led_by_one(four, "scripts")
    own_server.client.script_flush()
    four.open("scripts")
    assert len({one["generation"] for one in four.results("scripts")}) == 1
    assert four.count("began", key="scripts") == 1


def test_restart__of_the_server(four: Crew, own_server: Server):
    """While it is away each process coordinates by itself; then all of them together again."""
    led_by_one(four, "restarted")
    own_server.kill()
    four.wait(
        lambda: len({one["process"] for one in four.history("began", key="restarted")}) == 4,
        "each process has a leader of its own",
    )
    own_server.start_again()
    four.open("restarted")
    assert len(four.results("restarted")) == 14
    together = ""
    while four.count("began", key=together) != 1:
        together += "together "
        four.arrive(together, FOUR)
        four.open(together)
        four.results(together)


@pytest.mark.parametrize("policy", ["raise", "run"])
def test_server_is_gone__policy(own_server: Server, policy: str):
    """The other two policies: an error that says so before anything runs, or no coordination."""
    with crew(2, alias(own_server.url, ON_BACKEND_ERROR=policy), NO_DATABASE) as two:
        own_server.kill()
        two.call("gone", [["sync", "sync"]] * 2)
        if policy == "run":
            two.wait(lambda: two.count("began", key="gone") == 4, "all run")
        two.open("gone")
        errors = {one.get("error") for one in two.results("gone")}
        assert errors == {"raise": {"BackendUnavailableError"}, "run": {None}}[policy]
        assert two.count("began", key="gone") == {"raise": 0, "run": 4}[policy]


@pytest.mark.parametrize("policy", ["local", "raise", "run"])
def test_server_is_gone__under_parked_calls(own_server: Server, policy: str):
    """Those who wait their turn are told at once, run at once, or in the turn of their process."""
    with crew(2, alias(own_server.url, ON_BACKEND_ERROR=policy), NO_DATABASE) as two:
        two.arrive("parked", [["sync"], []], strategy="serialize")
        two.arrive("parked", [["sync"], ["sync"]], strategy="serialize")
        own_server.kill()
        if policy == "raise":
            two.wait(lambda: two.count("got", key="parked") == 2, "both are told")
        else:
            begun = {"local": 2, "run": 3}[policy]
            two.wait(lambda: two.count("began", key="parked") == begun, "those who may run do")
        two.open("parked")
        errors = [one["error"] for one in two.results("parked") if "error" in one]
        assert errors == ["BackendUnavailableError"] * (2 if policy == "raise" else 0)
        assert two.count("began", key="parked") == (1 if policy == "raise" else 3)


@pytest.mark.parametrize("kind", ["pubsub", "normal"])
def test_clients__are_killed(four: Crew, own_server: Server, kind: str):
    """Connections come back, and whoever waited looks again."""
    led_by_one(four, kind)
    until(lambda: len(own_server.client.client_list(_type=kind)) >= 4, "all are connected")
    assert own_server.client.client_kill_filter(_type=kind) >= 4
    four.open(kind)
    assert len({one["generation"] for one in four.results(kind)}) == 1
    assert four.count("began", key=kind) == 1


def test_clients__are_paused(four: Crew, own_server: Server):
    """A server that stands still for a moment loses nothing."""
    led_by_one(four, "paused")
    own_server.client.client_pause(500)
    four.open("paused")
    assert len({one["generation"] for one in four.results("paused")}) == 1


def test_cluster__a_node_is_killed(redis_cluster: list[Server]):
    """The keys of the node that is gone are coordinated in each process; the others go on."""
    location = [f"redis+cluster://127.0.0.1:{node.port}" for node in redis_cluster]
    with crew(2, alias(location), NO_DATABASE) as two:
        keys = [f"node-{number}" for number in range(12)]
        for key in keys:
            two.arrive(key, [["sync"] * 2] * 2)
        redis_cluster[2].kill()
        for key in keys:
            two.open(key)
        for key in keys:
            assert len(two.results(key)) == 4


def test_sentinel__fails_over(sentinel_setup: SentinelSetup):
    """The replica takes over: calls end, and later ones are coordinated there."""
    more = {"OPTIONS": {"SENTINELS": [("127.0.0.1", sentinel_setup.sentinel.port)]}}
    with crew(2, alias(f"redis://{sentinel_setup.service}/0", **more), NO_DATABASE) as two:
        two.arrive("before", [["sync"] * 2] * 2)
        sentinel_setup.master.kill()
        two.open("before")
        assert len(two.results("before")) == 4
        after = ""
        while two.count("began", key=after) != 1:
            after += "after "
            two.arrive(after, [["sync"] * 2] * 2)
            two.open(after)
            two.results(after)


@pytest.mark.parametrize("seed", [1, 2])
def test_mixture__of_strategies_cancellations_and_faults(four: Crew, own_server: Server, seed: int):
    """600 calls of three keys, each under any strategy, while the server forgets and hangs up.

    All are told, nobody gets what was there before, and no process keeps anything.
    """
    chance = random.Random(seed)
    strategies: list[Any] = [
        "dedupe",
        "restart",
        "exhaust",
        "none",
        "by hand",
        [2],
        [2, "queue"],
        [2, "cancel"],
    ]
    client = own_server.client
    faults = [
        client.flushall,
        lambda: client.client_kill_filter(_type="pubsub"),
        lambda: client.client_kill_filter(_type="normal", skipme=True),
    ]
    hit = 0
    for round_ in range(5):
        keys = [f"{round_}-{number}" for number in range(3)]
        for key in keys[1:]:
            four.open(key)
        for number in range(120):
            member, key = chance.choice(four.members), chance.choice(keys)
            options: dict[str, Any] = {"strategy": chance.choice(strategies)}
            if options["strategy"] == "dedupe":
                options |= chance.choice([{}, {"next": True}, {"while_busy": "raise"}])
            # A thread does not queue behind a task of its own process.
            kind = "sync" if member.number % 2 else "async"
            name = f"{round_}-{number}"
            member.do(do="call", number=name, kind=kind, key=key, **options)
            if chance.random() < 0.03:
                member.do(do="cancel", key=key)
            if chance.random() < 0.02:
                chance.choice(faults)()
                hit += 1
        four.open(keys[0])
        errors = {one.get("error") for key in keys for one in four.results(key)}
        assert errors <= {None, "CallCancelled", "Busy"}
    assert hit > 5
    for member in four.members:
        member.do(do="in_flight")
    four.wait(lambda: four.count("in_flight") == 4, "all answer")
    assert [one["keys"] for one in four.history("in_flight")] == [[]] * 4


@pytest.fixture
def database() -> dict[str, Any]:
    """The database of the tests, for other processes."""
    settings = connections["default"].settings_dict
    if settings["ENGINE"].endswith("sqlite3"):
        pytest.skip("SQLite's test database is in the memory of this process")
    return {name: settings[name] for name in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}


@pytest.mark.databases
@pytest.mark.django_db(transaction=True)
def test_rows__a_paused_leader_writes_no_stale_row(own_server: Server, database: dict[str, Any]):
    """The database refuses what a leader writes that was taken for dead meanwhile."""
    with crew(4, alias(own_server.url), database) as four:
        four.arrive("rows", [["rows"] * 2, [], [], []])
        four.call("rows", [[], *[["rows"] * 2] * 3])
        four.wait(lambda: four.count("coordination:reuse", key="rows") == 7, "the others follow")
        four.members[0].stop()
        wait_for_successor(four, "rows", after=four.history()[-1]["at"])
        for member in four.members[1:]:
            member.do(do="open", key="rows")
        four.wait(lambda: four.count("got", key="rows") == 6, "the others have written")
        four.members[0].resume()
        four.open("rows")
        results = four.results("rows")
        newest = max(one["generation"] for one in results if one["outcome"] == "written")
        outcomes = {one["outcome"] for one in results if one["process"] == 0}
        assert outcomes == {"superseded"}
        assert Quake.objects.get(code="rows").place == str(newest)


@pytest.mark.databases
@pytest.mark.django_db(transaction=True)
def test_rows__a_restart_voids_a_paused_leader(own_server: Server, database: dict[str, Any]):
    """It moves the fence before it runs: what it cancelled writes nothing, even if it never hears.

    The server is gone when the paused leader goes on, so the database alone can tell it.
    """
    with crew(2, alias(own_server.url, LEASE=30), database) as two:
        two.arrive("restart", [["rows"], []])
        two.members[0].stop()
        two.call("restart", [[], ["rows"]], strategy="restart")
        two.wait(lambda: two.count("began", key="restart") == 2, "it runs")
        own_server.kill()
        two.members[0].resume()
        two.members[0].do(do="open", key="restart")
        two.wait(lambda: two.count("got", key="restart") == 1, "the late one has ended")
        assert two.history("got", key="restart")[0].get("outcome") == "superseded"
        assert not Quake.objects.exists()
        two.open("restart")
        two.results("restart")
        assert Quake.objects.get().code == "restart"
