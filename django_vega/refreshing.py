"""Refreshes: the function runs outside any transaction, its rows are written behind the fence."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone

from django_vega.core.call import Call
from django_vega.core.errors import InAtomicBlockError
from django_vega.core.events import Event, RefreshFailed, RefreshSuperseded, RefreshWritten
from django_vega.core.outcome import Refresh, RefreshOutcome, RefreshStatus
from django_vega.freshness import Freshness
from django_vega.invocation import Invocation, ValuePlan
from django_vega.watching.status import StatusWatch
from django_vega.writing.destination import Destination
from django_vega.writing.fence import (
    KeyIdentity,
    describe,
    move_fence,
    read_status,
    record_failure,
)
from django_vega.writing.refresh import identify, write_refresh
from django_vega.writing.transactions import in_foreign_transaction

T = TypeVar("T")


class RefreshPlan(ValuePlan):
    """What becomes of the invocations of a refresh.

    Args:
        destination: Where the value of the function goes.
        is_async: Whether the function is async.
    """

    def __init__(self, destination: Destination, *, is_async: bool) -> None:
        self._destination = destination
        self._is_async = is_async

    @property
    def destination(self) -> Destination:
        """Where the value of the function goes."""
        return self._destination

    # Calling

    def call(self, invocation: Invocation) -> Any:
        """Answer a sync refresh whose key is fresh, else coordinate it.

        One in its caller's transaction is alone.
        """
        identity = self._identity(invocation)
        if self._is_alone(invocation, identity):
            return _Flight(self._destination, invocation, identity).run(None)
        freshness = Freshness(invocation, identity)
        while (refresh := freshness.seen() or freshness.stored()) is None:
            refresh = super().call(invocation)
            if not freshness.is_too_old(refresh):
                break
        return self._answered(invocation, refresh)

    async def acall(self, invocation: Invocation) -> Any:
        """Answer an async refresh whose key is fresh, else coordinate it."""
        identity = self._identity(invocation)
        if await sync_to_async(self._is_alone)(invocation, identity):
            return await _Flight(self._destination, invocation, identity).arun(None)
        freshness = Freshness(invocation, identity)
        while (refresh := freshness.seen() or await freshness.astored()) is None:
            refresh = await super().acall(invocation)
            if not freshness.is_too_old(refresh):
                break
        return await self._aanswered(invocation, refresh)

    def work(self, invocation: Invocation) -> Callable[[Call], Any]:
        """Return what a flight runs: fetch, go over to writing, write."""
        flight = _Flight(self._destination, invocation, self._identity(invocation))
        return flight.arun if self._is_async else flight.run

    def submit(self, invocation: Invocation, admit: Callable[[], Call]) -> Call:
        """Submit a refresh; refused in a transaction, as another connection would write."""
        if asyncio._get_running_loop() is None:
            self._refuse_transaction(invocation)
        call = admit()
        if call.reason == "busy":
            call.value = self._answered(invocation, call.value)
        return call

    async def asubmit(self, invocation: Invocation, admit: Callable[[], Awaitable[Call]]) -> Call:
        """Submit a refresh; refused in a transaction, as another connection would write."""
        await sync_to_async(self._refuse_transaction)(invocation)
        call = await admit()
        if call.reason == "busy":
            call.value = await self._aanswered(invocation, call.value)
        return call

    def _refuse_transaction(self, invocation: Invocation) -> None:
        identity = self._identity(invocation)
        if in_foreign_transaction(identity.alias):
            raise InAtomicBlockError(identity.display_key, identity.alias)

    def _is_alone(self, invocation: Invocation, identity: KeyIdentity) -> bool:
        """Whether the call is not coordinated: it has no key, or is solo in a transaction.

        Raises:
            InAtomicBlockError: It is inside its caller's transaction and not ``solo``.
        """
        if in_foreign_transaction(identity.alias):
            if invocation.site.options.in_atomic == "refuse":
                raise InAtomicBlockError(identity.display_key, identity.alias)
            return True
        return invocation.key is None

    def _identity(self, invocation: Invocation) -> KeyIdentity:
        key = invocation.key or ""
        return identify(
            self._destination,
            prefix=invocation.prefix,
            scope=invocation.site.scope,
            key=key,
            display_key=invocation.site.display(key),
        )

    # Answering callers that met a flight

    def answer(self, key: str, outcome: RefreshOutcome) -> Refresh:
        """Return what a caller gets that met a flight, or that a shaper swallowed."""
        return Refresh(key, outcome, led=False)

    def _answered(self, invocation: Invocation, refresh: Any) -> Any:
        """Add to a stale answer what is stored."""
        if not _is_stale(refresh):
            return refresh
        if inspect.iscoroutinefunction(self.stale):
            raise TypeError(
                f"{invocation.site.function} is in flight, and its .stale function is async, which "
                "sync code cannot await: use asubmit, or make it a plain def"
            )
        return replace(refresh, value=self._read_stale(invocation))

    async def _aanswered(self, invocation: Invocation, refresh: Any) -> Any:
        if not _is_stale(refresh):
            return refresh
        if inspect.iscoroutinefunction(self.stale):
            return replace(refresh, value=await self._read_stale(invocation))
        return replace(refresh, value=await sync_to_async(self._read_stale)(invocation))

    def _read_stale(self, invocation: Invocation) -> Any:
        assert self.stale is not None
        return self.stale(*invocation.run.args, **invocation.run.keywords)

    # Telling

    def for_follower(self, value: Any) -> Any:
        """Return the leader's record as one of a caller that did not lead."""
        return value.as_follower() if isinstance(value, Refresh) else value

    def epilogue(self, call: Call) -> tuple[type[Event], dict[str, Any]] | None:
        """Name what the refresh came to; a cancelled one came to nothing."""
        if call.state == "error":
            assert call.error is not None
            error = describe(call.error)
            return RefreshFailed, {"generation": call.generation, "error": error}
        if call.state != "success":
            return None
        refresh: Refresh = call.value
        if refresh.outcome == "fresh":
            return None
        if refresh.outcome == "superseded":
            return RefreshSuperseded, {"generation": refresh.generation}
        return RefreshWritten, {
            "generation": refresh.generation,
            "rows": refresh.rows,
            "written": refresh.written,
        }

    def status(self, invocation: Invocation) -> RefreshStatus:
        """Return how the last refresh of the key ended, or that one is loading."""
        if invocation.key is None:
            return RefreshStatus("idle", None, None, None, None)
        slot = invocation.site.scope, invocation.key
        # First what is live: a refresh that ends in between has then stored its outcome.
        ages = [
            record.age
            for record in invocation.coordinator.in_flight(slot)
            if record.state in {"queued", "running", "writing"}
        ]
        stored = read_status(self._identity(invocation))
        if not ages:
            return stored
        return RefreshStatus(
            state="loading",
            started_at=timezone.now() - timedelta(seconds=max(ages)),
            generation=stored.generation,
        )

    async def astatus(self, invocation: Invocation) -> RefreshStatus:
        """Return how the last refresh of the key ended, or that one is loading."""
        return await sync_to_async(self.status)(invocation)

    def watch_status(self, invocation: Invocation) -> StatusWatch:
        """Watch where the refreshes of the key stand."""
        identity = self._identity(invocation)
        return StatusWatch(
            partial(self.status, invocation),
            key=(invocation.coordinator, identity.alias, identity.hash),
            shown_key=identity.display_key,
            alias=identity.alias,
        )


def _is_stale(refresh: Any) -> bool:
    return isinstance(refresh, Refresh) and refresh.outcome == "stale"


class _Flight:
    """One refresh from its start to its rows; without a call it is not coordinated."""

    def __init__(
        self, destination: Destination, invocation: Invocation, identity: KeyIdentity
    ) -> None:
        self._destination = destination
        self._invocation = invocation
        self._identity = identity
        self._freshness = Freshness(invocation, identity)
        self._generation: int
        self._started_at: datetime
        self._began: float

    def run(self, call: Call | None) -> Refresh:
        self._start(call)
        try:
            # A refresh may have ended between the first look and the admission.
            if (
                call
                and (fresh := self._freshness.seen() or self._freshness.stored())
                and self._invocation.coordinator.ends_fresh(call)
            ):
                return fresh
            self._void_older()
            stages = self._invocation.stages
            if stages is None:
                return self._write(self._invocation.run(), call)
            with stages.fetch():
                rows = self._invocation.run()
                rows = list(rows) if isinstance(rows, Iterator) else rows
            with stages.write():
                return self._write(rows, call)
        except Exception as error:
            self._note(error, call)
            raise

    async def arun(self, call: Call | None) -> Refresh:
        self._start(call)
        try:
            if (
                call
                and (fresh := self._freshness.seen() or await self._stored(call))
                and self._invocation.coordinator.ends_fresh(call)
            ):
                return fresh
            if self._moves_fence:
                await _in_thread(self._void_older, call)
            stages = self._invocation.stages
            async with stages.afetch() if stages else nullcontext():
                rows = await _fetched(self._invocation.run())
            async with stages.awrite() if stages else nullcontext():
                return await _in_thread(partial(self._write, rows, call), call)
        except Exception as error:
            await _in_thread(partial(self._note, error, call), call)
            raise

    async def _stored(self, call: Call) -> Refresh | None:
        if not self._freshness.matters:
            return None
        return await _in_thread(self._freshness.stored, call)

    def _start(self, call: Call | None) -> None:
        if call is None:
            # Before the function runs, so that what it fetched counts as no newer than it is.
            self._generation = self._invocation.coordinator.backend.next_generation()
        else:
            assert call.generation is not None
            self._generation = call.generation
        # A restart that cancelled a flight of another process, which may be late to hear of it.
        lease = call.lease if call is not None else None
        self._voids_older = lease is not None and lease.voids_older
        # Whoever was taken for dead inside its transaction may hold what this one has to write.
        self._patience = None if lease is None else lease.seconds
        self._started_at = timezone.now()
        self._began = time.monotonic()

    @property
    def _moves_fence(self) -> bool:
        return self._invocation.key is not None and (
            self._destination.starts_move_the_fence or self._voids_older
        )

    def _void_older(self) -> None:
        """Let the start void every older flight of the key that has not written."""
        if self._moves_fence:
            move_fence(self._identity, self._generation - 1)

    def _write(self, rows: object, call: Call | None) -> Refresh:
        begin_writing = self._invocation.coordinator.begin_writing
        refresh = write_refresh(
            self._destination,
            rows,
            identity=self._identity,
            generation=self._generation,
            started_at=self._started_at,
            started_monotonic=self._began,
            begin_writing=partial(begin_writing, call) if call else _nothing,
            arguments=_bound(self._invocation) if self._prunes else None,
            fenced=self._invocation.key is not None,
            patience=self._patience,
        )
        self._freshness.note(refresh)
        return refresh

    @property
    def _prunes(self) -> bool:
        return any(upsert.prune is not None for upsert in self._destination.upserts)

    def _note(self, error: Exception, call: Call | None) -> None:
        """Record a failure; a cancelled refresh has not failed, and its last status stays."""
        is_cancelled = call is not None and call.settled
        if self._invocation.key is not None and not is_cancelled:
            record_failure(self._identity, self._generation, self._started_at, error)


def _nothing() -> None:
    """Stand in for the step to ``writing`` of a call that nobody can cancel."""


async def _in_thread(step: Callable[[], T], call: Call | None) -> T:
    """Take a step on the thread of the caller's sync code, or on another where that is gone.

    A flight may outlive its request. Then nobody else closes the connections of the thread that it
    is given; and a thread that led it through ``async_to_sync`` takes no more work.
    """
    began = False

    def take() -> T:
        nonlocal began
        began = True
        try:
            return step()
        finally:
            if call is not None and call.caller is None:
                close_old_connections()

    try:
        return await sync_to_async(take)()
    except RuntimeError:
        if began:
            raise
    return await sync_to_async(take, thread_sensitive=False)()


def _bound(invocation: Invocation) -> inspect.BoundArguments:
    """Return the arguments of an invocation, defaults included, as the key sees them."""
    run = invocation.run
    bound = inspect.signature(run.func).bind(*run.args, **run.keywords)
    bound.apply_defaults()
    return bound


async def _fetched(rows: Any) -> object:
    """Return the rows of an ``async def``, or of an async generator, collected."""
    return [row async for row in rows] if hasattr(rows, "__aiter__") else await rows
