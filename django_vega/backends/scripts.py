"""The Redis scripts and their Python face: one method per script, records in and out.

Every method is one round trip, and a second one only where the server has lost the script. A call
that meets nobody costs two in all, `Scripts.admit` and `Scripts.settle`. All of them may be run
again with the same arguments: the second run answers as the first did and changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, Literal, Protocol

from redis.exceptions import NoScriptError

from django_vega.backends.protocol import (
    Admission,
    Cancelled,
    Choice,
    Done,
    Dropped,
    Ended,
    Follow,
    Full,
    Holder,
    Intent,
    Leader,
    Lost,
    Outcome,
    OutcomeKind,
    Queued,
    Renewed,
    Settled,
    Snapshot,
    Stale,
    Ticket,
)
from django_vega.core.strategies import WhenFull

_KINDS: Final[dict[OutcomeKind, bytes]] = {"value": b"v", "error": b"e", "cancelled": b"c"}
_KIND_OF: Final = {letter: kind for kind, letter in _KINDS.items()}
_SUFFIXES: Final = ("", ":f", ":s", ":q", ":w", ":o", ":t", ":e")
_NO_LIMIT: Final = 0
_NO_PLACE: Final = -1
_UNBOUNDED: Final = -1


class Client(Protocol):
    """What is needed of a Redis client, single or Cluster, that answers in bytes."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command and return its reply."""


class Script:
    """One script with what it shares with the others.

    Args:
        parts: Names of its files, in order.
    """

    def __init__(self, *parts: str) -> None:
        folder = files("django_vega.backends") / "lua"
        text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)
        self.name = parts[-1]
        self.text = text.encode()
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()

    def run(self, client: Client, key_hash: str, *args: str | bytes | int) -> Any:
        """Run it on the server of a key, by digest, and by its text where that is unknown."""
        key = f"vega:{{{key_hash}}}"
        rest = (len(_SUFFIXES), *(key + suffix for suffix in _SUFFIXES), *args)
        try:
            return client.execute_command("EVALSHA", self.digest, *rest)
        except NoScriptError:
            return client.execute_command("EVAL", self.text, *rest)


ADMIT: Final = Script("lib", "intent", "admit")
APPLY: Final = Script("lib", "intent", "apply")
RENEW: Final = Script("lib", "renew")
SETTLE: Final = Script("lib", "settle")
ABANDON: Final = Script("lib", "abandon")
CANCEL: Final = Script("lib", "cancel")
RELEASE: Final = Script("lib", "release")
GENERATION: Final = Script("lib", "generation")
SNAPSHOT: Final = Script("lib", "snapshot")


def inbox_channel(process: str) -> str:
    """Return the channel on which a process is told which key hash to look at again."""
    return f"vega:inbox:{process}"


class Scripts:
    """All that can be done to a key; ``key_hash`` is its hash, as in the database.

    Args:
        client: Answers in bytes (``decode_responses`` off).
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    # A call

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
        """Say what a call does now; asked again, how it stands.

        Args:
            key_hash: Of the key.
            intent: The call. A parked one asks again with the same token.
            limit: As in `Strategy`; None is no limit.
            when_full: As in `Strategy`; ``next`` parks one call, which later ones share.
            capacity: How many may be parked; None is unbounded.
            want: The generation that an earlier `Follow` named: its outcome, that of whoever took
                over, or a new decision. 0 for a call that has just arrived: it never gets an
                outcome that was there before it.
        """
        place = _NO_LIMIT if limit is None else limit
        reply = ADMIT.run(
            self._client, key_hash, *_intent(intent), place, when_full, _capacity(capacity), want
        )
        return _admission(reply)

    def look(self, key_hash: str, intent: Intent, *, want: int) -> Admission:
        """Ask how a follower stands as `admit` does, but take no lead.

        Returns:
            `Dropped` where there is neither the wanted flight nor its outcome.
        """
        reply = ADMIT.run(
            self._client, key_hash, *_intent(intent), _NO_PLACE, "drop", _UNBOUNDED, want
        )
        return _admission(reply)

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
        """Do what a coordinator decided, if the key is still as it saw it.

        Args:
            key_hash: Of the key.
            intent: The call that was decided on.
            version: From the `snapshot` that the coordinator was shown.
            choice: What it decided.
            capacity: How many may be parked, with ``queue``; None is unbounded.
            peer: Token of the peer to share with, with ``reuse``. Of a parked one the outcome is
                not known yet: the call gets the next one of the key.
            cancel: Tokens of the peers to cancel. All of them are, unless the reply is `Stale`,
                `Full` or `Ended`; their generations stand in the snapshot.
        """
        capacity = _capacity(capacity)
        reply = APPLY.run(
            self._client, key_hash, *_intent(intent), version, choice, capacity, peer, *cancel
        )
        return Stale() if reply[0] == b"STALE" else _admission(reply)

    def renew(
        self, key_hash: str, intent: Intent, *, generation: int, limit: int | None, beat: int
    ) -> Renewed | Lost:
        """Go on leading for another lease.

        Args:
            key_hash: Of the key.
            intent: That of the admission.
            generation: Of the flight.
            limit: As admitted; None is no limit.
            beat: The number of this heartbeat of the flight.
        """
        reply = RENEW.run(
            self._client,
            key_hash,
            intent.token,
            intent.process,
            _ms(intent.lease),
            _ms(intent.retain),
            intent.about,
            generation,
            _NO_LIMIT if limit is None else limit,
            beat,
        )
        return _lost(reply) or Renewed(restored=reply[0] == b"RESTORED")

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
        """Give a flight its outcome.

        Args:
            key_hash: Of the key.
            token: Of the leader.
            generation: Of the flight.
            outcome: For those who follow.
            retain: Seconds to keep it; 0 when nobody can want it.
            stopping: Lease in seconds of a cancelled body that still runs; it keeps its place in
                front of a queue until `abandon`. 0 when the body has ended.
        """
        kind = _KINDS[outcome.kind]
        times = _ms(retain), _ms(stopping)
        reply = SETTLE.run(
            self._client, key_hash, token, generation, times[0], kind, outcome.payload, times[1]
        )
        return _lost(reply) or Settled()

    def abandon(self, key_hash: str, token: str) -> None:
        """Give up a flight without an outcome, or a stopping body's place; followers elect."""
        ABANDON.run(self._client, key_hash, token, "")

    def leave(self, key_hash: str, token: str, process: str) -> None:
        """Give up waiting, parked or following; a flight that it turned into is abandoned.

        Args:
            key_hash: Of the key.
            token: Of the one who leaves; spent afterwards.
            process: Whose last waiter for this key it was.
        """
        ABANDON.run(self._client, key_hash, token, process)

    # A key

    def cancel(
        self,
        key_hash: str,
        token: str,
        *,
        reason: str = "abort",
        parked_reason: str = "abort",
        tokens: Sequence[str] | None = None,
    ) -> tuple[Cancelled, ...]:
        """Cancel calls of a key wherever they run, the parked ones first.

        Args:
            key_hash: Of the key.
            token: Of this request.
            reason: For flights.
            parked_reason: For parked calls.
            tokens: Whom; None is everybody.
        """
        if tokens is not None and not tokens:
            return ()
        chosen = () if tokens is None else tokens
        reply = CANCEL.run(self._client, key_hash, token, reason, parked_reason, *chosen)
        return _cancelled(reply)

    def release(self, key_hash: str, token: str) -> int:
        """Drop all holders of a stuck key.

        Args:
            key_hash: Of the key.
            token: Of this request.

        Returns:
            The newest generation, 0 when none is known: where the database fence goes.
        """
        return int(RELEASE.run(self._client, key_hash, token))

    def issue(self, key_hash: str, token: str, floor: int = 0) -> int:
        """Issue a generation for a call that is not coordinated.

        Args:
            key_hash: Of the key.
            token: Of this request.
            floor: What it has to be above, besides the key's own.
        """
        return int(GENERATION.run(self._client, key_hash, token, floor))

    def snapshot(self, key_hash: str) -> Snapshot:
        """Return what there is of a key."""
        version, generation, key, flights, stopping, parked, followers = SNAPSHOT.run(
            self._client, key_hash
        )
        return Snapshot(
            version,
            generation,
            key.decode("utf-8", "surrogatepass"),
            _tickets(flights),
            _tickets(stopping),
            _tickets(parked),
            frozenset(process.decode() for process in followers),
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _capacity(capacity: int | None) -> int:
    return _UNBOUNDED if capacity is None else capacity


def _intent(intent: Intent) -> tuple[str | bytes | int, ...]:
    return (
        intent.token,
        intent.process,
        _ms(intent.lease),
        _ms(intent.retain),
        _ms(intent.claim),
        intent.floor,
        intent.key.encode("utf-8", "surrogatepass"),
        intent.about,
    )


def _admission(reply: list[Any]) -> Admission:
    match reply:
        case [b"LEADER", generation, cancelled]:
            return Leader(generation, _cancelled(cancelled))
        case [b"FOLLOW", generation, holder]:
            return Follow(generation, _holder(holder))
        case [b"QUEUED", ahead, holder]:
            return Queued(ahead, _holder(holder))
        case [b"DONE", generation, kind, payload]:
            return Done(generation, Outcome(_KIND_OF[kind], payload))
        case [b"DROPPED", holder]:
            return Dropped(_holder(holder))
        case [b"FULL", holder]:
            return Full(_holder(holder))
        case [b"ENDED", reason]:
            return Ended(reason.decode())
    raise AssertionError(f"a script answered {reply!r}")


def _lost(reply: list[Any]) -> Lost | None:
    return Lost(reply[1].decode()) if reply[0] == b"LOST" else None


def _holder(fields: list[Any]) -> Holder:
    process, generation, age, left = fields
    return Holder(process.decode(), generation or None, age / 1000, left / 1000)


def _cancelled(entries: list[list[Any]]) -> tuple[Cancelled, ...]:
    return tuple(
        Cancelled(token.decode(), process.decode(), generation or None)
        for token, process, generation in entries
    )


def _tickets(entries: list[list[Any]]) -> tuple[Ticket, ...]:
    return tuple(
        Ticket(token.decode(), process.decode(), generation or None, age / 1000, left / 1000, about)
        for token, process, generation, age, left, about in entries
    )
