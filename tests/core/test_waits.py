"""A wait that would never end is refused before it begins, and no other wait is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_vega.core.errors import DeadlockError, ReentrantCallError
from django_vega.core.table import Table
from tests.core.stage import Stage, strategy

# A story ends with the wait that is refused, or not; then what it raised.
REFUSED = {
    "re-entry": (
        ["a"],
        ("b", "inside=a"),
        ReentrantCallError(("k", "k")),
    ),
    "re-entry through another flight": (
        ["a key=x", "b key=y inside=a"],
        ("c", "key=x inside=b"),
        ReentrantCallError(("x", "y", "x")),
    ),
    "re-entry into the queue": (
        ["a serialize"],
        ("b", "serialize inside=a"),
        ReentrantCallError(("k", "k")),
    ),
    "re-entry behind others in the queue": (
        ["a serialize", "b serialize", "c serialize"],
        ("d", "serialize inside=a"),
        ReentrantCallError(("k", "k")),
    ),
    "both places of the queue are the chain's own": (
        ["a serialize(2)", "b serialize(2) inside=a"],
        ("c", "serialize(2) inside=b"),
        ReentrantCallError(("k", "k", "k")),
    ),
    "the oldest of two is the chain's own": (
        ["a bounded(2)", "b bounded(2)"],
        ("c", "bounded(2) inside=a"),
        ReentrantCallError(("k", "k")),
    ),
    "a parked call behind the chain's own flight": (
        ["a serialize", "b serialize"],
        ("wait", "a b"),
        ReentrantCallError(("k", "k")),
    ),
    "two flights wait for each other": (
        ["a key=x", "b key=y", "a2 key=y inside=a"],
        ("b2", "key=x inside=b"),
        DeadlockError(("y", "x", "y")),
    ),
    "a flight waits by way of one inside of it": (
        ["a key=x", "b key=y", "c key=z inside=a", "d key=y inside=c"],
        ("e", "key=x inside=b"),
        DeadlockError(("y", "x", "y")),
    ),
    "two queues wait for each other": (
        ["a serialize key=x", "b serialize key=y", "a2 serialize key=y inside=a"],
        ("b2", "serialize key=x inside=b"),
        DeadlockError(("y", "x", "y")),
    ),
    "three flights in a circle": (
        ["a key=x", "b key=y", "c key=z", "a2 key=y inside=a", "b2 key=z inside=b"],
        ("c2", "key=x inside=c"),
        DeadlockError(("z", "x", "y", "z")),
    ),
    "who follows a parked call waits for the flight ahead of it": (
        ["p0 serialize key=x", "p serialize key=x", "f key=y"],
        ("wait", "f p", "p0 f"),
        DeadlockError(("x", "y", "x")),
    ),
    "one of two places is the chain's own, the other waits for the chain": (
        ["a serialize(2)", "b serialize(2)", "c key=y inside=a", "p serialize(2) inside=a"],
        ("q", "serialize(2) inside=b"),
        ReentrantCallError(("k", "k")),
    ),
    "both places are held by flights that wait for the chain": (
        [
            "a serialize(2)",
            "b serialize(2)",
            "m key=m",
            "a2 key=m inside=a",
            "b2 key=m inside=b",
        ],
        ("q", "serialize(2) inside=m"),
        DeadlockError(("m", "k", "m")),
    ),
    "one of two places is not enough where a queue of one waits for both": (
        ["a serialize", "b none"],
        ("c", "serialize inside=b"),
        ReentrantCallError(("k", "k")),
    ),
    "a queue of two behind a head that needs the whole key": (
        ["a none", "b serialize", "other none"],
        ("c", "serialize(2) inside=a"),
        ReentrantCallError(("k", "k")),
    ),
    "behind the body of the chain's own call, which was cancelled": (
        ["a serialize", "cancel a"],
        ("b", "serialize inside=a"),
        ReentrantCallError(("k", "k")),
    ),
}

ALLOWED = {
    "another key": (["a key=x"], ("b", "key=y inside=a")),
    "the same key in another scope": (["a"], ("b", "scope=other inside=a")),
    "a flight that waits for nobody": (["a key=x", "b key=y"], ("c", "key=y inside=a")),
    "a flight that waits for a third": (
        ["a key=x", "b key=y", "c key=z", "b2 key=z inside=b"],
        ("a2", "key=y inside=a"),
    ),
    "two that wait for the same": (
        ["a key=x", "b key=y", "c key=z", "a2 key=z inside=a"],
        ("b2", "key=z inside=b"),
    ),
    "exhaust does not wait": (["a"], ("b", "exhaust inside=a")),
    "none does not wait": (["a"], ("b", "none inside=a")),
    "a free place": (["a bounded(2)"], ("b", "bounded(2) inside=a")),
    "a free place in the queue": (["a serialize(2)"], ("b", "serialize(2) inside=a")),
    "one of two places is the chain's own": (
        ["a serialize(2)", "b serialize(2)"],
        ("c", "serialize(2) inside=a"),
    ),
    "one of two places waits for the chain, the other for nobody": (
        ["m key=m", "a serialize(2)", "b serialize(2)", "a2 key=m inside=a"],
        ("c", "serialize(2) inside=m"),
    ),
    "the caller is no flight": (["a serialize", "b serialize"], ("c", "serialize")),
    "after the body has ended": (["a", "settle a", "again"], ("b", "inside=a")),
    "after the call was cancelled, a newcomer starts anew": (["a", "cancel a"], ("b", "inside=a")),
    "a wait that ended": (
        ["a key=x", "b key=y", "a2 key=y inside=a", "end a b"],
        ("b2", "key=x inside=b"),
    ),
    "a wait for a call that was cancelled is about to end": (
        ["a key=x", "b key=y", "a2 key=y inside=a", "cancel b"],
        ("b2", "key=x inside=b"),
    ),
}


def prepare(stage, steps):
    """Take steps: calls, ``cancel``, ``settle`` and ``end`` of a wait."""
    for step in steps:
        method, *words = step.split()
        if method in {"cancel", "settle"}:
            getattr(stage, method)(*words)
        elif method == "end":
            stage.table.waits.end((stage.named[words[0]],), stage.named[words[1]])
        else:
            admit(stage, method, " ".join(words))


def admit(stage, name, text):
    words = text.split()
    more = dict(word.split("=") for word in words if "=" in word)
    rule = next((word for word in words if "=" not in word), "dedupe")
    return stage.admit(name, rule, **more)


def wait(stage, pair):
    """Let code inside of the first wait for the second, as `Call.result` does."""
    inside, target = (stage.named[name] for name in pair.split())
    stage.table.waits.check(inside.chain(), target)
    stage.table.waits.begin(inside.chain(), target)


def last_wait(stage, last):
    if last[0] == "wait":
        for pair in last[1:]:
            wait(stage, pair)
    else:
        admit(stage, *last)


def check_refusal(name, table_class=Table):
    """Play a story of `REFUSED`; shared with the tests of mutants."""
    steps, last, error = REFUSED[name]
    stage = Stage(table_class)
    prepare(stage, steps)
    before = stage.picture(), len(stage.table.waits)
    with pytest.raises(type(error)) as caught:
        last_wait(stage, last)
    assert caught.value.args == error.args
    assert stage.picture() == before[0]
    if last[0] != "wait":
        assert len(stage.table.waits) == before[1]
        assert stage.named[last[0]].state == "idle"


@pytest.mark.parametrize("name", REFUSED)
def test_check__refuses_what_would_never_end(name):
    """The caller that closes the circle is told at once, with the keys; nothing changed."""
    check_refusal(name)


@pytest.mark.parametrize("name", ALLOWED)
def test_check__allows_what_ends(name):
    """A wait that can end is no deadlock, however close it looks."""
    stage = Stage()
    steps, last = ALLOWED[name]
    prepare(stage, steps)
    last_wait(stage, last)


def test_check__shows_keys_as_people_may_see_them():
    """Masked keys stay masked in chains and cycles."""
    stage = Stage()
    stage.admit("a", key="secret")
    stage.admit("b", key="secret too")
    for name in "ab":
        object.__setattr__(stage.named[name].site, "display", lambda key: "***")
    stage.admit("a2", key="secret too", inside="a")
    with pytest.raises(DeadlockError) as caught:
        stage.table.waits.check((stage.named["b"],), stage.named["a"])
    assert set(caught.value.cycle) == {"***"}


def test_end__forgets_one_wait_of_several():
    """Two waits for the same call end one by one, and leave nothing."""
    stage = Stage()
    stage.admit("a", key="x")
    stage.admit("b", key="y")
    waits, chain, b = stage.table.waits, (stage.named["a"],), stage.named["b"]
    waits.begin(chain, b)
    waits.begin(chain, b)
    waits.end(chain, b)
    with pytest.raises(DeadlockError):
        waits.check((b,), stage.named["a"])
    waits.end(chain, b)
    waits.check((b,), stage.named["a"])
    assert len(waits) == 0


def test_begin__counts_for_every_flight_around():
    """Code inside of two flights holds up both of them."""
    stage = Stage()
    prepare(stage, ["a key=x", "b key=y inside=a", "c key=z", "b2 key=z inside=b"])
    for held_up in "xy":
        with pytest.raises(DeadlockError) as caught:
            admit(stage, "c2", f"key={held_up} inside=c")
        assert caught.value.cycle == ("z", held_up, "z")


def test_check__a_circle_of_others_is_not_the_callers():
    """Who waits for flights that hold each other up closes no circle; its timeout ends the wait."""
    stage = Stage()
    prepare(stage, ["a key=x", "b key=y", "c key=z"])
    a, b, c = (stage.named[name] for name in "abc")
    stage.table.waits.begin((a,), b)
    stage.table.waits.begin((b,), a)
    stage.table.waits.check((c,), a)


def test_check__of_a_long_line():
    """A line of 5,000 flights that wait one for the next is walked without recursion."""
    stage = Stage()
    stage.admit("f0", key="0")
    for number in range(1, 5_000):
        stage.admit(f"f{number}", key=str(number))
        chain = (stage.named[f"f{number - 1}"],)
        stage.table.waits.begin(chain, stage.named[f"f{number}"])
    stage.admit("outside", key="outside")
    stage.admit("allowed", key="0", inside="outside")
    with pytest.raises(DeadlockError) as caught:
        stage.admit("last", key="0", inside="f4999")
    assert len(caught.value.cycle) == 5_001


# Against a simulation: everything that can end does; is the newcomer's wait among it?


class World:
    """Flights and queues that know nothing of graphs: bodies end when all they wait for is over."""

    def __init__(self) -> None:
        self.flights = {}  # name -> (key, names that it waits for)
        self.queues = {}  # key -> [(name, limit), …]

    def copy(self):
        twin = World()
        twin.flights = {name: (key, list(waits)) for name, (key, waits) in self.flights.items()}
        twin.queues = {key: list(queue) for key, queue in self.queues.items()}
        return twin

    def parked(self):
        return {name for queue in self.queues.values() for name, _ in queue}

    def end(self, name):
        """End a flight and release whom that lets run."""
        key, _ = self.flights.pop(name)
        queue = self.queues.get(key, [])
        while queue:
            head, limit = queue[0]
            if sum(other == key for other, _ in self.flights.values()) >= limit:
                break
            queue.pop(0)
            self.flights[head] = (key, [])

    def goes_on_for_ever(self, name):
        """Whether the flight of that name ends when everything ends that can."""
        world = self.copy()
        while True:
            left = set(world.flights) | world.parked()
            ready = [n for n, (_, waits) in world.flights.items() if not left & set(waits)]
            if not ready:
                return name in left
            world.end(ready[0])


RULES = ["dedupe", "serialize", "serialize(2)", "serialize(3)", "bounded(2)", "none", "exhaust"]
NEW_CALL = st.tuples(st.sampled_from("xyz"), st.sampled_from(RULES), st.none() | st.integers(0, 9))


def check_against_simulation(steps, table_class=Table):
    """Make calls, each inside of a flight or of none; compare each verdict with the world's."""
    stage, world = Stage(table_class), World()
    for number, (key, rule, inside) in enumerate(steps):
        name = f"c{number}"
        flights = sorted(world.flights)
        around = flights[inside % len(flights)] if inside is not None and flights else None
        expected = foresee(world, name, key, strategy(rule), around, stage)
        try:
            stage.admit(name, rule, key=key, inside=around)
        except (ReentrantCallError, DeadlockError):
            assert expected is None, f"{name} was refused and would have ended"
        else:
            assert expected is not None, f"{name} was allowed and will never end"
            world = expected


def foresee(world, name, key, rule, around, stage):
    """Return the world with the new call in it, or None where somebody would wait for ever."""
    world = world.copy()
    flights = [n for n, (k, _) in world.flights.items() if k == key]
    queue = world.queues.setdefault(key, [])
    peers = sorted(flights + [n for n, _ in queue], key=lambda n: stage.named[n].id)
    awaited = None
    if rule.limit is None or (
        (len(flights) < rule.limit and not queue)
        if rule.when_full == "queue"
        else len(peers) < rule.limit
    ):
        world.flights[name] = (key, [])
    elif rule.when_full == "reuse":
        awaited = peers[0]
    elif rule.when_full == "queue":
        queue.append((name, rule.limit))
        awaited = name
    if awaited is None or around is None:
        return world
    lines = [around]
    outer = stage.named[around].parent
    while outer is not None:
        lines.append(stage.name(outer))
        outer = outer.parent
    for waiting in lines:
        if waiting in world.flights:
            world.flights[waiting][1].append(awaited)
    return None if world.goes_on_for_ever(around) else world


@given(st.lists(NEW_CALL, max_size=14))
def test_check__agrees_with_a_simulation(steps):
    """A wait is refused exactly when it would not end although everything ends that can."""
    check_against_simulation(steps)


def test_check__several_flights_hold_each_other_up_through_one_queue():
    """Two flights hold both places of a queue, and each has code that is parked in it.

    The first may wait, for the second will end. The second may not: a walk that takes the first
    for free because it has seen it already would miss that.
    """
    stage = Stage()
    prepare(stage, ["a serialize(2)", "b serialize(2)", "p serialize(2) inside=a"])
    with pytest.raises(ReentrantCallError):
        stage.admit("q", "serialize(2)", inside="b")
    # Were it not for a's wait, there would be none of b's.
    stage = Stage()
    prepare(stage, ["a serialize(2)", "b serialize(2)"])
    stage.admit("q", "serialize(2)", inside="b")


def test_simulation__knows_a_deadlock_when_it_sees_one():
    """The yardstick itself: circles and full queues never end, the rest does."""
    world = World()
    world.flights = {"a": ("x", ["b"]), "b": ("y", []), "c": ("z", ["p"])}
    world.queues = {"z": [("p", 1)]}
    verdicts = [world.goes_on_for_ever(name) for name in "abcp"]
    assert verdicts == [False, False, True, True]
    for order in itertools.permutations("ab"):
        world.flights = {
            name: ("x", [other]) for name, other in zip(order, order[::-1], strict=True)
        }
        assert world.goes_on_for_ever("a")
