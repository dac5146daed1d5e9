"""Calls as lanes: what the browser's module draws, made from the journal."""

from typing import Any

from django.utils.translation import gettext as _

from example_project.lab.journal import CallSeen, Journal

Bar = dict[str, Any]
Lane = dict[str, Any]


def lanes_of(journal: Journal, prefix: str = "") -> list[Lane]:
    """Return one lane per call; the journal's lock is held by the caller."""
    return [
        {"label": f"{prefix}#{seen.number} {seen.page}", "bars": _bars(seen, journal)}
        for seen in journal.calls
        if seen.asked is not None
    ]


def _bars(seen: CallSeen, journal: Journal) -> list[Bar]:
    bars = []
    if seen.parked is not None:
        until = seen.started or seen.settled
        bars.append(_bar(seen.parked, until, "parked", _("waits for its turn")))
    if seen.started is not None:
        state = "running" if seen.settled is None else seen.state
        joined = journal.joined_to(seen)
        bars.append(_bar(seen.started, seen.settled, state, seen.outcome, joined))
        if seen.state == "cancelled" and seen.body_ended != seen.settled:
            bars.append(_bar(seen.settled, seen.body_ended, "stopping", _("stops")))
    elif seen.state == "cancelled":
        bars.append(_bar(seen.asked, seen.ended, "cancelled", seen.outcome))
    elif seen.state == "success":
        bars.append(_bar(seen.asked, seen.ended, "success", seen.got))
    return bars


def _bar(start: float | None, end: float | None, state: str, title: str, joined: int = 0) -> Bar:
    return {
        "start": start,
        "end": end,
        "state": state,
        "title": title,
        "joined": joined,
        "stale": False,
    }
