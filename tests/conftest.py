"""What every test gets: services are checked, threads end, folders choose their databases."""

import os
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from tests import services, threads

# Their tests run again on every database: what they show depends on it.
ON_EVERY_DATABASE = [
    Path(__file__).parent / name for name in ("writing", "integration", "watching")
]

# No deadlines: a loaded machine is slow, not wrong. In CI the same examples every time.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=200, derandomize=True, database=None
)
hypothesis.settings.load_profile(os.environ.get("VEGA_HYPOTHESIS", "local"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """End the run where a service is missing that somebody insists on."""
    if hasattr(session.config, "workerinput"):
        return
    try:
        refused = services.refusals()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    chosen = services.SERVICES.get(os.environ.get("VEGA_DB", "sqlite"))
    if chosen is not None and (reason := chosen.why_missing()) is not None:
        refused.append(f"VEGA_DB={chosen.name}: {chosen.label} ({reason})")
    if refused:
        raise pytest.UsageError(*refused)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of some folders with `databases`."""
    for item in items:
        if any(folder in item.path.parents for folder in ON_EVERY_DATABASE):
            item.add_marker("databases")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say on which databases no tests run; once, in the run that comes first."""
    if os.environ.get("VEGA_DB", "sqlite") in services.databases_to_test()[:1]:
        for line in services.skip_lines():
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)  # not a fixture: threads end before the database is torn down
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail the test whose thread hangs, or whose thread raised what nobody asked for."""
    try:
        return (yield)
    finally:
        threads.end_all()
