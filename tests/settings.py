"""Django settings of the tests. `VEGA_DB` chooses the database: sqlite, postgres or mariadb."""

import os
import tempfile
from pathlib import Path
from typing import Any

from tests.services import DATABASES as DATABASE_NAMES
from tests.services import MARIADB, POSTGRES

# The process in the name keeps test runs at the same time apart.
NAME = f"vega_{os.getpid()}"


def sqlite(name: str) -> dict[str, Any]:
    """Return the settings of a SQLite file; in memory, processes would not see the same rows."""
    folder = Path(tempfile.gettempdir())
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(folder / f"{name}.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        "TEST": {"NAME": str(folder / f"test_{name}.sqlite3")},
    }


def chosen(database: str) -> dict[str, Any]:
    """Return the settings of the database that `VEGA_DB` names."""
    if database == "sqlite":
        return sqlite(NAME)
    if database == POSTGRES.name:
        service, engine = POSTGRES, "django.db.backends.postgresql"
    elif database == MARIADB.name:
        service, engine = MARIADB, "django.db.backends.mysql"
    else:
        raise ValueError(f"VEGA_DB is {database!r}; allowed are {', '.join(DATABASE_NAMES)}")
    return {
        "ENGINE": engine,
        "NAME": NAME,
        "HOST": service.host,
        "PORT": service.port,
        "USER": service.user,
    }


DATABASES = {
    "default": chosen(os.environ.get("VEGA_DB", "sqlite")),
    "other": sqlite(f"{NAME}_other"),
}

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_vega",
    "tests.writing_app",
    "tests.checks_app",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "tests"
USE_TZ = True
