"""System checks, by concern. Ids as in the documentation."""

from __future__ import annotations

from django.core import checks
from django.core.checks import Tags

from django_vega.checks.databases import check_databases, check_tables
from django_vega.checks.functions import check_functions
from django_vega.checks.setting import check_deployment, check_servers, check_setting
from django_vega.checks.upserts import check_upserts, check_writers

TAG = "django_vega"


def register() -> None:
    """Register every check with Django."""
    for check in (check_setting, check_functions, check_upserts, check_writers, check_databases):
        checks.register(check, TAG)
    checks.register(check_deployment, TAG, deploy=True)
    checks.register(check_servers, TAG, deploy=True)
    # Not under the app's tag: asking for that must not open a connection.
    checks.register(check_tables, Tags.database)
