"""Redis is an extra: who does not use it neither imports nor needs redis-py."""

import pytest

from tests.interpreters import run_bare

WITHOUT_REDIS = """
import sys
sys.modules["redis"] = None  # from now on importing it raises ImportError
import {module}
"""


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
    done = run_bare(WITHOUT_REDIS.format(module=module))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["scripts", "locations", "connections", "inbox"])
def test_import__says_what_is_missing(module):
    """What does need it raises ImportError, for the check that names the extra."""
    done = run_bare(WITHOUT_REDIS.format(module=f"django_vega.backends.{module}"))
    assert done.returncode == 1
    assert "ModuleNotFoundError: " in done.stderr
    assert "redis" in done.stderr.splitlines()[-1]
