"""Interpreters of their own: for what an import does, and for the end of a process."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_bare(code: str) -> subprocess.CompletedProcess[str]:
    """Run code without settings, with warnings as errors."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return _run("-W", "error", "-c", code, env=environment)


def run_script(setup: str, script: str) -> str:
    """Run a script that may fork, and return what it printed.

    It ends well, and says nothing on stderr.
    """
    # Python warns of every fork beside threads; what becomes of it is what is tested here.
    warnings = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    done = _run(*warnings, "-c", setup + textwrap.dedent(script))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
