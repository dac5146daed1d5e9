"""What a backend has to be able to do: alone in its process, or shared with others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from django_vega.backends.protocol import (
    Admission,
    Cancelled,
    Choice,
    Hint,
    Intent,
    Lost,
    Outcome,
    Renewed,
    Settled,
    Snapshot,
    Stale,
    Subscribed,
)
from django_vega.core.errors import VegaError
from django_vega.core.strategies import WhenFull


class BackendUnavailableError(VegaError, ConnectionError):
    """The server of a shared backend cannot be reached, or refuses; see ``ON_BACKEND_ERROR``.

    Raised to callers only under ``"ON_BACKEND_ERROR": "raise"``, before the function runs. Look at
    the server, or choose ``"local"``: then each process coordinates by itself meanwhile.
    """


class Backend(ABC):
    """Coordinates the calls of one alias beyond the table of this process.

    Args:
        options: The alias's ``OPTIONS``.
        location: The alias's ``LOCATION``; None where it says nothing.
    """

    #: Whether other processes take part; such a backend is a `SharedBackend`.
    is_shared: ClassVar[bool] = False
    #: Names that ``OPTIONS`` may hold; None where `fault` examines them.
    option_names: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(self, options: Mapping[str, Any], location: object = None) -> None:
        self.options = options
        self.location = location

    @classmethod
    def fault(cls, options: Mapping[str, Any], location: object) -> tuple[str, str] | None:
        """Return what is wrong with these settings and what to do, else None; connects nowhere."""
        del options, location
        return None

    @abstractmethod
    def next_generation(self) -> int:
        """Return a generation above every earlier one of this backend; thread-safe."""


class Inbox(Protocol):
    """The hints for one process, read by one thread."""

    def receive(self, timeout: float) -> Subscribed | Hint | None:
        """Wait for the next thing to do; None when there was nothing within ``timeout`` seconds.

        `Subscribed` comes whenever hints may have been lost before, the first time included.
        """

    def stop(self) -> None:
        """Let a `receive` that waits return soon; from any thread."""

    def close(self) -> None:
        """End the subscription; from the thread that reads."""


class SharedBackend(Backend):
    """Coordinates the calls of one alias over all processes that share its server.

    Every method may be called from any thread, blocks for at most some seconds, and raises
    `BackendUnavailableError` when the server did not answer. Each may be executed twice with the
    same arguments: the second time answers as the first did and changes nothing. What they do is
    told in full by the scripts of the Redis backend.
    """

    is_shared = True

    @abstractmethod
    def admit(
        self,
        key_hash: str,
        intent: Intent,
        *,
        limit: int | None,
        when_full: WhenFull | Literal["next"],
        capacity: int | None = None,
        want: int = 0,
    ) -> Admission:
        """Say what a call does now; asked again with the same token, how it stands."""

    @abstractmethod
    def look(self, key_hash: str, intent: Intent, *, want: int) -> Admission:
        """Say how a follower stands, without ever giving it the lead."""

    @abstractmethod
    def apply(
        self,
        key_hash: str,
        intent: Intent,
        *,
        version: int,
        choice: Choice,
        capacity: int | None = None,
        peer: str = "",
        cancel: Sequence[str] = (),
    ) -> Admission | Stale:
        """Do what a coordinator decided, if the key is still as it saw it."""

    @abstractmethod
    def renew(
        self, key_hash: str, intent: Intent, *, generation: int, limit: int | None, beat: int
    ) -> Renewed | Lost:
        """Go on leading for another lease."""

    @abstractmethod
    def settle(
        self,
        key_hash: str,
        token: str,
        generation: int,
        outcome: Outcome,
        *,
        retain: float = 20.0,
        stopping: float = 0.0,
    ) -> Settled | Lost:
        """Give a flight its outcome, and tell who waits."""

    @abstractmethod
    def abandon(self, key_hash: str, token: str) -> None:
        """Give up a flight without an outcome, or a stopping body's place."""

    @abstractmethod
    def leave(self, key_hash: str, token: str, process: str) -> None:
        """Give up waiting; a flight that the token turned into is abandoned."""

    @abstractmethod
    def cancel(
        self,
        key_hash: str,
        token: str,
        *,
        reason: str = "abort",
        parked_reason: str = "abort",
        tokens: Sequence[str] | None = None,
    ) -> tuple[Cancelled, ...]:
        """Cancel calls of a key wherever they run; None is all of them."""

    @abstractmethod
    def release(self, key_hash: str, token: str) -> int:
        """Drop all holders of a stuck key; returns the newest generation, 0 when none is known."""

    @abstractmethod
    def snapshot(self, key_hash: str) -> Snapshot:
        """Return what there is of a key at one moment."""

    @abstractmethod
    def inbox(self, process: str) -> Inbox:
        """Return a new subscription to the hints for a process."""

    def eviction_policy(self) -> str | None:
        """Return how the server throws keys away when its memory is full; None where it does not.

        All keys of this package expire, so a policy for those that do is one for all of them.
        """
        return None

    @abstractmethod
    def ping(self) -> None:
        """Do nothing, with the server's help."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections; the next command opens new ones."""
