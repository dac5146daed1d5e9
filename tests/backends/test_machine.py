"""The scripts against a small model, in every order of steps that Hypothesis can think of."""

import itertools
import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_vega.backends.protocol import (
    Done,
    Dropped,
    Ended,
    Follow,
    Full,
    Leader,
    Lost,
    Outcome,
    Queued,
    Renewed,
    Settled,
    Stale,
)
from tests.backends.desk import Desk
from tests.backends.model import Model

RULES = [
    (None, "reuse"),
    *itertools.product([1, 2, 3], ["reuse", "cancel", "queue", "drop"]),
]
CAPACITIES = [None, 0, 1, 2]
PROCESSES = ["p", "q", "r"]


def words(reply):
    """Say what a script answered, as the model does; a new leader's generation comes after it."""
    match reply:
        case Leader(generation, cancelled):
            return "lead", [one.token for one in cancelled], generation
        case Follow(generation):
            return "follow", generation
        case Queued(ahead):
            return "queued", ahead
        case Done(generation, outcome):
            return "done", generation, outcome
        case Dropped():
            return ("dropped",)
        case Full():
            return ("full",)
        case Ended(reason):
            return "ended", reason


class Scripted(RuleBasedStateMachine):
    """One key, calls of all strategies and coordinators, leases that end, servers that forget."""

    client = None

    def __init__(self):
        super().__init__()
        self.desk = Desk(self.client, uuid.uuid4().hex)
        self.model = Model()
        self.calls = {}  # token -> process, limit, when_full; every call there ever was
        self.generations = {}  # token -> generation; every flight there ever was
        self.wants = {}  # token -> generation; every follower that waits
        self.decided = {}  # token -> the version on which a coordinator decided
        self.requests = itertools.count(1)

    def request(self):
        return f"request-{next(self.requests)}"

    def is_known(self, token):
        model = self.model
        return token in {*model.flights, *model.stopping, *(one.token for one in model.parked)}

    def placed(self, token, expected, reply):
        """Compare, and write down where a call went."""
        told = words(reply)
        if expected[0] == "lead":
            assert told[:2] == expected
            self.model.started(token, told[2])
            self.generations[token] = told[2]
        elif expected[0] == "leads already":
            assert (told[0], told[2]) == ("lead", expected[1])
        else:
            assert told == expected
        self.wants.pop(token, None)
        if expected[0] == "follow":
            self.wants[token] = expected[1]

    def ask(self, token, capacity, want):
        process, limit, when_full = self.calls[token]
        expected = self.model.admit(token, process, limit, when_full, capacity, want)
        reply = self.desk.scripts.admit(
            self.desk.key_hash,
            self.desk.intent(token, process=process),
            limit=limit,
            when_full=when_full,
            capacity=capacity,
            want=want,
        )
        self.placed(token, expected, reply)

    def new_call(self, process, strategy=(1, "queue")):
        # The later, the earlier in the alphabet: no order may come from the tokens.
        token = f"call-{999 - len(self.calls)}"
        self.calls[token] = (process, *strategy)
        return token

    # Calls

    @rule(
        strategy=st.sampled_from(RULES),
        capacity=st.sampled_from(CAPACITIES),
        process=st.sampled_from(PROCESSES),
    )
    def call(self, strategy, capacity, process):
        self.ask(self.new_call(process, strategy), capacity, 0)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), capacity=st.sampled_from(CAPACITIES))
    def call_again(self, data, capacity):
        token = data.draw(st.sampled_from(sorted(self.calls)))
        self.ask(token, capacity, self.wants.get(token, 0))

    @rule(
        data=st.data(),
        choice=st.sampled_from(["proceed", "reuse", "queue", "drop"]),
        capacity=st.sampled_from(CAPACITIES),
        process=st.sampled_from(PROCESSES),
        is_stale=st.booleans(),
    )
    def decide(self, data, choice, capacity, process, is_stale):
        model = self.model
        peers = [*model.flights, *(ticket.token for ticket in model.parked)]
        if choice == "reuse" and not peers:
            choice = "drop"
        peer = data.draw(st.sampled_from(peers)) if choice == "reuse" else ""
        others = [other for other in peers if other != peer]
        cancel = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
        version = self.desk.snapshot().version
        # A follower's coordinator is asked again, on another version than the one it decided on.
        again = [token for token in sorted(self.wants) if self.decided.get(token) != version]
        token = data.draw(st.sampled_from(["new", *again]))
        if token == "new":
            token = self.new_call(process)
        reply = self.desk.scripts.apply(
            self.desk.key_hash,
            self.desk.intent(token, process=process),
            version=version + is_stale,
            choice=choice,
            capacity=capacity,
            peer=peer,
            cancel=cancel,
        )
        if is_stale:
            assert reply == Stale()
        else:
            self.decided[token] = version
            expected = model.apply(token, process, choice, capacity, peer, cancel)
            self.placed(token, expected, reply)

    @precondition(lambda self: self.generations)
    @rule(data=st.data(), beat=st.integers(1, 3), limit=st.sampled_from([None, 1, 2]))
    def renew(self, data, beat, limit):
        token = data.draw(st.sampled_from(sorted(self.generations)))
        generation = self.generations[token]
        expected = self.model.renew(token, generation, limit)
        told = self.desk.scripts.renew(
            self.desk.key_hash,
            self.desk.intent(token, process=self.calls[token][0]),
            generation=generation,
            limit=limit,
            beat=beat,
        )
        if expected in {"renewed", "restored"}:
            assert isinstance(told, Renewed)
            assert told.restored or expected == "renewed"
        else:
            assert told == Lost(expected)

    @precondition(lambda self: self.generations)
    @rule(data=st.data(), kind=st.sampled_from(["value", "error"]))
    def settle(self, data, kind):
        token = data.draw(st.sampled_from(sorted(self.generations)))
        outcome = Outcome(kind, token.encode())
        expected = self.model.settle(token, self.generations[token], outcome)
        told = self.desk.scripts.settle(self.desk.key_hash, token, self.generations[token], outcome)
        assert told == (Settled() if expected == "settled" else Lost(expected))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), is_last=st.booleans())
    def leave(self, data, is_last):
        token = data.draw(st.sampled_from(sorted(self.calls)))
        process = self.calls[token][0]
        self.wants.pop(token, None)
        if is_last:
            self.desk.scripts.leave(self.desk.key_hash, token, process)
        else:
            self.desk.abandon(token)
        self.model.leave(token, process if is_last else None)

    # The key

    @rule(data=st.data(), is_all=st.booleans())
    def cancel(self, data, is_all):
        model = self.model
        everybody = [*(ticket.token for ticket in model.parked), *model.flights]
        chosen = everybody
        if not is_all:
            known = [*everybody, *model.stopping]
            chosen = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        cancelled = self.desk.scripts.cancel(
            self.desk.key_hash, self.request(), tokens=None if is_all else chosen
        )
        assert [one.token for one in cancelled] == model.cancel(chosen)

    @rule()
    def release(self):
        expected = self.model.release()
        assert self.desk.scripts.release(self.desk.key_hash, self.request()) == expected

    @rule()
    def issue_a_generation(self):
        generation = self.desk.scripts.issue(self.desk.key_hash, self.request())
        assert generation > self.model.newest()
        self.model.issued = generation

    @precondition(lambda self: any(self.is_known(token) for token in self.calls))
    @rule(data=st.data())
    def lapse(self, data):
        token = data.draw(st.sampled_from(sorted(filter(self.is_known, self.calls))))
        self.desk.lapse(token)
        self.model.lapse(token)

    @rule()
    def forget(self):
        self.desk.forget()
        self.model.forget()

    @invariant()
    def snapshot_is_the_model(self):
        now, model = self.desk.snapshot(), self.model
        assert {one.token: one.generation for one in now.flights} == model.flights
        assert [one.token for one in now.flights] == list(model.flights)
        assert {one.token: one.generation for one in now.stopping} == model.stopping
        assert [one.token for one in now.parked] == [ticket.token for ticket in model.parked]
        assert now.followers == model.followers
        assert now.generation == model.newest()


def test_scripts__do_what_the_model_does(connections):
    """Replies and state agree after any steps; the second run of each script changes nothing."""

    class Here(Scripted):
        client = connections

    run_state_machine_as_test(
        Here, settings=settings(max_examples=settings().max_examples // 2, stateful_step_count=30)
    )
