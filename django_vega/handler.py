"""From an alias of ``DJANGO_VEGA`` to its coordinator, and what that needs of Django."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.core.signals import setting_changed
from django.db import close_old_connections

from django_vega import conf, signals
from django_vega.conf import AliasSettings
from django_vega.coordinator import Coordinator
from django_vega.core.call import FlightRecord
from django_vega.core.errors import VegaError
from django_vega.core.events import Event
from django_vega.runtime.link import Sharing
from django_vega.runtime.watching import hub


class SynchronousCallError(VegaError, SynchronousOnlyOperation):
    """A sync call would block a running event loop, or wait for a flight that needs its thread.

    Call the async form, or hand the sync function to ``sync_to_async``. Raised before anything
    runs.
    """


class DjangoHost:
    """What coordinators need of Django: signals, clean pool threads, its error."""

    def wants(self, event_type: str) -> bool:
        """Whether the signal of this event type has receivers."""
        signal = signals.BY_EVENT_TYPE.get(event_type)
        return signal is not None and bool(signal.receivers)

    def send(self, event: Event, source: Any) -> None:
        """Send the event's signal; Django logs what a receiver raises."""
        signals.BY_EVENT_TYPE[event.type].send_robust(sender=source, event=event)

    async def asend(self, event: Event, source: Any) -> None:
        """Send the event's signal from an event loop."""
        await signals.BY_EVENT_TYPE[event.type].asend_robust(sender=source, event=event)

    @contextmanager
    def pool_item(self) -> Generator[None, None, None]:
        """Leave no stale connection before or after a piece of work on a pool thread.

        Language and time zone need nothing: each item has a fresh context.
        """
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()

    def synchronous_call_error(self, message: str) -> Exception:
        """Return Django's kind of error for a call from the wrong side."""
        return SynchronousCallError(message)


class Handler:
    """The coordinators of the process, one per alias, built at the first call."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Replaced as a whole under the lock; read without it.
        self._settings: dict[str, AliasSettings] | None = None
        self._coordinators: dict[str, tuple[tuple[object, ...], Coordinator]] = {}
        # Those that other settings have replaced, while they have calls.
        self._replaced: dict[str, weakref.WeakSet[Coordinator]] = {}
        self._host = DjangoHost()
        #: Grows whenever the settings change; what was derived from them is then void.
        self.version = 0

    def settings(self, alias: str) -> AliasSettings:
        """Return the settings of an alias.

        Raises:
            ImproperlyConfigured: The app is not installed, the setting is wrong, or it has no such
                alias.
        """
        known = self._settings
        if known is None:
            if not apps.is_installed("django_vega"):
                raise ImproperlyConfigured(
                    "a coordinated function was called, but INSTALLED_APPS has no 'django_vega'. "
                    "Add it, and run manage.py migrate"
                )
            version = self.version
            known = conf.read()
            with self._lock:
                # Whoever read the settings of before must not put them back.
                if version == self.version:
                    self._settings = known
        try:
            return known[alias]
        except KeyError:
            raise ImproperlyConfigured(
                f"DJANGO_VEGA has no alias {alias!r}. {conf.hint(alias, known)}"
            ) from None

    def coordinator(self, alias: str) -> Coordinator:
        """Return the coordinator of an alias; it outlives changes that do not concern it."""
        settings = self.settings(alias)
        with self._lock:
            structure, coordinator = self._coordinators.get(alias, (None, None))
            if coordinator is None or structure != settings.structure:
                if coordinator is not None:
                    self._replaced.setdefault(alias, weakref.WeakSet()).add(coordinator)
                coordinator = Coordinator(
                    settings.backend(settings.options, settings.location),
                    self._host,
                    workers=settings.workers,
                    capacity=sys.maxsize if settings.capacity is None else settings.capacity,
                    threads_wait_for_loops=settings.sync_waits_for_async,
                    raise_orphans=settings.on_orphan == "raise",
                    sharing=Sharing(
                        prefix=settings.key_prefix,
                        lease=settings.lease,
                        codec=settings.codec,
                        on_error=settings.on_backend_error,
                    ),
                )
                self._coordinators[alias] = settings.structure, coordinator
            return coordinator

    def built(self, using: str | None = None) -> list[Coordinator]:
        """Return the coordinators that calls have brought about, of one alias or of all."""
        if using is not None:
            self.settings(using)
        with self._lock:
            return [
                one
                for alias, (_, coordinator) in self._coordinators.items()
                if using is None or using == alias
                for one in (*self._replaced.get(alias, ()), coordinator)
            ]

    def forget_settings(self, **kwargs: Any) -> None:
        """Read the settings anew at the next call."""
        if kwargs.get("setting") in {"DJANGO_VEGA", "INSTALLED_APPS"}:
            with self._lock:
                self._settings = None
                self.version += 1

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: another thread may have held it in the parent."""
        self._lock = threading.RLock()


handler = Handler()
os.register_at_fork(after_in_child=handler.renew_lock)
setting_changed.connect(handler.forget_settings, dispatch_uid="django_vega")


def in_flight(*, using: str | None = None) -> tuple[FlightRecord, ...]:
    """Return a frozen record of every call of this process in flight, parked or stopping.

    Args:
        using: An alias; default all.
    """
    return tuple(record for one in handler.built(using) for record in one.in_flight())


def cancel(key: str, *, scope: str | None = None, using: str | None = None) -> int:
    """Cancel the calls of a key; their callers get ``CallCancelled("abort")``.

    Args:
        key: The rendered key, as ``.key_for(...)`` gives it.
        scope: Whose key; default all scopes.
        using: An alias; default all.

    Returns:
        How many calls were cancelled. Those that are writing are not, they end as success.
    """
    return sum(
        one.cancel_where(lambda slot: slot[1] == key and scope in {None, slot[0]})
        for one in handler.built(using)
    )


def cancel_all(*, using: str | None = None) -> int:
    """Void every queue (``admission-reset``), then cancel every flight; later calls begin anew.

    Args:
        using: An alias; default all.

    Returns:
        How many calls were cancelled.
    """
    return sum(one.cancel_all() for one in handler.built(using))


def close(using: str | None = None) -> None:
    """Refuse later calls, settle all others as cancelled (``shutdown``), join the threads.

    Also done at interpreter exit.

    Args:
        using: An alias, used before or not; default all that were used.
    """
    if using is not None:
        handler.coordinator(using)
    else:
        hub.close()
    for one in handler.built(using):
        one.close()


# atexit comes too late: at the end the interpreter first joins the pools' workers, which wait until
# they are told. The last registered is called first, so before concurrent.futures' own.
getattr(threading, "_register_atexit", atexit.register)(close)
