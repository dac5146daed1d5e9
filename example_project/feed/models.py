"""The one table of the feed. What the site shows is what stands here."""

from datetime import UTC, datetime, timedelta
from typing import Any, Self

from django.db import models

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Region(models.TextChoices):
    """The seismic networks of the week; each is a region of the feed."""

    ALASKA = "ak", "Alaska"
    SOUTHERN_CALIFORNIA = "ci", "Southern California"
    HAWAII = "hv", "Hawaii"
    MONTANA = "mb", "Montana"
    NORTHERN_CALIFORNIA = "nc", "Northern California"
    NEW_MADRID = "nm", "New Madrid"
    NEVADA = "nn", "Nevada"
    PUERTO_RICO = "pr", "Puerto Rico"
    SOUTHEAST = "se", "Southeastern United States"
    WORLD = "us", "World"
    UTAH = "uu", "Utah"
    PACIFIC_NORTHWEST = "uw", "Pacific Northwest"


class Quake(models.Model):
    """An earthquake, or what a seismometer takes for one."""

    usgs_id = models.CharField("USGS id", max_length=32, unique=True)
    region = models.CharField(max_length=8, choices=Region)
    place = models.CharField(max_length=200)
    kind = models.CharField(max_length=32)
    magnitude = models.FloatField()
    depth_km = models.FloatField("depth (km)")
    longitude = models.FloatField()
    latitude = models.FloatField()
    is_reviewed = models.BooleanField("reviewed")
    occurred_at = models.DateTimeField()
    revised_at = models.DateTimeField(help_text="When the USGS last revised this event.")
    fetched_at = models.DateTimeField(auto_now=True, help_text="When this row was last written.")

    class Meta:
        """Newest event first."""

        ordering = ("-occurred_at", "usgs_id")
        indexes = (models.Index(fields=["region", "-occurred_at"], name="quake_region_newest"),)

    def __str__(self) -> str:
        return f"M {self.magnitude:.1f}, {self.place}"

    @classmethod
    def from_feature(cls, feature: dict[str, Any]) -> Self:
        """Build an unsaved row from a GeoJSON feature of the USGS."""
        properties = feature["properties"]
        longitude, latitude, depth_km = feature["geometry"]["coordinates"]
        return cls(
            usgs_id=feature["id"],
            region=properties["net"],
            place=properties["place"],
            kind=properties["type"],
            magnitude=properties["mag"],
            depth_km=depth_km,
            longitude=longitude,
            latitude=latitude,
            is_reviewed=properties["status"] == "reviewed",
            occurred_at=_moment(properties["time"]),
            revised_at=_moment(properties["updated"]),
        )


def _moment(milliseconds: int) -> datetime:
    """Return the moment that is so many milliseconds after the epoch, without rounding."""
    return EPOCH + timedelta(milliseconds=milliseconds)
