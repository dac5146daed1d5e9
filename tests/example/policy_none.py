"""The example's settings, with an operator who turned the coordination of its pages off."""

from example_project.settings import *  # noqa: F403

DJANGO_VEGA = {"default": {"POLICIES": {"quakes": {"STRATEGY": "none"}}}}
