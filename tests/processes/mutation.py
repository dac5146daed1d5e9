"""A pytest plugin that breaks one promise of the package before anything imports it.

``VEGA_MUTANT`` names which. For a run of its own: ``pytest -p tests.processes.mutation``.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One module with one text in place of another, and the test that has to see it."""

    module: str
    old: str
    new: str
    test: str


MUTANTS = {
    "strict join": Mutant(
        "django_vega.core.table",
        "here = [p for p in entry.peers() if p.process is None] if entry is not None else []",
        "here = list(entry.peers()) if entry is not None else []",
        "tests/processes/test_two.py::test_strict_join__an_outcome_that_was_there_before",
    ),
    "re-check": Mutant(
        "django_vega.runtime.lookout",
        "return self.flights.clock.monotonic() + pause",
        'return float("inf")',
        "tests/processes/test_two.py::test_recheck__a_hint_that_was_lost",
    ),
    "fence": Mutant(
        "django_vega.writing.fence",
        ".filter(fence__lt=generation)\n        .update(",
        ".filter()\n        .update(",
        "tests/processes/test_two.py::test_fence__a_leader_that_was_taken_for_dead",
    ),
}


class Finder(MetaPathFinder):
    """Finds the one module that is to be loaded otherwise."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        found = PathFinder.find_spec(name, path)
        assert found is not None
        assert found.origin is not None
        loader = Loader(name, found.origin, self._mutant)
        return importlib.util.spec_from_file_location(name, found.origin, loader=loader)


class Loader(SourceFileLoader):
    """Loads a module from its source, with one text replaced."""

    def __init__(self, name: str, origin: str, mutant: Mutant) -> None:
        super().__init__(name, origin)
        self._mutant = mutant

    def get_code(self, fullname: str) -> Any:
        source = self.get_data(self.path).decode()
        old, new = self._mutant.old, self._mutant.new
        assert source.count(old) == 1, f"the source has changed; mutate it otherwise:\n{old}"
        return compile(source.replace(old, new), self.path, "exec")


if chosen := os.environ.get("VEGA_MUTANT"):
    assert MUTANTS[chosen].module not in sys.modules, "it was imported before it could be broken"
    sys.meta_path.insert(0, Finder(MUTANTS[chosen]))
