"""The feed's repository: the one door through which rows are refreshed. The heart of the example.

The site reads ``Quake`` and nothing else; whoever wants newer rows calls a method here, from
wherever and as often as they like.
"""

from django_vega import Upsert, coordinated, singleflight_refresh
from example_project.feed.client import Page, UpstreamClient
from example_project.feed.models import Entry, Quake

store = Upsert(Quake, unique_fields=["usgs_id"])

# What a refresh of one page may delete: that page. Like the key, prune has the parameters of the
# method.
store_page = Upsert(
    Entry,
    unique_fields=["usgs_id"],
    prune=lambda _self, region, cursor: Entry.objects.filter(region=region, cursor=cursor),
)


class QuakeRepository:
    """Refreshes the stored earthquakes; callers that want the same page share one fetch."""

    def __init__(self, client: UpstreamClient) -> None:
        self.client = client

    @singleflight_refresh(key="quakes:{region}:{cursor}", upsert=store, scope="quakes")
    def refresh(self, region: str, cursor: str = "head") -> list[Quake]:
        """Refresh one page of a region.

        Whoever asks for the same page meanwhile waits for this fetch and gets its outcome. Other
        pages and regions run side by side, because region and cursor are in the key.
        """
        return rows(self.client.page(region, cursor))

    # The scope makes one key of both methods: a page that is being fetched is being fetched,
    # whether its first caller was sync or async.
    @singleflight_refresh(key="quakes:{region}:{cursor}", upsert=store, scope="quakes")
    async def arefresh(self, region: str, cursor: str = "head") -> list[Quake]:
        """Refresh one page of a region, from async code."""
        return rows(await self.client.apage(region, cursor))

    # One search box, one key: each keystroke takes over from the one before. So the text takes no
    # part in the key, and has to be named as such.
    @singleflight_refresh(key="search:{box}", ignore=("text",), strategy="restart", upsert=store)
    def search(self, box: str, text: str) -> list[Quake]:  # noqa: ARG002  # box is for the key
        """Refresh the events whose place contains ``text``; the latest text of a box wins."""
        return rows(self.client.search(text))

    @singleflight_refresh(key="entries:{region}:{cursor}", upsert=store_page)
    def list_page(self, region: str, cursor: str) -> list[Entry]:
        """Refresh one page of the list; lines that it no longer has are deleted, on it alone."""
        return entries(self.client.page(region, cursor), region, cursor)

    @coordinated(key="unread:{region}")
    def unread(self, region: str) -> int:
        """Return the number on the badge of a region. Another question, so another key."""
        return self.client.unread(region)


def rows(page: Page) -> list[Quake]:
    """Turn a page into unsaved rows."""
    return [Quake.from_feature(feature) for feature in page.features]


def entries(page: Page, region: str, cursor: str) -> list[Entry]:
    """Turn a page into unsaved lines of the list."""
    return [
        Entry(
            region=region,
            cursor=cursor,
            usgs_id=quake.usgs_id,
            place=quake.place,
            revised_at=quake.revised_at,
        )
        for quake in rows(page)
    ]
