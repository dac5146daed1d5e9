"""What became of the rows of a response."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows ended how; those of several upserts are added.

    Attributes:
        rows: Distinct rows of the response.
        written: Inserted or updated.
        guarded: Left alone because a newer generation had written them.
        unchanged: Left alone because they held the same values already.
        duplicates: Replaced by a later row with the same unique key.
        pruned: Deleted because the response no longer has them, without cascades.
    """

    rows: int = 0
    written: int = 0
    guarded: int = 0
    unchanged: int = 0
    duplicates: int = 0
    pruned: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            rows=self.rows + other.rows,
            written=self.written + other.written,
            guarded=self.guarded + other.guarded,
            unchanged=self.unchanged + other.unchanged,
            duplicates=self.duplicates + other.duplicates,
            pruned=self.pruned + other.pruned,
        )
