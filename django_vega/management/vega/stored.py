"""The rows of `RefreshState` as an operator finds them: on whichever database has the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from django.core.management.base import CommandError
from django.db import DatabaseError, connections
from django.db.models import QuerySet

from django_vega.management.vega.subcommand import DATABASE_FAILED
from django_vega.models import RefreshState

T = TypeVar("T")

TABLE: Final = RefreshState._meta.db_table


class NoTableError(Exception):
    """The database answers, and nobody has migrated django_vega there."""


class Databases:
    """Asks one database after the other, and goes on where one fails.

    Args:
        aliases: Those that were named; none means all that have the table.
    """

    def __init__(self, aliases: Sequence[str] | None) -> None:
        self._named = tuple(dict.fromkeys(aliases or ()))
        self._failures: dict[str, Exception] = {}

    def each(self, ask: Callable[[str], T]) -> dict[str, T]:
        """Call ``ask`` with the alias of each database; return its answers, by alias."""
        answers = {}
        for alias in self._named or tuple(connections):
            try:
                with connections[alias].cursor() as cursor:
                    tables = connections[alias].introspection.table_names(cursor)
                if TABLE in tables:
                    answers[alias] = ask(alias)
                elif self._named:
                    self._failures[alias] = NoTableError(f"it has no table {TABLE}")
            except DatabaseError as error:
                self._failures[alias] = error
        return answers

    def raise_failures(self) -> None:
        """Tell which databases failed.

        Raises:
            CommandError: At least one did.
        """
        if self._failures:
            told = "; ".join(
                f"{alias!r}: {str(error).strip()}" for alias, error in self._failures.items()
            )
            raise CommandError(
                f"failed on the database {told}. Every other one was done",
                returncode=DATABASE_FAILED,
            )


def rows_of(alias: str) -> QuerySet[RefreshState]:
    """Return the rows of a database, whatever routers and managers say."""
    return RefreshState._base_manager.using(alias)
