"""``manage.py vega``: look at coordination, and clean up after it."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
)

from django_vega.management.vega import SUBCOMMANDS
from django_vega.management.vega.subcommand import WRONG_ARGUMENTS


class _Formatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the list of exit codes a list."""


class Command(BaseCommand):
    """Dispatches to the subcommands; each says for itself what it takes and does."""

    help = "Look at coordinated work, and clean up after it."
    # An operator's tool must work when something else is wrong.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the subcommands, each with its arguments."""
        added = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True)
        for kind in SUBCOMMANDS:
            codes = "\n".join(f"  {code}  {meaning}" for code, meaning in kind.exit_codes.items())
            one = added.add_parser(
                kind.name,
                help=kind.help,
                description=kind.help,
                epilog=f"exit codes:\n{codes}",
                formatter_class=_Formatter,
            )
            kind.add_arguments(one)
            one.set_defaults(subcommand=kind)

    def handle(self, *_: Any, **options: Any) -> None:
        """Run the subcommand.

        Raises:
            CommandError: It did not do what was asked; the return code says why.
        """
        try:
            options["subcommand"](self.stdout, self.stderr).run(options)
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=WRONG_ARGUMENTS) from error
