"""The table of the contract: four calls on one key at once, row by row and column by column.

Each row runs with threads and with tasks of one event loop. All four calls have arrived, and none
has ended, before the first body may return.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from django_vega import (
    CallCancelled,
    CoordinationContext,
    OrphanedIntentError,
    bounded,
    coordinated,
    coordinator,
)
from tests import threads
from tests.gates import ARRIVED, TIMEOUT, Recorder

SUCCESS = ("success", None)
DEDUPED = ("cancelled", "dedupe")
ABORTED = ("cancelled", "abort")
DROPPED = ("cancelled", "exhaust-dropped")
ORPHANED = ("cancelled", "orphaned-intent")


@coordinated(key="four:{region}", ignore=["body", "number"])
def fetch(region: str, body: Callable[[int], Any], number: int) -> Any:
    return body(number)


@coordinated(key="afour:{region}", ignore=["body", "number"])
async def afetch(region: str, body: Callable[[int], Any], number: int) -> Any:
    return await body(number)


@dataclass
class Seen:
    """What four calls came to.

    Attributes:
        executed: The callers whose functions ran, in the order in which they began.
        got: What each caller got: a value, or the reason of its `CallCancelled`.
        recorder: All events.
    """

    executed: list[int] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def states(self) -> list[tuple[str, str | None]]:
        return self.recorder.states()

    @property
    def coordination(self) -> list[tuple[str, int]]:
        """Type and place of each coordination event, with the ids of calls as 0 to 3."""
        first = min(event.call_id for event in self.recorder.events("call:created"))
        return [
            (event.type.removeprefix("coordination:"), event.call_id - first)
            for event in self.recorder.events()
            if event.type.startswith("coordination:")
        ]

    def places(self, ids: Any) -> list[int]:
        first = min(event.call_id for event in self.recorder.events("call:created"))
        return [call_id - first for call_id in ids]


def with_threads(strategy: Any) -> Seen:
    """Let four threads call one after the other; nobody ends before all have arrived."""
    seen, gate = Seen(), threading.Event()
    function = fetch.with_options(strategy=strategy)

    def body(number: int) -> str:
        seen.executed.append(number)
        assert gate.wait(TIMEOUT)
        return f"value {number}"

    def caller(number: int) -> Any:
        try:
            return function("alaska", body, number)
        except CallCancelled as error:
            return error.reason

    with seen.recorder as recorder:
        callers = []
        for number in range(4):
            callers.append(threads.start(lambda number=number: caller(number)))
            recorder.wait(number + 1, *ARRIVED)
        gate.set()
        seen.got = [running.result() for running in callers]
    return seen


def with_tasks(strategy: Any) -> Seen:
    """Gather four tasks of one loop; the gate opens when all have arrived."""
    seen = Seen()
    function = afetch.with_options(strategy=strategy)

    async def main() -> list[Any]:
        gate = asyncio.Event()

        async def body(number: int) -> str:
            seen.executed.append(number)
            await asyncio.wait_for(gate.wait(), TIMEOUT)
            return f"value {number}"

        async def caller(number: int) -> Any:
            try:
                return await function("alaska", body, number)
            except CallCancelled as error:
                return error.reason

        async def open_gate() -> None:
            await asyncio.to_thread(recorder.wait, 4, *ARRIVED)
            gate.set()

        *got, _ = await asyncio.gather(*map(caller, range(4)), open_gate())
        return got

    with seen.recorder as recorder:
        seen.got = asyncio.run(main())
    return seen


WAYS = [pytest.param(with_threads, id="threads"), pytest.param(with_tasks, id="tasks")]
each_way = pytest.mark.parametrize("four_calls", WAYS)


@each_way
def test_four_calls__none(four_calls):
    """Without coordination each call runs and gets its own value."""
    seen = four_calls("none")
    assert sorted(seen.executed) == [0, 1, 2, 3]
    assert seen.states == [SUCCESS] * 4
    assert seen.got == ["value 0", "value 1", "value 2", "value 3"]
    assert seen.coordination == []


def assert_deduped(seen: Seen) -> None:
    """Check the row `dedupe`, cell by cell."""
    assert seen.executed == [0]
    assert seen.states == [SUCCESS, DEDUPED, DEDUPED, DEDUPED]
    assert seen.got == ["value 0"] * 4
    assert seen.coordination == [("reuse", 1), ("reuse", 2), ("reuse", 3)]
    peers = [event.peer_id for event in seen.recorder.events("coordination:reuse")]
    assert seen.places(peers) == [0, 0, 0]


@coordinator("dedupe by hand")
def dedupe_by_hand(ctx: CoordinationContext) -> None:
    if ctx.peers():
        ctx.reuse(ctx.peers()[0])
    else:
        ctx.proceed()


@each_way
@pytest.mark.parametrize("strategy", ["dedupe", bounded(1), dedupe_by_hand], ids=str)
def test_four_calls__dedupe(four_calls, strategy):
    """One call runs, the others share its value; bounded(1) and a hand-written one are the same."""
    assert_deduped(four_calls(strategy))


@each_way
def test_four_calls__restart(four_calls):
    """Each call starts and cancels the one before it; the last one gets its value."""
    seen = four_calls("restart")
    assert sorted(seen.executed) == [0, 1, 2, 3]
    assert seen.states == [ABORTED, ABORTED, ABORTED, SUCCESS]
    assert seen.got == ["abort", "abort", "abort", "value 3"]
    assert seen.coordination == [("restart", 1), ("restart", 2), ("restart", 3)]
    cancelled = [
        seen.places(event.cancelled_call_ids)
        for event in seen.recorder.events("coordination:restart")
    ]
    assert cancelled == [[0], [1], [2]]


@each_way
def test_four_calls__serialize(four_calls):
    """All calls run one after the other in call order, each with its own value."""
    seen = four_calls("serialize")
    assert seen.executed == [0, 1, 2, 3]
    assert seen.states == [SUCCESS] * 4
    assert seen.got == ["value 0", "value 1", "value 2", "value 3"]
    assert seen.coordination == [("queued", 1), ("queued", 2), ("queued", 3)]
    # They are queued on parking: before the first one ended.
    told = [e.type for e in seen.recorder.events("coordination:queued", "call:settled")]
    assert told == ["coordination:queued"] * 3 + ["call:settled"] * 4
    settled = [event.call_id for event in seen.recorder.events("call:settled")]
    assert seen.places(settled) == [0, 1, 2, 3]


@each_way
def test_four_calls__exhaust(four_calls):
    """One call runs, the others are dropped."""
    seen = four_calls("exhaust")
    assert seen.executed == [0]
    assert seen.states == [SUCCESS, DROPPED, DROPPED, DROPPED]
    assert seen.got == ["value 0", "exhaust-dropped", "exhaust-dropped", "exhaust-dropped"]
    assert seen.coordination == [("dropped", 1), ("dropped", 2), ("dropped", 3)]


def bounded_by_hand(limit: int) -> Any:
    @coordinator(f"bounded({limit}) by hand")
    def decide(ctx: CoordinationContext) -> None:
        peers = ctx.peers()
        if len(peers) < limit:
            ctx.proceed()
        else:
            ctx.reuse(peers[0])

    return decide


@each_way
@pytest.mark.parametrize("strategy", [bounded(2), bounded_by_hand(2)], ids=["built-in", "by hand"])
def test_four_calls__bounded_at_two(four_calls, strategy):
    """Two calls run, the others share the value of the oldest one."""
    seen = four_calls(strategy)
    assert sorted(seen.executed) == [0, 1]
    assert seen.states == [SUCCESS, SUCCESS, DEDUPED, DEDUPED]
    assert seen.got == ["value 0", "value 1", "value 0", "value 0"]
    assert seen.coordination == [("reuse", 2), ("reuse", 3)]
    peers = [event.peer_id for event in seen.recorder.events("coordination:reuse")]
    assert seen.places(peers) == [0, 0]


@each_way
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_four_calls__bounded_by_hand_equals_built_in(four_calls, limit):
    """A handwritten bounded coordinator does in every cell what the built-in one does."""
    built_in, by_hand = four_calls(bounded(limit)), four_calls(bounded_by_hand(limit))
    assert sorted(built_in.executed) == sorted(by_hand.executed) == list(range(limit))
    assert built_in.states == by_hand.states
    assert built_in.got == by_hand.got
    assert built_in.coordination == by_hand.coordination


@coordinator("nothing")
def do_nothing(ctx: CoordinationContext) -> None:
    """Decide nothing, and return nothing."""


@coordinator("a word")
def say_a_word(ctx: CoordinationContext) -> str:
    return "word"


@each_way
@pytest.mark.parametrize(
    ("strategy", "value"), [(do_nothing, None), (say_a_word, "word")], ids=["None", "word"]
)
def test_four_calls__orphaned(four_calls, strategy, value, caplog):
    """No call runs, each gets what the coordinator returned, and each makes itself heard."""
    with caplog.at_level(logging.ERROR, "django_vega"):
        seen = four_calls(strategy)
    assert seen.executed == []
    assert seen.states == [ORPHANED] * 4
    assert seen.got == [value] * 4
    assert seen.coordination == [("orphaned-intent", number) for number in range(4)]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 4
    assert strategy.name in errors[0].getMessage()
    for call_id in {event.call_id for event in seen.recorder.events()}:
        told = [e.type for e in seen.recorder.events() if e.call_id == call_id]
        assert told == ["call:created", "coordination:orphaned-intent", "call:settled"]


def test_orphan__settings_say_raise(new_alias):
    """With ON_ORPHAN "raise" the caller of an undecided call gets an error that names both."""

    @coordinated(key="orphan:{region}", strategy=do_nothing, using=new_alias(ON_ORPHAN="raise"))
    def refresh(region: str) -> None:
        raise AssertionError("not reached")

    with Recorder() as recorder, pytest.raises(OrphanedIntentError, match="nothing") as caught:
        refresh("alaska")
    assert (caught.value.key, caught.value.coordinator) == ("orphan:alaska", "nothing")
    assert recorder.states() == [ORPHANED]
    told = [event.type for event in recorder.events()]
    assert told == ["call:created", "coordination:orphaned-intent", "call:settled"]
