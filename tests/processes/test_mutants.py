"""Whoever breaks a promise between processes sees red: each mutant fails the test that names it."""

import os
import subprocess
import sys

import pytest

from tests.interpreters import ROOT
from tests.processes.mutation import MUTANTS

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant__is_seen(installed: None, name: str):
    """A test fails because of it, and not because it could not be run."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
            *("-p", "tests.processes.mutation"),
            MUTANTS[name].test,
        ],
        cwd=ROOT,
        env={**os.environ, "VEGA_MUTANT": name, "VEGA_DB": "sqlite"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "error" not in done.stdout.splitlines()[-1]
