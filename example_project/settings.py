"""Settings of the example. For one's own machine: debug is on, secret and password are known."""

import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent

# The database file; VEGA_EXAMPLE_DB names another one.
DATABASE = Path(os.environ.get("VEGA_EXAMPLE_DB", FOLDER / "var" / "example.sqlite3"))
DATABASE.parent.mkdir(parents=True, exist_ok=True)

# Where the upstream listens; VEGA_EXAMPLE_UPSTREAM names another one.
UPSTREAM = os.environ.get("VEGA_EXAMPLE_UPSTREAM", "http://127.0.0.1:8001")

DEBUG = True
SECRET_KEY = "the example's key is no secret"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_vega",
    "example_project.feed",
    "example_project.lab",
]

DJANGO_VEGA: dict[str, dict[str, Any]] = {
    "default": {
        # The operator's word over the decorator's, by namespace: the head of the key. Write "none"
        # here, play the demo again, and the stampede reaches the upstream 20 times.
        "POLICIES": {"quakes": {"STRATEGY": "dedupe"}},
    },
}

# One Redis for all worker processes makes one process of them; without it each is on its own.
if REDIS := os.environ.get("VEGA_EXAMPLE_REDIS"):
    DJANGO_VEGA["default"] |= {
        "BACKEND": "django_vega.backends.redis.RedisBackend",
        "LOCATION": REDIS,
    }

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATABASE,
        "OPTIONS": {
            # Writers wait for each other instead of failing with "database is locked", and readers
            # wait for nobody. All three matter wherever several threads write to SQLite.
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
        },
    },
}

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
