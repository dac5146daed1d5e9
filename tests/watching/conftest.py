"""What every test of watching gets: a hub that knows nothing yet, and nothing is left in it."""

import gc
from collections.abc import Iterator

import pytest

from django_vega.core.watches import LINGER
from django_vega.runtime.watching import hub
from tests.watching.stage import VirtualClock


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Give the hub a clock that stands still; fail the test that leaves a watcher behind."""
    clock = VirtualClock()
    hub.reset()
    monkeypatch.setattr(hub, "clock", clock)
    yield clock
    gc.collect()
    clock.now += LINGER
    left = len(hub)
    hub.reset()
    assert left == 0
