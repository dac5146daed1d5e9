"""The command line: ``manage.py vega``, and commands that do not overlap."""

from django_vega.management.singleflight import SingleflightCommand

__all__ = ["SingleflightCommand"]
