"""The app of the lab. It has no models: runs live in memory."""

from django.apps import AppConfig


class LabConfig(AppConfig):
    """The lab, mounted at ``/lab/``."""

    name = "example_project.lab"
    label = "lab"
    verbose_name = "Lab"
