"""Eight processes with eight callers each, on one key: the table of the strategies holds."""

from collections import Counter

import pytest

from tests.processes.crew import Crew, overlaps

pytestmark = pytest.mark.once

MIXED = [["sync"] * 6 + ["async"] * 2] * 8
# A thread does not queue behind a task of its own process.
APART = [["sync"] * 8, ["async"] * 8] * 4


@pytest.mark.parametrize("strategy", ["dedupe", "by hand"])
@pytest.mark.parametrize("kinds", [MIXED, APART], ids=["mixed", "apart"])
def test_dedupe__one_execution_for_all(eight: Crew, strategy: str, kinds: list[list[str]]):
    """64 callers, one run, one outcome; two where a thread must not wait for its own task."""
    key = f"dedupe-{strategy}-{len(kinds[0])}-{kinds is MIXED}"
    for _ in range(3):
        key += "."
        assert eight.arrive(key, kinds, strategy=strategy) == 64
        eight.open(key)
        results = eight.results(key)
        began = eight.history("began", key=key)
        leaders = {one["process"] for one in began}
        assert len(began) == 1 or (kinds is MIXED and len(leaders) == 1 and len(began) == 2)
        assert {one.get("generation") for one in results} == {one["generation"] for one in began}
        assert len(results) == 64


def test_bounded__two_executions(eight: Crew):
    """Two run, 62 share."""
    eight.arrive("bounded", APART, strategy=[2])
    eight.open("bounded")
    results = eight.results("bounded")
    assert eight.count("began", key="bounded") == 2
    oldest = min(one["generation"] for one in eight.history("began", key="bounded"))
    assert Counter(one["generation"] for one in results)[oldest] == 63


def test_restart__the_last_one_wins(eight: Crew):
    """64 start, 63 are cancelled, whoever came last gets a value."""
    eight.arrive("restart", APART, strategy="restart")
    eight.open("restart")
    results = eight.results("restart")
    assert Counter(one.get("error") for one in results) == {"CallCancelled": 63, None: 1}
    newest = max(one["generation"] for one in eight.history("began", key="restart"))
    assert [one["generation"] for one in results if "error" not in one] == [newest]


def test_exhaust__one_runs(eight: Crew):
    """63 are dropped."""
    eight.arrive("exhaust", MIXED, strategy="exhaust")
    eight.open("exhaust")
    results = eight.results("exhaust")
    assert Counter(one.get("error") for one in results) == {"CallCancelled": 63, None: 1}
    assert eight.count("began", key="exhaust") == 1


def test_serialize__one_after_another(eight: Crew):
    """64 run, none beside another, each with its own value, generations in their order."""
    eight.arrive("serialize", APART, strategy="serialize")
    eight.open("serialize")
    results = eight.results("serialize")
    history = eight.history("began", "ended", key="serialize")
    assert overlaps(history) == 1
    generations = [one["generation"] for one in history if one["what"] == "began"]
    assert generations == sorted(generations)
    assert sorted(one["generation"] for one in results) == generations


def test_none__all_run(eight: Crew):
    """64 runs beside each other."""
    eight.arrive("none", MIXED, strategy="none")
    eight.open("none")
    assert len({one["generation"] for one in eight.results("none")}) == 64


def test_next__one_running_and_one_waiting(eight: Crew):
    """Of callers in all processes who need a newer run one runs for all."""
    eight.arrive("next", [["sync"], *[[]] * 7])
    eight.call("next", [["sync"] * 4] * 8, next=True)
    eight.wait(
        lambda: eight.count("call:parked", "coordination:reuse", key="next") == 32, "all wait"
    )
    eight.open("next")
    results = eight.results("next")
    first, second = eight.history("began", key="next")
    values = Counter(one["generation"] for one in results)
    assert values == {first["generation"]: 1, second["generation"]: 32}


def test_cancel__over_all_processes(eight: Crew):
    """Whoever cancels a key ends its flight and tells its followers, wherever they are."""
    eight.arrive("cancelled", APART)
    leader = eight.leader("cancelled")
    other = eight.members[leader.number - 1]
    other.do(do="cancel", key="cancelled")
    eight.wait(lambda: eight.count("got", key="cancelled") >= 63, "followers are told")
    eight.open("cancelled")
    assert {one.get("error") for one in eight.results("cancelled")} == {"CallCancelled"}


def test_afterwards__nothing_is_left(eight: Crew):
    """No process lists a flight when everything is over."""
    for member in eight.members:
        member.do(do="in_flight")
    eight.wait(lambda: eight.count("in_flight") == 8, "all answer")
    assert [one["keys"] for one in eight.history("in_flight")] == [[]] * 8
