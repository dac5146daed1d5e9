"""Mutants: a module whose source has one text in place of another, and how far to look for them."""

import inspect
import types

from hypothesis import HealthCheck, Phase, settings

# A mutant is found by the first example that fails, not by the smallest; the rarest take some 200.
SEARCH = settings(
    max_examples=3_000,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

# Enough for a source without a fault: its own tests go further.
CONFIRM = settings(SEARCH, max_examples=100)


def execute(module, old, new):
    """Run the source of a module with one text replaced, and return it as a module."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"the source has changed; mutate it otherwise:\n{old}"
    # Dataclasses look the module of their class up by that name.
    mutant = types.ModuleType(module.__name__)
    exec(compile(source.replace(old, new), "<mutant>", "exec"), mutant.__dict__)
    return mutant
