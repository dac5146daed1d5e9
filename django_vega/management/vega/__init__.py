"""The subcommands of ``manage.py vega``, one module each."""

from __future__ import annotations

from typing import Final

from django_vega.management.vega.doctor import Doctor
from django_vega.management.vega.prune import Prune
from django_vega.management.vega.show import Show
from django_vega.management.vega.subcommand import Subcommand

#: In the order in which the help lists them.
SUBCOMMANDS: Final[tuple[type[Subcommand], ...]] = (Show, Doctor, Prune)
