"""The field that says which generation wrote a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from django.db import models
from django.utils.translation import gettext_lazy as _

# Each of them would make a generation something that somebody gives, or that rows can lack.
_FIXED: Final = ("null", "default", "db_default", "editable", "primary_key", "unique", "choices")


class GenerationField(models.BigIntegerField):  # type: ignore[type-arg]
    """Holds the generation of the refresh that wrote the row; 0 where none has.

    A model that has one is guarded row by row: an upsert changes a row only where the stored
    generation is not newer, decided by the database itself. So a late old answer cannot overwrite
    a newer one of another key or another function that shares the row.

    Refreshes set it; whoever saves an instance otherwise leaves it as it is. It is NOT NULL and
    not editable, so it takes none of the options that would change that; one per model.

        class Quake(models.Model):
            usgs_id = models.CharField(max_length=40, unique=True)
            generation = GenerationField()

    Raises:
        TypeError: ``null``, ``default``, ``db_default``, ``editable``, ``primary_key``, ``unique``
            or ``choices`` was given.
    """

    description = _("Generation of the refresh that wrote the row")

    # bulk_create() hands back what is stored: that tells which rows were guarded.
    db_returning: ClassVar[bool] = True

    def __init__(self, *args: Any, **options: Any) -> None:
        for name in _FIXED:
            if name in options:
                raise TypeError(
                    f"GenerationField takes no {name}={options[name]!r}: it is always NOT NULL, "
                    "0 until a refresh writes the row, and set by refreshes alone. Leave it out"
                )
        options.update(default=0, editable=False)
        super().__init__(*args, **options)

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """Return what a migration needs: the options that are not fixed."""
        name, path, args, options = super().deconstruct()
        for option in ("default", "editable"):
            options.pop(option, None)
        return name, path, args, options
