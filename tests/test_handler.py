"""From an alias to its coordinator: the app installed, signals sent, all calls found and ended."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Self

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import modify_settings, override_settings
from django.utils import translation

from django_vega import (
    CallCancelled,
    Upsert,
    cancel,
    cancel_all,
    close,
    coordinated,
    in_flight,
    signals,
    singleflight_refresh,
)
from django_vega.core.events import EVENT_TYPES
from django_vega.handler import handler
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate
from tests.writing_app.models import Quake

ROOT = Path(__file__).parent.parent


@coordinated(key="handled:{x}", ignore=["body"])
def handled(x: Any, body: Any = None) -> Any:
    return body() if body else x


@coordinated(key="ahandled:{x}")
async def ahandled(x: Any) -> Any:
    return x


@singleflight_refresh(key="refreshed:{x}", upsert=Upsert(Quake, ["code"]))
def refresh(x: Any) -> list[Any]:
    raise AssertionError("the function must not run")


# Installed or not


def test_installed__not() -> None:
    """Without the app every use raises, each time, and says what to do; afterwards all works."""
    with modify_settings(INSTALLED_APPS={"remove": ["django_vega"]}):
        for _ in range(2):
            for call in (
                lambda: handled(1),
                lambda: refresh(1),
                lambda: refresh.status(1),
                lambda: handled.submit(1),
                lambda: handled.submit_nowait(1),
                lambda: handled.in_flight(1),
                lambda: handled.cancel(1),
                lambda: handled.effective_options(1),
                lambda: asyncio.run(ahandled(1)),
                lambda: asyncio.run(ahandled.asubmit(1)),
            ):
                with pytest.raises(ImproperlyConfigured, match="no 'django_vega'"):
                    call()
        # What needs no coordinator works as ever.
        assert handled.key_for(1) == "handled:1"
        assert handled.raw(1) == 1
    assert handled(1) == 1


def test_installed__function_that_was_called_before() -> None:
    """A function that has been called, and an object bound by options, notice the change too."""
    by_call = handled.with_options(timeout=1)
    assert (handled(1), by_call(1)) == (1, 1)
    with modify_settings(INSTALLED_APPS={"remove": ["django_vega"]}):
        for function in (handled, by_call):
            with pytest.raises(ImproperlyConfigured):
                function(1)


# All calls of the process


def test_in_flight__of_an_alias() -> None:
    """Records come from all aliases or from one; an alias that does not exist is an error."""

    @coordinated(key="second:{x}", using="second", ignore=["body"])
    def second(x: int, body: Any) -> Any:
        return body()

    gate = Gate()
    with override_settings(DJANGO_VEGA={"default": {}, "second": {}}), Arrivals() as arrivals:
        everyone = threads.start_together(lambda: handled(1, gate), lambda: second(1, gate))
        arrivals.wait(2)
        assert {record.key for record in in_flight()} == {"handled:1", "second:1"}
        assert [record.key for record in in_flight(using="second")] == ["second:1"]
        with pytest.raises(ImproperlyConfigured, match="no alias 'third'"):
            in_flight(using="third")
        assert cancel_all(using="second") == 1
        assert cancel("handled:1", using="second") == 0
        assert cancel("handled:1", scope="elsewhere") == 0
        assert cancel("handled:1", scope=f"{__name__}.handled") == 1
        gate.open()
        assert all(isinstance(one.exception(), CallCancelled) for one in everyone)
    assert in_flight() == ()


def test_cancel__all_scopes_of_a_key() -> None:
    """By default a key is cancelled in every scope that has it."""

    @coordinated(key="shared-text:{x}", ignore=["body"])
    def one(x: int, body: Any) -> Any:
        return body()

    @coordinated(key="shared-text:{x}", ignore=["body"])
    def other(x: int, body: Any) -> Any:
        return body()

    gate = Gate()
    with Arrivals() as arrivals:
        everyone = threads.start_together(lambda: one(1, gate), lambda: other(1, gate))
        arrivals.wait(2)
        assert cancel("shared-text:2") == 0
        assert cancel("shared-text:1") == 2
        gate.open()
        assert all(isinstance(each.exception(), CallCancelled) for each in everyone)
    assert (cancel("shared-text:1"), cancel_all()) == (0, 0)


def test_close__one_alias() -> None:
    """A closed alias refuses later calls and frees its waiters; the other aliases go on."""

    @coordinated(key="closing:{x}", using="closing", ignore=["body"])
    def closing(x: int, body: Any = None) -> Any:
        return body() if body else x

    gate = Gate()
    with override_settings(DJANGO_VEGA={"default": {}, "closing": {}}), Arrivals() as arrivals:
        leader = threads.start(lambda: closing(1, gate))
        arrivals.wait(1)
        follower = threads.start(lambda: closing(1, gate))
        arrivals.wait(2)
        close(using="closing")
        # The follower is free although the body still runs.
        for one in (follower, leader):
            error = one.exception() if one is follower else (gate.open(), leader.exception())[1]
            assert isinstance(error, CallCancelled)
            assert error.reason == "shutdown"
        with pytest.raises(CallCancelled, match="shutdown"):
            closing(2)
        with pytest.raises(CallCancelled, match="shutdown"):
            closing.submit(2)
        assert handled(1) == 1
        close(using="closing")
        with pytest.raises(ImproperlyConfigured):
            close(using="nowhere")


def test_coordinator__replaced_by_settings() -> None:
    """Other settings replace an alias's coordinator; calls of before can still be cancelled."""
    gate = Gate()
    with Arrivals() as arrivals, threads.start(lambda: handled("old", gate)) as running:
        arrivals.wait(1)
        before = handler.coordinator("default")
        with override_settings(DJANGO_VEGA={"default": {"ON_ORPHAN": "raise"}}):
            assert handler.coordinator("default") is not before
            assert handled("new") == "new"
            assert cancel("handled:old") == 1
        gate.open()
        assert isinstance(running.exception(), CallCancelled)
    known = weakref.ref(before)
    del before, running
    handled("flush")
    gc.collect()
    assert known() is None or len(known().flights.table) == 0


def test_coordinator__kept_by_settings_that_do_not_concern_it() -> None:
    """Options of calls change without a new coordinator, and so without losing what runs."""
    before = handler.coordinator("default")
    with override_settings(
        DJANGO_VEGA={"default": {"STRATEGY": "none", "TIMEOUT": 3, "KEY_PREFIX": "x"}}
    ):
        assert handler.coordinator("default") is before
    assert handler.coordinator("default") is before


def test_coordinator__first_call_in_many_threads() -> None:
    """Threads that make the first call at once get one coordinator."""
    with override_settings(DJANGO_VEGA={"default": {}, "fresh": {}}):
        found = threads.run_together(*[lambda: handler.coordinator("fresh")] * 8)
    assert len(set(map(id, found))) == 1


# Signals


def test_signals__one_per_event_type() -> None:
    """Every event type has its signal, and there is no other."""
    assert set(signals.BY_EVENT_TYPE) == set(EVENT_TYPES)
    for event_type, signal in signals.BY_EVENT_TYPE.items():
        assert getattr(signals, event_type.replace(":", "_").replace("-", "_")) is signal


class Received:
    """A receiver that keeps what it got."""

    def __init__(self, signal: Any, sender: Any = None) -> None:
        self.signal, self.sender = signal, sender
        self.got: list[tuple[Any, Any]] = []

    def __enter__(self) -> Self:
        self.signal.connect(self.take, sender=self.sender)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.signal.disconnect(self.take, sender=self.sender)

    def take(self, sender: Any, event: Any, **_: Any) -> None:
        self.got.append((sender, event))


class Shop:
    @coordinated(key="shop:{x}")
    def buy(self, x: int) -> int:
        return x


def test_signals__sender_and_event() -> None:
    """The sender is the decorated function, unbound also for methods; the event is the bus's."""
    with (
        Received(signals.call_settled) as everything,
        Received(signals.call_settled, sender=Shop.buy) as of_buy,
        Arrivals(["call:settled"]) as events,
    ):
        assert Shop().buy(1) == 1
        assert Shop().buy.with_options(timeout=1)(2) == 2
        assert handled(3) == 3
    assert [sender for sender, _ in everything.got] == [Shop.buy, Shop.buy, handled]
    assert [event for _, event in everything.got] == events.events()
    assert [event.key for _, event in of_buy.got] == ["shop:1", "shop:2"]
    _, event = of_buy.got[0]
    assert (event.type, event.state, event.reason) == ("call:settled", "success", None)
    assert event.function == f"{__name__}.Shop.buy"
    assert event.coordinator == "dedupe"
    assert event.process.endswith(f":{os.getpid()}")
    assert abs(event.at - time.time()) < 60
    assert event.call_id > 0


def test_signals__async() -> None:
    """From an event loop async receivers are awaited, sync ones run too."""
    got = []

    async def take(sender: Any, event: Any, **_: Any) -> None:
        got.append(event.type)

    signals.call_settled.connect(take)
    signals.call_running.connect(take)
    try:
        with Received(signals.call_settled) as received:
            assert asyncio.run(ahandled(1)) == 1
    finally:
        signals.call_settled.disconnect(take)
        signals.call_running.disconnect(take)
    assert got == ["call:running", "call:settled"]
    assert [sender for sender, _ in received.got] == [ahandled]


def test_signals__receiver_that_raises(caplog: Any) -> None:
    """A receiver that raises is logged, and changes neither outcome nor other receivers."""

    def broken(**_: Any) -> None:
        raise ZeroDivisionError("in a receiver")

    for signal in signals.BY_EVENT_TYPE.values():
        signal.connect(broken)
    try:
        with Received(signals.call_settled) as received:
            assert handled(1) == 1
            assert asyncio.run(ahandled(1)) == 1
    finally:
        for signal in signals.BY_EVENT_TYPE.values():
            signal.disconnect(broken)
    assert len(received.got) == 2
    assert "in a receiver" in caplog.text


def test_signals__receiver_that_calls() -> None:
    """A receiver runs outside every lock: it may call, cancel and look at what is in flight."""
    seen = []

    def call_again(event: Any, **_: Any) -> None:
        if event.key == "handled:outer":
            seen.extend([handled("inner"), in_flight(), cancel("handled:nothing")])

    signals.call_settled.connect(call_again)
    try:
        assert handled("outer") == "outer"
    finally:
        signals.call_settled.disconnect(call_again)
    assert seen == ["inner", (), 0]


# Pool threads


def test_pool__language() -> None:
    """A pool's thread has no language of an earlier call."""

    @coordinated(key="pooled:{x}")
    def pooled(x: str) -> Any:
        before = translation.get_language()
        translation.activate(x)
        return before, threading.get_ident()

    with override_settings(DJANGO_VEGA={"default": {"WORKERS": 1}}):
        first, one = pooled.submit("de").result(TIMEOUT)
        second, other = pooled.submit("fr").result(TIMEOUT)
    assert (first, second) == ("en-us", "en-us")
    assert one == other != threading.get_ident()


# At the end of the interpreter

AT_EXIT = """
import django, threading, sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_vega"], DATABASES={})
django.setup()
from django_vega import CallCancelled, checkpoint, coordinated

started = threading.Event()

@coordinated(key="exit:{x}")
def work(x):
    if x == "waits":
        started.set()
        try:
            while True:
                checkpoint()
                threading.Event().wait(0.01)
        except CallCancelled as error:
            print(error.reason, flush=True)
            raise
    return x

assert work.submit("ends").result(10) == "ends"
work.submit("waits")
assert started.wait(10)
print("main ends", flush=True)
"""


def test_exit__calls_are_told() -> None:
    """At interpreter exit calls end as `shutdown`, and the process does not hang on its pool."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["main ends", "shutdown"]
