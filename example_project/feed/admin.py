"""The stored earthquakes and their list in the plain Django admin."""

from django.contrib import admin

from example_project.feed.models import Entry, Quake


@admin.register(Quake)
class QuakeAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # subscriptable from Django 6.1
    """Browse the feed: what happened, and how fresh each row is."""

    list_display = (
        "place",
        "magnitude",
        "region",
        "kind",
        "is_reviewed",
        "occurred_at",
        "revised_at",
        "fetched_at",
    )
    list_filter = ("region", "kind", "is_reviewed")
    search_fields = ("place", "usgs_id")
    date_hierarchy = "occurred_at"
    readonly_fields = ("fetched_at",)


@admin.register(Entry)
class EntryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # subscriptable from Django 6.1
    """Browse the list, page by page."""

    list_display = ("place", "region", "cursor", "revised_at")
    list_filter = ("region", "cursor")
    search_fields = ("place", "usgs_id")
