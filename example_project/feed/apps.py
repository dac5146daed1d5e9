"""App configuration of the feed."""

from django.apps import AppConfig


class FeedConfig(AppConfig):
    """The feed of earthquakes."""

    name = "example_project.feed"
    default_auto_field = "django.db.models.BigAutoField"
