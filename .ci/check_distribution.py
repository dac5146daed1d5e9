"""Usage: check_distribution.py DIST: what is in the wheel and the sdist, and that it installs."""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

IN_THE_WHEEL = (
    "__init__.py",
    "py.typed",
    "apps.py",
    "migrations/0001_initial.py",
    "backends/lua/lib.lua",
    "static/django_vega/lanes.js",
)
IN_THE_SDIST = ("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "tests/conftest.py")


def check_wheel(wheel: Path) -> None:
    """The wheel holds the package, whole, and nothing else."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    foreign = {top for top in tops if top != "django_vega" and not top.endswith(".dist-info")}
    missing = {name for name in IN_THE_WHEEL if f"django_vega/{name}" not in names}
    if foreign or missing:
        sys.exit(f"{wheel.name}: does not belong there: {foreign}; missing: {missing}")


def check_sdist(sdist: Path) -> None:
    """The sdist holds what it takes to run the tests."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    if missing := set(IN_THE_SDIST) - names:
        sys.exit(f"{sdist.name}: missing: {missing}")


def check_install(wheel: Path) -> None:
    """The wheel installs alone, and the package imports without settings."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = str(Path(place, "bin", "python"))
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-qq"]
        subprocess.run([*pip, str(wheel)], check=True)
        subprocess.run([python, "-W", "error", "-c", "import django_vega"], check=True, cwd=place)


def main(dist: Path) -> None:
    """Check the one wheel and the one sdist in `dist`."""
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    check_install(wheel.resolve())
    print(f"checked {wheel.name} and {sdist.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
