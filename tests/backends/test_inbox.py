"""Hints reach the processes that wait, on one server and on a Cluster; none is needed for truth."""

import pytest

from django_vega.backends.connections import Connections
from django_vega.backends.inbox import Inbox
from django_vega.backends.protocol import Follow, Hint, Leader, Queued, Subscribed
from tests.backends.desk import Desk
from tests.backends.servers import DEADLINE, until


def receive(inbox, expected, *, timeout=0.2):
    """Read until it is there; whatever else comes first is a failure."""
    got = []
    until(lambda: got.append(inbox.receive(timeout)) or got[-1] is not None, f"{expected}")
    assert got[-1] == expected


def nothing_more(connections, inbox, channel_of):
    """Whether nothing came before a hint of our own, which is sent now."""
    connections.execute_command("PUBLISH", f"vega:inbox:{channel_of}", "the end")
    receive(inbox, Hint("the end"))


@pytest.fixture
def inboxes(connections, desk):
    """Inboxes of the processes of `b` and `c`, whose subscriptions the server has acknowledged."""
    # A Cluster's server for a channel is any; names of the test's own keep others' hints away.
    opened = {name: Inbox(connections, f"{desk.key_hash}:{name}") for name in "abc"}
    for inbox in opened.values():
        receive(inbox, Subscribed())
    yield opened
    for inbox in opened.values():
        inbox.close()


@pytest.fixture
def process(desk):
    """Return the name of a call's process."""
    return lambda token: f"{desk.key_hash}:{token}"


def test_hint__each_follower__leader_settles(connections, desk, inboxes, process):
    """Subscribe, acknowledge, then act: two processes follow, and each is told once."""
    desk.scripts = type(desk.scripts)(connections)  # a second run would be a second hint
    desk.lead("a", "dedupe", process=process("a"))
    for token in "bc":
        assert isinstance(desk.admit(token, process=process(token)), Follow)
    desk.settle("a")
    for token in "bc":
        receive(inboxes[token], Hint(desk.key_hash))
        nothing_more(connections, inboxes[token], process(token))
    nothing_more(connections, inboxes["a"], process("a"))


def test_hint__each_follower__leader_abandons(desk, inboxes, process):
    """They elect at once."""
    desk.lead("a", "dedupe", process=process("a"))
    for token in "bc":
        desk.admit(token, process=process(token))
    desk.abandon("a")
    for token in "bc":
        receive(inboxes[token], Hint(desk.key_hash))


def test_hint__head_of_the_queue__place_is_free(connections, desk, inboxes, process):
    """Only the one whose turn it is."""
    desk.lead("a", "serialize", process=process("a"))
    for token in "bc":
        assert isinstance(desk.admit(token, "serialize", process=process(token)), Queued)
    desk.settle("a")
    receive(inboxes["b"], Hint(desk.key_hash))
    nothing_more(connections, inboxes["c"], process("c"))
    assert isinstance(desk.admit("b", "serialize", process=process("b")), Leader)


def test_hint__next_of_the_queue__head_is_dead(desk, inboxes, process):
    """Whoever looks drops it and passes the offer on."""
    desk.lead("a", "serialize", process=process("a"))
    for token in "bc":
        desk.admit(token, "serialize", process=process(token))
    desk.settle("a")
    receive(inboxes["b"], Hint(desk.key_hash))
    desk.lapse("b")
    desk.snapshot()
    receive(inboxes["c"], Hint(desk.key_hash))


def test_hint__cancelled_holder__restart(desk, inboxes, process):
    """The process of a cancelled flight is told, and so are its followers."""
    desk.lead("b", "dedupe", process=process("b"))
    desk.admit("c", process=process("c"))
    desk.lead("a", "restart", process=process("a"))
    for token in "bc":
        receive(inboxes[token], Hint(desk.key_hash))


def test_hint__released_holder_and_followers__release(desk, inboxes, process):
    """The operator's release is told to all whom it concerns."""
    desk.lead("b", "dedupe", process=process("b"))
    desk.admit("c", process=process("c"))
    desk.scripts.release(desk.key_hash, "request")
    for token in "bc":
        receive(inboxes[token], Hint(desk.key_hash))


def test_inbox__subscribes_again__connection_was_killed(own_server):
    """A broken connection shows as a new `Subscribed`: what is waited for is looked at again."""
    connections = Connections(own_server.url)
    inbox = Inbox(connections, "p")
    receive(inbox, Subscribed())
    own_server.client.execute_command("CLIENT KILL TYPE pubsub")
    receive(inbox, Subscribed())
    own_server.client.publish("vega:inbox:p", "k")
    receive(inbox, Hint("k"))
    inbox.close()
    connections.close()


def test_inbox__gives_up_a_silent_server(own_server, monkeypatch):
    """A server that hangs with its connections open is noticed; when it goes on, all is well."""
    monkeypatch.setattr("django_vega.backends.inbox.SILENCE", 0.1)
    connections = Connections(own_server.url, {"SOCKET_TIMEOUT": 0.2})
    inbox = Inbox(connections, "p")
    receive(inbox, Subscribed())
    own_server.pause()
    until(lambda: inbox.receive(0.05) is None and inbox._pubsub is None, "the silence is noticed")
    own_server.resume()
    receive(inbox, Subscribed())
    inbox.close()
    connections.close()


def test_inbox__stays__server_is_alive_and_has_nothing_to_tell(own_server, monkeypatch):
    """Silence alone is no fault: the server is asked, and answers."""
    monkeypatch.setattr("django_vega.backends.inbox.SILENCE", 0.05)
    connections = Connections(own_server.url)
    inbox = Inbox(connections, "p")
    receive(inbox, Subscribed())
    subscription = inbox._pubsub
    pings = own_server.client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]

    def asked():
        assert inbox.receive(0.01) is None
        return own_server.client.info("commandstats")["cmdstat_ping"]["calls"] >= pings + 3

    until(asked, "the server was asked three times")
    assert inbox._pubsub is subscription
    inbox.close()
    connections.close()


def test_inbox__waits_for_a_server_that_is_not_there(own_server):
    """`receive` says that there is nothing, and raises nothing."""
    own_server.kill()
    connections = Connections(own_server.url)
    inbox = Inbox(connections, "p")
    assert [inbox.receive(0.01) for _ in range(3)] == [None] * 3
    inbox.stop()
    assert inbox.receive(DEADLINE) is None
    inbox.close()


def test_wake_up__is_not_lost__outcome_comes_between_look_and_wait(connections, desk, process):
    """Registration and state are one step: what is settled afterwards is hinted, before is told."""
    inbox = Inbox(connections, process("b"))
    receive(inbox, Subscribed())
    other = Desk(connections, desk.key_hash)
    generation = other.lead("a", "dedupe")
    follow = desk.admit("b", process=process("b"))
    other.generations["a"] = generation
    other.settle("a")
    receive(inbox, Hint(desk.key_hash))
    assert desk.look("b", want=follow.generation, process=process("b")).generation == generation
    inbox.close()
