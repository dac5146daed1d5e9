"""Every interleaving of the core is a list of steps: no thread, no wait."""

import pytest

from django_vega.core.admission import Decision
from django_vega.core.call import IllegalStep
from django_vega.core.entry import Effects, UnsafeWait
from django_vega.core.errors import QueueFull, ReentrantCallError
from django_vega.core.strategies import serialize
from tests.core.stage import Stage, check_invariants
from tests.core.stories import DECISIONS, FOUR_CALLS, LATE_ENDS, RULES


@pytest.mark.parametrize("strategy", FOUR_CALLS)
def test_four_calls__of_one_strategy(strategy):
    """Each strategy does with four overlapping calls what its row of the table says."""
    Stage().play(*FOUR_CALLS[strategy])


@pytest.mark.parametrize(
    ("strategy", "ends"),
    [
        ("none", [None] * 4),
        ("dedupe", [None, "dedupe", "dedupe", "dedupe"]),
        ("restart", ["abort", "abort", "abort", None]),
        ("serialize", [None] * 4),
        ("exhaust", [None, "exhaust-dropped", "exhaust-dropped", "exhaust-dropped"]),
        ("bounded(2)", [None, None, "dedupe", "dedupe"]),
    ],
)
def test_four_calls__their_ends(strategy, ends):
    """A call that executed ends as success; the others are cancelled, with their reason."""
    stage = Stage()
    for name in "abcd":
        stage.admit(name, strategy)
    while calls := list(stage.table.calls()):
        stage.table.settle(calls[0], "succeed", value=calls[0].id)
    calls = [stage.named[name] for name in "abcd"]
    assert [call.reason for call in calls] == ends
    assert [call.state for call in calls] == [
        "success" if reason is None else "cancelled" for reason in ends
    ]
    assert all(call.ended for call in calls)
    assert all(call.work is None for call in calls if call.leader is None)


@pytest.mark.parametrize("rule", RULES)
def test_rule__of_one_key(rule):
    """What a rule says happens step by step."""
    Stage().play(*RULES[rule])


# Invariants of the Note in django_vega/core/table.py


@pytest.mark.parametrize("after", LATE_ENDS)
def test_invariant_1__late_end_leaves_a_newer_flight_alone(after):
    """A finished flight's late end never touches the flight that came after it."""
    Stage().play(*LATE_ENDS[after])


def test_invariant_1__settle_removal_and_snapshot_are_one_step():
    """The step that settles a call takes it out of the table and hands out its waiters, once."""
    stage = Stage()
    stage.admit("a")
    stage.admit("b")
    a = stage.named["a"]
    effects = stage.table.settle(a, "succeed", value=None)
    assert (a.state, len(stage.table), effects.settled) == ("success", 0, [(a, ("b",))])
    stage.admit("c")
    assert stage.named["c"].leader is None
    stage.leave("b", "a")
    assert effects.settled == [(a, ("b",))]
    assert stage.table.settle(a, "succeed").settled == []


def test_invariant_1__late_end_changes_no_outcome():
    """What a body came to after its call was cancelled is its error, never the call's value."""
    stage = Stage()
    stage.admit("a")
    a = stage.named["a"]
    stage.cancel("a")
    late = ValueError("late")
    stage.table.settle(a, "fail", value="late", error=late, reason="late")
    assert (a.state, a.reason, a.value, a.error) == ("cancelled", "abort", None, late)
    stage.table.settle(a, "succeed", value="later")
    assert (a.state, a.value, a.error) == ("cancelled", None, late)


def test_invariant_2__a_follower_that_leaves_takes_nobody_along():
    """The flight goes on, and the others are told in the order in which they came."""
    stage = Stage()
    stage.play(
        ("admit a dedupe", "", "a running"),
        ("admit b dedupe", "", "a running"),
        ("admit c dedupe", "", "a running"),
        ("admit d dedupe", "", "a running"),
        ("leave c a", "", "a running"),
        ("leave c a", "", "a running"),
        ("settle a", "a success tells b d", ""),
        ("leave b a", "", ""),
    )


def test_invariant_2__all_followers_leave():
    """A flight that nobody waits for any more goes on, and can be joined."""
    Stage().play(
        ("admit a dedupe", "", "a running"),
        ("admit b dedupe", "", "a running"),
        ("leave b a", "", "a running"),
        ("admit c dedupe", "", "a running"),
        ("settle a", "a success tells c", ""),
    )


def test_invariant_3__a_flight_belongs_to_the_table():
    """A leader that is interrupted abandons: its waiters are told, with no error of theirs."""
    stage = Stage()
    stage.admit("a")
    stage.admit("b")
    a, b = stage.named["a"], stage.named["b"]
    stage.table.settle(a, "abandon", error=KeyboardInterrupt(), reason="abandoned")
    assert (a.state, a.reason) == ("cancelled", "abandoned")
    assert (b.error, b.leader) == (None, a)
    assert not b.done()
    stage.admit("b2")
    assert stage.named["b2"].state == "running"


def test_invariant_4__nothing_is_left_after_100_000_keys():
    """After 100,000 keys, ended in every way, the table and the graph of waits are empty."""
    stage = Stage()
    ends = ["succeed", "fail", "abandon"]
    for number in range(50_000):
        stage.named.clear()
        stage.admit("a", "serialize", key=f"k{number}")
        stage.admit("b", "serialize", key=f"k{number}")
        stage.admit("c", key=f"other{number}")
        stage.admit("d", key=f"other{number}", inside="a")
        stage.table.waits.end((stage.named["a"],), stage.named["c"])
        if number % 5 == 0:
            stage.cancel("a")
        if number % 7 == 0:
            stage.cancel("b", "wait-timeout")
        stage.settle("a", ends[number % 3])
        if number % 7:
            stage.settle("b")
        stage.settle("c", ends[number % 3])
    assert len(stage.table) == 0
    assert len(stage.table.waits) == 0
    assert list(stage.table.calls()) == []


@pytest.mark.parametrize(
    "last",
    [
        [("admit a exhaust", "", "a running"), ("settle a", "a success", "")],
        [("admit a serialize pooled", "", "a queued"), ("cancel a", "a cancelled (abort)", "")],
        [
            ("admit a none", "", "a running"),
            ("cancel a", "a cancelled (abort)", "a stopping"),
            ("settle a", "", ""),
        ],
        [
            ("admit a serialize pooled", "", "a queued"),
            ("admit b serialize", "", "a queued, b parked"),
            ("cancel_all", "b cancelled (admission-reset), a cancelled (abort)", ""),
        ],
        [("apply a drop", "", "")],
    ],
)
def test_invariant_4__an_idle_key_is_forgotten(last):
    """The key goes with its last flight, parked call or stopping body."""
    stage = Stage()
    stage.play(*last)
    assert len(stage.table) == 0


def test_invariant_5__no_waiter_is_built_without_a_follower():
    """An uncontended call has no collection of waiters until somebody joins, nor after it left."""
    stage = Stage()
    stage.admit("a")
    a = stage.named["a"]
    assert a.waiters is None
    stage.leave("nobody", "a")
    assert a.waiters is None
    stage.admit("b")
    assert list(a.waiters) == ["b"]
    stage.settle("a")
    assert a.waiters is None
    assert len(stage.table.waits) == 0


def test_invariant_6__a_wait_that_would_never_end_is_refused():
    """Re-entry raises in every strategy that waits or cancels, and changes nothing."""
    for strategy, told in {
        "dedupe": "ReentrantCallError",
        "serialize": "ReentrantCallError",
        "restart": "ReentrantCallError",
        "exhaust": "",
        "none": "",
    }.items():
        stage = Stage()
        inner = ", b running" if strategy == "none" else ""
        stage.play(
            (f"admit a {strategy}", "", "a running"),
            (f"admit b {strategy} inside=a", told, f"a running{inner}"),
        )
        assert len(stage.table.waits) == 0
        if told:
            assert stage.named["b"].state == "idle"


# What a call is given, and what a refusal leaves behind


def test_generation__is_taken_once_when_a_call_is_allowed_to_run():
    """Joining, parking and dropping take no generation; running order is generation order."""
    stage = Stage()
    for name in ["a", *(f"joiner{number}" for number in range(20))]:
        stage.admit(name)
    stage.admit("dropped", "exhaust")
    stage.admit("b", "serialize")
    stage.admit("c", "serialize")
    assert stage.named["b"].generation is None
    stage.settle("a")
    stage.settle("b")
    generations = [stage.named[name].generation for name in "abc"]
    assert generations == [1, 2, 3]
    assert stage.named["joiner7"].generation is None
    assert stage.named["dropped"].generation is None


def test_generation__that_cannot_be_had_changes_nothing():
    """A call whose generation is refused is still idle and not in the table."""
    stage = Stage()
    stage.generations = iter(())
    call = stage.make("a")
    with pytest.raises(StopIteration):
        stage.table.admit(call)
    assert (call.state, len(stage.table)) == ("idle", 0)


def test_started_at__is_the_time_of_admission():
    """Parked calls start when they are released."""
    stage = Stage()
    stage.admit("a", "serialize")
    stage.admit("b", "serialize")
    stage.now = 160.0
    assert stage.named["b"].started_at is None
    stage.settle("a")
    assert (stage.named["a"].started_at, stage.named["b"].started_at) == (100.0, 160.0)


def test_queue_full__says_who_holds_the_key():
    """The error names key, capacity and holder; the call is idle and the queue as before."""
    stage = Stage()
    stage.admit("a", "serialize", capacity=1)
    stage.admit("b", "serialize", capacity=1)
    with pytest.raises(QueueFull) as caught:
        stage.admit("c", "serialize", capacity=1)
    assert caught.value.args == ("k", 1, "call 1, running")
    assert stage.named["c"].state == "idle"
    stage.cancel("a")
    with pytest.raises(QueueFull) as caught:
        stage.admit("d", "serialize", capacity=1)
    assert caught.value.holder == "call 1, stopping"


def test_queue_full__shows_the_key_as_people_may_see_it():
    """A masked key stays masked in the error."""
    stage = Stage()
    stage.admit("a", "serialize", capacity=0)
    call = stage.make("b", "serialize", capacity=0)
    object.__setattr__(call.site, "display", lambda key: "***")
    with pytest.raises(QueueFull) as caught:
        stage.table.admit(call)
    assert caught.value.key == "***"


ILLEGAL = [
    ("a running", "park"),
    ("a running", "queue"),
    ("a running", "run"),
    ("a running", "drop"),
    ("a writing", "cancel"),
    ("b parked", "succeed"),
    ("b parked", "fail"),
    ("b parked", "abandon"),
]


@pytest.mark.parametrize(("state", "step"), ILLEGAL)
def test_settle__illegal_step_changes_nothing(state, step):
    """A call that may not end so keeps state, waiters, work and place."""
    stage = Stage()
    stage.admit("a", "serialize")
    stage.admit("b", "serialize")
    stage.admit("c")
    if state == "a writing":
        stage.write("a")
    name, _ = state.split()
    call = stage.named[name]
    stage.table.attach(call, "somebody")
    before = [getattr(call, slot, None) for slot in type(call).__slots__], stage.picture()
    waiters = list(call.waiters)
    with pytest.raises(IllegalStep, match=f"cannot {step}"):
        stage.table.settle(call, step, value=1, error=ValueError(), reason="because")
    after = [getattr(call, slot, None) for slot in type(call).__slots__], stage.picture()
    assert after == before
    assert list(call.waiters) == waiters
    check_invariants(stage.table)


def test_refuse__illegal_step_changes_nothing():
    """Only an idle call can be refused."""
    stage = Stage()
    stage.admit("a")
    a = stage.named["a"]
    with pytest.raises(IllegalStep):
        stage.table.refuse(a, "drop", reason="because")
    assert (a.state, a.reason, a.ended, a.work is None) == ("running", None, False, False)


def test_settle__of_an_idle_call_leaves_the_key_alone():
    """A call that never entered the table ends without a trace, whether or not the key is taken."""
    stage = Stage()
    early = stage.make("early")
    assert stage.settle("early") == "early success"
    stage.admit("a")
    stage.make("late")
    assert stage.settle("late", "fail") == "late error"
    assert (stage.picture(), early.state) == ("a running", "success")


def test_other_table__of_a_forked_child():
    """A body that goes on in a forked child ends there; the child's table holds nothing after."""
    stage, child = Stage(), Stage()
    stage.admit("writes")
    stage.admit("runs", key="other")
    child.named = stage.named
    assert child.table.begin_writing(stage.named["writes"])
    assert child.settle("writes") == "writes success"
    assert child.cancel("runs") == "runs cancelled (abort)"
    assert child.picture() == "runs stopping"
    child.settle("runs")
    assert len(child.table) == 0


# Coordinators' decisions, applied by compare-and-set


@pytest.mark.parametrize("story", DECISIONS)
def test_apply__decision_of_a_coordinator(story):
    """A decision does what it says, in one step with its cancellations."""
    Stage().play(*DECISIONS[story])


@pytest.mark.parametrize(
    "change",
    [
        ["admit b none"],
        ["admit b serialize"],
        ["write a"],
        ["cancel a"],
        ["settle a"],
        ["settle a", "admit b"],
        ["settle old"],
        ["run pooled"],
        ["cancel parked"],
    ],
)
def test_apply__refuses_a_stale_version(change):
    """A decision on a picture that is no more is refused, and the coordinator is asked again."""
    stage = Stage()
    stage.admit("old")
    stage.cancel("old")
    stage.admit("pooled", "none", pooled=True)
    stage.admit("a", "none")
    stage.admit("parked", "serialize")
    call = stage.make("late")
    version, _ = stage.table.peers(call.slot)
    for step in change:
        method, *words = step.split()
        getattr(stage, method)(*words)
    before = stage.picture()
    assert stage.table.apply(call, Decision("proceed"), version) is None
    assert (call.state, stage.picture()) == ("idle", before)
    assert stage.apply("again", "proceed") != "refused"


@pytest.mark.parametrize("step", [("admit", "b"), ("admit", "b", "exhaust"), ("leave", "c", "a")])
def test_apply__followers_do_not_make_a_picture_stale(step):
    """Who joins, leaves or is dropped changes nothing that a coordinator decides on."""
    stage = Stage()
    stage.admit("a")
    stage.admit("c")
    call = stage.make("late")
    version, _ = stage.table.peers(call.slot)
    getattr(stage, step[0])(*step[1:])
    assert isinstance(stage.table.apply(call, Decision("proceed"), version), Effects)


def test_apply__a_key_that_was_forgotten_and_came_back_is_stale():
    """The version of a new flight is not that of an old one, however alike they are."""
    stage = Stage()
    stage.admit("a")
    version, _ = stage.table.peers(("s", "k"))
    stage.settle("a")
    stage.admit("a2")
    assert stage.table.apply(stage.make("late"), Decision("proceed"), version) is None


def test_apply__a_parked_call_that_is_let_run_at_once_is_not_released_to_itself():
    """Its own caller sees that it may run; nobody else is told to start it."""
    stage = Stage()
    stage.apply("a", "queue", pooled=True)
    call = stage.make("b", stage.named["a"].site.options.strategy, pooled=True)
    version, _ = stage.table.peers(call.slot)
    decision = Decision("queue", cancel_ids=(stage.named["a"].id,))
    effects = stage.table.apply(call, decision, version)
    assert (call.state, effects.released) == ("queued", [])


# Threads and event loops


@pytest.mark.parametrize("inner", ["dedupe", "bounded(2)"])
def test_solo__a_thread_does_not_wait_for_an_async_flight(inner):
    """It leads a flight of its own, which other threads join."""
    Stage().play(
        ("admit a none is_async", "", "a running"),
        ("admit a2 none is_async", "", "a running, a2 running"),
        (f"admit b {inner} thread=1", "solo", "a running, a2 running, b running"),
        (f"admit c {inner} thread=2", "", "a running, a2 running, b running"),
        (f"admit d {inner} is_async", "", "a running, a2 running, b running"),
        ("settle a", "a success tells d", "a2 running, b running"),
        ("settle b", "b success tells c", "a2 running"),
    )


def test_solo__where_threads_may_wait_for_loops():
    """With SYNC_WAITS_FOR_ASYNC a thread follows an async flight."""
    Stage(threads_wait_for_loops=True).play(
        ("admit a dedupe is_async", "", "a running"),
        ("admit b dedupe thread=1", "", "a running"),
        ("settle a", "a success tells b", ""),
    )


@pytest.mark.parametrize("allowed", [False, True])
def test_solo__a_thread_does_not_wait_for_what_runs_below_it(allowed):
    """A flight of the same thread ends no sooner than the call that it would wait for."""
    Stage(threads_wait_for_loops=allowed).play(
        ("admit a dedupe thread=1", "", "a running"),
        ("admit b dedupe thread=1", "solo", "a running, b running"),
    )


def test_solo__of_a_coordinator_that_reuses():
    """A coordinator's reuse is bound by the same rule."""
    Stage().play(
        ("apply a proceed is_async", "", "a running"),
        ("apply b reuse reuse=a thread=1", "solo", "a running, b running"),
    )


@pytest.mark.parametrize(
    "ahead",
    [
        [("admit a serialize is_async", "", "a running")],
        [
            ("admit a serialize thread=7", "", "a running"),
            ("admit b serialize is_async", "", "a running, b parked"),
        ],
        [
            ("admit a serialize is_async", "", "a running"),
            ("cancel a", "a cancelled (abort)", "a stopping"),
        ],
        [("admit a serialize thread=1", "", "a running")],
    ],
)
def test_unsafe_wait__of_a_thread_in_a_queue(ahead):
    """A thread is not parked behind an async flight, parked call or body, nor behind itself."""
    stage = Stage()
    stage.play(*ahead)
    before = stage.picture()
    with pytest.raises(UnsafeWait):
        stage.admit("z", "serialize", thread=1)
    assert (stage.named["z"].state, stage.picture()) == ("idle", before)
    stage.admit("submitted", "serialize", pooled=True)
    assert stage.named["submitted"].state == "parked"


def test_reentry__restart_does_not_cancel_what_it_runs_inside_of():
    """Nobody is cancelled, not even the peers that the call is not part of."""
    stage = Stage()
    stage.admit("a", "none")
    stage.admit("b", "none")
    with pytest.raises(ReentrantCallError) as caught:
        stage.admit("c", "restart", inside="b")
    assert caught.value.chain == ("k", "k")
    assert stage.picture() == "a running, b running"
    stage.admit("d", "restart(2)", inside="b")
    assert stage.picture() == "b running, d running, a stopping"


# After an abandoned call: of all its followers one runs


def abandoned():
    """Return a stage whose call ``a`` was abandoned by its leader, with its followers told."""
    stage = Stage()
    stage.admit("a")
    stage.settle("a", "abandon", reason="abandoned")
    return stage


@pytest.mark.parametrize("end", [None, "succeed", "fail"])
def test_follow_heir__of_the_first_follower_that_runs(end):
    """Later followers share the first one's outcome, even where it has settled meanwhile."""
    stage = abandoned()
    first = stage.make("first", predecessor="a")
    assert not stage.table.follow_heir(first, ())
    stage.table.admit(first)
    stage.table.name_heir(first)
    if end is not None:
        stage.settle("first", end)
    second = stage.make("second", predecessor="a")
    assert stage.table.follow_heir(second, ())
    assert (second.leader, second.state, second.reason) == (first, "cancelled", "dedupe")
    stage.table.name_heir(second)
    assert stage.named["a"].heir is first


def test_name_heir__of_a_follower_that_meets_a_newcomer():
    """Where a newcomer runs by then, it is the heir, and stays it."""
    stage = abandoned()
    stage.admit("newcomer")
    for name in ("first", "second"):
        call = stage.make(name, predecessor="a")
        stage.table.admit(call)
        stage.table.name_heir(call)
        assert stage.named["a"].heir is stage.named["newcomer"]


def test_name_heir__of_calls_that_ran_nothing():
    """Neither a call without a predecessor nor one that was dropped is an heir."""
    stage = abandoned()
    stage.admit("newcomer")
    stage.table.name_heir(stage.named["newcomer"])
    dropped = stage.make("dropped", "exhaust", predecessor="a")
    stage.table.admit(dropped)
    stage.table.name_heir(dropped)
    assert stage.named["a"].heir is None
    assert not stage.table.follow_heir(stage.make("other"), ())


def test_follow_heir__that_one_must_not_wait_for():
    """A thread leaves an async heir alone, and code inside of the heir is refused."""
    stage = abandoned()
    heir = stage.make("heir", predecessor="a", is_async=True)
    stage.table.admit(heir)
    stage.table.name_heir(heir)
    thread = stage.make("thread", predecessor="a", thread=1)
    assert not stage.table.follow_heir(thread, ())
    inside = stage.make("inside", predecessor="a", inside="heir")
    with pytest.raises(ReentrantCallError):
        stage.table.follow_heir(inside, inside.parent.chain())
    assert (thread.state, inside.state) == ("idle", "idle")


# Reading


def test_cancel_all__of_chosen_keys():
    """`where` chooses by scope and key; the others go on."""
    stage = Stage()
    stage.admit("a", "serialize", key="x")
    stage.admit("b", "serialize", key="x")
    stage.admit("c", key="y")
    stage.admit("d", key="x", scope="other")
    told = stage.cancel_all(where=lambda slot: slot == ("s", "x"))
    assert told == "b cancelled (admission-reset), a cancelled (abort)"
    assert stage.picture() == "a stopping, c running, d running"


def test_calls__of_one_key():
    """One key's calls, or everything."""
    stage = Stage()
    stage.admit("a", key="x")
    stage.admit("b", key="y")
    assert list(stage.table.calls(("s", "x"))) == [stage.named["a"]]
    assert list(stage.table.calls(("s", "nothing"))) == []
    assert list(stage.table.calls()) == [stage.named["a"], stage.named["b"]]


def test_peers__oldest_first_without_stopping_bodies():
    """Peers are the unsettled calls, in the order in which they were made."""
    stage = Stage()
    stage.admit("old", "serialize")
    stage.cancel("old")
    stage.admit("parked", "serialize")
    stage.admit("running", "none")
    version, peers = stage.table.peers(("s", "k"))
    assert [stage.name(peer) for peer in peers] == ["parked", "running"]
    assert version > 0
    assert stage.table.peers(("s", "nothing")) == (0, [])


def test_record__is_a_frozen_picture():
    """A record tells what people may see of a call, and does not change with it."""
    stage = Stage()
    stage.admit("a", "serialize", is_async=True)
    stage.admit("b")
    stage.now = 103.5
    a = stage.named["a"]
    record = stage.table.record(a, "host:1")
    stage.cancel("a")
    assert (record.id, record.key, record.scope, record.function) == (1, "k", "s", "f")
    assert (record.strategy, record.state, record.reason) == ("serialize", "running", None)
    assert (record.generation, record.age, record.joined) == (1, 3.5, 1)
    assert (record.is_async, record.process) == (True, "host:1")
    stopping = stage.table.record(a, "host:1")
    assert (stopping.state, stopping.reason, stopping.joined) == ("stopping", "abort", 0)
    with pytest.raises(AttributeError):
        record.state = "running"


def test_serialize__keeps_the_order_of_200_calls():
    """200 parked calls run one at a time in the order of their arrival."""
    stage = Stage()
    names = [f"c{number}" for number in range(200)]
    for name in names:
        stage.admit(name, serialize(), capacity=200)
    order = []
    while calls := list(stage.table.calls()):
        running = [call for call in calls if call.state == "running"]
        assert len(running) == 1
        order.append(stage.name(running[0]))
        stage.table.settle(running[0], "succeed")
    assert order == names
