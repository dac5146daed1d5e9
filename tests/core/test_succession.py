"""After a leader abandoned its flight, one follower runs, whatever the order in which they wake."""

import pytest

from django_vega.core.errors import ReentrantCallError
from tests.core.stage import Stage


def abandoned(stage, *followers):
    """Play a flight with followers whose leader goes away, and return the leader."""
    stage.admit("leader")
    for name in followers:
        stage.admit(name)
    leader = stage.named["leader"]
    stage.table.settle(leader, "abandon", reason="abandoned")
    return leader


def again(stage, name, leader, **options):
    """Let a follower of an abandoned leader come back, as a runtime does."""
    call = stage.make(name, **options)
    call.predecessor = leader
    if not stage.table.follow_heir(call, ()):
        stage.table.admit(call)
    stage.table.name_heir(call)
    return call


@pytest.mark.parametrize("ended_first", [False, True])
def test_succession__one_follower_runs(ended_first):
    """The first to come back leads; the others share its outcome, even if it is there already."""
    stage = Stage()
    leader = abandoned(stage, "f1", "f2", "f3")
    heir = again(stage, "f2 again", leader)
    assert (heir.state, leader.heir) == ("running", heir)
    if ended_first:
        stage.table.settle(heir, "succeed", value=7)
    others = [again(stage, f"{name} again", leader) for name in ("f1", "f3")]
    assert [call.leader for call in others] == [heir, heir]
    if not ended_first:
        stage.table.settle(heir, "succeed", value=7)
    assert [call.done() for call in others] == [True, True]
    assert len(stage.table) == 0


def test_succession__of_the_heir():
    """When the heir abandons too, its followers come back once more, and one of them runs."""
    stage = Stage()
    leader = abandoned(stage, "f1", "f2", "f3")
    heir = again(stage, "f1 again", leader)
    follower = again(stage, "f2 again", leader)
    stage.table.settle(heir, "abandon", reason="abandoned")
    assert not follower.done()
    second = again(stage, "f2 once more", heir)
    assert (second.state, heir.heir) == ("running", second)
    late = again(stage, "f3 again", leader)
    assert (late.leader, late.done()) == (second, False)


def test_succession__a_newcomer_is_the_heir():
    """Who comes back to a key that a newcomer leads by now joins the newcomer."""
    stage = Stage()
    leader = abandoned(stage, "f1", "f2")
    stage.admit("newcomer")
    first = again(stage, "f1 again", leader)
    assert first.leader is leader.heir is stage.named["newcomer"]


def test_succession__a_thread_does_not_wait_for_a_loop():
    """A thread whose heir is an async flight leads a flight of its own."""
    stage = Stage()
    leader = abandoned(stage, "f1", "f2")
    heir = again(stage, "f1 again", leader, is_async=True)
    alone = again(stage, "f2 again", leader, thread=1)
    assert (heir.state, alone.state, alone.leader) == ("running", "running", None)


def test_succession__inside_the_heir():
    """A follower that comes back inside the heir's own flight is refused, not left to hang."""
    stage = Stage()
    leader = abandoned(stage, "f1", "f2")
    heir = again(stage, "f1 again", leader)
    inner = stage.make("inner")
    inner.predecessor = leader
    with pytest.raises(ReentrantCallError):
        stage.table.follow_heir(inner, (heir,))
    assert inner.state == "idle"


@pytest.mark.parametrize("asked", [99.0, 101.0])
def test_succession__the_heir_began_before_the_question(asked):
    """Who needs a run that begins after it asked takes no heir that has begun before."""
    stage = Stage()
    leader = abandoned(stage, "f1", "f2")
    heir = again(stage, "f1 again", leader)
    stage.now = 102.0
    needy = stage.make("f2 again", next=True)
    needy.predecessor, needy.created_at = leader, asked
    assert stage.table.follow_heir(needy, ()) is (asked < heir.started_at)
