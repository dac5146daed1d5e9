"""Django's entry: the app's name, its checks and its receivers."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class DjangoVegaConfig(AppConfig):
    """Registers the system checks and what listens to Django."""

    name = "django_vega"
    label = "django_vega"
    verbose_name = _("Coordination")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks; let nothing be fresh once tables were emptied, as tests do."""
        from django_vega import checks
        from django_vega.writing.successes import forget_successes

        checks.register()
        post_migrate.connect(forget_successes, dispatch_uid="django_vega")
