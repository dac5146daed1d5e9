"""``vega doctor``: whether coordination works here, tried on the live servers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from django.core import checks
from django.core.management.base import CommandError, CommandParser
from django.db import transaction
from django.utils import timezone

from django_vega import conf
from django_vega.backends.base import BackendUnavailableError, SharedBackend
from django_vega.backends.protocol import Done, Follow, Intent, Leader, Outcome
from django_vega.conf import AliasSettings
from django_vega.core.keys import key_hash
from django_vega.management.vega.stored import Databases
from django_vega.management.vega.subcommand import (
    DATABASE_FAILED,
    DONE,
    WRONG_ARGUMENTS,
    Subcommand,
)
from django_vega.management.vega.table import write_table
from django_vega.writing.fence import KeyIdentity, create_row, pass_fence

FOUND_FAULTS: Final = 1
COLUMNS: Final = ("where", "probe", "result", "detail", "what to do")
# Seconds by which the clocks of this host and of a server may differ: far below any lease.
_SKEW: Final = 0.5
# Seconds of a lease that is to end under the eyes of the doctor, and for how long it looks.
_SHORT: Final = 0.1
_PATIENCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe came to: ``ok``, ``warning`` or ``failed``."""

    where: str
    probe: str
    result: str
    detail: str
    what_to_do: str = ""


class Doctor(Subcommand):
    """Runs the checks, and tries the backends and the fences of the databases."""

    name: ClassVar = "doctor"
    help: ClassVar = (
        "Run the system checks, and try each alias's server and each database's fence, leaving "
        "nothing behind."
    )
    exit_codes: ClassVar[Mapping[int, str]] = {
        DONE: "nothing failed; there may be warnings",
        FOUND_FAULTS: "something failed; its row says what to do",
        WRONG_ARGUMENTS: "wrong arguments or settings",
        DATABASE_FAILED: "a database failed; the others were tried",
    }

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        """Take nothing."""

    def run(self, options: Mapping[str, Any]) -> None:
        """Look at the settings first, then at what they name."""
        del options
        aliases = conf.read()
        databases = Databases(None)
        found = [*_checks()]
        for alias, settings in aliases.items():
            found += _backend(f"alias {alias}", settings)
        for probes in databases.each(lambda alias: [_fence(alias)]).values():
            found += probes
        write_table(
            self.stdout,
            COLUMNS,
            [[one.where, one.probe, one.result, one.detail, one.what_to_do] for one in found],
        )
        databases.raise_failures()
        failed = sum(one.result == "failed" for one in found)
        if failed:
            raise CommandError(f"{failed} of {len(found)} failed", returncode=FOUND_FAULTS)


def _checks() -> Iterator[Finding]:
    messages = checks.run_checks(tags=["django_vega"], include_deployment_checks=True)
    if not messages:
        yield Finding("settings", "checks", "ok", "no message")
    for one in messages:
        result = "failed" if one.level >= checks.ERROR else "warning"
        name = str(one.id).removeprefix("django_vega.")
        yield Finding("settings", name, result, str(one.msg), str(one.hint or ""))


def _backend(where: str, settings: AliasSettings) -> Iterator[Finding]:
    if not issubclass(settings.backend, SharedBackend):
        detail = "coordinates this process only; the fence protects rows from all of them"
        yield Finding(where, "backend", "ok", detail)
        return
    backend = settings.backend(settings.options, settings.location)
    hashed = key_hash(settings.key_prefix, "django_vega.doctor", uuid.uuid4().hex)
    probes: dict[str, Callable[[], tuple[str, str, str]]] = {
        "reachable": lambda: _reachable(backend),
        "election": lambda: _election(backend, hashed),
        "expiry": lambda: _expiry(backend, hashed + "-expiry"),
        "clock": lambda: _clock(backend, hashed + "-clock"),
        "eviction": lambda: _eviction(backend),
    }
    try:
        for name, probe in probes.items():
            result, detail, what_to_do = probe()
            yield Finding(where, name, result, detail, what_to_do)
    except BackendUnavailableError as error:
        yield Finding(
            where, name, "failed", str(error), "Look at the server, its address and its password"
        )
    finally:
        backend.close()


def _reachable(backend: SharedBackend) -> tuple[str, str, str]:
    backend.ping()
    began = time.monotonic()
    backend.ping()
    return "ok", f"answers in {(time.monotonic() - began) * 1000:.1f} ms", ""


def _election(backend: SharedBackend, hashed: str) -> tuple[str, str, str]:
    """Let one token lead, another one follow and get the outcome of the first."""
    first, second = _intent("first", hashed), _intent("second", hashed)
    led = backend.admit(hashed, first, limit=1, when_full="reuse")
    followed = backend.admit(hashed, second, limit=1, when_full="reuse")
    if isinstance(led, Leader) and isinstance(followed, Follow):
        backend.settle(
            hashed, first.token, led.generation, Outcome("value", b"probe"), retain=_PATIENCE
        )
        done = backend.look(hashed, second, want=led.generation)
        if isinstance(done, Done) and done.outcome.payload == b"probe":
            return "ok", "one leads, one follows and has the outcome", ""
    return "failed", f"two calls got {led!r} and {followed!r}", "Report this as a defect"


def _expiry(backend: SharedBackend, hashed: str) -> tuple[str, str, str]:
    """Let a leader vanish, and another one lead when its lease is over."""
    backend.admit(hashed, _intent("gone", hashed, _SHORT), limit=1, when_full="reuse")
    began = time.monotonic()
    while time.monotonic() - began < _PATIENCE:
        heir = _intent("heir", hashed, _SHORT)
        if isinstance(backend.admit(hashed, heir, limit=1, when_full="reuse"), Leader):
            backend.abandon(hashed, heir.token)
            took = time.monotonic() - began
            return "ok", f"a lease of {_SHORT:g} s was over after {took:.2f} s", ""
        time.sleep(_SHORT / 4)
    return "failed", f"a lease of {_SHORT:g} s is not over", "Look at the clock of the server"


def _clock(backend: SharedBackend, hashed: str) -> tuple[str, str, str]:
    """Compare the clock that generations come from with that of this host."""
    before = time.time()
    led = backend.admit(hashed, _intent("clock", hashed), limit=None, when_full="reuse")
    now = (before + time.time()) / 2
    backend.abandon(hashed, _intent("clock", hashed).token)
    assert isinstance(led, Leader)
    skew = led.generation / 1_000_000 - now
    detail = f"the server's clock differs by {skew:+.3f} s"
    if abs(skew) < _SKEW:
        return "ok", detail, ""
    return "warning", detail, "Let NTP keep the clocks of all hosts"


def _eviction(backend: SharedBackend) -> tuple[str, str, str]:
    policy = backend.eviction_policy()
    if policy is None:
        return "ok", "keys are kept until they expire", ""
    return "warning", f"maxmemory-policy is {policy}", "Set it to noeviction"


def _fence(alias: str) -> Finding:
    """Pass the fence of a scratch row, and not a second time; then roll all of it back."""
    hashed = key_hash("", "django_vega.doctor", uuid.uuid4().hex)
    identity = KeyIdentity(alias, hashed, "django_vega.doctor", "doctor", "doctor")
    with transaction.atomic(using=alias):
        create_row(identity)
        passed = [pass_fence(identity, generation, timezone.now()) for generation in (2, 1)]
        transaction.set_rollback(True, using=alias)
    if passed == [True, False]:
        return Finding(f"database {alias}", "fence", "ok", "an older generation is refused")
    return Finding(
        f"database {alias}",
        "fence",
        "failed",
        f"generations 2 and 1 were let through: {passed}",
        "Report this as a defect",
    )


def _intent(name: str, hashed: str, lease: float = 10.0) -> Intent:
    return Intent(f"doctor-{name}-{hashed}", f"doctor-{name}", lease=lease, retain=_PATIENCE)
