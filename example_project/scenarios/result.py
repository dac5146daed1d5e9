"""What a scenario hands back: the comparison table, and whether its promise held."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, Self

from example_project.scenarios.callers import Visit
from example_project.scenarios.stage import Stage


class TableRow(Protocol):
    """One line of a scenario's table: a frozen dataclass."""

    #: Field to its heading on two lines.
    HEADINGS: ClassVar[dict[str, tuple[str, str]]]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def variant(self) -> str:
        """Which way of doing it."""


@dataclass(frozen=True)
class Row:
    """One line of the comparison table: what one way of doing it cost, and what it left behind.

    Attributes:
        variant: Which way.
        upstream_calls: Requests that the upstream counted.
        served: Callers that got an answer.
        joined: Callers that waited for somebody else's flight.
        cancelled: Callers that were told so.
        p95_wait_ms: Wait that 95 % of the callers did not exceed, in milliseconds.
        rows_written: Rows sent to the database, over all callers.
        stale_overwrites: Stored rows that are older than the newest answer, read back at the end.
        rows_lost: Rows of a newest answer that are not stored, read back at the end.
    """

    HEADINGS: ClassVar[dict[str, tuple[str, str]]] = {
        "upstream_calls": ("upstream", "calls"),
        "served": ("", "served"),
        "joined": ("", "joined"),
        "cancelled": ("", "cancelled"),
        "p95_wait_ms": ("p95 wait", "ms"),
        "rows_written": ("rows", "written"),
        "stale_overwrites": ("stale", "overwrites"),
        "rows_lost": ("rows", "lost"),
    }

    variant: str
    upstream_calls: int
    served: int
    joined: int
    cancelled: int
    p95_wait_ms: float
    rows_written: int
    stale_overwrites: int
    rows_lost: int

    @classmethod
    def of(
        cls,
        variant: str,
        visits: Sequence[Visit],
        *,
        upstream_calls: int,
        stale_overwrites: int,
        rows_lost: int = 0,
        joined: int = 0,
    ) -> Self:
        """Sum up the visits of all callers."""
        waits = sorted(visit.waited for visit in visits)
        return cls(
            variant=variant,
            upstream_calls=upstream_calls,
            served=sum(not visit.was_cancelled for visit in visits),
            joined=joined,
            cancelled=sum(visit.was_cancelled for visit in visits),
            p95_wait_ms=round(waits[math.ceil(0.95 * len(waits)) - 1] * 1000, 1),
            rows_written=sum(visit.rows_written for visit in visits),
            stale_overwrites=stale_overwrites,
            rows_lost=rows_lost,
        )


@dataclass(frozen=True, slots=True)
class Check:
    """One number of the promise: what it should be, and what was measured."""

    claim: str
    expected: object
    measured: object

    @property
    def holds(self) -> bool:
        """Whether the measured value is the expected one."""
        return self.expected == self.measured


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one scenario."""

    name: str
    promise: str
    rows: Sequence[TableRow]
    checks: tuple[Check, ...]

    @property
    def held(self) -> bool:
        """Whether every number of the promise is as promised."""
        return all(check.holds for check in self.checks)

    @property
    def broken(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if not check.holds)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return {
            "name": self.name,
            "promise": self.promise,
            "held": self.held,
            "rows": [asdict(row) for row in self.rows],
            "broken": [asdict(check) for check in self.broken],
        }


class Scenario(Protocol):
    """A play in two or three variants, on a stage that the demo has built."""

    @property
    def name(self) -> str:
        """The word that picks it on the command line."""

    @property
    def promise(self) -> str:
        """What should hold, in one sentence."""

    def play(self, stage: Stage) -> Result:
        """Play every variant and measure it."""
