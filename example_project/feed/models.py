"""The tables of the feed. What the site shows is what stands here."""

from datetime import UTC, datetime, timedelta
from typing import Any, Self

from django.db import models

from django_vega import GenerationField

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
    # Pages and searches show the same events. With this, none of them puts back an older answer.
    generation = GenerationField()

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


class Entry(models.Model):
    """A line of the list of a region, on the page that the upstream put it on.

    Each page is fetched on its own, so each line knows its page: what a refresh may delete is what
    stood on the page that it fetched.
    """

    region = models.CharField(max_length=8, choices=Region)
    cursor = models.CharField(max_length=16, help_text="The page: head, page-2, …")
    usgs_id = models.CharField("USGS id", max_length=32, unique=True)
    place = models.CharField(max_length=200)
    revised_at = models.DateTimeField()
    # An event moves on to the next page: then a late old answer must not move it back.
    generation = GenerationField()

    class Meta:
        """In reading order."""

        ordering = ("region", "cursor", "usgs_id")
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return f"{self.place} ({self.region}, {self.cursor})"


def _moment(milliseconds: int) -> datetime:
    """Return the moment that is so many milliseconds after the epoch, without rounding."""
    return EPOCH + timedelta(milliseconds=milliseconds)
