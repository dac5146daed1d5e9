"""One bus carries frozen events to whoever wants them, and no receiver can do harm."""

import copy
import dataclasses
import logging
import pickle

import pytest

from django_vega.core import events
from django_vega.core.events import (
    COORDINATION_EVENTS,
    EVENT_TYPES,
    CallCreated,
    CallSettled,
    CoordinationRestart,
    CoordinationReuse,
    Event,
    EventBus,
    RefreshWritten,
    get_event_bus,
    subscribe,
)

COMMON = {
    "key": "quakes:alaska",
    "call_id": 7,
    "coordinator": "dedupe",
    "function": "feed.refresh",
    "at": 1_700_000_000.5,
    "process": "host:1",
}
OWN = {
    "call:settled": {"state": "cancelled", "reason": "abort", "duration": 1.5},
    "call:skipped": {"answer": "skip"},
    "shaper:swallowed": {"shaper": "throttle"},
    "lease:lost": {"reason": "taken"},
    "coordination:reuse": {"peer_id": 3},
    "coordination:restart": {"cancelled_call_ids": (1, 2)},
    "refresh:written": {"generation": 5, "rows": 3, "written": 2},
    "refresh:superseded": {"generation": 5},
    "refresh:failed": {"generation": 5, "error": "ValueError: no"},
}


def an_event(kind):
    return EVENT_TYPES[kind](**COMMON, **OWN.get(kind, {}))


@pytest.fixture
def bus():
    return EventBus()


def test_event_types__are_these():
    """The closed set of events, by the names that people subscribe to."""
    assert list(EVENT_TYPES) == [
        "call:created",
        "call:parked",
        "call:queued",
        "call:running",
        "call:settled",
        "call:skipped",
        "coordination:reuse",
        "coordination:restart",
        "coordination:queued",
        "coordination:dropped",
        "coordination:orphaned-intent",
        "coordination:solo",
        "shaper:swallowed",
        "lease:lost",
        "refresh:written",
        "refresh:superseded",
        "refresh:failed",
    ]
    assert all(EVENT_TYPES[kind].type == kind for kind in EVENT_TYPES)
    known = {
        cls for cls in vars(events).values() if isinstance(cls, type) and issubclass(cls, Event)
    }
    assert known == {*EVENT_TYPES.values(), Event}


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_event__is_a_frozen_value(kind):
    """Every event carries the common fields and its own, cannot be changed, and equals its twin."""
    event = an_event(kind)
    for name, value in {**COMMON, **OWN.get(kind, {})}.items():
        assert getattr(event, name) == value
    assert event == an_event(kind)
    assert hash(event) == hash(an_event(kind))
    for name in (*COMMON, *OWN.get(kind, {})):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, name, None)
    with pytest.raises((AttributeError, TypeError)):
        event.other = 1


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_event__survives_pickle_and_copy(kind):
    """An event can travel to another process."""
    event = an_event(kind)
    for twin in (pickle.loads(pickle.dumps(event)), copy.deepcopy(event)):
        assert twin == event
        assert type(twin) is type(event)
        assert twin.type == kind


@pytest.mark.parametrize("kind", COORDINATION_EVENTS)
def test_coordination_event__needs_nothing_of_its_coordinator(kind):
    """A coordinator may leave every field out; they are filled in for it."""
    assert (kind().key, kind().call_id) == ("", 0)


def test_event__takes_names_only():
    """Positional arguments would bind to whatever field comes first."""
    with pytest.raises(TypeError):
        CallCreated("key")
    with pytest.raises(TypeError, match="state"):
        CallSettled()


# Subscribing


def test_subscribe__to_everything(bus):
    """Without types a receiver gets every event, own diagnostics too, in order."""
    got = []
    bus.subscribe(got.append)
    published = [an_event("call:created"), an_event("coordination:reuse"), Diagnostics()]
    for event in published:
        bus.publish(event)
    assert got == published


class Diagnostics:
    type = "mine:noted"


def test_subscribe__to_some_types(bus):
    """With types a receiver gets those only, own ones included."""
    got = []
    bus.subscribe(got.append, ["call:settled", "mine:noted"])
    mine = Diagnostics()
    for event in (an_event("call:created"), an_event("call:settled"), mine):
        bus.publish(event)
    assert got == [an_event("call:settled"), mine]


def test_subscribe__types_from_a_generator(bus):
    """The types are read once, at the subscription."""
    got = []
    bus.subscribe(got.append, (kind for kind in ("call:created", "call:settled")))
    bus.publish(an_event("call:settled"))
    bus.publish(an_event("call:created"))
    assert len(got) == 2


def test_unsubscribe__ends_one_subscription(bus):
    """The same receiver subscribed twice is called once after one of them ended; again is safe."""
    got = []
    first = bus.subscribe(got.append)
    bus.subscribe(got.append)
    bus.publish(an_event("call:created"))
    first()
    first()
    bus.publish(an_event("call:settled"))
    assert [event.type for event in got] == ["call:created", "call:created", "call:settled"]


def test_unsubscribe__while_an_event_is_published(bus):
    """A receiver may end subscriptions, its own or another's; the present round goes on."""
    got = []

    def once(event):
        got.append("once")
        end_once()
        end_other()

    end_once = bus.subscribe(once)
    end_other = bus.subscribe(lambda event: got.append("other"))
    bus.publish(an_event("call:created"))
    bus.publish(an_event("call:created"))
    assert got == ["once", "other"]


def test_publish__from_a_receiver(bus):
    """A receiver may publish, and subscribe, without a lock in its way."""
    got = []

    def receiver(event):
        got.append(event.type)
        if event.type == "call:created":
            bus.subscribe(lambda event: got.append("new"))
            bus.publish(an_event("call:settled"))

    bus.subscribe(receiver)
    bus.publish(an_event("call:created"))
    assert got == ["call:created", "call:settled", "new"]


def test_wants__says_whether_somebody_listens(bus):
    """Events are built only for receivers, so the bus knows what they want."""
    assert not bus.wants("call:created")
    end = bus.subscribe(print, ["call:created"])
    assert (bus.wants("call:created"), bus.wants("call:settled")) == (True, False)
    bus.subscribe(print)
    assert bus.wants("call:settled")
    end()
    assert bus.wants("call:created")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("call:setled", "Did you mean 'call:settled'?"),
        ("coordination:restarted", "Did you mean 'coordination:restart'?"),
        ("refresh:zzzzzzzzzzzz", "Use one of ['call:created', "),
    ],
)
def test_subscribe__misspelt_type(bus, name, hint):
    """A type that would never arrive is refused, with the one that was probably meant."""
    with pytest.raises(ValueError, match="it would never arrive") as caught:
        bus.subscribe(print, ["call:created", name])
    assert f"there is no event type {name!r}" in str(caught.value)
    assert hint in str(caught.value)
    assert not bus.wants("call:created")


def test_subscribe__single_string(bus):
    """A string is no list of types, though Python would iterate over it."""
    with pytest.raises(TypeError, match=r"pass a list of event types, \['call:created'\]"):
        bus.subscribe(print, "call:created")


@pytest.mark.parametrize("receiver", [None, "print", 3])
def test_subscribe__what_cannot_be_called(bus, receiver):
    """A receiver that is no function is refused at once."""
    with pytest.raises(TypeError, match="is not callable: pass a function of one event"):
        bus.subscribe(receiver)


def test_publish__receiver_that_raises(bus, caplog):
    """It is logged with its traceback; the publisher and the other receivers notice nothing."""
    got = []

    def broken(event):
        raise ValueError("broken receiver")

    bus.subscribe(got.append)
    bus.subscribe(broken)
    bus.subscribe(got.append)
    with caplog.at_level(logging.ERROR, "django_vega"):
        bus.publish(an_event("call:settled"))
    assert len(got) == 2
    [record] = caplog.records
    assert (record.name, record.levelname) == ("django_vega", "ERROR")
    assert "broken" in record.getMessage()
    assert "call:settled" in record.getMessage()
    assert "broken receiver" in caplog.text


def test_get_event_bus__is_one_per_process():
    """`subscribe` is that of the one bus."""
    got = []
    unsubscribe = subscribe(got.append, ["mine:noted"])
    try:
        get_event_bus().publish(mine := Diagnostics())
        get_event_bus().publish(CoordinationReuse())
    finally:
        unsubscribe()
    get_event_bus().publish(Diagnostics())
    assert got == [mine]


def test_event__has_defaults_that_say_nothing_happened():
    """Defaults of the own fields are empty, never invented."""
    assert CoordinationRestart().cancelled_call_ids == ()
    assert RefreshWritten(generation=1).rows is None
    assert CallSettled(state="success").reason is None
