"""What the decorators take, what they make of it, and whose keys are whose."""

import asyncio
import copy
import gc
import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.utils import timezone, translation

from django_vega import (
    CallCancelled,
    IncompleteKeyError,
    KeyTemplateError,
    SynchronousCallError,
    UnstableKeyError,
    Upsert,
    coordinated,
    current_call,
    in_flight,
    singleflight_refresh,
)
from django_vega.decorators import known_functions
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate
from tests.writing_app.models import Quake

UPSERT = Upsert(Quake, ["code"])


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a call behind."""
    yield
    assert in_flight() == ()


# The functions of most tests: they say who was called with what.


@coordinated(key="plain:{x}:{y}")
def plain(x: Any, y: str = "default") -> Any:
    """Say who was called."""
    return ("plain", x, y)


@coordinated(key="aplain:{x}:{y}")
async def aplain(x: Any, y: str = "default") -> Any:
    """Say who was called."""
    return ("aplain", x, y)


class Base:
    """One method of each kind."""

    @coordinated(key="base:{x}:{y}")
    def method(self, x: Any, y: str = "default") -> Any:
        """Say who was called."""
        return ("method", type(self), x, y)

    @coordinated(key="base:{x}:{y}")
    @classmethod
    def class_method(cls, x: Any, y: str = "default") -> Any:
        """Say who was called."""
        return ("class_method", cls, x, y)

    @coordinated(key="base:{x}:{y}")
    @staticmethod
    def static_method(x: Any, y: str = "default") -> Any:
        """Say who was called."""
        return ("static_method", x, y)

    @coordinated(key="base:{x}:{y}")
    async def amethod(self, x: Any, y: str = "default") -> Any:
        """Say who was called."""
        return ("amethod", type(self), x, y)

    @coordinated(key="base:{x}:{y}")
    @classmethod
    async def aclass_method(cls, x: Any, y: str = "default") -> Any:
        """Say who was called."""
        return ("aclass_method", cls, x, y)

    @coordinated(key="base:{x}:{y}")
    @staticmethod
    async def astatic_method(x: Any, y: str = "default") -> Any:
        """Say who was called."""
        return ("astatic_method", x, y)


class Sub(Base):
    """Overrides nothing."""


SYNC = [
    (plain, ("plain",)),
    (Base().method, ("method", Base)),
    (partial(Base.method, Sub()), ("method", Sub)),
    (Sub().method, ("method", Sub)),
    (Base.class_method, ("class_method", Base)),
    (Sub.class_method, ("class_method", Sub)),
    (Sub().class_method, ("class_method", Sub)),
    (Base.static_method, ("static_method",)),
    (Sub().static_method, ("static_method",)),
]
ASYNC = [
    (aplain, ("aplain",)),
    (Base().amethod, ("amethod", Base)),
    (Sub().amethod, ("amethod", Sub)),
    (Base.aclass_method, ("aclass_method", Base)),
    (Sub().aclass_method, ("aclass_method", Sub)),
    (Base.astatic_method, ("astatic_method",)),
    (Sub().astatic_method, ("astatic_method",)),
]


@pytest.mark.parametrize(("function", "said"), SYNC)
def test_call__sync(function: Any, said: tuple[Any, ...]) -> None:
    """Functions and every kind of method are called with their receiver, arguments, defaults."""
    assert function(1) == (*said, 1, "default")
    assert function(1, "b") == (*said, 1, "b")
    assert function(y="b", x=None) == (*said, None, "b")


@pytest.mark.parametrize(("function", "said"), ASYNC)
def test_call__async(function: Any, said: tuple[Any, ...]) -> None:
    """The same for coroutine functions."""

    async def main() -> None:
        assert await function(1) == (*said, 1, "default")
        assert await function(y="b", x=None) == (*said, None, "b")

    asyncio.run(main())


@pytest.mark.parametrize(("function", "said"), SYNC)
def test_call__wrong_arguments(function: Any, said: tuple[Any, ...]) -> None:
    """Wrong arguments raise Python's own TypeError, in the words for this function."""
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        function()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'z'"):
        function(1, z=1)


def test_call__sync_function_on_a_running_loop() -> None:
    """A sync function is refused on an event loop, with the way out, and does not run."""

    async def main() -> None:
        for call in (plain, Base().method, Base.static_method, plain.submit):
            with pytest.raises(SynchronousCallError, match="running event loop"):
                call(1)
        # The function itself is the caller's own affair.
        assert plain.raw(1) == ("plain", 1, "default")

    asyncio.run(main())


def test_methods__unbound_objects_offer_the_same() -> None:
    """What a bound method offers, the function of the class offers with the receiver in front."""
    receiver = Sub()
    assert receiver.method.key_for(1) == Base.method.key_for(receiver, 1) == "base:1:default"
    assert receiver.method.raw(1) == Base.method.raw(receiver, 1) == ("method", Sub, 1, "default")
    assert Base.method.in_flight(receiver, 1) == receiver.method.in_flight(1) == ()
    assert Base.method.cancel(receiver, 1) is receiver.method.cancel(1) is False
    assert Base.method.with_options(timeout=1)(receiver, 1) == ("method", Sub, 1, "default")
    assert receiver.method.with_options(timeout=1)(1) == ("method", Sub, 1, "default")
    assert Sub.class_method.with_options(timeout=1)(1) == ("class_method", Sub, 1, "default")
    assert receiver.static_method.with_options(timeout=1).key_for("a") == "base:a:default"
    assert receiver.method.submit(1).result(TIMEOUT) == ("method", Sub, 1, "default")


def test_raw__is_uncoordinated() -> None:
    """`raw` calls the function itself, also inside a flight of the same key."""

    @coordinated(key="raw:{x}")
    def outer(x: int) -> Any:
        return x, current_call() is not None if x else outer.raw(1)

    assert outer(0) == (0, (1, True))
    assert outer.raw(1) == (1, False)


def test_raw__async() -> None:
    """`raw` of an async function returns its coroutine."""
    assert asyncio.run(aplain.raw(1)) == ("aplain", 1, "default")


# In flight, cancel


class Gated:
    """Methods that stay inside until they are let go."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    @coordinated(key="gated:{name}")
    def work(self, name: str) -> Any:
        return self.gate()

    @coordinated(key="gated:{name}", strategy="serialize")
    def one_by_one(self, name: str) -> Any:
        return self.gate()


def test_in_flight__bound_and_unbound() -> None:
    """Records are those of the key of these arguments, for this receiver's class."""
    gate = Gate("value")
    receiver = Gated(gate)
    with Arrivals() as arrivals, threads.start(lambda: receiver.work("a")) as running:
        arrivals.wait(1)
        (record,) = receiver.work.in_flight("a")
        assert Gated.work.in_flight(receiver, "a")[0].id == record.id
        assert (record.key, record.state, record.strategy) == ("gated:a", "running", "dedupe")
        assert record.function == f"{__name__}.Gated.work"
        assert record.scope == f"{__name__}.Gated.work"
        assert receiver.work.in_flight("b") == ()
        assert [one.id for one in in_flight()] == [record.id]
        gate.open()
    assert running.result() == "value"


def test_cancel__bound_and_unbound() -> None:
    """`cancel` ends every call of that key: the flight, those who share it, those who wait."""
    gate = Gate("discarded")
    receiver = Gated(gate)

    def call() -> Any:
        return receiver.one_by_one("a")

    with Arrivals() as arrivals:
        everyone = threads.start_together(call, call, call)
        arrivals.wait(3)
        assert receiver.one_by_one.cancel("b") is False
        assert Gated.one_by_one.cancel(receiver, "a") is True
        assert receiver.one_by_one.cancel("a") is False
        gate.open()
        for one in everyone:
            error = one.exception()
            assert isinstance(error, CallCancelled)
            assert error.reason == "abort"
    assert gate.runs == 1


# Scopes: whose key it is


def together(*calls: Callable[[], Any], gate: Gate) -> list[Any]:
    """Let all of them be in flight at once, then go; return what each got."""
    with Arrivals() as arrivals:
        everyone = threads.start_together(*calls)
        arrivals.wait(len(calls))
        gate.open()
        return threads.results(everyone)


the_gate: list[Gate] = []


def through_the_gate(value: Any) -> Any:
    """Wait inside a body, and say who it was."""
    the_gate[-1]()
    return value


@pytest.fixture
def gate() -> Iterator[Gate]:
    """The gate that every body below waits at."""
    the_gate.append(Gate())
    yield the_gate[-1]
    the_gate[-1].open()
    the_gate.pop()


@coordinated(key="same:{x}")
def first(x: int) -> str:
    return through_the_gate("first")


@coordinated(key="same:{x}")
def second(x: int) -> str:
    return through_the_gate("second")


def test_scope__two_functions_never_answer_each_other(gate: Gate) -> None:
    """Two functions with one key text run both; two calls of one share."""
    got = together(lambda: first(1), lambda: second(1), lambda: first(1), gate=gate)
    assert got == ["first", "second", "first"]
    assert gate.runs == 2


class Animal:
    @coordinated(key="animal:{x}")
    def describe(self, x: int) -> Any:
        return through_the_gate(type(self))

    @coordinated(key="animal:{x}")
    @classmethod
    def count(cls, x: int) -> Any:
        return through_the_gate(cls)

    @coordinated(key="animal:{x}")
    @staticmethod
    def weigh(x: int) -> Any:
        return through_the_gate("weighed")


class Cat(Animal):
    pass


class Dog(Animal):
    @coordinated(key="animal:{x}")
    def describe(self, x: int) -> Any:
        return (Dog, super().describe(x))


@pytest.mark.parametrize(
    "calls",
    [
        (lambda: Animal().describe(1), lambda: Cat().describe(1)),
        (lambda: Animal.count(1), lambda: Cat.count(1)),
        (lambda: Animal().count(1), lambda: Cat().count(1)),
        (lambda: Cat().describe(1), lambda: Cat().count(1)),
    ],
)
def test_scope__class_of_the_receiver(gate: Gate, calls: Any) -> None:
    """A method that two classes share has a scope for each of them: `self` may matter."""
    one, other = together(*calls, gate=gate)
    assert (one, other) in {(Animal, Cat), (Cat, Cat)}
    assert gate.runs == 2


def test_scope__same_class(gate: Gate) -> None:
    """Two objects of one class share; a static method has no receiver, so all share."""
    assert together(lambda: Cat().describe(1), lambda: Cat().describe(1), gate=gate) == [Cat] * 2
    assert gate.runs == 1
    the_gate[-1] = another = Gate()
    weighed = together(lambda: Animal.weigh(1), lambda: Cat.weigh(1), gate=another)
    assert (weighed, another.runs) == (["weighed"] * 2, 1)


def test_scope__super(gate: Gate) -> None:
    """An override calls the overridden method inside itself: two scopes, no re-entry."""
    gate.open()
    assert Dog().describe(1) == (Dog, Dog)
    override, overridden = Dog.__dict__["describe"], Animal.__dict__["describe"]
    scopes = {
        override.definition.scope_of((Dog(),)),
        overridden.definition.scope_of((Dog(),)),
        overridden.definition.scope_of((Animal(),)),
        overridden.definition.scope_of((Cat(),)),
    }
    assert scopes == {
        f"{__name__}.Dog.describe",
        f"{__name__}.Dog.describe ({__name__}.Animal.describe)",
        f"{__name__}.Animal.describe",
        f"{__name__}.Cat.describe",
    }


class Misplaced:
    """Decorators below `classmethod` and `staticmethod`, where they see a plain function."""

    @classmethod
    @coordinated(key="misplaced:{x}")
    def make(cls, x: str) -> Any:
        return cls

    @staticmethod
    @coordinated(key="misplaced:{x}")
    def fetch(x: str) -> Any:
        return "Misplaced"


class AlsoMisplaced(Misplaced):
    @staticmethod
    @coordinated(key="misplaced:{x}")
    def fetch(x: str) -> Any:
        return "AlsoMisplaced"


def test_scope__decorator_below_classmethod_and_staticmethod() -> None:
    """Where the decorator is not outermost, two functions still never share a scope."""
    assert AlsoMisplaced.make("a") is AlsoMisplaced
    assert (Misplaced.fetch("a"), AlsoMisplaced.fetch("a")) == ("Misplaced", "AlsoMisplaced")
    made = Misplaced.__dict__["make"].__func__.definition
    assert made.scope_of((Misplaced, "a")) != made.scope_of((AlsoMisplaced, "a"))
    fetches = [cls.__dict__["fetch"].__func__.definition for cls in (Misplaced, AlsoMisplaced)]
    assert len({fetch.scope_of(("a",)) for fetch in fetches}) == 2


@coordinated(key="doc:{number}", scope="documents")
def load(number: int) -> str:
    return through_the_gate("load")


class Documents:
    @coordinated(key="doc:{number}", scope="documents")
    def reload(self, number: int) -> str:
        return through_the_gate("reload")


def test_scope__shared_on_purpose(gate: Gate) -> None:
    """Functions that name one scope share their keys: the first one's value serves them all."""
    with Arrivals() as arrivals:
        leader = threads.start(lambda: load(7))
        arrivals.wait(1)
        followers = threads.start_together(lambda: Documents().reload(7), lambda: load(7))
        arrivals.wait(3)
        assert {record.scope for record in Documents().reload.in_flight(7)} == {"documents"}
        gate.open()
        assert [leader.result(), *threads.results(followers)] == ["load"] * 3
    assert gate.runs == 1


def factory(label: str, **options: Any) -> Any:
    """Make closures of one name."""

    @coordinated(key="closure:{x}", **options)
    def closure(x: int) -> str:
        return label

    return closure


def test_scope__two_live_closures_warn() -> None:
    """Two closures of one factory would answer each other's calls: said when the second is made."""
    one = factory("one")
    with pytest.warns(RuntimeWarning, match=r"two live functions are named .*factory.<locals>"):
        other = factory("other")
    assert (one(1), other(1)) == ("one", "other")


def test_scope__closures_one_after_the_other() -> None:
    """A closure that nobody holds any more is not alive, collected or not."""
    gc.disable()
    try:
        for label in ("one", "two", "three"):
            assert factory(label)(1) == label
    finally:
        gc.enable()


def test_scope__closures_with_scopes_of_their_own() -> None:
    """A scope for each keeps closures apart, and says nothing."""
    one, other = factory("one", scope="factory.one"), factory("other", scope="factory.other")
    assert (one(1), other(1)) == ("one", "other")


def test_scope__redefinition() -> None:
    """The same name with other code, as after a reload, is no closure of one factory."""

    def define(source: str) -> Any:
        names: dict[str, Any] = {"__name__": "reloaded"}
        exec(source, names)
        return coordinated(key="reloaded:{x}")(names["f"])

    before = define("def f(x): return 'before'")
    after = define("def f(x): return 'after'")
    assert (before(1), after(1)) == ("before", "after")


# Two principals, one key: the recipe of the documentation


class Principal:
    """Somebody with a tenant and documents to see."""

    def __init__(self, tenant: str, *, may_read: bool = True) -> None:
        self.tenant, self.may_read = tenant, may_read


principal: ContextVar[Principal] = ContextVar("principal")


def tenant() -> str:
    """The ambient tenant, for `vary`."""
    return principal.get().tenant


class Reports:
    """Each tenant's own reports; authorization stands before the coordinated call."""

    def __init__(self, tenant_id: str) -> None:
        self.tenant_id = tenant_id

    def read(self, name: str) -> str:
        if not principal.get().may_read:
            raise PermissionError(name)
        return self.fetch(name)

    @coordinated(key="report:{self.tenant_id}:{name}")
    def fetch(self, name: str) -> str:
        return through_the_gate(f"{name} of {self.tenant_id}")


@coordinated(key="report:{name}", vary=[tenant])
def fetch_report(name: str) -> str:
    return through_the_gate(f"{name} of {principal.get().tenant}")


def as_principal(who: Principal, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Return the call as this principal makes it, on whatever thread."""

    def call() -> Any:
        principal.set(who)
        return function(*args)

    return call


def test_principals__tenant_in_the_key(gate: Gate) -> None:
    """With the tenant in the key, or in `vary`, two tenants never share; two users of one do."""
    ours, theirs = Principal("ours"), Principal("theirs")
    got = together(
        as_principal(ours, Reports("ours").read, "sales"),
        as_principal(ours, Reports("ours").read, "sales"),
        as_principal(theirs, Reports("theirs").read, "sales"),
        as_principal(ours, fetch_report, "sales"),
        as_principal(theirs, fetch_report, "sales"),
        as_principal(theirs, fetch_report, "sales"),
        gate=gate,
    )
    ours_text, theirs_text = "sales of ours", "sales of theirs"
    assert got == [ours_text, ours_text, theirs_text, ours_text, theirs_text, theirs_text]
    assert gate.runs == 4


def test_principals__authorization_before_the_call(gate: Gate) -> None:
    """Who may not read is refused before the call, also while one who may read is in flight."""
    with Arrivals() as arrivals:
        allowed = threads.start(
            as_principal(Principal("ours"), Reports("ours").read, "sales"),
        )
        arrivals.wait(1)
        refused = threads.start(
            as_principal(Principal("ours", may_read=False), Reports("ours").read, "sales")
        )
        assert isinstance(refused.exception(), PermissionError)
        gate.open()
        assert allowed.result() == "sales of ours"


# Keys


@pytest.mark.parametrize(
    ("key", "function"),
    [
        ("feed", lambda user_id: None),
        ("feed:{a}", lambda a, b: None),
        ("feed:{a}", lambda a, *args: None),
        ("feed:{a}", lambda a, **kwargs: None),
        ("feed:{a}", lambda a, *, b=1: None),
    ],
)
def test_key__forgotten_parameter(key: str, function: Any) -> None:
    """Every parameter takes part in the key, or decoration fails and names it."""
    with pytest.raises(IncompleteKeyError) as caught:
        coordinated(key=key)(function)
    missing = set(inspect.signature(function).parameters) - {"a"}
    assert set(caught.value.parameters) == missing
    with pytest.raises(IncompleteKeyError):
        singleflight_refresh(key=key, upsert=UPSERT)(function)


def test_key__forgotten_parameter_of_a_method() -> None:
    """`self` and `cls` are exempt, the other parameters are not."""
    with pytest.raises(IncompleteKeyError, match="'user_id'"):

        class Feed:
            @singleflight_refresh(key="feed", upsert=UPSERT)
            def refresh(self, user_id: int) -> list[Any]:
                return []


def test_key__ignore() -> None:
    """Ignored parameters take no part: calls that differ only there share a key."""

    @coordinated(key="ignore:{x}", ignore=["client", "retries"])
    def function(x: int, client: object, retries: int = 3) -> Any:
        return x

    assert function.key_for(1, object()) == function.key_for(1, None, retries=5) == "ignore:1"

    @coordinated(key="ignore-one:{x}", ignore="client")
    def one(x: int, client: object) -> Any:
        return x

    assert one.key_for(1, object()) == "ignore-one:1"


def test_key__vary() -> None:
    """Language, time zone and named functions belong to the key."""

    @coordinated(key="vary:{x}", vary=["language", "timezone", tenant])
    def function(x: int) -> Any:
        return x

    principal.set(Principal("ours"))
    with translation.override("de"), timezone.override("Europe/Berlin"):
        assert function.key_for(1) == "vary:1:language(de):timezone(Europe/Berlin):tenant(ours)"
    principal.set(Principal("theirs"))
    with translation.override(None), timezone.override("UTC"):
        assert function.key_for(1) == "vary:1:language(None):timezone(UTC):tenant(theirs)"

    @coordinated(key="vary-one:{x}", vary="language")
    def one(x: int) -> Any:
        return x

    with translation.override("fr"):
        assert one.key_for(1) == "vary-one:1:language(fr)"


def test_key__vary_in_a_pool(gate: Gate) -> None:
    """The ambient values are those of the caller, also for a call that a pool's thread runs."""
    gate.open()
    principal.set(Principal("ours"))
    call = fetch_report.with_options(timeout=TIMEOUT)
    assert call.key_for("sales") == "report:sales:tenant(ours)"
    with pytest.raises(LookupError):
        # The body itself has a context of its own there: state does not travel with submit().
        fetch_report.submit("sales").result(TIMEOUT)


def test_key__callable() -> None:
    """A callable key gets the arguments as the function does, receiver included."""

    class Shop:
        name = "corner"

        @coordinated(key=lambda self, item, count=1: f"shop:{self.name}:{item}:{count}")
        def buy(self, item: str, count: int = 1) -> Any:
            return item

    assert Shop().buy.key_for("tea") == "shop:corner:tea:1"
    assert Shop.buy.key_for(Shop(), item="tea", count=2) == "shop:corner:tea:2"
    assert Shop().buy("tea") == "tea"


def test_key__callable_returns_none() -> None:
    """None means that this call is not coordinated: it runs as it is, and nothing lists it."""

    @coordinated(key=lambda user: f"user:{user}" if user else None)
    def function(user: str | None) -> Any:
        return current_call()

    @coordinated(key=lambda user: None)
    async def afunction(user: str | None) -> Any:
        return current_call()

    with Arrivals(["call:created"]) as arrivals:
        assert function(None) is None
        assert asyncio.run(afunction(None)) is None
        assert arrivals.events() == []
    assert function("a") is not None
    assert function.key_for(None) is None
    assert function.in_flight(None) == ()
    assert function.cancel(None) is False
    with pytest.raises(ValueError, match="its key is None"):
        function.submit(None)
    with pytest.raises(ValueError, match="its key is None"):
        function.submit_nowait(None)
    with pytest.raises(ValueError, match="its key is None"):
        asyncio.run(afunction.asubmit(None))


@pytest.mark.parametrize("returned", ["", 5, b"user:1", "user:\0", ["user"]])
def test_key__callable_returns_nonsense(returned: Any) -> None:
    """Anything but a text or None is an error of the call; the function does not run."""

    @coordinated(key=lambda: returned)
    def function() -> None:
        raise AssertionError

    with pytest.raises(UnstableKeyError):
        function()


def test_key__callable_leaves_nothing_behind() -> None:
    """Keys without a namespace that names a policy are not remembered, however many there are."""

    @coordinated(key=lambda number: f"{number}")
    def function(number: int) -> int:
        return number

    for number in range(100):
        assert function(number) == number
    assert len(function._sites[1]) == 1


def test_key__unstable_value() -> None:
    """A value without a stable text is refused at the call, before anything runs."""
    with pytest.raises(UnstableKeyError, match="'x'"):
        plain(object())
    assert plain.key_for(1) == "plain:1:default"
    assert plain.key_for("1") != plain.key_for(1) != plain.key_for(True)


# The object as a function


@pytest.mark.parametrize("function", [plain, aplain])
def test_metadata__of_a_function(function: Any) -> None:
    """Name, module, documentation, annotations and signature are those of the function."""
    assert function.__name__ == function.__qualname__ in {"plain", "aplain"}
    assert function.__module__ == __name__
    assert function.__doc__ == "Say who was called."
    assert function.__annotations__ == {"x": Any, "y": str, "return": Any}
    assert str(inspect.signature(function)) == "(x: Any, y: str = 'default') -> Any"
    assert inspect.isfunction(function.__wrapped__)
    assert function.__name__ in repr(function)


@pytest.mark.parametrize(
    "method", [Base().method, Base().amethod, Base.class_method, Sub().aclass_method]
)
def test_metadata__of_a_bound_method(method: Any) -> None:
    """A bound method has what the function has, and a signature without its receiver."""
    assert method.__name__.endswith("method")
    assert method.__qualname__.startswith("Base.")
    assert method.__module__ == __name__
    assert method.__doc__ == "Say who was called."
    assert str(inspect.signature(method)) == "(x: Any, y: str = 'default') -> Any"
    assert "of <" in repr(method)


def test_metadata__unbound_and_odd_receivers() -> None:
    """Unbound the receiver is a parameter; one that is taken by `*args` is not taken away."""
    assert str(inspect.signature(Base.method)) == "(self, x: Any, y: str = 'default') -> Any"

    class Odd:
        @coordinated(key="odd:{args}")
        def method(*args: Any) -> Any:
            return args[1:]

    assert str(inspect.signature(Odd().method)) == "(*args: Any) -> Any"


def test_metadata__attributes() -> None:
    """What inner decorators and the module set on the function shows, on bound methods too."""

    def marked(function: Any) -> Any:
        function.csrf_exempt = True
        return function

    class Actions:
        @coordinated(key="act:{x}")
        @marked
        def act(self, x: int) -> Any:
            return x

        act.short_description = "Act"

    for act in (Actions.act, Actions().act, Actions().act.with_options(timeout=1)):
        assert (act.csrf_exempt, act.short_description) == (True, "Act")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = Actions().act.nothing


def test_metadata__coroutine_functions() -> None:
    """Frameworks see which functions are coroutine functions, bound ones included."""
    for function in (aplain, Base.amethod, Base().amethod, Base.aclass_method, Base.astatic_method):
        assert iscoroutinefunction(function)
        if sys.version_info >= (3, 12):
            assert inspect.iscoroutinefunction(function)
    for function in (plain, Base.method, Base().method, Base.class_method):
        assert not iscoroutinefunction(function)
        assert not inspect.iscoroutinefunction(function)


def test_metadata__wrapped_again() -> None:
    """A decorator above ours that uses `functools.wraps` leaves scopes as they are."""

    def above(function: Any) -> Any:
        @wraps(function)
        def inner(*args: Any) -> Any:
            return ("above", function(*args))

        return inner

    class Repository:
        @above
        @coordinated(key="wrapped:{x}")
        def fetch(self, x: int) -> Any:
            return current_call().site.scope

    assert Repository().fetch(1) == ("above", f"{__name__}.{Repository.__qualname__}.fetch")


@pytest.mark.parametrize(
    ("function", "said"), [pair for pair in SYNC if not isinstance(pair[0], partial)]
)
def test_pickle__sync(function: Any, said: tuple[Any, ...]) -> None:
    """Decorated objects travel by name, with the options given to them, and are not copied."""
    assert pickle.loads(pickle.dumps(function))(1) == (*said, 1, "default")
    with_options = pickle.loads(pickle.dumps(function.with_options(strategy="serialize")))
    assert with_options(1) == (*said, 1, "default")
    options = with_options.effective_options(1)
    assert (options.strategy.name, options.origin["strategy"]) == ("serialize", "call")
    assert copy.copy(plain) is copy.deepcopy(plain) is plain
    assert pickle.loads(pickle.dumps(plain)) is plain


@pytest.mark.parametrize(("function", "said"), ASYNC)
def test_pickle__async(function: Any, said: tuple[Any, ...]) -> None:
    """The same for coroutine functions."""
    assert asyncio.run(pickle.loads(pickle.dumps(function))(1)) == (*said, 1, "default")


def test_descriptor__through_metaclass_and_slots() -> None:
    """Methods work on classes with slots, where nothing can be stored on the object."""

    class Slotted:
        __slots__ = ()

        @coordinated(key="slotted:{x}")
        def method(self, x: int) -> int:
            return x

    assert Slotted().method(3) == 3


def test_views__async_view() -> None:
    """Django's handlers take a decorated coroutine function for what it is."""
    from django.http import HttpResponse
    from django.test import AsyncRequestFactory
    from django.views import View

    class Page(View):
        @coordinated(key="page:{number}", ignore=["request"])
        async def get(self, request: Any, number: int) -> HttpResponse:
            return HttpResponse(str(number))

    assert Page.view_is_async
    view = Page.as_view()
    request = AsyncRequestFactory().get("/")
    assert asyncio.run(view(request, number=3)).content == b"3"
    assert async_to_sync(Page().get)(request, 4).content == b"4"


# What is refused at decoration


def generator(x: int) -> Iterator[int]:
    yield x


async def async_generator(x: int) -> Any:
    yield x


@pytest.mark.parametrize("function", [generator, async_generator])
def test_coordinated__generator_functions(function: Any) -> None:
    """A generator cannot be shared: each caller would get a part of it."""
    with pytest.raises(TypeError, match=r"is a generator.*Return a list"):
        coordinated(key="generator:{x}")(function)
    with pytest.raises(TypeError, match="is a generator"):
        coordinated(key="generator:{x}")(staticmethod(function))


@pytest.mark.parametrize("function", [generator, async_generator])
def test_refresh__generator_functions(function: Any) -> None:
    """A refresh may be a generator, sync or async: its rows are collected."""
    refresh = singleflight_refresh(key="generator:{x}", upsert=UPSERT)(function)
    assert iscoroutinefunction(refresh) is (function is async_generator)
    assert not inspect.isgeneratorfunction(refresh)
    assert not inspect.isasyncgenfunction(refresh)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"key": ""}, KeyTemplateError, "''"),
        ({"key": None}, KeyTemplateError, "None"),
        ({"key": 5}, KeyTemplateError, "5"),
        ({"key": "{x}"}, KeyTemplateError, "namespace"),
        ({"key": "k:{}"}, KeyTemplateError, "positional"),
        ({"key": "k:{0}"}, KeyTemplateError, "positional"),
        ({"key": "k:{x!r}"}, KeyTemplateError, "conversion"),
        ({"key": "k:{x:>3}"}, KeyTemplateError, "format"),
        ({"key": "k:{x"}, KeyTemplateError, "malformed"),
        ({"key": "k:{z}"}, KeyTemplateError, "'z'"),
        ({"ignore": ["z"]}, KeyTemplateError, "'z'"),
        ({"ignore": 5}, KeyTemplateError, r"ignore=5.*pass \(5,\)"),
        ({"vary": len}, KeyTemplateError, r"vary=<.*pass \("),
        ({"vary": ["lang"]}, KeyTemplateError, "'language'"),
        ({"vary": [lambda: 1]}, KeyTemplateError, "named function"),
        ({"vary": [3]}, KeyTemplateError, "vary=3"),
        ({"scope": ""}, ValueError, "scope=''"),
        ({"scope": 3}, ValueError, "scope=3"),
        ({"using": None}, TypeError, "using=None"),
        ({"strategy": "dedup"}, ValueError, "did you mean 'dedupe'"),
        ({"strategy": "anything"}, ValueError, "Use one of none, dedupe"),
        ({"strategy": 3}, TypeError, "strategy=3"),
        ({"strategy": None}, TypeError, "strategy=None"),
        ({"strategy": lambda ctx: None}, TypeError, "made with @coordinator"),
        ({"timeout": -1}, ValueError, "timeout=-1"),
        ({"timeout": "5"}, ValueError, "timeout='5'"),
        ({"timeout": True}, ValueError, "timeout=True"),
        ({"timeout": float("nan")}, ValueError, "timeout=nan"),
        ({"timeout": float("inf")}, ValueError, "timeout=inf"),
    ],
)
def test_decoration__bad_options(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Each wrong option raises when the decorator is applied, with value and way out."""
    options = {"key": "k:{x}", **options}
    for decorator in (coordinated, partial(singleflight_refresh, upsert=UPSERT)):
        with pytest.raises(error, match=message):

            @decorator(**options)
            def function(x: int) -> list[Any]:
                return []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"in_atomic": "ignore"}, ValueError, "in_atomic='ignore'.*'refuse' or 'solo'"),
        ({"in_atomic": []}, ValueError, "in_atomic=\\[\\]"),
        ({"upsert": Quake}, TypeError, r"pass Upsert\("),
        ({"upsert": None}, TypeError, r"pass Upsert\("),
    ],
)
def test_decoration__bad_options_of_a_refresh(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The same for the options that only a refresh has."""
    with pytest.raises(error, match=message):
        singleflight_refresh(**{"key": "k:{x}", "upsert": UPSERT, **options})


@pytest.mark.parametrize("missing", ["key", "upsert"])
def test_decoration__required_options(missing: str) -> None:
    """`key`, and for a refresh `upsert`, have to be given."""
    options = {"key": "k:{x}", "upsert": UPSERT}
    options.pop(missing)
    with pytest.raises(TypeError, match=f"'{missing}'"):
        singleflight_refresh(**options)
    with pytest.raises(TypeError, match="'key'"):
        coordinated()


@pytest.mark.parametrize("option", ["in_atomic", "upsert", "fresh_for", "force"])
def test_decoration__options_that_do_not_exist(option: str) -> None:
    """An option of refreshes alone, or of single calls, is no option."""
    with pytest.raises(TypeError, match=option):
        coordinated(key="k", **{option: "refuse"})


class Callable_:
    def __call__(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    "function", [5, None, Base, Callable_(), partial(generator, 1), property(lambda self: 1)]
)
def test_decoration__what_is_no_function(function: Any) -> None:
    """Classes, instances and partials are refused: they have no dotted name to scope keys by."""
    with pytest.raises(TypeError, match="is not a function"):
        coordinated(key="k:{x}")(function)


def test_decoration__twice() -> None:
    """One decorator per function."""
    with pytest.raises(TypeError, match="coordinated already"):
        coordinated(key="again:{x}:{y}")(plain)
    with pytest.raises(TypeError, match="coordinated already"):
        singleflight_refresh(key="again:{x}:{y}", upsert=UPSERT)(Base().method)


def test_decoration__builtin_function() -> None:
    """Functions written in C work too, where their parameters can be read."""
    length = coordinated(key="len:{obj}")(len)
    assert length([1, 2]) == 2
    assert length.key_for([1, 2]) == "len:list(1,2)"


def test_known_functions__are_held_weakly() -> None:
    """The list for the checks keeps no function alive."""

    @coordinated(key="weak:{x}")
    def function(x: int) -> int:
        return x

    name = function.definition.name
    assert name in {one.definition.name for one in known_functions()}
    del function
    gc.collect()
    assert name not in {one.definition.name for one in known_functions()}
