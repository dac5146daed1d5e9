"""Tells who watches that rows have changed: after the commit, from model signals or by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.db import connections, transaction
from django.db.models import ForeignKey, Model
from django.db.models.signals import m2m_changed, post_delete, post_migrate, post_save

from django_vega.runtime.watching import hub

_UID = "django_vega.changes"


def announce(using: str, models: Iterable[type[Model]]) -> None:
    """Tell those who watch these models, as soon as what was written is committed.

    For writes that send no signals: `bulk_create`, `update`, raw SQL. Outside of a transaction that
    is at once, inside one after the outermost commit, and never after a rollback, of a savepoint
    too. Inside the transaction of a TestCase it is where ``captureOnCommitCallbacks(execute=True)``
    runs the callbacks. With autocommit switched off nothing tells of the commit, so nothing is
    told.

    Args:
        using: The database that was written to.
        models: What was written, proxies and parents' children included.
    """
    tables = {table for model in models for table in tables_of(model)}

    def tell() -> None:
        hub.changed(tables)

    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        transaction.on_commit(tell, using=using, robust=True)


def listen(tables: Iterable[str]) -> None:
    """Hear from now on of every save, delete and many-to-many change that concerns these tables.

    Models stay listened to when nobody watches them any more: a transaction that is open when the
    next watcher comes has been heard. The price is one call per saved row, and that deletes of
    these models collect their rows, as for every model with a ``post_delete`` receiver.
    """
    wanted = frozenset(tables)
    for model in _models():
        if not wanted.isdisjoint(tables_of(model)):
            post_save.connect(_on_row, sender=model, dispatch_uid=_UID)
            post_delete.connect(_on_row, sender=model, dispatch_uid=_UID)
            m2m_changed.connect(_on_many_to_many, sender=model, dispatch_uid=_UID)
    post_migrate.connect(_on_flush, dispatch_uid=_UID)


def tables_of(model: type[Model]) -> frozenset[str]:
    """Return the tables that a row of the model is in: its own, and those of its parents."""
    concrete = model._meta.concrete_model or model
    return frozenset(one._meta.db_table for one in (concrete, *concrete._meta.all_parents))


def tables_in(sql: str, using: str) -> frozenset[str]:
    """Return the tables of models that a statement names.

    A row of an automatic many-to-many table goes with either of its ends, and nothing tells of it;
    so such a table brings the tables of both.
    """
    quote = connections[using].ops.quote_name
    found: set[str] = set()
    for model in _models():
        if quote(model._meta.db_table) in sql:
            found.add(model._meta.db_table)
            if model._meta.auto_created:
                for end in model._meta.fields:
                    if isinstance(end, ForeignKey):
                        found |= tables_of(end.related_model)
    return frozenset(found)


def _models() -> list[type[Model]]:
    return apps.get_models(include_auto_created=True)


def _on_row(sender: type[Model], using: str, **_: Any) -> None:
    announce(using, [sender])


def _on_many_to_many(sender: type[Model], using: str, action: str, **_: Any) -> None:
    if action.startswith("post_"):
        announce(using, [sender])


def _on_flush(**_: Any) -> None:
    """Tables may have been emptied, as tests do."""
    hub.changed_all()
