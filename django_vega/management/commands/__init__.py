"""What ``manage.py`` finds."""
