"""Tables on stdout: aligned for people, tab-separated for programs."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import OutputWrapper


def write_table(
    stdout: OutputWrapper, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Write rows under their headings: TSV unless ``stdout`` is a terminal.

    A cell holds no tab, line break or control character: those are written as Python escapes, so
    that each row is one line, and what an upstream put into an error cannot steer a terminal.
    """
    lines = [list(columns), *([_cell(value) for value in row] for row in rows)]
    if not stdout.isatty():
        stdout.write("\n".join("\t".join(line) for line in lines))
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        stdout.write("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return ""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in str(value)
    )
