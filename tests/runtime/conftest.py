"""What every test of coordination gets: nothing is left of its calls, and an alias of its own."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import django_vega
from django_vega.handler import handler

# A closed alias stays closed, and pools keep their threads: no test gets that of another one.
_names = (f"alias-{number}" for number in itertools.count(1))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a call, a key or a wait in a table."""
    yield
    left: list[object] = [*django_vega.in_flight()]
    for coordinator in handler.built():
        table = coordinator.flights.table
        if len(table) or len(table.waits):
            left.append(f"{len(table)} keys, {len(table.waits)} waits")
            # The test that left it fails, and no other one.
            coordinator.flights.reset()
    assert left == []


@pytest.fixture
def new_alias(settings: Any) -> Iterator[Callable[..., str]]:
    """Return a function that makes an alias with the given settings; it is closed afterwards."""
    made = []

    def make(**options: Any) -> str:
        name = next(_names)
        settings.DJANGO_VEGA = {**settings.DJANGO_VEGA, name: options}
        made.append(name)
        return name

    settings.DJANGO_VEGA = {"default": {}}
    yield make
    for name in made:
        django_vega.close(using=name)
