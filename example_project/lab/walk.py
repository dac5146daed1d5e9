"""Tab 5: one flight with three waiters, step by step.

Source: the seed "singleflight-repository", its second figure.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from example_project.lab.asking import aask
from example_project.lab.journal import CallSeen, Journal
from example_project.lab.lanes import Lane, lanes_of
from example_project.lab.runs import LIFETIME, Refused, Run, spawn

PAGE: Final = "home"
NAMES: Final = "ABC"

# Title and explanation of each step; the walk begins at the first.
STEPS: Final[tuple[tuple[str | Promise, str | Promise], ...]] = (
    (
        gettext_lazy("Idle"),
        gettext_lazy("Nobody has asked. The table holds flights, not results: it is empty."),
    ),
    (
        gettext_lazy("A asks"),
        gettext_lazy("No flight of this key is there, so A leads one: it stands in the table."),
    ),
    (
        gettext_lazy("The work asks upstream"),
        gettext_lazy("The function of A sends the one request that there will be."),
    ),
    (
        gettext_lazy("B asks"),
        gettext_lazy("The flight is there: B joins it. The function is not called again."),
    ),
    (
        gettext_lazy("C asks"),
        gettext_lazy("C joins, too. Three wait for one request."),
    ),
    (
        gettext_lazy("The answer is there"),
        gettext_lazy("The function has its answer and is about to return it. All still wait."),
    ),
    (
        gettext_lazy("Settled"),
        gettext_lazy("In one step the flight has its outcome and is gone from the table."),
    ),
    (
        gettext_lazy("Everybody went on"),
        gettext_lazy("Nothing is kept: the next call would begin anew."),
    ),
)


class WalkRun(Run):
    """One flight on an event loop of its own, which goes on when the visitor says so."""

    slug: ClassVar[str] = "walk"

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        # All under the journal's lock.
        self.step = 1
        self.work = "not begun"
        self._has_begun = False
        # Everything below belongs to the loop.
        self._loop: asyncio.AbstractEventLoop
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._gates: dict[str, asyncio.Event]
        # A visitor's two clicks are done one after the other.
        self._acting = threading.Lock()

    def start(self) -> None:
        """Start the loop and stand at the first step."""
        spawn(self._run_loop)
        self.journal.wait_for(lambda: self._has_begun)

    def act(self, action: str, value: str) -> None:
        """Take the next step, or cancel one waiter."""
        with self._acting:
            if self.is_over:
                raise Refused(_("This walk is over; start another one."))
            if action == "next":
                self._go_on()
            elif action == "cancel":
                self._cancel(value)
            else:
                super().act(action, value)

    def close(self) -> None:
        """Let everything that waits go on to its end."""
        if not self.is_over:
            self._on_loop(self._gates["close"].set)

    def state(self) -> dict[str, Any]:
        """Return the step, the table, the waiters and the work."""
        # The live table of django-vega itself.
        records = aask.in_flight(PAGE, self.id, self._body)
        journal = self.journal
        with journal.changed:
            title, text = STEPS[self.step - 1]
            return {
                "step": self.step,
                "steps": len(STEPS),
                "title": str(title),
                "text": str(text),
                "table": [
                    {"id": it.id, "key": it.key, "state": it.state, "joined": it.joined}
                    for it in records
                ],
                "waiters": [NAMES[seen.number - 1] for seen in self._waiting()],
                "work": self.work,
                "calls": [
                    {**seen.as_dict(), "name": NAMES[seen.number - 1]} for seen in journal.calls
                ],
                "executions": journal.executions,
                "events": [vars(line) for line in journal.lines],
            }

    def lanes(self) -> list[Lane]:
        """Return one lane per caller."""
        with self.journal.changed:
            return lanes_of(self.journal)

    # On the visitor's thread

    def _go_on(self) -> None:
        step = self.step + 1
        if step in {2, 4, 5}:
            self._let_ask()
        elif step in {3, 6, 7}:
            gate, work = {
                3: ("ask", "waits for upstream"),
                6: ("answer", "has the answer"),
                7: ("return", "over"),
            }[step]
            self._on_loop(self._gates[gate].set)
            self._until(lambda: self.work == work)
            if step == 7:
                flight = self.journal.calls[0]
                self._until(lambda: flight.settled is not None and not self._waiting())
        else:
            self._on_loop(self._gates["close"].set)
            self._until(lambda: False)
        with self.journal.changed:
            self.step = step

    def _let_ask(self) -> None:
        seen = self.journal.add(PAGE)

        def begin() -> None:
            self._tasks[seen.number] = asyncio.create_task(self._call(seen))

        self._on_loop(begin)
        # The first one leads: its function has begun. The others have joined it.
        self._until(
            lambda: seen.leader is not None or (seen.has_arrived and self.work != "not begun")
        )

    def _cancel(self, name: str) -> None:
        with self.journal.changed:
            chosen = [seen for seen in self._waiting() if NAMES[seen.number - 1] == name]
        if not chosen:
            raise Refused(_("“%(name)s” does not wait for anything now.") % {"name": name})
        (seen,) = chosen
        self._on_loop(self._tasks[seen.number].cancel)
        self._until(lambda: seen.ended is not None)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, or the walk is over."""
        self.journal.wait_for(lambda: self.is_over or condition())

    def _on_loop(self, function: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop has just ended by itself, and with it all that could be told

    def _waiting(self) -> list[CallSeen]:
        return [seen for seen in self.journal.calls if seen.asked and not (seen.got or seen.ended)]

    # On the loop

    def _run_loop(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gates = {name: asyncio.Event() for name in ("ask", "answer", "return", "close")}
        with self.journal.listening():
            with self.journal.changed:
                self._has_begun = True
                self.journal.changed.notify_all()
            try:
                await asyncio.wait_for(self._gates["close"].wait(), LIFETIME)
            except TimeoutError:
                pass  # its visitor went away: it ends all the same
            for gate in self._gates.values():
                gate.set()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            # A flight whose callers have all gone runs to its end before the loop may go.
            while aask.in_flight(PAGE, self.id, self._body):  # noqa: ASYNC110 - turns of this loop
                await asyncio.sleep(0)
        with self.journal.changed:
            self.ends()
            self.journal.changed.notify_all()

    async def _call(self, seen: CallSeen) -> None:
        got = ""
        with self.journal.asking(seen):
            try:
                got = await aask(PAGE, self.id, self._body)
            except asyncio.CancelledError:
                got = "CancelledError"
                raise
            finally:
                self.journal.note(seen, got=got)
            await self._gates["close"].wait()

    async def _body(self) -> str:
        self.journal.begins()
        self._works("begun")
        await self._gates["ask"].wait()
        self._works("waits for upstream")
        await self._gates["answer"].wait()
        self._works("has the answer")
        await self._gates["return"].wait()
        self._works("over")
        return "the home page"

    def _works(self, work: str) -> None:
        with self.journal.changed:
            self.work = work
            for seen in self.journal.calls:
                if work == "over" and seen.started is not None:
                    seen.body_ended = time.time()
            self.journal.changed.notify_all()
