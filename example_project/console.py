"""What the demo prints: progress while it works, and the comparison tables."""

from typing import TextIO

from example_project.scenarios.result import Result


class Console:
    """Prints lines to one stream.

    Args:
        stream: Where to. With ``--json`` that is stderr: stdout belongs to the document.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, line: str = "") -> None:
        """Print a line at once, also into a pipe."""
        print(line, file=self._stream, flush=True)

    def progress(self, done: int, total: int, what: str) -> None:
        """Show how far a long step has come: one moving line on a terminal, else few lines."""
        text = f"  {done} of {total} {what}"
        if self._stream.isatty():
            print(f"\r{text}", end="\n" if done == total else "", file=self._stream, flush=True)
        elif done == total or done % 10 == 0:
            self.say(text)

    def show(self, result: Result) -> None:
        """Print a scenario's table and whether its promise held."""
        headings = result.rows[0].HEADINGS
        upper, lower = zip(*headings.values(), strict=True)
        lines = [["", *upper], ["", *lower]]
        lines += [
            [row.variant, *(f"{getattr(row, name)}" for name in headings)] for row in result.rows
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for variant, *cells in lines:
            numbers = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
            self.say("  ".join([f"  {variant:<{widths[0]}}", *numbers]))
        for check in result.broken:
            self.say(f"  {check.claim}: {check.expected!r} promised, {check.measured!r} measured")
        self.say("  held" if result.held else "  NOT HELD")
        self.say()
