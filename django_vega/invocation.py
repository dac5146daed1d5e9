"""What is known of a decorated function, and one invocation of it on its way to a flight."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from django_vega.coordinator import Coordinator
from django_vega.core.call import Call, CallSite
from django_vega.core.events import Event
from django_vega.core.keys import KeyRenderer

Kind: TypeAlias = Literal["function", "method", "classmethod", "staticmethod"]


class Stages(Protocol):
    """Bounds the two stages of a refresh."""

    def fetch(self) -> AbstractContextManager[None]:
        """Surround the function."""

    def write(self) -> AbstractContextManager[None]:
        """Surround the write."""

    def afetch(self) -> AbstractAsyncContextManager[None]:
        """Surround an async function."""

    def awrite(self) -> AbstractAsyncContextManager[None]:
        """Surround the write of what an async function has fetched."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a decorated function before it is admitted.

    Attributes:
        coordinator: Of the function's alias.
        site: The function in its scope, with its effective options.
        key: None when a callable key says that this call is not coordinated.
        prefix: The alias's ``KEY_PREFIX``.
        run: The function with its arguments.
        stages: Bounds fetches and writes of many; None where there is one.
    """

    coordinator: Coordinator
    site: CallSite
    key: str | None
    prefix: str
    run: partial[Any]
    stages: Stages | None = None


class ValuePlan:
    """What becomes of the invocations of a function that returns a value of its own."""

    #: Gives what is stored, from the function's own arguments, instead of a wait.
    stale: Callable[..., Any] | None = None

    def call(self, invocation: Invocation) -> Any:
        """Coordinate a sync invocation."""
        if invocation.key is None:
            return invocation.run()
        return invocation.coordinator.call(invocation.site, invocation.key, self.work(invocation))

    async def acall(self, invocation: Invocation) -> Any:
        """Coordinate an async invocation."""
        if invocation.key is None:
            return await invocation.run()
        return await invocation.coordinator.acall(
            invocation.site, invocation.key, self.work(invocation)
        )

    def work(self, invocation: Invocation) -> Callable[[Call], Any]:
        """Return what a flight runs."""
        return lambda _: invocation.run()

    def submit(self, invocation: Invocation, admit: Callable[[], Call]) -> Call:
        """Submit an invocation; ``admit`` hands it to the coordinator."""
        del invocation
        return admit()

    async def asubmit(self, invocation: Invocation, admit: Callable[[], Awaitable[Call]]) -> Call:
        """Submit an invocation; ``admit`` hands it to the coordinator."""
        del invocation
        return await admit()

    def for_follower(self, value: Any) -> Any:
        """Return the leader's value as a follower gets it."""
        return value

    def epilogue(self, call: Call) -> tuple[type[Event], dict[str, Any]] | None:
        """Return the event that follows the settled event of a call that ran."""
        del call
        return None


@dataclass(frozen=True, eq=False)
class Definition:
    """What a decorator knows of the function that it was put on.

    Attributes:
        function: The function itself, unwrapped from class and static methods.
        kind: How it is called.
        key: Renders its arguments.
        plan: What becomes of its invocations.
        using: The alias.
        options: The decorator's own.
        scope: The shared scope, or None for the function's own.
    """

    function: Callable[..., Any]
    kind: Kind
    key: KeyRenderer
    plan: ValuePlan
    using: str
    options: Mapping[str, Any]
    scope: str | None
    scopes: weakref.WeakKeyDictionary[type, str] = field(default_factory=weakref.WeakKeyDictionary)

    @property
    def name(self) -> str:
        """Dotted name of the function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def scope_of(self, args: tuple[Any, ...]) -> str:
        """Return whose keys a call's are: for methods those of the object's own class."""
        if self.scope is not None:
            return self.scope
        if self.kind not in {"method", "classmethod"} or not args:
            return self.name
        # A class as first argument is one's own also where the decorator stands below classmethod.
        owner = args[0] if isinstance(args[0], type) else type(args[0])
        scope = self.scopes.get(owner)
        if scope is None:
            scope = self.scopes[owner] = self._scope_in(owner)
        return scope

    def _scope_in(self, owner: type) -> str:
        name = self.function.__name__
        scope = f"{owner.__module__}.{owner.__qualname__}.{name}"
        found = next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), None)
        if getattr(found, "definition", None) is self:
            return scope
        # Overridden and reached through super(), or no method of this class at all: a function of
        # its own beside what goes by that name there.
        return f"{scope} ({self.name})"
