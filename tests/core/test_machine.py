"""The table against a small model, in every order of steps that Hypothesis can think of."""

from collections import defaultdict

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_vega.core.admission import Decision
from django_vega.core.errors import QueueFull
from django_vega.core.table import Table
from tests.core.stage import Stage, asked, check_invariants, strategy

RULES = [
    "none",
    "dedupe",
    "restart",
    "restart(2)",
    "serialize",
    "serialize(2)",
    "exhaust",
    "exhaust(2)",
    "bounded(2)",
    "bounded(3)",
]
ENDS = {"succeed": "success", "fail": "error", "abandon": "cancelled"}
UNSETTLED = ("parked", "queued", "running", "writing")
BODIES = ("queued", "running", "writing", "stopping")


class Item:
    """A call as the model sees it; `place` orders the calls by when they were allowed to run."""

    def __init__(self, key, queue_limit, pooled):
        self.key = key
        self.queue_limit = queue_limit
        self.pooled = pooled
        self.state = "new"
        self.place = 0
        self.followers = []
        self.leader = None


class Model:
    """What callers rely on, written down once more: one list of items, searched through."""

    def __init__(self):
        self.items = []
        self.started = 0
        self.settled = []  # what the last step settled: (number, state, reason, followers)
        self.released = []

    def numbers(self, *states, key=None):
        """Return the numbers of the items in one of the states, oldest first."""
        return [
            number
            for number, item in enumerate(self.items)
            if item.state in states and key in {None, item.key}
        ]

    def waiting(self):
        """Return the followers that wait."""
        return [number for item in self.items for number in item.followers]

    def followed(self):
        """Return those that followed and wait no more."""
        waiting = self.waiting()
        return [
            number
            for number, item in enumerate(self.items)
            if item.leader is not None and number not in waiting
        ]

    def picture(self, key):
        return [
            (number, item.state, item.place)
            for number, item in enumerate(self.items)
            if item.key == key and item.state in {*UNSETTLED, "stopping"}
        ]

    def begin_step(self):
        self.settled, self.released = [], []

    def new(self, key, rule, capacity, pooled):
        """Add a call under a strategy; False when its queue is full."""
        limit, when_full = rule.limit, rule.when_full
        peers = self.numbers(*UNSETTLED, key=key)
        parked = self.numbers("parked", key=key)
        item = Item(key, limit, pooled)
        self.items.append(item)
        if limit is None:
            self.start(item)
        elif when_full == "queue":
            if not parked and len(self.numbers(*BODIES, key=key)) < limit:
                self.start(item)
            elif len(parked) >= capacity:
                return False
            else:
                item.state = "parked"
        elif len(peers) < limit:
            self.start(item)
        elif when_full == "reuse":
            self.follow(item, peers[0])
        elif when_full == "drop":
            item.state = "over"
        else:
            for peer in peers:
                if len(self.numbers(*UNSETTLED, key=key)) >= limit:
                    self.cancel(peer, "abort")
            self.start(item)
            self.move_queue(key)
        return True

    def decided(self, key, choice, peer, cancel, capacity, pooled):
        """Add a call that a coordinator decided on; False when its queue is full."""
        parked = [n for n in self.numbers("parked", key=key) if n not in cancel]
        item = Item(key, 1, pooled)
        self.items.append(item)
        busy = self.numbers(*UNSETTLED, "stopping", key=key)
        if choice == "queue" and busy and len(parked) >= capacity:
            return False
        if choice == "reuse" and peer is not None:
            self.follow(item, peer)
        elif choice == "queue" and busy:
            item.state = "parked"
        elif choice == "drop":
            item.state = "over"
        else:
            self.start(item)
        for number in cancel:
            self.cancel(number, "abort")
        self.move_queue(key)
        own = len(self.items) - 1
        self.released = [number for number in self.released if number != own]
        return True

    def start(self, item):
        self.started += 1
        item.place = self.started
        item.state = "queued" if item.pooled else "running"

    def follow(self, item, peer):
        item.state = "over"
        item.leader = peer
        self.items[peer].followers.append(len(self.items) - 1)

    def end(self, number, step):
        item = self.items[number]
        if item.state != "stopping":
            self.tell(number, ENDS[step], "interrupted" if step == "abandon" else None)
        item.state = "over"
        self.move_queue(item.key)

    def tell(self, number, state, reason):
        self.settled.append((number, state, reason, tuple(self.items[number].followers)))
        self.items[number].followers = []

    def cancel(self, number, reason):
        item = self.items[number]
        if item.state == "running":
            item.state = "stopping"
        elif item.state in {"parked", "queued"}:
            item.state = "over"
        else:
            return False
        self.tell(number, "cancelled", reason)
        return True

    def move_queue(self, key):
        for number in self.numbers("parked", key=key):
            if len(self.numbers(*BODIES, key=key)) >= self.items[number].queue_limit:
                return
            self.start(self.items[number])
            self.released.append(number)


KEYS = st.sampled_from("xy")
PICK = st.integers(0, 30)
POOLED = st.sampled_from([False, False, True])
CAPACITY = st.sampled_from([3, 3, 1, 0])


def some(*states):
    """Only where the model has an item in one of these states."""
    return precondition(lambda self: self.model.numbers(*states))


class TableMachine(RuleBasedStateMachine):
    """Takes each step in the table and in the model, and compares what they tell and show."""

    table_class = Table

    @initialize()
    def begin(self):
        self.stage = Stage(self.table_class)
        self.table = self.stage.table
        self.model = Model()
        self.calls = []  # by the numbers of the model
        self.looks = []
        self.pictures = defaultdict(lambda: [[]])  # of each key, one after another
        self.told = []

    def pick(self, pick, *states):
        numbers = self.model.numbers(*states)
        return numbers[pick % len(numbers)]

    def moment(self, key):
        """Return what differs whenever the key changed; all moments without a call are alike."""
        return len(self.pictures[key]) if self.model.picture(key) else 0

    def make(self, key, rule, capacity, pooled):
        call = self.stage.make(len(self.calls), rule, key=key, capacity=capacity, pooled=pooled)
        self.calls.append(call)
        return call

    def compare(self, effects, *, follower=None):
        """Compare what a step told; a follower enters its waiter as its runner does."""
        if follower is not None and follower.leader is not None:
            self.table.attach(follower.leader, self.calls.index(follower))
        expected = (self.model.settled, self.model.released)
        self.told.append((effects, expected))
        self.compare_told(effects, *expected)

    def compare_told(self, effects, settled, released):
        number = self.calls.index
        assert [
            (number(call), call.state, call.reason, tuple(waiters))
            for call, waiters in effects.settled
        ] == settled, "a step settled others, or told others, than it should"
        assert [number(call) for call in effects.released] == released

    # Steps

    @rule(
        key=KEYS,
        calls=st.lists(st.tuples(st.sampled_from(RULES), CAPACITY, POOLED), min_size=1, max_size=6),
    )
    def call(self, key, calls):
        """Several calls at once: most of what is interesting needs company."""
        for name, capacity, pooled in calls:
            self.model.begin_step()
            call = self.make(key, name, capacity, pooled)
            admitted = self.model.new(key, strategy(name), capacity, pooled)
            try:
                effects = self.table.admit(call)
            except QueueFull:
                assert not admitted
                assert call.state == "idle"
                self.model.items[-1].state = "refused"
            else:
                assert admitted
                self.compare(effects, follower=call)

    @rule(key=KEYS)
    def look(self, key):
        """Take the picture on which a coordinator will decide."""
        version, peers = self.table.peers(("s", key))
        assert [self.calls.index(peer) for peer in peers] == self.model.numbers(*UNSETTLED, key=key)
        self.looks.append((key, version, self.moment(key)))

    @precondition(lambda self: self.looks)
    @rule(
        fresh=st.booleans(),
        pick=PICK,
        peer=PICK,
        cancel=st.sets(PICK, max_size=2),
        choice=st.sampled_from(["proceed", "reuse", "queue", "drop"]),
        capacity=CAPACITY,
        pooled=POOLED,
    )
    def decide(self, fresh, pick, peer, cancel, choice, capacity, pooled):
        """Apply a decision on one of the last pictures, which may be an old one."""
        if fresh:
            self.look(self.looks[pick % len(self.looks)][0])
        key, version, moment = self.looks[-1 if fresh else -1 - pick % min(3, len(self.looks))]
        peers = self.model.numbers(*UNSETTLED, key=key)
        stale = self.moment(key) != moment
        chosen = peers[peer % len(peers)] if peers and choice == "reuse" else None
        doomed = sorted({peers[n % len(peers)] for n in cancel} - {chosen}) if peers else []
        decision = Decision(
            choice,
            peer_id=None if chosen is None else self.calls[chosen].id,
            cancel_ids=tuple(self.calls[number].id for number in doomed),
        )
        self.model.begin_step()
        call = self.make(key, asked, capacity, pooled)
        try:
            effects = self.table.apply(call, decision, version)
        except QueueFull:
            assert not stale
            assert not self.model.decided(key, choice, chosen, doomed, capacity, pooled)
            self.model.items[-1].state = "refused"
            return
        assert (effects is None) == stale, "a decision on an old picture was applied"
        if stale:
            self.model.items.append(Item(key, 1, pooled))
            self.model.items[-1].state = "refused"
        else:
            assert self.model.decided(key, choice, chosen, doomed, capacity, pooled)
            self.compare(effects, follower=call)

    @some("queued")
    @rule(pick=PICK)
    def run(self, pick):
        number = self.pick(pick, "queued")
        assert self.table.run(self.calls[number])
        self.model.items[number].state = "running"

    @some(*UNSETTLED, "stopping")
    @rule(pick=PICK)
    def write(self, pick):
        number = self.pick(pick, *UNSETTLED, "stopping")
        item = self.model.items[number]
        assert self.table.begin_writing(self.calls[number]) == (item.state == "running")
        if item.state == "running":
            item.state = "writing"

    @some("running", "writing", "stopping")
    @rule(pick=PICK, step=st.sampled_from(list(ENDS)))
    def end(self, pick, step):
        number = self.pick(pick, "running", "writing", "stopping")
        reason = "interrupted" if step == "abandon" else None
        self.model.begin_step()
        self.model.end(number, step)
        self.compare(self.table.settle(self.calls[number], step, reason=reason))

    @some(*UNSETTLED, "stopping")
    @rule(pick=PICK, reason=st.sampled_from(["abort", "wait-timeout", "caller-gone"]))
    def cancel(self, pick, reason):
        """Cancel any call: by hand, or as a parked caller that times out or leaves."""
        number = self.pick(pick, *UNSETTLED, "stopping")
        self.model.begin_step()
        cancelled = self.model.cancel(number, reason)
        self.model.move_queue(self.model.items[number].key)
        effects = self.table.cancel(self.calls[number], reason)
        assert (effects is not None) == cancelled
        if effects is not None:
            self.compare(effects)

    @some("over")
    @rule(pick=PICK, step=st.sampled_from([*ENDS, "cancel"]))
    def come_late(self, pick, step):
        """Who comes after the end of a call and its body changes nothing."""
        call = self.calls[self.pick(pick, "over")]
        self.model.begin_step()
        assert not self.table.run(call)
        assert not self.table.begin_writing(call)
        assert self.table.cancel(call) is None
        self.compare(self.table.settle(call, step))

    @rule(keys=st.sampled_from(["xy", "x"]))
    def cancel_all(self, keys):
        self.model.begin_step()
        waiting = [n for n in self.model.numbers("parked") if self.model.items[n].key in keys]
        for number in waiting:
            self.model.cancel(number, "admission-reset")
        for number in self.model.numbers("queued", "running", "writing"):
            if self.model.items[number].key in keys:
                self.model.cancel(number, "abort")
        effects = self.table.cancel_all(
            flights="abort", parked="admission-reset", where=lambda slot: slot[1] in keys
        )
        # In which order the keys are taken is nobody's business.
        effects.settled.sort(key=lambda told: self.order(self.calls.index(told[0]), waiting))
        self.model.settled.sort(key=lambda told: self.order(told[0], waiting))
        self.compare(effects)

    def order(self, number, waiting):
        return number not in waiting, number

    @precondition(lambda self: self.model.waiting())
    @rule(pick=PICK)
    def leave(self, pick):
        """A follower goes before its leader has an outcome: it timed out, or was cancelled."""
        waiting = self.model.waiting()
        number = waiting[pick % len(waiting)]
        leader = self.model.items[number].leader
        self.model.items[leader].followers.remove(number)
        self.table.leave(self.calls[leader], number)

    @precondition(lambda self: self.model.followed())
    @rule(pick=PICK)
    def leave_late(self, pick):
        """A follower goes that has been told, or that went before."""
        followed = self.model.followed()
        number = followed[pick % len(followed)]
        self.table.leave(self.calls[self.model.items[number].leader], number)

    # Comparisons

    @invariant()
    def the_pictures_agree(self):
        check_invariants(self.table)
        model, keys = self.model, defaultdict(set)
        for number, item in enumerate(model.items):
            if item.state in {*UNSETTLED, "stopping"}:
                keys[item.key].add((number, item.state))
        shown = defaultdict(set)
        for call in self.table.calls():
            state = "stopping" if call.settled else call.state
            shown[call.key].add((self.calls.index(call), state))
        assert shown == keys
        assert len(self.table) == len(keys), "an idle key is kept"
        for entry in self.table._entries.values():
            parked = [self.calls.index(call) for call in entry.parked]
            assert parked == sorted(parked), "the queue is out of order"
            for call in (*entry.flights, *entry.parked):
                followers = model.items[self.calls.index(call)].followers
                assert list(call.waiters or ()) == followers

    @invariant()
    def pictures_are_taken(self):
        for key in "xy":
            if (picture := self.model.picture(key)) != self.pictures[key][-1]:
                self.pictures[key].append(picture)

    @invariant()
    def generations_follow_the_order_of_starts(self):
        for call, item in zip(self.calls, self.model.items, strict=True):
            assert call.generation == (item.place or None)

    @invariant()
    def what_was_told_stays_told(self):
        for effects, expected in self.told[-3:]:
            self.compare_told(effects, *expected)

    def teardown(self):
        """Let everything end: then nothing is left."""
        if not hasattr(self, "model"):
            return
        for _ in range(10_000):
            bodies = [call for call in self.table.calls() if call.state != "parked"]
            if not bodies:
                break
            if not self.table.run(bodies[0]):
                self.table.settle(bodies[0], "succeed")
        assert len(self.table) == 0


def test_table__agrees_with_a_small_model():
    """Whatever the order of steps, the table settles, tells, releases and keeps what it should."""
    run_state_machine_as_test(TableMachine)
