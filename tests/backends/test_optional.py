"""Redis is an extra: who does not use it neither imports nor needs redis-py."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_REDIS = """
import sys
sys.modules["redis"] = None  # from now on importing it raises ImportError
import {module}
"""


def run_python(code):
    """Run code in a fresh interpreter, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "module",
    [
        "django_vega",
        "django_vega.backends.local",
        "django_vega.backends.codecs",
        "django_vega.backends.protocol",
    ],
)
def test_import__works_without_redis(module):
    """Neither the package, nor the local backend, nor the records and codecs touch redis-py."""
    done = run_python(WITHOUT_REDIS.format(module=module))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["scripts", "locations", "connections", "inbox"])
def test_import__says_what_is_missing(module):
    """What does need it raises ImportError, for the check that names the extra."""
    done = run_python(WITHOUT_REDIS.format(module=f"django_vega.backends.{module}"))
    assert done.returncode == 1
    assert "ModuleNotFoundError: " in done.stderr
    assert "redis" in done.stderr.splitlines()[-1]
