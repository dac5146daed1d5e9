"""`.many`: one refresh over many arguments; fetches and writes are bounded apart."""

import asyncio
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from django_vega import CallCancelled, coordinated, in_flight, singleflight_refresh
from tests import threads
from tests.gates import TIMEOUT, Recorder
from tests.integration.repository import UPSERT, places, row, run
from tests.writing_app.models import Quake

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a call or a thread behind."""
    before = set(threading.enumerate())
    yield
    assert in_flight() == ()
    left = [one for one in threading.enumerate() if one not in before and "fan-out" in one.name]
    assert left == []


class Upstream:
    """Fetches rows; holds them at a gate, and knows how many it holds."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.most_inside = 0
        self.calls: list[str] = []
        self.open = True

    def fetch(self, code: str) -> list[dict[str, Any]]:
        with self.changed:
            self.calls.append(code)
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.open, TIMEOUT)
            self.inside -= 1
        if code == "bad":
            raise ValueError("no such region")
        return [row(f"at {code}", code=code)]

    def wait_for(self, condition: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT)

    def let_go(self) -> None:
        with self.changed:
            self.open = True
            self.changed.notify_all()


class Repository:
    def __init__(self) -> None:
        self.upstream = Upstream()

    @singleflight_refresh(key="many:{code}", upsert=UPSERT)
    def refresh(self, code: str) -> Any:
        return self.upstream.fetch(code)

    @singleflight_refresh(key="generated:{code}", upsert=UPSERT)
    def generate(self, code: str) -> Any:
        yield from self.upstream.fetch(code)

    @singleflight_refresh(key="amany:{code}", upsert=UPSERT)
    async def arefresh(self, code: str) -> Any:
        return self.upstream.fetch(code)


@pytest.mark.parametrize("method", ["refresh", "generate"])
def test_many__each_argument_has_its_outcome(method: str) -> None:
    """In the order of completion, each with its argument, its record or its error."""
    repository = Repository()
    codes = ["a", "b", "bad", "c", "d"]
    with getattr(repository, method).many(iter(codes), fetch_workers=2, write_workers=1) as many:
        outcomes = {outcome.target: outcome for outcome in many}
    assert {code: one.status for code, one in outcomes.items()} == {
        **dict.fromkeys("abcd", "done"),
        "bad": "failed",
    }
    assert all(outcomes[code].value.outcome == "written" for code in "abcd")
    assert str(outcomes["bad"].error) == "no such region"
    assert places() == {code: f"at {code}" for code in "abcd"}
    account = many.accounting()
    assert (account.done, account.failed, account.written) == (4, 1, 4)
    assert (account.fetching, account.fetched, account.writing) == (0, 0, 0)


def test_many__how_arguments_are_given() -> None:
    """A tuple is spread, a mapping names parameters, anything else is the one argument."""
    seen = []

    @singleflight_refresh(key="given:{code}:{page}", upsert=UPSERT)
    def refresh(code: str, page: int = 1) -> Any:
        seen.append((code, page))
        return []

    outcomes = list(refresh.many(["a", ("b",), ("c", 3), {"code": "d", "page": 4}]))
    assert [one.status for one in outcomes] == ["done"] * 4
    assert sorted(seen) == [("a", 1), ("b", 1), ("c", 3), ("d", 4)]
    (outcome,) = refresh.many([("too", "many", "arguments")])
    assert outcome.status == "failed"
    assert isinstance(outcome.error, TypeError)


def test_many__fetches_are_bounded() -> None:
    """With three fetch workers and two writers never more than three functions run."""
    repository, other = Repository(), Repository()
    upstream = repository.upstream
    upstream.open = False
    many = repository.refresh.many([str(n) for n in range(12)], fetch_workers=3, write_workers=2)
    reader = threads.start(lambda: list(many))
    upstream.wait_for(lambda: upstream.inside == 3)
    while len(in_flight()) < 5:
        assert reader.is_running
    for number in range(5):  # whoever was let in wrongly would be inside by now
        other.refresh(f"other {number}")
    account = many.accounting()
    assert (account.running, account.fetching, account.fetched, account.writing) == (5, 3, 0, 0)
    upstream.let_go()
    assert len(reader.result()) == 12
    assert upstream.most_inside == 3


def test_many__writes_are_bounded_apart() -> None:
    """While one write stands still, what is fetched waits, and no second write begins."""
    repository = Repository()
    Quake.objects.create(code="z", place="old")
    standing = threading.Event()
    go_on = threading.Event()
    writes: list[str] = []

    class Held(list[Any]):
        def __iter__(self) -> Any:
            writes.append("write")
            standing.set()
            assert go_on.wait(TIMEOUT)
            return super().__iter__()

    @singleflight_refresh(key="held:{code}", write=lambda value, _: list(value))
    def refresh(code: str) -> Any:
        return Held(repository.upstream.fetch(code))

    many = refresh.many([str(n) for n in range(6)], fetch_workers=2, write_workers=1)
    reader = threads.start(lambda: list(many))
    assert standing.wait(TIMEOUT)
    # Two more are fetched: as many as there are workers left.
    repository.upstream.wait_for(lambda: len(repository.upstream.calls) == 3)
    while many.accounting().fetched < 2:
        assert reader.is_running
    account = many.accounting()
    assert (account.fetching, account.fetched, account.writing, account.written) == (0, 2, 1, 0)
    assert writes == ["write"]
    go_on.set()
    assert len(reader.result()) == 6
    assert many.accounting().written == 6


def test_many__the_consumer_leaves_early() -> None:
    """No further argument is pulled, no thread is left, and nothing more is written."""
    repository = Repository()
    pulled = []

    def codes() -> Iterator[str]:
        for number in range(10_000):
            pulled.append(number)
            yield f"{number:05}"

    with repository.refresh.many(codes(), fetch_workers=2, write_workers=1, capacity=3) as many:
        first = next(many)
    assert first.status == "done"
    assert len(pulled) <= 12
    stored = len(places())
    assert many.accounting().running == 0
    assert stored <= len(repository.upstream.calls)


def test_many__what_was_fetched_for_a_reader_who_left_is_not_written() -> None:
    """A fetch that ends after the end of the block writes nothing, and has not failed."""
    repository = Repository()
    repository.upstream.open = False
    many = repository.refresh.many(["a"], fetch_workers=1)
    reader = threads.start(lambda: list(many))
    repository.upstream.wait_for(lambda: repository.upstream.inside == 1)
    closer = threads.start(many.close)
    many._stages.end()  # what close() begins with, so that the order is certain
    repository.upstream.let_go()
    closer.join()
    reader.join()
    assert places() == {}
    assert repository.refresh.status("a").state == "idle"


def test_many__others_who_follow_run_their_own() -> None:
    """Whoever joined a flight whose reader left takes over; it is not told of that."""
    repository = Repository()
    repository.upstream.open = False
    many = repository.refresh.many(["a"], fetch_workers=1)
    reader = threads.start(lambda: list(many))
    repository.upstream.wait_for(lambda: repository.upstream.inside == 1)
    with Recorder() as seen:
        follower = threads.start(lambda: repository.refresh("a"))
        seen.wait(1, "coordination:reuse")
        many._stages.end()
        repository.upstream.let_go()
        assert follower.result().outcome == "written"
    (outcome,) = reader.result()
    assert isinstance(outcome.error, CallCancelled)
    assert places() == {"a": "at a"}


def test_many__joins_flights_of_others() -> None:
    """It is coordinated like any call: an argument in flight elsewhere is not fetched again."""
    repository = Repository()
    repository.upstream.open = False
    leader = threads.start(lambda: repository.refresh("a"))
    repository.upstream.wait_for(lambda: repository.upstream.inside == 1)
    with Recorder() as seen:
        reader = threads.start(lambda: list(repository.refresh.many(["a"])))
        seen.wait(1, "coordination:reuse")
        repository.upstream.let_go()
        (outcome,) = reader.result()
    assert (outcome.value.led, leader.result().led) == (False, True)
    assert repository.upstream.calls == ["a"]


def test_many__a_deadline_that_has_passed() -> None:
    """Nothing is fetched after it; every argument that was pulled is accounted for."""
    repository = Repository()
    outcomes = list(repository.refresh.many(["a", "b"], deadline=0))
    assert {one.status for one in outcomes} <= {"not_started", "not_admitted"}
    assert repository.upstream.calls == []


def test_many__progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar counts the outcomes where there is a terminal; elsewhere nothing is printed."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", screen)
    assert len(list(Repository().refresh.many(["a", "b"], progress=True))) == 2
    assert "2/2" in screen.getvalue()
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    assert len(list(Repository().refresh.many(["c", "d"], progress=True))) == 2
    assert pipe.getvalue() == ""


def test_many__progress_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra, before anything is pulled."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r"singleflight\[progress\]"):
        Repository().refresh.many(["a"], progress=True)


@pytest.mark.parametrize("wrong", [{"fetch_workers": 0}, {"write_workers": 0}, {"capacity": -1}])
def test_many__bounds_of_no_use(wrong: dict[str, Any]) -> None:
    """Refused at the call, naming the option."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Repository().refresh.many(["a"], **wrong)


def test_coordinated__many() -> None:
    """A function with a value of its own: its outcomes carry that value."""

    @coordinated(key="square:{x}")
    def square(x: int) -> int:
        return x * x

    with square.many(range(50), workers=3) as many:
        values = {outcome.target: outcome.value for outcome in many}
    assert values == {x: x * x for x in range(50)}


def test_async__many() -> None:
    """The same as tasks; leaving early cancels the fetches that nobody else waits for."""

    async def main() -> Any:
        repository = Repository()
        async with repository.arefresh.many(["a", "b", "bad"], fetch_workers=2) as many:
            outcomes = {one.target: one.status async for one in many}
        account = many.accounting()

        cancelled = asyncio.Event()

        @singleflight_refresh(key="hanging:{code}", upsert=UPSERT)
        async def hanging(code: str) -> Any:
            if code == "quick":
                return []
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with hanging.many(["quick", "slow"], fetch_workers=2) as early:
            first = await anext(early)
        await cancelled.wait()
        while in_flight():
            await asyncio.sleep(0)

        @coordinated(key="asquare:{x}")
        async def asquare(x: int) -> int:
            return x * x

        async with asquare.many(range(5)) as squares:
            values = sorted([one.value async for one in squares])
        return outcomes, account.written, first.target, values

    outcomes, written, first, values = run(main)
    assert outcomes == {"a": "done", "b": "done", "bad": "failed"}
    assert (written, first, values) == (2, "quick", [0, 1, 4, 9, 16])
    assert places() == {"a": "at a", "b": "at b"}
