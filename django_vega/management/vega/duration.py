"""Durations as people write them on a command line: ``30d``, ``12h``, ``1w2d``."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta
from typing import Final

_UNITS: Final = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_PART: Final = re.compile(r"([0-9]+)([wdhms])")
_WHOLE: Final = re.compile(r"(?:[0-9]+[wdhms])+")
_LONGEST: Final = timedelta(days=36_500)


def duration(text: str) -> timedelta:
    """Read a duration; the type of an argument.

    Raises:
        argparse.ArgumentTypeError: It is none, or more than a hundred years.
    """
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no duration. Write numbers with w, d, h, m or s, such as 30d or 36h"
        )
    try:
        found = sum(
            (timedelta(**{_UNITS[unit]: int(count)}) for count, unit in _PART.findall(text)),
            timedelta(),
        )
    except (OverflowError, ValueError):
        found = timedelta.max
    if found > _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a hundred years")
    return found
