#!/usr/bin/env python
"""Django's command line for the example: ``python example_project/manage.py``."""

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    # Run as a script, Python puts this folder on the path; the package stands one above it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    execute_from_command_line(sys.argv)
