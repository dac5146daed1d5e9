"""``vega prune``: forget keys that have not been refreshed for a long time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final

from django.core.management.base import CommandParser
from django.db import connections, transaction
from django.db.models import Q
from django.utils import timezone

from django_vega import conf
from django_vega.core.keys import key_hash
from django_vega.handler import in_flight
from django_vega.management.vega.duration import duration
from django_vega.management.vega.stored import Databases, rows_of
from django_vega.management.vega.subcommand import (
    DATABASE_FAILED,
    DONE,
    WRONG_ARGUMENTS,
    Subcommand,
)
from django_vega.management.vega.table import write_table
from django_vega.writing.transactions import run_outermost

# Far above the time that any refresh takes: one that started before and still runs would find no
# fence, and write an answer that is older than what a later one had written.
LEAST: Final = timedelta(days=1)

# Rows per transaction: few enough that no flight waits long.
_CHUNK: Final = 1000


def _age(text: str) -> timedelta:
    age = duration(text)
    if age < LEAST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is under a day. A pruned key has no fence: a refresh that started before "
            "could still overwrite newer rows. Use at least 1d"
        )
    return age


class Prune(Subcommand):
    """Deletes rows of `RefreshState`, and with them the fences and the status of their keys."""

    name: ClassVar = "prune"
    help: ClassVar = (
        "Delete the stored status and the fence of every key whose last refresh finished long ago, "
        "except of those in flight in this process."
    )
    exit_codes: ClassVar[Mapping[int, str]] = {
        DONE: "done; the table on stdout says how many rows went, by database",
        WRONG_ARGUMENTS: "nothing was deleted: wrong arguments or settings",
        DATABASE_FAILED: "a database failed; the others were pruned",
    }

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        """Add the age, and the databases."""
        parser.add_argument(
            "--older-than",
            type=_age,
            required=True,
            metavar="DURATION",
            help="how long ago the last refresh must have finished: 30d, 2w, 36h; at least 1d",
        )
        parser.add_argument(
            "--database",
            action="append",
            choices=tuple(connections),
            metavar="ALIAS",
            dest="databases",
            help="prune only this one of DATABASES; may be repeated (default: every one that has "
            "the table)",
        )

    def run(self, options: Mapping[str, Any]) -> None:
        """Prune each database in turn."""
        age = options["older_than"]
        if isinstance(age, str):
            # An option of call_command() was checked by the parser, and comes as it was given.
            age = _age(age)
        databases = Databases(options["databases"])
        pruned = databases.each(partial(self._prune, age))
        write_table(self.stdout, ("database", "deleted"), list(pruned.items()))
        databases.raise_failures()

    def _prune(self, age: timedelta, alias: str) -> int:
        # A fence may have moved without a refresh that finished: then its generation tells when, in
        # microseconds. At 0 it has never moved; without a finish the row was just created.
        started_before = int((time.time() - age.total_seconds()) * 1_000_000)
        old = rows_of(alias).filter(
            Q(finished_at__lt=timezone.now() - age) | Q(finished_at=None, fence__gt=0),
            fence__lt=started_before,
        )

        def delete(hashes: list[str]) -> int:
            # Those that a flight holds are about to be new.
            skip = connections[alias].features.has_select_for_update_skip_locked
            with transaction.atomic(alias):
                locked = old.filter(pk__in=hashes).select_for_update(skip_locked=skip)
                still_old = list(locked.values_list("pk", flat=True))
                rows_of(alias).filter(pk__in=still_old).delete()
            return len(still_old)

        deleted, last = 0, ""
        while hashes := list(
            old.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:_CHUNK]
        ):
            last = hashes[-1]
            live = _hashes_in_flight()
            idle = [one for one in hashes if one not in live]
            deleted += run_outermost(alias, partial(delete, idle))
            self._show_progress(alias, deleted)
        return deleted

    def _show_progress(self, alias: str, deleted: int) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r{alias}: {deleted} deleted\r", style_func=str, ending="")


def _hashes_in_flight() -> set[str]:
    return {
        key_hash(settings.key_prefix, record.scope, record.key)
        for alias, settings in conf.read().items()
        for record in in_flight(using=alias)
    }
