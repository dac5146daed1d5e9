"""The stage: one upstream, one database, and the same repository without and with vega."""

import threading
from types import TracebackType
from typing import Self

from django_vega import subscribe
from example_project.feed.client import Page, UpstreamClient
from example_project.feed.models import Entry, Quake
from example_project.feed.plain import PlainQuakeRepository
from example_project.feed.repository import QuakeRepository, rows
from example_project.upstream import PATIENCE, Upstream

# Where the scenarios play: Alaska, 297 events on three pages.
REGION = "ak"
ROWS_ON_HEAD = 100


class Stage:
    """What every scenario finds: emptied before each variant, read back after it."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.client = UpstreamClient(upstream.address)
        self.vega = QuakeRepository(self.client)
        self.plain = PlainQuakeRepository(self.client)

    def clear(self) -> None:
        """Start a variant: no rows, no counts, every key of the upstream at version 1."""
        Quake.objects.all().delete()
        Entry.objects.all().delete()
        self.upstream.reset()

    def upstream_calls(self) -> int:
        """Return how many requests the upstream counted since the variant started."""
        return sum(self.client.stats().values())

    def newest_head(self) -> Page:
        """Return the first page of REGION as the newest answer showed it."""
        return self.newest_page("head")

    def newest_page(self, cursor: str) -> Page:
        """Return a page of REGION as the newest answer showed it."""
        version = self.upstream.newest_version(f"quakes:{REGION}:{cursor}")
        return Page.of(self.upstream.catalog.page(REGION, cursor, version))

    def newest_search(self, text: str) -> Page:
        """Return what the newest answer to a search for ``text`` showed."""
        version = self.upstream.newest_version("search")
        return Page.of(self.upstream.catalog.search(text, version))

    def stale_overwrites(self, newest: Page) -> int:
        """Count the stored rows that are older than ``newest`` shows them."""
        stored = dict(Quake.objects.values_list("usgs_id", "revised_at"))
        return sum(
            quake.usgs_id in stored and stored[quake.usgs_id] < quake.revised_at
            for quake in rows(newest)
        )


class Attendance:
    """Counts the callers that are committed: at the upstream's gate, or on another one's flight.

    So a scenario can hold the one answer back until every caller is there, without guessing how
    long that takes. Use it as a context manager, and give ``arrived`` to the gate.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._at_gate = 0  # under _changed
        self._joined = 0  # under _changed

    def __enter__(self) -> Self:
        self._unsubscribe = subscribe(self._join, types=["coordination:reuse"])
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unsubscribe()

    @property
    def joined(self) -> int:
        """How many callers joined a flight so far."""
        with self._changed:
            return self._joined

    def arrived(self) -> None:
        """Count a request that has reached the gate."""
        with self._changed:
            self._at_gate += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` callers in all are committed.

        Raises:
            TimeoutError: Fewer came in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._at_gate + self._joined >= count, PATIENCE):
                raise TimeoutError(
                    f"after {PATIENCE} s {self._at_gate} callers are at the upstream and "
                    f"{self._joined} have joined; {count} were expected"
                )

    def _join(self, _event: object) -> None:
        with self._changed:
            self._joined += 1
            self._changed.notify_all()
