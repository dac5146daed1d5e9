"""Django signals and the bus: each event once, for the function, whatever the receivers do."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import django_vega
from django_vega import (
    CallCancelled,
    Upsert,
    coordinated,
    coordinator,
    get_event_bus,
    serialize,
    singleflight_refresh,
    subscribe,
)
from django_vega.core.events import EVENT_TYPES
from django_vega.signals import (
    BY_EVENT_TYPE,
    call_created,
    call_queued,
    call_settled,
    refresh_written,
)
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate, Recorder, never
from tests.writing_app.models import Quake


@coordinated(key="signal:{region}", ignore=["body"])
def fetch(region: str, body: Callable[[], Any]) -> Any:
    return body()


@coordinated(key="signal:{region}", ignore=["body"])
async def afetch(region: str, body: Callable[[], Any]) -> Any:
    return body()


class Repository:
    @coordinated(key="method:{region}")
    def refresh(self, region: str) -> str:
        return region

    @coordinated(key="class:{region}")
    @classmethod
    def refresh_class(cls, region: str) -> str:
        return region

    @coordinated(key="static:{region}")
    @staticmethod
    def refresh_static(region: str) -> str:
        return region


class Special(Repository):
    pass


@contextmanager
def received(sender: Any = None) -> Iterator[list[tuple[str, Any, Any]]]:
    """Collect event type, sender and event of every signal while the block lasts."""
    got: list[tuple[str, Any, Any]] = []
    with ExitStack() as stack:
        for name, signal in BY_EVENT_TYPE.items():

            def receiver(sender: Any, event: Any, name: str = name, **_: Any) -> None:
                got.append((name, sender, event))

            signal.connect(receiver, sender=sender)
            stack.callback(signal.disconnect, receiver, sender=sender)
        yield got


def test_signals_exist__for_every_event_type():
    """Each event type has a signal of its own, named after it."""
    from django_vega import signals

    assert set(BY_EVENT_TYPE) == set(EVENT_TYPES)
    for name, signal in BY_EVENT_TYPE.items():
        assert getattr(signals, name.replace(":", "_").replace("-", "_")) is signal


@coordinator("undecided")
def undecided(ctx: Any) -> None:
    """Decide nothing."""


@pytest.mark.parametrize("strategy", ["dedupe", "restart", "serialize", "exhaust", "none"])
def test_signals_mirror_the_bus__each_strategy(strategy):
    """Per call, the signals carry the very objects of the bus, in the same order."""
    function = fetch.with_options(strategy=strategy)
    gate = Gate("value")

    def caller() -> Any:
        try:
            return function("alaska", gate)
        except CallCancelled as error:
            return error.reason

    with received() as got, Recorder() as recorder:
        with Arrivals() as arrivals:
            callers = []
            for number in range(3):
                callers.append(threads.start(caller))
                arrivals.wait(number + 1)
        gate.open()
        threads.results(callers)
        published = recorder.events()
    assert {sender for _, sender, _ in got} == {fetch}
    assert all(event.type == name for name, _, event in got)
    ids = {event.call_id for event in published}
    assert len(ids) == 3
    for call_id in ids:
        on_the_bus = [event for event in published if event.call_id == call_id]
        in_signals = [event for _, _, event in got if event.call_id == call_id]
        assert len(on_the_bus) == len(in_signals)
        assert all(one is other for one, other in zip(on_the_bus, in_signals, strict=True))


def test_event_says_who_and_what__created_to_settled():
    """An event carries key, call, coordinator, function, time and process, and is frozen."""
    with received(fetch) as got:
        fetch.with_options(strategy=serialize(capacity=7))("alaska", lambda: None)
    assert [name for name, _, _ in got] == ["call:created", "call:running", "call:settled"]
    event = got[-1][2]
    assert (event.type, event.key, event.coordinator) == (
        "call:settled",
        "signal:alaska",
        "serialize",
    )
    assert event.function == f"{__name__}.fetch"
    assert event.at > 1_500_000_000
    assert event.process.count(":") == 1
    assert (event.state, event.reason) == ("success", None)
    assert event.duration >= 0
    with pytest.raises(FrozenInstanceError):
        event.state = "error"


def test_sender_is_the_unbound_function__methods_of_all_kinds():
    """For methods the sender is what stands in the class, whoever the instance and the subclass."""
    with received() as got:
        for owner in (Repository, Special):
            owner().refresh("alaska")
            owner.refresh_class("alaska")
            owner.refresh_static("alaska")
        Repository().refresh.with_options(strategy="none")("alaska")
    senders = [sender for name, sender, _ in got if name == "call:created"]
    standing = [vars(Repository)[name] for name in ("refresh", "refresh_class", "refresh_static")]
    assert all(
        one is other for one, other in zip(senders, [*standing * 2, standing[0]], strict=True)
    )


def test_sender_is_the_decorated_function__submitted():
    """Signals of submitted calls come from the pool's thread, with the same sender."""
    with received(fetch) as got:
        fetch.submit("alaska", lambda: None).result()
        told = [name for name, _, _ in got]
    assert told[:3] == ["call:created", "call:queued", "call:running"]


def test_submitting_is_told_first__before_a_worker_can_have_the_call(new_alias):
    """The signals of a call come in the order in which it lives: queued before it can run.

    Interleaving: a receiver of the queued signal makes the pool run all that it has so far.
    """
    alias = new_alias(WORKERS=1)
    happened: list[str] = []

    @coordinated(key="order:{name}", using=alias, scope=alias)
    def work(name: str) -> None:
        happened.append(f"{name} runs")

    def receiver(event: Any, **_: Any) -> None:
        if event.key == "order:first":
            work.submit("second").result()
            happened.append("first is told")

    call_queued.connect(receiver)
    try:
        work.submit("first").result()
    finally:
        call_queued.disconnect(receiver)
    assert happened == ["second runs", "first is told", "first runs"]


def test_sender_is_the_decorated_function__async():
    """Signals of async calls have the unbound function as sender too."""
    with received(afetch) as got:
        assert asyncio.run(afetch("alaska", lambda: "value")) == "value"
    assert [name for name, _, _ in got] == ["call:created", "call:running", "call:settled"]


def failing(**_: Any) -> None:
    raise LookupError("the receiver's own")


@pytest.mark.parametrize("signal", [call_created, call_settled], ids=["created", "settled"])
def test_receiver_raises__logged_and_changes_nothing(signal, caplog):
    """What a receiver raises is logged; the call, and the other receivers, do not notice."""
    heard: list[str] = []

    def hears(**_: Any) -> None:
        heard.append("heard")

    signal.connect(failing)
    signal.connect(hears)
    try:
        with caplog.at_level(logging.ERROR):
            assert fetch("alaska", lambda: "value") == "value"
            assert asyncio.run(afetch("alaska", lambda: "value")) == "value"
    finally:
        signal.disconnect(failing)
        signal.disconnect(hears)
    assert heard == ["heard", "heard"]
    assert "the receiver's own" in caplog.text


def test_subscriber_raises__logged_and_changes_nothing(caplog):
    """The same for receivers of the bus, which are told under no lock either."""
    heard: list[Any] = []

    def raises(event: Any) -> None:
        raise LookupError("the subscriber's own")

    ends = [subscribe(raises), subscribe(lambda event: heard.append(event.type))]
    try:
        assert fetch("alaska", lambda: "value") == "value"
    finally:
        for end in ends:
            end()
    assert heard == ["call:created", "call:running", "call:settled"]
    assert "the subscriber's own" in caplog.text


def test_async_receiver__hears_sync_and_async_calls():
    """Receivers may be async, whoever calls."""
    heard: list[tuple[str, str]] = []

    async def receiver(event: Any, **_: Any) -> None:
        await asyncio.sleep(0)
        heard.append((event.function.rpartition(".")[2], event.type))

    call_settled.connect(receiver)
    try:
        fetch("alaska", lambda: None)
        asyncio.run(afetch("alaska", lambda: None))
    finally:
        call_settled.disconnect(receiver)
    assert heard == [("fetch", "call:settled"), ("afetch", "call:settled")]


@pytest.mark.parametrize("name", ["call:created", "call:running", "call:settled"])
def test_receiver_calls_back__nothing_is_locked(name):
    """A receiver may look at the table, cancel, and make coordinated calls of its own."""
    seen: list[Any] = []

    def receiver(event: Any, **_: Any) -> None:
        if event.key == "signal:alaska":
            seen.append(len(django_vega.in_flight()))
            seen.append(fetch("inner", lambda: "inner"))
            seen.append(django_vega.cancel("signal:idle"))

    signal = BY_EVENT_TYPE[name]
    signal.connect(receiver)
    try:
        fetch("alaska", lambda: "value")
    finally:
        signal.disconnect(receiver)
    assert seen == [0 if name == "call:settled" else 1, "inner", 0]


def test_receiver_is_slow__others_are_not_held_up():
    """While a receiver of one call's settling blocks, its followers have their value already."""
    gate, slow = Gate("value"), Gate()

    def receiver(event: Any, **_: Any) -> None:
        if event.state == "success":
            slow()

    leader = threads.start(lambda: fetch("alaska", gate))
    assert gate.entered.wait(TIMEOUT)
    with Arrivals(["coordination:reuse"]) as arrivals:
        follower = threads.start(lambda: fetch("alaska", never))
        arrivals.wait(1)
    call_settled.connect(receiver)
    try:
        gate.open()
        assert slow.entered.wait(TIMEOUT)
        assert follower.result() == "value"
        assert leader.is_running
        slow.open()
        assert leader.result() == "value"
    finally:
        call_settled.disconnect(receiver)


def test_signal_of_a_cancel__from_whoever_cancelled():
    """The settled signal of a cancelled call is sent once, by the thread that cancelled it."""
    told: list[tuple[str, int]] = []

    def receiver(event: Any, **_: Any) -> None:
        told.append((event.reason, threading.get_ident()))

    gate = Gate()
    leader = threads.start(lambda: fetch("alaska", gate))
    assert gate.entered.wait(TIMEOUT)
    call_settled.connect(receiver)
    try:
        assert fetch.cancel("alaska", never)
        assert told == [("abort", threading.get_ident())]
        gate.open()
        assert isinstance(leader.exception(), CallCancelled)
        assert len(told) == 1
    finally:
        call_settled.disconnect(receiver)


def test_signals_of_cancels_on_a_loop__are_sent_from_it():
    """cancel() on a running loop hands its signals to the loop, async receivers included."""

    async def main() -> list[str]:
        heard: list[str] = []
        told = asyncio.Event()

        async def receiver(event: Any, **_: Any) -> None:
            heard.append(event.reason)
            told.set()

        gate = Gate()
        leader = threads.start(lambda: fetch("alaska", gate))
        assert await asyncio.to_thread(gate.entered.wait, TIMEOUT)
        call_settled.connect(receiver)
        try:
            assert fetch.cancel("alaska", never)
            await asyncio.wait_for(told.wait(), TIMEOUT)
        finally:
            call_settled.disconnect(receiver)
        gate.open()
        assert isinstance(await asyncio.to_thread(leader.exception), CallCancelled)
        return heard

    assert asyncio.run(main()) == ["abort"]


@pytest.mark.django_db(transaction=True)
def test_refresh_written__after_the_commit():
    """The signal of a refresh comes when its rows are committed: another thread sees them."""

    @singleflight_refresh(key="signal:{region}", upsert=Upsert(Quake, ["code"]))
    def refresh(region: str) -> list[dict[str, str]]:
        return [{"code": "a", "place": region}]

    seen: list[Any] = []

    def receiver(sender: Any, event: Any, **_: Any) -> None:
        (places,) = threads.run_together(
            lambda: list(Quake.objects.values_list("place", flat=True))
        )
        seen.append((sender is refresh, event.type, event.rows, event.written, places))

    refresh_written.connect(receiver)
    try:
        result = refresh("alaska")
    finally:
        refresh_written.disconnect(receiver)
    assert result.outcome == "written"
    assert seen == [(True, "refresh:written", 1, 1, ["alaska"])]


def test_events_are_built_for_receivers_only__nobody_listens():
    """Without a receiver no event object is made; with one the others still are not."""
    bus = get_event_bus()
    assert not any(bus.wants(name) for name in EVENT_TYPES)
    with Recorder(["call:settled"]) as recorder:
        assert [name for name in EVENT_TYPES if bus.wants(name)] == ["call:settled"]
        fetch("alaska", lambda: None)
        assert [event.type for event in recorder.events()] == ["call:settled"]
