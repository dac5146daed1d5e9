"""Django's entry: the app's name, and its checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoVegaConfig(AppConfig):
    """Registers the system checks."""

    name = "django_vega"
    label = "django_vega"
    verbose_name = _("Coordination")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks."""
        from django_vega import checks

        checks.register()
