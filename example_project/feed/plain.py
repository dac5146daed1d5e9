"""The same work without django-vega, as it is often written: fetch, then upsert. For comparison."""

from django.db import transaction

from example_project.feed.client import UpstreamClient
from example_project.feed.models import Entry, Quake
from example_project.feed.repository import entries, rows

# Spelled out, because bulk_create leaves an auto_now field alone unless it is named here.
UPDATE_FIELDS = (
    "region",
    "place",
    "kind",
    "magnitude",
    "depth_km",
    "longitude",
    "latitude",
    "is_reviewed",
    "occurred_at",
    "revised_at",
    "fetched_at",
)


class PlainQuakeRepository:
    """Refreshes the stored earthquakes; every caller on its own."""

    def __init__(self, client: UpstreamClient) -> None:
        self.client = client

    def refresh(self, region: str, cursor: str = "head") -> list[Quake]:
        """Refresh one page of a region; return what was written."""
        return write(rows(self.client.page(region, cursor)))

    def search(self, text: str) -> list[Quake]:
        """Refresh the events whose place contains ``text``; return what was written."""
        return write(rows(self.client.search(text)))

    def list_page(self, region: str, cursor: str) -> list[Entry]:
        """Refresh one page of the list, as if it were all of it; return what was written."""
        fetched = entries(self.client.page(region, cursor), region, cursor)
        with transaction.atomic():
            Entry.objects.all().delete()
            return Entry.objects.bulk_create(fetched)

    def unread(self, region: str) -> int:
        """Return the number on the badge of a region."""
        return self.client.unread(region)


def write(quakes: list[Quake]) -> list[Quake]:
    """Upsert, last writer wins: whatever comes last stays, however old it is."""
    return Quake.objects.bulk_create(
        quakes,
        update_conflicts=True,
        unique_fields=["usgs_id"],
        update_fields=UPDATE_FIELDS,
    )
