"""Every strategy is two parameters and one reducer."""

import copy
import pickle

import pytest

from django_vega.core.strategies import (
    DEDUPE,
    EXHAUST,
    FROM_ALIAS,
    NONE,
    RESTART,
    Strategy,
    bounded,
    decide,
    serialize,
    strategy_named,
)

QUEUE_TWO = Strategy(limit=2, when_full="queue")
RESTART_TWO = Strategy(limit=2, when_full="cancel")
EXHAUST_TWO = Strategy(limit=2, when_full="drop")

# strategy, unsettled peers, flights and stopping bodies, parked calls, capacity -> verdict
VERDICTS = [
    (NONE, 0, 0, 0, 0, "proceed"),
    (NONE, 9, 9, 9, 0, "proceed"),
    (Strategy(limit=None, when_full="queue", capacity=1), 9, 9, 9, 1, "proceed"),
    (DEDUPE, 0, 0, 0, 0, "proceed"),
    (DEDUPE, 0, 1, 0, 0, "proceed"),  # only a stopping body: it is nobody's peer
    (DEDUPE, 1, 1, 0, 0, "reuse"),
    (DEDUPE, 1, 0, 1, 0, "reuse"),  # a parked call is a peer
    (RESTART, 0, 2, 0, 0, "proceed"),
    (RESTART, 1, 1, 0, 0, "cancel"),
    (RESTART_TWO, 1, 1, 0, 0, "proceed"),
    (RESTART_TWO, 2, 2, 0, 0, "cancel"),
    (EXHAUST, 0, 1, 0, 0, "proceed"),
    (EXHAUST, 1, 1, 0, 0, "drop"),
    (EXHAUST_TWO, 1, 1, 0, 0, "proceed"),
    (EXHAUST_TWO, 2, 2, 0, 0, "drop"),
    (bounded(2), 1, 1, 0, 0, "proceed"),
    (bounded(2), 2, 2, 0, 0, "reuse"),
    (bounded(3), 2, 1, 1, 0, "proceed"),
    (serialize(), 0, 0, 0, 100, "proceed"),
    (serialize(), 0, 1, 0, 100, "queue"),  # a stopping body keeps its slot
    (serialize(), 1, 1, 0, 100, "queue"),
    (serialize(), 1, 1, 99, 100, "queue"),
    (serialize(), 1, 1, 100, 100, "full"),
    (serialize(), 1, 1, 10**9, None, "queue"),
    (serialize(capacity=0), 1, 1, 0, 0, "full"),
    (QUEUE_TWO, 1, 1, 0, 100, "proceed"),
    (QUEUE_TWO, 2, 2, 0, 100, "queue"),
    (QUEUE_TWO, 2, 1, 1, 100, "queue"),  # nobody overtakes a parked call
    (QUEUE_TWO, 2, 1, 1, 1, "full"),
]


@pytest.mark.parametrize(("strategy", "peers", "occupied", "parked", "capacity", "move"), VERDICTS)
def test_decide__one_line_per_verdict(strategy, peers, occupied, parked, capacity, move):
    """The reducer turns counts into the verdict that the table of strategies promises."""
    assert move == decide(
        strategy, peers=peers, occupied=occupied, parked=parked, capacity=capacity
    )


@pytest.mark.parametrize("occupied", range(4))
@pytest.mark.parametrize("parked", range(3))
def test_decide__bounded_of_one_is_dedupe(occupied, parked):
    """bounded(1) and dedupe decide alike, cell by cell."""
    counts = {"peers": occupied + parked, "occupied": occupied, "parked": parked, "capacity": 2}
    assert bounded(1) == DEDUPE
    assert decide(bounded(1), **counts) == decide(DEDUPE, **counts)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (NONE, "none"),
        (Strategy(limit=None, when_full="drop"), "none"),
        (Strategy(), "dedupe"),
        (bounded(1), "dedupe"),
        (RESTART, "restart"),
        (serialize(), "serialize"),
        (serialize(capacity=None), "serialize"),
        (EXHAUST, "exhaust"),
        (bounded(2), "bounded(2)"),
        (RESTART_TWO, "cancel(2)"),
        (QUEUE_TWO, "queue(2)"),
        (EXHAUST_TWO, "drop(2)"),
    ],
)
def test_name__says_which_point_of_the_algebra_it_is(strategy, name):
    """Each combination has one name, the common one where there is one."""
    assert strategy.name == name


@pytest.mark.parametrize("name", ["none", "dedupe", "restart", "serialize", "exhaust"])
def test_strategy_named__is_the_strategy_of_that_name(name):
    """A common name and the strategy that it stands for agree."""
    assert strategy_named(name).name == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dedup", "unknown strategy 'dedup': did you mean 'dedupe'? Use one of none, dedupe"),
        ("serialise", "did you mean 'serialize'?"),
        ("zzz", "unknown strategy 'zzz': Use one of none, dedupe, restart, serialize, exhaust"),
    ],
)
def test_strategy_named__unknown(name, hint):
    """A misspelt name is refused with the one that was probably meant, and all that there are."""
    with pytest.raises(ValueError, match="unknown strategy") as caught:
        strategy_named(name)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, "limit=0: pass a whole number of at least 1, or None for no limit"),
        ({"limit": -1}, "limit=-1: pass a whole number of at least 1"),
        ({"limit": 1.0}, "limit=1.0: pass a whole number"),
        ({"limit": True}, "limit=True: pass a whole number"),
        ({"limit": "1"}, "limit='1': pass a whole number"),
        ({"when_full": "wait"}, "when_full='wait': use one of reuse, cancel, queue, drop"),
        ({"when_full": None}, "when_full=None: use one of reuse, cancel, queue, drop"),
        ({"when_full": []}, "when_full=[]: use one of reuse, cancel, queue, drop"),
        ({"capacity": 5}, "capacity=5 without a queue: only when_full='queue' parks calls"),
        ({"capacity": None}, "capacity=None without a queue"),
        ({"when_full": "queue", "capacity": -1}, "capacity=-1: pass a whole number of at least 0"),
        ({"when_full": "queue", "capacity": 1.5}, "capacity=1.5: pass a whole number"),
        ({"when_full": "queue", "capacity": False}, "capacity=False: pass a whole number"),
    ],
)
def test_strategy__refuses_values_out_of_range(arguments, message):
    """A wrong value is refused at once, with the value and what is allowed."""
    with pytest.raises(ValueError, match="=") as caught:
        Strategy(**arguments)
    assert message in str(caught.value)


def test_strategy__is_a_value():
    """Strategies are equal by their parameters, hashable, frozen and picklable."""
    assert Strategy(limit=4, when_full="queue", capacity=100) == Strategy(4, "queue", 100)
    assert len({serialize(), serialize(), serialize(capacity=3)}) == 2
    with pytest.raises(AttributeError):
        DEDUPE.limit = 2


@pytest.mark.parametrize("strategy", [NONE, DEDUPE, serialize(), serialize(capacity=None)])
def test_strategy__survives_copies(strategy):
    """The default capacity stays the alias's own, by identity, after pickle and copy."""
    for twin in (pickle.loads(pickle.dumps(strategy)), copy.deepcopy(strategy)):
        assert twin == strategy
        assert (twin.capacity is FROM_ALIAS) == (strategy.capacity is FROM_ALIAS)
    assert repr(serialize()) == "Strategy(limit=1, when_full='queue', capacity=FROM_ALIAS)"
