"""Where the value of a refresh goes: through upserts, or to a function of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from django.db import connections, router
from django.db.models import Model, QuerySet

from django_vega.writing.counts import Counts
from django_vega.writing.faults import Fault, InvalidUpsertError
from django_vega.writing.guard import VENDORS
from django_vega.writing.prune import prune, scope_of
from django_vega.writing.rows import Batch, iterable, prepare, shown
from django_vega.writing.upsert import Upsert

Write: TypeAlias = Callable[[Any, int], Any]


class Prepared(Protocol):
    """A value that is ready to be written."""

    @property
    def value(self) -> Any:
        """What a function of the user's own returned."""

    def write(self, alias: str, generation: int) -> Counts | None:
        """Write; inside a transaction, and again after that was rolled back."""

    def counts(self) -> Counts | None:
        """Return what is known before the write; None where that is nothing."""

    def restore(self) -> None:
        """Undo what a write that was rolled back has changed on instances."""

    def conclude(self) -> None:
        """Finish after the commit."""


@dataclass(frozen=True)
class Destination:
    """What a refresh does with the value of its function.

    Attributes:
        upserts: How rows are written; parents before their children.
        write: Called with the value and the generation instead.
    """

    upserts: tuple[Upsert, ...] = ()
    write: Write | None = None

    @classmethod
    def given(cls, upsert: object, write: object) -> Destination:
        """Return what two options of a decorator mean.

        Raises:
            TypeError: They have the wrong type, or not exactly one of them is given.
            ValueError: The list of upserts is empty.
        """
        if (upsert is None) == (write is None):
            raise TypeError(
                "pass Upsert(Model, unique_fields=[...]) as 'upsert', or a function as 'write', "
                f"and not both: upsert={upsert!r}, write={write!r}"
            )
        if write is not None:
            if not callable(write) or _runs_later(write):
                raise TypeError(
                    f"write={write!r}: pass a plain function of the value and the generation; it "
                    "runs inside the transaction, so it can be no async function and no generator"
                )
            return cls(write=write)
        upserts = (upsert,) if isinstance(upsert, Upsert) else upsert
        if not isinstance(upserts, list | tuple) or not all(
            isinstance(one, Upsert) for one in upserts
        ):
            raise TypeError(
                f"upsert={upsert!r}: pass Upsert(Model, unique_fields=[...]), or a list of them"
            )
        if not upserts:
            raise ValueError("upsert=[] would write nothing. List an Upsert for each model")
        return cls(upserts=tuple(upserts))

    def database(self) -> str:
        """Return the alias of the one database that everything is written to.

        That of the models; for ``write`` the one that the router writes `RefreshState` to.

        Raises:
            InvalidUpsertError: An upsert does not fit its model, the upserts do not fit together,
                or the database does not fit them.
        """
        from django_vega.models import RefreshState

        if self.write is not None:
            alias = router.db_for_write(RefreshState)
            if fences := list(_fence_faults(alias)):
                raise InvalidUpsertError(RefreshState._meta.label, tuple(fences))
            return alias
        aliases = {upsert: upsert.database() for upsert in self.upserts}
        alias = aliases[self.upserts[0]]
        if faults := [*self._model_faults(), *self._database_faults(alias, aliases)]:
            names = ", ".join(upsert.label for upsert in self.upserts)
            raise InvalidUpsertError(names, tuple(faults))
        return alias

    @property
    def starts_move_the_fence(self) -> bool:
        """Whether a newer start voids an older flight."""
        return any(upsert.fence == "started" for upsert in self.upserts)

    def prepare(
        self, alias: str, value: object, arguments: inspect.BoundArguments | None
    ) -> Prepared:
        """Make a value ready to be written; outside of any transaction.

        Args:
            alias: See `database`.
            value: What the function returned.
            arguments: The function's own, defaults included; None for none.

        Raises:
            TypeError, ValueError: The rows do not fit; see `rows.prepare` and `prune.scope_of`.
            DatabaseError: The database could not be asked about keys that look alike.
        """
        if self.write is not None:
            # What is fetched while it is read must not hold the transaction.
            return _Custom(self.write, list(value) if isinstance(value, Iterator) else value)
        args, kwargs = (arguments.args, arguments.kwargs) if arguments else ((), {})
        parts = []
        for upsert, rows in self._routed(value):
            batch = prepare(alias, upsert, rows)
            parts.append((batch, scope_of(upsert, batch, args, kwargs)))
        return _Rows(parts)

    def _routed(self, value: object) -> list[tuple[Upsert, object]]:
        if len(self.upserts) == 1:
            return [(self.upserts[0], value)]
        models = [upsert.target.model for upsert in self.upserts]
        labels = " or ".join(model._meta.label for model in models)
        routed: dict[Any, list[Model]] = {model._meta.concrete_model: [] for model in models}
        for index, row in enumerate(iterable(labels, value)):
            own = routed.get(row._meta.concrete_model) if isinstance(row, Model) else None
            if own is None:
                raise TypeError(
                    f"row {index} is {shown(row)}. With several upserts rows go by their class: "
                    f"return instances of {labels}"
                )
            assert isinstance(row, Model)
            own.append(row)
        return [
            (u, routed[m._meta.concrete_model]) for u, m in zip(self.upserts, models, strict=True)
        ]

    def _model_faults(self) -> Iterable[Fault]:
        seen: dict[Any, str] = {}
        for upsert in self.upserts:
            model = upsert.target.model
            if (first := seen.get(model._meta.concrete_model)) is not None:
                yield Fault(
                    "several-upserts-of-a-model",
                    f"two upserts write the table of {first}, so its rows could go by either",
                    "Keep one of them",
                )
            seen[model._meta.concrete_model] = model._meta.label

    def _database_faults(self, alias: str, aliases: dict[Upsert, str]) -> Iterable[Fault]:
        if len(set(aliases.values())) > 1:
            listed = ", ".join(f"{upsert.label} to {at!r}" for upsert, at in aliases.items())
            yield Fault(
                "several-databases",
                f"the router writes {listed}, and one transaction holds one database",
                "Write them in refreshes of their own",
            )
        yield from _fence_faults(alias)
        connection = connections[alias]
        if not connection.features.supports_update_conflicts:
            yield Fault(
                "no-upsert",
                f"the database {alias!r} ({connection.display_name}) cannot update on conflict",
                "Use PostgreSQL, SQLite, MariaDB or MySQL, or write= with code of your own",
            )
        elif connection.vendor not in VENDORS:
            yield from (
                Fault(
                    "no-row-guard",
                    f"{upsert.label} has a GenerationField, and the row guard does not know the "
                    f"database {alias!r} ({connection.display_name})",
                    "Use PostgreSQL, SQLite, MariaDB or MySQL, or remove the field",
                )
                for upsert in self.upserts
                if upsert.target.guard is not None
            )


def _fence_faults(alias: str) -> Iterable[Fault]:
    from django_vega.models import RefreshState

    if not router.allow_migrate_model(alias, RefreshState):
        yield Fault(
            "no-fence-table",
            f"rows are written to {alias!r}, where the router allows no RefreshState, which "
            "guards them",
            "Let allow_migrate() return True for app_label 'django_vega' there, and migrate it",
        )
    connection = connections[alias]
    if not connection.features.supports_ignore_conflicts:
        yield Fault(
            "no-fence",
            f"the database {alias!r} ({connection.display_name}) cannot ignore conflicts, as the "
            "fence of a key is created",
            "Use PostgreSQL, SQLite, MariaDB or MySQL",
        )


def _runs_later(function: Callable[..., object]) -> bool:
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


class _Rows:
    """Rows, by upsert, each with the scope that is pruned."""

    value: Final = None

    def __init__(self, parts: list[tuple[Batch, QuerySet[Any] | None]]) -> None:
        self._parts = parts

    def counts(self) -> Counts:
        known = (Counts(rows=len(b), duplicates=b.duplicates) for b, _ in self._parts)
        return sum(known, start=Counts())

    def write(self, alias: str, generation: int) -> Counts:
        counts = Counts()
        for batch, _ in self._parts:
            counts += batch.write(alias, generation)
        # Parents are listed, and written, first; their children go first.
        for batch, scope in reversed(self._parts):
            if scope is not None:
                counts += Counts(pruned=prune(alias, batch, scope, generation))
        return counts

    def restore(self) -> None:
        for batch, _ in self._parts:
            batch.restore()

    def conclude(self) -> None:
        for batch, _ in self._parts:
            batch.share_primary_keys()


class _Custom:
    """A value for a function of the user's own, which alone knows what it wrote."""

    def __init__(self, write: Write, given: object) -> None:
        self._write = write
        self._given = given
        self.value: Any = None

    def counts(self) -> None:
        return None

    def write(self, alias: str, generation: int) -> None:
        del alias
        self.value = self._write(self._given, generation)

    def restore(self) -> None:
        self.value = None

    def conclude(self) -> None:
        pass
