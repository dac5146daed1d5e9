"""Rules of the scripts, one by one, on one server and on a Cluster, every script run twice."""

import functools

from django_vega.backends import scripts as scripts_module
from django_vega.backends.connections import Connections
from django_vega.backends.protocol import (
    Cancelled,
    Done,
    Dropped,
    Ended,
    Follow,
    Full,
    Intent,
    Leader,
    Lost,
    Outcome,
    Queued,
    Renewed,
    Settled,
    Snapshot,
    Stale,
)
from django_vega.backends.scripts import Script, Scripts
from django_vega.core.strategies import Strategy, bounded
from tests import threads
from tests.backends.desk import Desk
from tests.backends.servers import until

MICROSECOND = 1_000_000


def server_time(desk):
    """The time of a server in µs; of a Cluster all nodes are on this machine."""
    reply = desk.client.execute_command("EVAL", "return redis.call('TIME')", 1, desk.keys[0])
    return int(reply[0]) * MICROSECOND + int(reply[1])


# Generations


def test_generation__follows_the_servers_clock(desk):
    """A generation is the server's time in µs, where no earlier one is above it."""
    before = server_time(desk)
    generation = desk.lead("a")
    assert before <= generation <= server_time(desk)


def test_generation__grows_though_the_clock_does_not(desk):
    """Above the newest one and above the floor, even where both are ahead of the clock."""
    ahead = server_time(desk) + 3600 * MICROSECOND
    assert desk.lead("a", floor=ahead) == ahead + 1
    assert desk.lead("b") == ahead + 2
    assert desk.lead("c", floor=ahead + 10) == ahead + 11
    assert desk.scripts.issue(desk.key_hash, "solo") == ahead + 12


def test_generation__grows_after_a_flush(desk):
    """The floor, from the database, takes the place of what the server forgot."""
    ahead = server_time(desk) + 3600 * MICROSECOND
    first = desk.lead("a", floor=ahead)
    desk.forget()
    assert desk.lead("b", floor=first) == first + 1


def test_generation__grows_after_a_flush_and_a_heartbeat(desk):
    """A flight that was restored counts, though its generation was issued before the flush."""
    first = desk.lead("a", floor=server_time(desk) + 3600 * MICROSECOND)
    desk.forget()
    assert desk.renew("a", limit=None) == Renewed(restored=True)
    assert desk.lead("b") == first + 1


# Strict join


def test_outcome__never_reaches_who_arrived_later(desk):
    """A call that comes after the settle runs, though the outcome is still kept."""
    desk.lead("a", "dedupe")
    desk.settle("a")
    assert isinstance(desk.admit("b"), Leader)


def test_outcome__never_reaches_who_was_confirmed_for_a_newer_flight(desk):
    """Who follows the second flight does not get the first one's outcome."""
    desk.lead("a", "dedupe")
    desk.settle("a", b"old")
    second = desk.lead("b", "dedupe")
    assert desk.admit("c", want=second).generation == second
    assert isinstance(desk.look("c", want=second), Follow)


def test_outcome__of_whoever_took_over(desk):
    """A follower of a lost flight gets what the next leader settles, even if it looks late."""
    first = desk.lead("a", "dedupe")
    desk.admit("b")
    desk.lapse("a")
    second = desk.lead("c", "dedupe")
    assert isinstance(desk.admit("b", want=first), Follow)
    desk.settle("c", b"the heir's")
    assert desk.admit("b", want=first) == Done(second, Outcome("value", b"the heir's"))


def test_outcome__is_kept_as_long_as_asked(desk):
    """When it has ended, its follower decides anew; with retain=0 it is never there."""
    first = desk.lead("a", "dedupe")
    desk.settle("a")
    desk.end(f"o{first}")
    second = desk.admit("b", want=first)
    assert isinstance(second, Leader)
    desk.settle("b", retain=0)
    assert desk.look("c", want=second.generation).holder.process == ""


def test_outcome__carries_any_bytes(desk):
    """Kind and payload come back as they went in."""
    generation = desk.lead("a")
    every = Outcome("error", bytes(range(256)) + b":\r\n\0")
    desk.scripts.settle(desk.key_hash, "a", generation, every)
    assert desk.look("b", want=generation) == Done(generation, every)


# Followers and leases


def test_follower__takes_over_when_the_lease_ends(desk):
    """Whoever looks drops the dead leader: the first is the new one, the others follow it."""
    first = desk.lead("a", "dedupe")
    desk.admit("b")
    desk.admit("c")
    desk.lapse("a")
    heir = desk.admit("b", want=first)
    assert isinstance(heir, Leader)
    assert desk.admit("c", want=first).generation == heir.generation


def test_follower__takes_over_at_once_when_the_leader_abandons(desk):
    """No outcome is stored; the late leader's heartbeat and outcome are refused."""
    first = desk.lead("a", "dedupe")
    desk.admit("b")
    desk.abandon("a")
    assert isinstance(desk.admit("b", want=first), Leader)
    assert desk.renew("a") == Lost("abandoned")
    assert desk.settle("a") == Lost("abandoned")


def test_follower__leaves(desk):
    """Its process is not told any more; the flight goes on."""
    desk.lead("a", "dedupe")
    desk.admit("b")
    desk.scripts.leave(desk.key_hash, "b", "process-of-b")
    assert desk.snapshot().followers == frozenset()
    assert desk.picture()[0] == ["a"]


def test_follower__is_dropped_when_it_looks_no_more(desk):
    """A process that died is not told for ever."""
    desk.lead("a", "dedupe")
    desk.admit("b")
    desk.end("wprocess-of-b")
    assert desk.snapshot().followers == frozenset()


def test_follow__tells_what_is_left_of_the_lease(desk):
    """A follower knows when to look again."""
    desk.lead("a", "dedupe", lease=30)
    left = desk.admit("b").holder.left
    assert 0 < left <= 30


def test_lease__ends_by_the_servers_clock(connections, desk):
    """A lease of 1 ms is over as soon as the server's time has passed it."""
    scripts = Scripts(connections)
    strategy = {"limit": 1, "when_full": "reuse"}
    first = scripts.admit(desk.key_hash, desk.intent("a", lease=0.001), **strategy)
    end = server_time(desk) + 1000
    until(lambda: server_time(desk) > end, "1 ms is over")
    heir = scripts.admit(desk.key_hash, desk.intent("b"), **strategy, want=first.generation)
    assert isinstance(heir, Leader)
    assert heir.generation > first.generation


def test_look__takes_no_lead(desk):
    """A follower may ask how things stand without becoming the leader."""
    first = desk.lead("a", "dedupe")
    assert desk.look("b", want=first).generation == first
    desk.lapse("a")
    assert isinstance(desk.look("b", want=first), Dropped)
    assert desk.picture() == ([], [], [])


# Heartbeats


def test_renew__goes_on(desk):
    """A holder gets a new lease."""
    desk.lead("a", "dedupe", lease=0.5)
    assert desk.renew("a") == Renewed()
    assert desk.snapshot().flights[0].left > 1


def test_renew__restores__server_forgot(desk):
    """After a flush the heartbeat writes the flight back, and followers find it."""
    generation = desk.lead("a", "dedupe")
    desk.forget()
    assert desk.renew("a", beat=1) == Renewed(restored=True)
    assert desk.renew("a", beat=2) == Renewed()
    assert desk.admit("b").generation == generation
    assert desk.settle("a") == Settled()


def test_renew__restores_all__server_forgot_several(desk):
    """The order in which the heartbeats come does not matter."""
    for token in "abc":
        desk.lead(token, bounded(3))
    desk.forget()
    assert [desk.renew(token, limit=3) for token in "cab"] == [Renewed(restored=True)] * 3
    assert desk.picture()[0] == ["a", "b", "c"]
    assert isinstance(desk.admit("d", bounded(3)), Follow)


def test_renew__restores__lease_had_passed_and_nobody_came(desk):
    """A late heartbeat costs nothing where nobody took the place."""
    desk.lead("a", "dedupe")
    desk.lapse("a")
    assert desk.snapshot().flights == ()
    assert desk.renew("a") == Renewed(restored=True)


def test_renew__lost__somebody_newer_was_admitted(desk):
    """Not even after the newer one has settled: its outcome is the younger one."""
    desk.lead("a", "dedupe")
    desk.lapse("a")
    desk.lead("b", "dedupe")
    assert desk.renew("a") == Lost("taken")
    desk.settle("b")
    assert desk.renew("a") == Lost("taken")
    assert desk.settle("a") == Lost("taken")


def test_renew__restores__solo_generation_in_between(desk):
    """A generation for a call that is not coordinated takes nobody's place."""
    desk.lead("a", "dedupe")
    desk.forget()
    desk.scripts.issue(desk.key_hash, "solo")
    assert desk.renew("a") == Renewed(restored=True)


def test_renew__lost__after_settle(desk):
    """A heartbeat that arrives late does not bring a settled flight back."""
    desk.lead("a", "dedupe")
    desk.settle("a")
    assert desk.renew("a") == Lost("settled")
    assert desk.picture() == ([], [], [])


# Settle


def test_settle__delivers__server_forgot(desk):
    """The outcome reaches followers though the flight was not written back before."""
    first = desk.lead("a", "dedupe")
    desk.admit("b")
    desk.forget()
    assert desk.settle("a", b"all the same") == Settled()
    assert desk.admit("b", want=first) == Done(first, Outcome("value", b"all the same"))


def test_settle__lost__taken(desk):
    """A leader whose place was taken changes nothing."""
    first = desk.lead("a", "dedupe")
    desk.lapse("a")
    second = desk.lead("b", "dedupe")
    assert desk.settle("a") == Lost("taken")
    assert desk.look("c", want=first).generation == second, "whoever took over answers"
    assert desk.picture()[0] == ["b"]


def test_next__parks_once_and_is_shared(desk):
    """One running and one parked: later ones follow the parked one, whatever it is then."""
    desk.lead("a", "dedupe")
    assert isinstance(desk.next("b"), Queued)
    reply = desk.next("c")
    assert (type(reply), reply.holder.process) == (Follow, "process-of-b")
    assert isinstance(desk.look("c", want=reply.generation), Follow)
    desk.settle("a")
    assert isinstance(desk.look("c", want=reply.generation), Follow), "no outcome of before"
    taken = desk.next("b")
    assert isinstance(taken, Leader)
    assert desk.look("c", want=reply.generation).generation == taken.generation
    desk.generations["b"] = taken.generation
    desk.settle("b", b"next")
    assert desk.look("c", want=reply.generation) == Done(
        taken.generation, Outcome("value", b"next")
    )
    assert isinstance(desk.next("d"), Leader), "nobody is in its way"


def test_settle__keeps_the_place__body_still_runs(desk):
    """A cancelled body is nobody's peer, its followers are told, but a queue waits for its end."""
    first = desk.lead("a", "dedupe")
    desk.admit("b", "serialize")
    outcome = Outcome("cancelled", b"abort")
    told = desk.scripts.settle(desk.key_hash, "a", first, outcome, stopping=5)
    assert told == Settled()
    assert desk.look("c", want=first) == Done(first, outcome)
    assert desk.picture() == ([], ["a"], ["b"])
    assert isinstance(desk.admit("b", "serialize"), Queued)
    assert desk.renew("a") == Lost("settled")
    assert desk.snapshot().stopping[0].left > 5, "the place is kept for as long as it renews"
    desk.abandon("a")
    assert isinstance(desk.admit("b", "serialize"), Leader)


def test_settle__leaves_only_what_expires(desk):
    """Every key of a settled flight has a time to live, and the idle key ends."""
    desk.lead("a", "dedupe", key="quakes:alaska")
    desk.admit("b")
    desk.settle("a")
    for key in desk.keys:
        left = desk.client.execute_command("PTTL", key)
        assert left == -2 or 0 < left <= 90_000, key


def test_every_key__expires__flights_and_queue(desk):
    """So does what a crash of everybody would leave."""
    desk.lead("a", "serialize")
    desk.admit("b", "serialize")
    desk.admit("c", "dedupe")
    for key in desk.keys:
        assert desk.client.execute_command("PTTL", key) != -1, key


# Queue


def test_queue__keeps_the_order_of_arrival(desk):
    """Whatever the tokens are."""
    desk.lead("m", "serialize")
    assert [desk.admit(token, "serialize").ahead for token in "zay"] == [0, 1, 2]
    assert desk.picture() == (["m"], [], ["z", "a", "y"])
    desk.lapse("a")
    assert desk.admit("b", "serialize").ahead == 2
    assert desk.picture() == (["m"], [], ["z", "y", "b"])


def test_queue__skips_dead_tickets(desk):
    """A parked ticket that asks no more loses its turn; order is kept."""
    desk.lead("a", "serialize")
    for token in "bcd":
        desk.admit(token, "serialize")
    desk.lapse("b", "c")
    desk.settle("a")
    assert isinstance(desk.admit("d", "serialize"), Leader)


def test_queue__skips_a_ticket_that_does_not_claim(desk):
    """The place that was offered goes to the next one when the claim window is over."""
    desk.lead("a", "serialize")
    for token in "bc":
        desk.admit(token, "serialize", lease=30, claim=2)
    desk.settle("a")
    head, other = desk.snapshot().parked
    assert head.left <= 2 < other.left
    assert isinstance(desk.admit("c", "serialize"), Queued)
    desk.lapse("b")
    assert isinstance(desk.admit("c", "serialize"), Leader)


def test_queue__takes_an_offer_back__place_was_taken(desk):
    """A call that does not queue may come between offer and claim; the ticket then waits on."""
    desk.lead("a", "serialize")
    desk.admit("b", "serialize", lease=30, claim=2)
    desk.settle("a")
    desk.lead("c", "none")
    assert isinstance(desk.admit("b", "serialize", lease=30), Queued)
    assert desk.snapshot().parked[0].left > 2
    desk.settle("c")
    assert desk.snapshot().parked[0].left <= 2, "not offered again"
    assert isinstance(desk.admit("b", "serialize"), Leader)


def test_queue__newcomer_does_not_overtake(desk):
    """A free place that was offered is not for who comes now."""
    desk.lead("a", "serialize")
    desk.admit("b", "serialize")
    desk.settle("a")
    assert isinstance(desk.admit("c", "serialize"), Queued)
    assert isinstance(desk.admit("b", "serialize"), Leader)


def test_queue__newcomer_runs__there_is_room_beside_those_before_it(desk):
    """With two places and one offered, the next call has the other one."""
    rule = Strategy(limit=2, when_full="queue")
    desk.lead("a", rule)
    desk.lead("b", rule)
    desk.admit("c", rule)
    desk.settle("a")
    desk.settle("b")
    assert isinstance(desk.admit("d", rule), Leader)
    assert isinstance(desk.admit("c", rule), Leader)


def test_queue__capacity(desk):
    """It bounds the parked calls: none with 0, any number without a bound."""
    desk.lead("a", "serialize")
    assert isinstance(desk.admit("b", "serialize", capacity=0), Full)
    assert isinstance(desk.admit("b", "serialize", capacity=1), Queued)
    assert isinstance(desk.admit("c", "serialize", capacity=1), Full)
    for number in range(20):
        assert isinstance(desk.admit(f"n{number}", "serialize", capacity=None), Queued)


def test_queue__leaver_gives_up_its_place(desk):
    """Its token is spent, those behind it move up."""
    desk.lead("a", "serialize")
    for token in "bc":
        desk.admit(token, "serialize")
    desk.scripts.leave(desk.key_hash, "b", "process-of-b")
    assert desk.admit("c", "serialize").ahead == 0
    assert desk.admit("b", "serialize") == Ended("abandoned")


def test_leave__ends_what_it_turned_into(desk):
    """A ticket whose caller timed out while it was let in does not lead on."""
    desk.lead("a", "serialize")
    desk.admit("b", "serialize")
    desk.settle("a")
    desk.admit("b", "serialize")
    desk.scripts.leave(desk.key_hash, "b", "process-of-b")
    assert desk.picture() == ([], [], [])


def test_abandon__before_its_admission_arrives(desk):
    """A request that was held up and arrives after the caller gave up starts nothing."""
    desk.abandon("a")
    assert desk.admit("a") == Ended("abandoned")
    assert desk.picture() == ([], [], [])


def test_reuse__follows_the_queues_next__nothing_runs(desk):
    """Between offer and claim there is no flight yet: the follower waits for the next one."""
    desk.lead("a", "serialize")
    desk.admit("b", "serialize")
    desk.settle("a", b"too old")
    follow = desk.admit("c", "dedupe")
    assert isinstance(follow, Follow)
    assert follow.holder.generation is None
    assert desk.snapshot().followers == {"process-of-c"}
    generation = desk.lead("b", "serialize")
    assert desk.admit("c", "dedupe", want=follow.generation).generation == generation
    desk.settle("b", b"the next")
    done = desk.admit("c", "dedupe", want=follow.generation)
    assert done == Done(generation, Outcome("value", b"the next"))


# Restart and cancel


def test_restart__cancels_the_oldest_until_a_place_is_free(desk):
    """With limit 2 one goes; parked ones go after the flights."""
    rule = Strategy(limit=2, when_full="cancel")
    desk.lead("a", rule)
    desk.lead("b", rule)
    assert [one.token for one in desk.admit("c", rule).cancelled] == ["a"]
    desk.admit("q", "serialize")
    reply = desk.admit("d", Strategy(limit=1, when_full="cancel"))
    assert [(one.token, one.generation is None) for one in reply.cancelled] == [
        ("b", False),
        ("c", False),
        ("q", True),
    ]
    assert desk.admit("q", "serialize") == Ended("abort")


def test_restart__followers_get_the_cancellation(desk):
    """As the cancelled leader's outcome, with its reason."""
    first = desk.lead("a", "dedupe")
    desk.admit("b")
    desk.lead("c", "restart")
    assert desk.admit("b", want=first) == Done(first, Outcome("cancelled", b"abort"))
    assert desk.renew("a") == Lost("abort")


def test_cancel__everybody(desk):
    """The queue is voided first, with a reason of its own; no parked call starts."""
    generation = desk.lead("a", "serialize")
    desk.admit("b", "serialize")
    cancelled = desk.scripts.cancel(desk.key_hash, "request", parked_reason="admission-reset")
    assert cancelled == (
        Cancelled("b", "process-of-b", None),
        Cancelled("a", "process-of-a", generation),
    )
    assert desk.admit("b", "serialize") == Ended("admission-reset")
    assert desk.settle("a") == Lost("abort")


def test_cancel__some(desk):
    """Only those named; whoever has ended already is not among the answers."""
    for token in "abc":
        desk.lead(token)
    desk.settle("c")
    named = desk.scripts.cancel(desk.key_hash, "request", tokens=["b", "c", "nobody"])
    assert [one.token for one in named] == ["b"]
    assert desk.scripts.cancel(desk.key_hash, "another", tokens=[]) == ()
    assert desk.picture()[0] == ["a"]


def test_cancel__same_request_again(desk):
    """It answers as before, and cancels nobody who came meanwhile."""
    desk.lead("a", "dedupe")
    first = desk.scripts.cancel(desk.key_hash, "request")
    desk.lead("b", "dedupe")
    assert desk.scripts.cancel(desk.key_hash, "request") == first
    assert desk.picture()[0] == ["b"]


def test_release__drops_all_holders(desk):
    """Running and stopping ones; the newest generation says where the fence has to go."""
    first = desk.lead("a", "dedupe")
    second = desk.lead("b", "restart")
    desk.admit("c")
    assert desk.scripts.release(desk.key_hash, "request") == second > first
    assert desk.picture() == ([], [], [])
    assert [desk.renew(token) for token in "ab"] == [Lost("released")] * 2
    assert isinstance(desk.admit("c", want=second), Leader)
    assert desk.scripts.release(desk.key_hash, "request") == second
    assert desk.picture()[0] == ["c"]


def test_release__nothing_is_known(desk):
    """A key that nobody used has no generation to fence."""
    assert desk.scripts.release(desk.key_hash, "request") == 0


# Snapshot and decisions of coordinators


def test_snapshot__shows_everything(desk):
    """Flights, stopping bodies, queue and followers, with what each says of itself."""
    a = desk.lead("a", "dedupe", key="quakes:\udcffalaska", about=b"\0\xff")
    b = desk.lead("b", "restart", key="quakes:\udcffalaska")
    desk.admit("c", "serialize", key="quakes:\udcffalaska", about=b"parked")
    desk.admit("d", "dedupe")
    now = desk.snapshot()
    assert (now.generation, now.key) == (b, "quakes:\udcffalaska")
    parts = (now.flights, now.stopping, now.parked)
    assert [
        [(one.token, one.process, one.generation, one.about) for one in part] for part in parts
    ] == [
        [("b", "process-of-b", b, b"")],
        [("a", "process-of-a", a, b"\0\xff")],
        [("c", "process-of-c", None, b"parked")],
    ]
    assert all(one.age >= 0 and 0 < one.left <= 10 for part in parts for one in part)
    assert now.followers == {"process-of-d"}


def test_snapshot__of_an_idle_key(desk):
    """Nothing, at version 0, and nothing is stored by looking."""
    assert desk.snapshot() == Snapshot(0, 0, "", (), (), (), frozenset())
    assert desk.client.execute_command("EXISTS", *desk.keys) == 0


def test_version__changes_with_what_coordinators_see(desk):
    """With every step of flights and queue, not with heartbeats and followers, and never back."""
    seen = [desk.snapshot().version]

    def moved(step):
        step()
        seen.append(desk.snapshot().version)
        return seen[-1] > seen[-2]

    assert moved(lambda: desk.lead("a", "dedupe"))
    assert not moved(lambda: desk.renew("a"))
    assert not moved(lambda: desk.admit("b", "dedupe"))
    assert moved(lambda: desk.admit("c", "serialize"))
    assert moved(lambda: desk.settle("a"))
    assert moved(lambda: desk.lead("c", "serialize"))
    assert moved(lambda: desk.lapse("c"))
    before = seen[-1]
    desk.forget()
    desk.lead("d")
    assert desk.snapshot().version > before


def test_apply__stale__key_changed(desk):
    """Nothing is done, and the coordinator is to be asked again."""
    version = desk.snapshot().version
    desk.lead("a")
    assert desk.apply("b", "proceed", version=version) == Stale()
    assert desk.picture()[0] == ["a"]


def test_apply__stale__a_lease_ended_meanwhile(desk):
    """That a flight is gone changes the key too, though nobody has noticed yet."""
    desk.lead("a")
    version = desk.snapshot().version
    desk.lapse("a")
    assert desk.apply("b", "proceed", version=version) == Stale()


def test_apply__proceed(desk):
    """The call runs, beside whoever runs, and cancels whom it was told to."""
    a = desk.lead("a")
    desk.lead("b")
    reply = desk.apply("c", "proceed", cancel=["a"])
    assert reply.cancelled == (Cancelled("a", "process-of-a", a),)
    assert desk.picture() == (["b", "c"], ["a"], [])


def test_apply__reuse(desk):
    """The call follows the peer that was chosen, and looks on by its generation."""
    desk.lead("a")
    b = desk.lead("b")
    reply = desk.apply("c", "reuse", peer="b")
    assert (reply.generation, reply.holder.process) == (b, "process-of-b")
    desk.settle("b", b"chosen")
    assert desk.look("c", want=b) == Done(b, Outcome("value", b"chosen"))


def test_apply__again__chosen_peer_is_lost(desk):
    """The follower's coordinator is asked once more, and this decision counts."""
    a = desk.lead("a")
    desk.apply("b", "reuse", peer="a")
    desk.lapse("a")
    assert isinstance(desk.look("b", want=a), Dropped)
    assert isinstance(desk.apply("b", "proceed"), Leader)
    assert desk.picture()[0] == ["b"]


def test_apply__ended__caller_has_left(desk):
    """A decision that arrives after its call was given up starts nothing."""
    desk.abandon("a")
    assert desk.apply("a", "proceed") == Ended("abandoned")
    assert desk.picture() == ([], [], [])


def test_apply__queue(desk):
    """Parked while there is anything; runs at once when there is nothing."""
    assert isinstance(desk.apply("a", "queue", capacity=1), Leader)
    assert desk.apply("b", "queue", capacity=1).ahead == 0
    assert isinstance(desk.apply("c", "queue", capacity=1), Full)
    desk.settle("a")
    assert isinstance(desk.admit("b", "serialize"), Leader)


def test_apply__queue__place_of_the_cancelled(desk):
    """A parked peer that goes makes room in the queue; a cancelled body still has to end."""
    desk.lead("a", "serialize")
    desk.admit("b", "serialize")
    assert isinstance(desk.apply("c", "queue", capacity=1, cancel=["a", "b"]), Queued)
    assert desk.picture() == ([], ["a"], ["c"])
    desk.abandon("a")
    assert desk.admit("c", "serialize") == Leader(desk.generations["c"])


def test_apply__drop(desk):
    """The call ends; peers may go all the same."""
    desk.lead("a")
    assert isinstance(desk.apply("b", "drop", cancel=["a"]), Dropped)
    assert desk.picture() == ([], ["a"], [])


# Arrivals out of order, and the server's own


def test_admit__same_token_again(desk):
    """A request that is run again long after does not start a second flight."""
    first = desk.admit("a", "none")
    assert desk.admit("a", "none") == first
    desk.settle("a")
    assert desk.admit("a", "none") == Ended("settled")
    assert desk.picture() == ([], [], [])


def test_scripts__are_found_again__server_lost_them(desk):
    """SCRIPT FLUSH at any moment costs one round trip and nothing else."""

    class Flushing:
        def execute_command(self, *args):
            desk.client.execute_command("EVAL", "return 1", 1, desk.keys[0])
            if args[0] == "EVALSHA":
                desk.client.execute_command("SCRIPT FLUSH")
            return desk.client.execute_command(*args)

    scripts = Scripts(Flushing())
    intent = Intent("a", "p")
    leader = scripts.admit(desk.key_hash, intent, limit=1, when_full="reuse")
    assert isinstance(leader, Leader)
    outcome = Outcome("value", b"")
    assert scripts.settle(desk.key_hash, "a", leader.generation, outcome) == Settled()


def test_scripts__cost_one_round_trip(desk):
    """Leading alone is two in all: one to begin, one to settle."""
    sent = []

    class Counting:
        def execute_command(self, *args):
            sent.append(args[0])
            return desk.client.execute_command(*args)

    desk.lead("warm", "none")
    desk.settle("warm")
    desk.scripts = Scripts(Counting())
    desk.lead("a")
    desk.settle("a")
    assert sent == ["EVALSHA"] * 2


def test_scripts__are_packaged():
    """Every script has a header that says what it promises."""
    every = [item for item in vars(scripts_module).values() if isinstance(item, Script)]
    assert len(every) == 9
    for script in every:
        own = script.text.decode().rpartition(f"-- {script.name.upper()}")[2]
        assert "Returns:" in own, script.name
        assert "Guarantees:" in own, script.name


def test_admit__one_leads__many_threads_at_once(connections, desk):
    """Whoever comes first leads, and all others follow it, at every round."""
    scripts = Scripts(connections)
    for number in range(10):
        key_hash = f"{desk.key_hash}:{number}"

        def call(token, key_hash=key_hash):
            return scripts.admit(key_hash, desk.intent(token), limit=1, when_full="reuse")

        replies = threads.run_together(*[functools.partial(call, token) for token in "abcdefgh"])
        (leader,) = [reply for reply in replies if isinstance(reply, Leader)]
        assert [reply.generation for reply in replies] == [leader.generation] * 8


def test_heartbeat_restores__flushall(own_server):
    """FLUSHALL costs nothing but a heartbeat: the flight is back, and generations grow on."""
    connections = Connections(own_server.url)
    desk = Desk(connections, "k")
    first = desk.lead("a", "dedupe", floor=server_time(desk) + 3600 * MICROSECOND)
    own_server.client.flushall()
    assert desk.renew("a") == Renewed(restored=True)
    assert desk.admit("b").generation == first
    own_server.client.flushall()
    assert desk.lead("c", "dedupe", floor=first) == first + 1
    connections.close()
