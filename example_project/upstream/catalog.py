"""The USGS week, and what an answer about it looks like at a given version."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "usgs_all_week_2018-02-07.csv"
PAGE_SIZE = 100

# Each version is one round of review later: every event gets a later revision time and a slightly
# different magnitude, so that an old answer can be told from a new one in the stored rows.
REVIEW_ROUND_MS = 60_000
REVIEW_MAGNITUDE = 0.01


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the week, as the USGS published it."""

    id: str
    net: str
    kind: str
    status: str
    magnitude: float
    magnitude_type: str
    place: str
    time_ms: int
    updated_ms: int
    coordinates: tuple[float, float, float]

    def as_feature(self, version: int) -> dict[str, Any]:
        """Return the GeoJSON feature as of ``version``; version 1 is the week as published."""
        rounds = version - 1
        return {
            "type": "Feature",
            "id": self.id,
            "properties": {
                "net": self.net,
                "type": self.kind,
                "status": self.status,
                "mag": round(self.magnitude + rounds * REVIEW_MAGNITUDE, 4),
                "magType": self.magnitude_type,
                "place": self.place,
                "time": self.time_ms,
                "updated": self.updated_ms + rounds * REVIEW_ROUND_MS,
            },
            "geometry": {"type": "Point", "coordinates": list(self.coordinates)},
        }


@cache
def load_week() -> tuple[Event, ...]:
    """Read the 1,707 events, newest first; once per process, because they never change."""
    with DATA.open(newline="", encoding="utf-8") as file:
        return tuple(
            Event(
                id=row["id"],
                net=row["net"],
                kind=row["type"],
                status=row["status"],
                magnitude=float(row["mag"]),
                magnitude_type=row["magType"],
                place=row["place"],
                time_ms=int(row["time"]),
                updated_ms=int(row["updated"]),
                coordinates=(
                    float(row["longitude"]),
                    float(row["latitude"]),
                    float(row["depth"]),
                ),
            )
            for row in csv.DictReader(file)
        )


class Catalog:
    """Answers questions about the week: pages of a region, a search, a count.

    Cursors are ``head`` for the newest page of a region, then ``page-2``, ``page-3`` and so on.
    """

    def __init__(self) -> None:
        self.events = load_week()
        self._by_region: dict[str, list[Event]] = {}
        for event in self.events:
            self._by_region.setdefault(event.net, []).append(event)

    def cursors(self) -> dict[str, list[str]]:
        """Return the cursors of every region, in reading order."""
        return {
            region: [_cursor(page) for page in range(-(-len(events) // PAGE_SIZE))]
            for region, events in sorted(self._by_region.items())
        }

    def page(self, region: str, cursor: str, version: int) -> dict[str, Any]:
        """Return one page of a region as of ``version``.

        Raises:
            LookupError: There is no such region, or it has no such page.
        """
        events = self._region(region)
        cursors = self.cursors()[region]
        if cursor not in cursors:
            raise LookupError(f"{region} has no page {cursor!r}; its pages are {cursors}")
        index = cursors.index(cursor)
        following = cursors[index + 1] if index + 1 < len(cursors) else None
        page = events[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]
        return _answer(page, version, following)

    def search(self, text: str, version: int) -> dict[str, Any]:
        """Return the newest events whose place contains ``text``, at most one page."""
        wanted = text.casefold()
        found = [event for event in self.events if wanted in event.place.casefold()]
        return _answer(found[:PAGE_SIZE], version, None)

    def unread(self, region: str, version: int) -> dict[str, Any]:
        """Return how many events of a region nobody has read.

        Raises:
            LookupError: There is no such region.
        """
        return {"metadata": {"version": version}, "unread": len(self._region(region))}

    def _region(self, region: str) -> list[Event]:
        if region not in self._by_region:
            raise LookupError(f"there is no region {region!r}; there are {sorted(self._by_region)}")
        return self._by_region[region]


def _cursor(page: int) -> str:
    return "head" if page == 0 else f"page-{page + 1}"


def _answer(events: Sequence[Event], version: int, following: str | None) -> dict[str, Any]:
    return {
        "type": "FeatureCollection",
        "metadata": {"version": version, "next": following, "count": len(events)},
        "features": [event.as_feature(version) for event in events],
    }
