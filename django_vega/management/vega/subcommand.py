"""What the subcommands of ``manage.py vega`` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from django.core.management.base import CommandParser, OutputWrapper

DONE: Final = 0
NOTHING_KNOWN: Final = 1
WRONG_ARGUMENTS: Final = 2  # argparse's own
DATABASE_FAILED: Final = 3


class Subcommand(ABC):
    """One subcommand.

    Attributes:
        name: How it is called on the command line.
        help: One sentence.
        exit_codes: What each code of the process means.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    exit_codes: ClassVar[Mapping[int, str]]

    def __init__(self, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
        self.stdout = stdout
        self.stderr = stderr

    @classmethod
    @abstractmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        """Add what it takes."""

    @abstractmethod
    def run(self, options: Mapping[str, Any]) -> None:
        """Do it.

        Raises:
            CommandError: With one of the exit codes.
        """
