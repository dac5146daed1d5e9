"""``vega show KEY``: what is known of one key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from django_vega import conf
from django_vega.core.keys import key_hash
from django_vega.handler import in_flight
from django_vega.management.vega.stored import Databases, rows_of
from django_vega.management.vega.subcommand import (
    DATABASE_FAILED,
    DONE,
    NOTHING_KNOWN,
    WRONG_ARGUMENTS,
    Subcommand,
)
from django_vega.management.vega.table import write_table
from django_vega.models import RefreshState

#: Of the table, in which flights and stored rows share a column where they mean the same.
COLUMNS: Final = (
    "kind",
    "where",
    "scope",
    "state",
    "generation",
    "started_at",
    "finished_at",
    "age",
    "joined",
    "process",
    "error",
)


class Show(Subcommand):
    """Shows the flights of a key in this process, and the status that databases have stored."""

    name: ClassVar = "show"
    help: ClassVar = (
        "Show the flights of a key in this process, and how its last refresh ended, from every "
        "database."
    )
    exit_codes: ClassVar[Mapping[int, str]] = {
        DONE: "found; the table on stdout has a row for each flight and each stored status",
        NOTHING_KNOWN: "nothing is known of the key",
        WRONG_ARGUMENTS: "wrong arguments or settings",
        DATABASE_FAILED: "a database failed; what the others know was shown",
    }

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        """Add the key, its scope, and the format."""
        parser.add_argument(
            "key", metavar="KEY", help="the key as .key_for(...) gives it, or as it is displayed"
        )
        parser.add_argument("--scope", help="whose key (default: of all scopes)")
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout")

    def run(self, options: Mapping[str, Any]) -> None:
        """Look in this process, then in each database."""
        key, scope = options["key"], options["scope"]
        # Flights first: one that ends meanwhile has then stored its status.
        flights = [one for one in _flights(key) if scope in {None, one["scope"]}]
        databases = Databases(None)
        answers = databases.each(lambda alias: list(_stored(alias, key)))
        stored = [one for rows in answers.values() for one in rows if scope in {None, one["scope"]}]
        if options["json"]:
            document = {"key": key, "scope": scope, "flights": flights, "stored": stored}
            self.stdout.write(json.dumps(document, indent=2))
        elif flights or stored:
            rows = [{"kind": "flight", "where": one["alias"], **one} for one in flights]
            rows += [{"kind": "stored", "where": one["database"], **one} for one in stored]
            write_table(self.stdout, COLUMNS, [[row.get(name) for name in COLUMNS] for row in rows])
        databases.raise_failures()
        if not flights and not stored:
            asked = ", ".join(answers) or "none has the table"
            of_scope = f" in the scope {scope!r}" if scope is not None else ""
            raise CommandError(
                f"nothing is known of {key!r}{of_scope}: no flight in this process, and no status "
                f"in the databases ({asked})",
                returncode=NOTHING_KNOWN,
            )


def _flights(key: str) -> Iterator[dict[str, Any]]:
    for alias, settings in conf.read().items():
        for record in in_flight(using=alias):
            shown = settings.key_display(record.key)
            if key in {record.key, shown}:
                yield {
                    "alias": alias,
                    "key": shown,
                    "scope": record.scope,
                    "function": record.function,
                    "strategy": record.strategy,
                    "state": record.state,
                    "reason": record.reason,
                    "generation": record.generation,
                    "age": round(record.age, 3),
                    "joined": record.joined,
                    "process": record.process,
                }


def _stored(alias: str, key: str) -> Iterator[dict[str, Any]]:
    aliases = conf.read().values()
    # Keys are stored as they may be shown. Several may look the same, so the hash decides, unless
    # it was the displayed form that was typed.
    looks = {settings.key_display(key) for settings in aliases}
    prefixes = {settings.key_prefix for settings in aliases}
    for row in rows_of(alias).filter(Q(key=key) | Q(key__in=looks)).order_by("scope", "key_hash"):
        hashes = {key_hash(prefix, row.scope, key) for prefix in prefixes}
        if row.key_hash in hashes or row.key == key:
            yield {
                "database": alias,
                "key": row.key,
                "scope": row.scope,
                "state": row.state or "idle",
                "generation": row.generation_written or None,
                "fence": row.fence,
                "started_at": _told(row.started_at),
                "finished_at": _told(row.finished_at),
                "error": row.error if row.state == RefreshState.Outcome.FAILED else None,
            }


def _told(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
