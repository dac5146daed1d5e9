"""Tab 3: buttons that ask for the same page, and a clock that goes in ticks.

Source: the seed "singleflight-repository", its first panel.
"""

import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal

from django.utils.translation import gettext as _

from django_vega import CallCancelled
from example_project.lab.asking import ask
from example_project.lab.journal import CallSeen, Journal
from example_project.lab.lanes import Lane, lanes_of
from example_project.lab.runs import LIFETIME, Refused, Run, spawn

TICK: Final = 0.2  # seconds
REQUEST_TICKS: Final = 6  # 1,200 ms
MOST_AT_ONCE: Final = 12
MOST_CALLS: Final = 50  # as many as there are lanes

# Three places that want the same page, and one that wants another.
BUTTONS: Final = {"open": "home", "pull": "home", "header": "home", "suggest": "suggest"}

Mode = Literal["plain", "singleflight"]
Clock = Literal["runs", "by-hand"]


@dataclass
class Request:
    """One execution.

    Attributes:
        number: Which one, from 1.
        page: What it fetches.
        began: The tick at which it began.
        leader: Number of the call whose function it is.
        left: Ticks that are left of it; 0 when it is over.
    """

    number: int
    page: str
    began: int
    leader: int
    left: int = REQUEST_TICKS


class PanelRun(Run):
    """A panel that a visitor plays on.

    Args:
        mode: ``plain`` makes a request for each call, ``singleflight`` shares those of one key.
        clock: ``runs`` ticks every 200 ms while there are requests; ``by-hand`` when told to.
    """

    slug: ClassVar[str] = "panel"

    def __init__(self, mode: Mode, clock: Clock) -> None:
        super().__init__()
        self.mode = mode
        self.clock = clock
        self.journal = Journal()
        # All under the journal's lock.
        self.ticks = 0
        self._requests: list[Request] = []
        self._is_ticking = False
        self._is_closed = False
        self._ask = ask.with_options(
            strategy="none" if mode == "plain" else "dedupe", timeout=LIFETIME
        )

    @property
    def over_at(self) -> float | None:
        """When the last call ended; None while one is in flight."""
        with self.journal.changed:
            if self._in_flight():
                return None
            return max((seen.ended or 0 for seen in self.journal.calls), default=self.began)

    def start(self) -> None:
        """Wait for the visitor; nothing is asked for yet."""

    def act(self, action: str, value: str) -> None:
        """Press a button, or let the clock tick."""
        if action == "press" and value in BUTTONS:
            self._press(BUTTONS[value])
        elif action == "tick" and self.clock == "by-hand":
            self.tick()
        else:
            super().act(action, value)

    def close(self) -> None:
        """Let every request end."""
        with self.journal.changed:
            self._is_closed = True
            self.journal.changed.notify_all()

    def tick(self) -> None:
        """Let 200 ms pass on the panel's clock, and wait until those have their page who get it."""
        journal = self.journal
        with journal.changed:
            self.ticks += 1
            told = []
            for request in self._requests:
                request.left = max(request.began + REQUEST_TICKS - self.ticks, 0)
                if not request.left:
                    told += self._callers(request)
            journal.changed.notify_all()
        journal.wait_for(lambda: all(seen.ended for seen in told))

    def state(self) -> dict[str, Any]:
        """Return counters, calls and requests."""
        journal = self.journal
        with journal.changed:
            return {
                "mode": self.mode,
                "clock": self.clock,
                "ticks": self.ticks,
                "clock_ms": round(self.ticks * TICK * 1000),
                "counters": {
                    "calls": len(journal.calls),
                    "requests": journal.executions,
                    "joined": journal.joined,
                },
                "calls": [seen.as_dict() for seen in journal.calls],
                "executions": journal.executions,
                "requests": [
                    {
                        **asdict(request),
                        "callers": [seen.number for seen in self._callers(request)],
                    }
                    for request in self._requests
                ],
                "events": [vars(line) for line in journal.lines],
            }

    def lanes(self) -> list[Lane]:
        """Return one lane per call."""
        with self.journal.changed:
            return lanes_of(self.journal)

    def _in_flight(self) -> int:
        return sum(seen.ended is None for seen in self.journal.calls)

    def _press(self, page: str) -> None:
        journal = self.journal
        with journal.changed:
            if self._is_closed:
                raise Refused(_("This panel is closed; start another one."))
            if self._in_flight() >= MOST_AT_ONCE:
                raise Refused(
                    _("%(count)s calls are in flight; let some of them end.")
                    % {"count": MOST_AT_ONCE}
                )
            if len(journal.calls) >= MOST_CALLS:
                raise Refused(
                    _("This panel has seen %(count)s calls; start another one.")
                    % {"count": MOST_CALLS}
                )
            if not journal.calls:
                self.began = time.time()
            seen = journal.add(page)
        spawn(partial(self._call, seen))
        journal.wait_for(lambda: self._is_placed(seen))
        with journal.changed:
            starts_ticking = self.clock == "runs" and not self._is_ticking
            self._is_ticking |= starts_ticking
        if starts_ticking:
            spawn(self._run_clock)

    def _call(self, seen: CallSeen) -> None:
        got = ""
        try:
            with self.journal.listening(), self.journal.asking(seen):
                got = self._ask(seen.page, self.id, partial(self._body, seen))
        except CallCancelled as error:
            got = f"CallCancelled({error.reason})"
        finally:
            self.journal.note(seen, got=got)

    def _body(self, seen: CallSeen) -> str:
        journal = self.journal
        with journal.changed:
            journal.begins()
            request = Request(journal.executions, seen.page, self.ticks, seen.number)
            self._requests.append(request)
            journal.changed.notify_all()
        journal.wait_for(lambda: not request.left or self._is_closed, LIFETIME)
        journal.note(seen, body_ended=time.time())
        return f"page {request.number} of {seen.page}"

    def _callers(self, request: Request) -> list[CallSeen]:
        """Return the calls that share a request."""
        leader = request.leader
        return [it for it in self.journal.calls if leader in {it.number, it.leader}]

    def _is_placed(self, seen: CallSeen) -> bool:
        """Whether a call has a request of its own, shares one, or is over."""
        leads = any(request.leader == seen.number for request in self._requests)
        return leads or seen.leader is not None or seen.ended is not None

    def _run_clock(self) -> None:
        journal = self.journal
        while True:
            journal.wait_for(lambda: self._is_closed, TICK)
            self.tick()
            with journal.changed:
                if self._is_closed or not self._in_flight():
                    self._is_ticking = False
                    return
