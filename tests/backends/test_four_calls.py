"""The table of the contract at the level of the scripts: four calls on one key, fired at once.

Each row runs on one server and on a Cluster, and every script twice.
"""

import pytest

from django_vega.backends.protocol import (
    Cancelled,
    Done,
    Dropped,
    Follow,
    Full,
    Leader,
    Lost,
    Outcome,
    Queued,
    Settled,
)
from django_vega.core.strategies import RESTART, Strategy, bounded

FOUR = ["a", "b", "c", "d"]


def test_four_calls__none(desk):
    """Four lead, each with a generation of its own, and each settles its own outcome."""
    replies = [desk.admit(token, "none") for token in FOUR]
    assert [type(reply) for reply in replies] == [Leader] * 4
    assert [desk.settle(token) for token in FOUR] == [Settled()] * 4
    generations = [reply.generation for reply in replies]
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("rule", ["dedupe", bounded(1)], ids=["dedupe", "bounded(1)"])
def test_four_calls__dedupe(desk, rule):
    """One leads; the others follow it and get its outcome."""
    first, *others = [desk.admit(token, rule) for token in FOUR]
    assert isinstance(first, Leader)
    assert [(type(reply), reply.generation) for reply in others] == [(Follow, first.generation)] * 3
    assert {reply.holder.process for reply in others} == {"process-of-a"}
    assert desk.snapshot().followers == {f"process-of-{token}" for token in "bcd"}

    assert desk.settle("a", b"the first one's") == Settled()

    done = Done(first.generation, Outcome("value", b"the first one's"))
    assert [desk.admit(token, rule, want=first.generation) for token in "bcd"] == [done] * 3
    assert desk.picture() == ([], [], [])


def test_four_calls__restart(desk):
    """Each newcomer leads and cancels the one before it, whose outcome is lost."""
    replies = [desk.admit(token, RESTART) for token in FOUR]
    assert [type(reply) for reply in replies] == [Leader] * 4
    generation = desk.generations
    assert [reply.cancelled for reply in replies] == [
        (),
        (Cancelled("a", "process-of-a", generation["a"]),),
        (Cancelled("b", "process-of-b", generation["b"]),),
        (Cancelled("c", "process-of-c", generation["c"]),),
    ]
    assert desk.picture() == (["d"], ["a", "b", "c"], [])
    assert [desk.settle(token) for token in FOUR] == [*[Lost("abort")] * 3, Settled()]
    assert desk.picture() == ([], [], [])


def test_four_calls__serialize(desk):
    """They run one after another, in the order in which they came."""
    replies = [desk.admit(token, "serialize") for token in FOUR]
    assert isinstance(replies[0], Leader)
    assert [(type(reply), reply.ahead) for reply in replies[1:]] == [
        (Queued, 0),
        (Queued, 1),
        (Queued, 2),
    ]
    for token, following in zip("abc", "bcd", strict=True):
        assert [type(desk.admit(other, "serialize")) for other in "dcb" if other > token] == [
            Queued
        ] * (ord("d") - ord(token))
        assert desk.settle(token) == Settled()
        assert isinstance(desk.admit(following, "serialize"), Leader)
    assert desk.settle("d") == Settled()
    assert list(desk.generations.values()) == sorted(desk.generations.values())


def test_four_calls__exhaust(desk):
    """One leads; the others are dropped and leave nothing behind."""
    first, *others = [desk.admit(token, "exhaust") for token in FOUR]
    assert isinstance(first, Leader)
    assert [(type(reply), reply.holder.process) for reply in others] == [
        (Dropped, "process-of-a")
    ] * 3
    now = desk.snapshot()
    assert ([one.token for one in now.flights], now.followers) == (["a"], frozenset())


def test_four_calls__bounded_by_two(desk):
    """Two lead, the others share the first one's outcome."""
    a, b, c, d = (desk.admit(token, bounded(2)) for token in FOUR)
    assert [type(reply) for reply in (a, b, c, d)] == [Leader, Leader, Follow, Follow]
    assert c.generation == d.generation == a.generation < b.generation

    desk.settle("b", b"second")
    assert isinstance(desk.admit("c", bounded(2), want=a.generation), Follow)
    desk.settle("a", b"first")

    done = Done(a.generation, Outcome("value", b"first"))
    assert [desk.admit(token, bounded(2), want=a.generation) for token in "cd"] == [done] * 2


def test_four_calls__bulkhead(desk):
    """Any other point of the algebra: two run, one is parked, the fourth finds the queue full."""
    rule = Strategy(limit=2, when_full="queue", capacity=1)
    replies = [desk.admit(token, rule, capacity=1) for token in FOUR]
    assert [type(reply) for reply in replies] == [Leader, Leader, Queued, Full]
    assert replies[3].holder.process == "process-of-a"
    desk.settle("b")
    assert isinstance(desk.admit("c", rule, capacity=1), Leader)


def test_four_calls__coordinator_that_decides_nothing(desk):
    """Nothing is asked of the server, so nothing is stored."""
    assert desk.snapshot().version == 0
    assert desk.client.execute_command("EXISTS", *desk.keys) == 0
