"""The row guard: an upsert changes a row only where no newer generation has written it.

Django writes the statement, bulk_create() itself; on its way to the database the conflict clause
is replaced by one in which every column keeps its old value where the stored generation is newer.
So the database decides, atomically, whatever other transactions do. Rows that were guarded stay in
the statement's answer, which keeps primary keys and instances together: a WHERE would drop them.

On MySQL and MariaDB the clause also refuses what they do silently elsewhere: there a row that
collides on *another* unique key, or on the primary key, would update that other row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import django
from django.db import DatabaseError, IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from django_vega.core.errors import VegaError
from django_vega.writing.faults import ColumnField

Execute: TypeAlias = Callable[[str, Any, bool, dict[str, Any]], Any]

_READS: Final = re.compile(r"\s*\(?\s*SELECT\b", re.IGNORECASE)

# The value that the statement brings for a column, as Django writes it: MariaDB; MySQL from 8.0.19
# on, where the new row has a name; MySQL before.
_MYSQL_NEW: Final = (
    ("ON DUPLICATE KEY UPDATE ", "VALUE({})"),
    ("AS new ON DUPLICATE KEY UPDATE ", "new.{}"),
    ("ON DUPLICATE KEY UPDATE ", "VALUES({})"),
)
# Two rows where one is allowed, the only way to raise an error from within an expression.
_MYSQL_RAISE: Final = "(SELECT 1 UNION ALL SELECT 2)"
_MYSQL_RAISED: Final = 1242

#: The databases that the guard knows.
VENDORS: Final = frozenset({"mysql", "postgresql", "sqlite"})


class RowGuardError(VegaError):
    """The statement that Django made for an upsert is not the one that the row guard can change.

    Nothing was written: without the guard a newer row could be overwritten. You see this with a
    version of Django, a database backend or an ``execute_wrapper`` that writes or changes SQL in
    another way than those this release was tested with.
    """

    def __init__(self, model: str, expected: str, found: int) -> None:
        super().__init__(model, expected, found)
        self.model = model
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"the upsert of {self.model} was not written: its SQL holds {self.expected!r} "
            f"{self.found} times instead of once, so rows could not be guarded. Use Django 5.2, "
            f"6.0 or 6.1 (this is {django.get_version()}) and Django's own database backends, and "
            "look for an execute_wrapper that changes SQL"
        )


@contextmanager
def guarded(
    alias: str,
    model: type[Model],
    unique: Sequence[ColumnField],
    update: Sequence[ColumnField],
    generation: ColumnField | None,
) -> Generator[None]:
    """Change the upserts of a table on their way to the database, while the block lasts.

    Args:
        alias: The database.
        model: Whose table.
        unique: The fields that tell which row is meant.
        update: The fields that Django was told to update, the generation last.
        generation: The field that guards a row; None guards none.

    Raises:
        RowGuardError: The statement is not the expected one; it was not executed.
        IntegrityError: MySQL, MariaDB: a row has the unique key of one row and another unique key,
            or the primary key, of a different one.
    """
    connection = connections[alias]
    if connection.vendor != "mysql" and generation is None:
        yield
        return
    rewriter = _Rewriter(connection, model, unique, update, generation)
    with connection.execute_wrapper(rewriter):
        yield
    if not rewriter.count:
        raise RowGuardError(model._meta.label, rewriter.expected, 0)


class _Rewriter:
    """An ``execute_wrapper`` that replaces one conflict clause."""

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        model: type[Model],
        unique: Sequence[ColumnField],
        update: Sequence[ColumnField],
        generation: ColumnField | None,
    ) -> None:
        def quoted(field: ColumnField) -> str:
            assert field.column is not None
            return connection.ops.quote_name(field.column)

        self._label = model._meta.label
        self._table = connection.ops.quote_name(model._meta.db_table)
        self._unique = [quoted(field) for field in unique]
        self._update = [quoted(field) for field in update]
        self._generation = quoted(generation) if generation is not None else None
        if connection.vendor == "mysql":
            self._clauses = [self._mysql_clause(*form) for form in _MYSQL_NEW]
        else:
            self._clauses = [self._standard_clause()]
        self.expected = self._clauses[0][0]
        self.count = 0

    def __call__(
        self, execute: Execute, sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        # bulk_create() may read, and fields may have statements of their own.
        if self._table not in sql or _READS.match(sql):
            return execute(sql, params, many, context)
        found = 0
        for expected, clause in self._clauses:
            if (times := sql.count(expected)) == 1:
                self.count += 1
                guarded_sql = sql.replace(expected, clause)
                return self._execute(execute, guarded_sql, params, many, context)
            found = max(found, times)
        raise RowGuardError(self._label, self.expected, found)

    def _execute(
        self, execute: Execute, sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        try:
            return execute(sql, params, many, context)
        except DatabaseError as error:
            cause = error.__cause__
            if cause is None or not cause.args or cause.args[0] != _MYSQL_RAISED:
                raise
            raise IntegrityError(
                f"a row of {self._label} has the ({', '.join(self._unique)}) of one row and the "
                "primary key, or another unique key, of a different row, which this database "
                "would have updated instead. Leave the primary key out of the response, and make "
                "its unique keys fit together"
            ) from error

    def _standard_clause(self) -> tuple[str, str]:
        head = f"ON CONFLICT({', '.join(self._unique)}) DO UPDATE SET "
        expected = [f"{column} = EXCLUDED.{column}" for column in self._update]
        assert self._generation is not None
        is_newer = f"{self._table}.{self._generation} > EXCLUDED.{self._generation}"
        clause = [
            f"{column} = CASE WHEN {is_newer} THEN {self._table}.{column} "
            f"ELSE EXCLUDED.{column} END"
            for column in self._update
        ]
        return head + ", ".join(expected), head + ", ".join(clause)

    def _mysql_clause(self, head: str, new: str) -> tuple[str, str]:
        expected = [f"{column} = {new.format(column)}" for column in self._update]
        same_row = " AND ".join(
            f"{self._table}.{column} = {new.format(column)}" for column in self._unique
        )
        first = self._unique[0]
        kept = new.format(first) if first in self._update else f"{self._table}.{first}"
        # Both branches are the same: any other type beside a column's own is refused for some.
        clause = [f"{first} = IF({same_row} OR {_MYSQL_RAISE}, {kept}, {kept})"]
        clause += [
            f"{column} = {self._mysql_value(column, new)}"
            for column in self._update
            if column != first
        ]
        return head + ", ".join(expected), head + ", ".join(clause)

    def _mysql_value(self, column: str, new: str) -> str:
        given = new.format(column)
        if self._generation is None:
            return given
        # Assigned one after the other, so what decides comes last.
        is_newer = f"{self._table}.{self._generation} > {new.format(self._generation)}"
        return f"IF({is_newer}, {self._table}.{column}, {given})"
