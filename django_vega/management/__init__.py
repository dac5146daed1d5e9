"""The command line: ``manage.py vega``."""
