"""What a backend has to be able to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar


class Backend(ABC):
    """Coordinates the calls of one alias beyond the table of this process.

    Args:
        options: The alias's ``OPTIONS``.
    """

    #: Whether other processes take part; such a backend refuses ``timeout=None``.
    is_shared: ClassVar[bool] = False
    #: Names that ``OPTIONS`` may hold.
    option_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    @abstractmethod
    def next_generation(self) -> int:
        """Return a generation above every earlier one of this backend; thread-safe."""
