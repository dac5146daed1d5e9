"""A crew of processes, what they told, and what may not have happened."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.interpreters import ROOT

# For everything that a test waits for, on a loaded machine; no measure of speed.
TIMEOUT = 60.0

Told = dict[str, Any]

# Each call has one of these while the others stand still: it runs, is held, shares, or is over.
ARRIVED = frozenset({"began", "call:parked", "coordination:reuse", "coordination:dropped"})

_numbers = itertools.count(1)


class Member:
    """One process of a crew."""

    def __init__(self, crew: "Crew", number: int, options: dict[str, Any]) -> None:
        self.number = number
        self.is_killed = False
        #: How many calls it was told to make, by key.
        self.calls: Counter[str] = Counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.worker", json.dumps(options)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(crew,), daemon=True)
        self._reader.start()

    def do(self, **command: Any) -> None:
        """Send a command."""
        if command["do"] == "call":
            self.calls[command["key"]] += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """End it as a crash would."""
        self.is_killed = True
        self.process.kill()
        self.wait()

    def wait(self) -> None:
        """Wait for its end, with all that it told."""
        self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def stop(self) -> None:
        """Let all its threads stand still."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.process.pid, signal.SIGCONT)

    def _read(self, crew: "Crew") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                crew.hear({**json.loads(line), "process": self.number})
        crew.notice()


class Crew:
    """Processes that share an alias, and the history that they tell.

    Args:
        size: How many.
        alias: Their DJANGO_VEGA["default"].
        database: Their DATABASES["default"].
    """

    def __init__(self, size: int, alias: dict[str, Any], database: dict[str, Any]) -> None:
        self._changed = threading.Condition()
        self._told: list[Told] = []
        options = {"alias": alias, "database": database}
        self.members = [Member(self, number, options) for number in range(size)]
        self.wait(lambda: self.count("ready") == size, "all processes are ready")

    def hear(self, told: Told) -> None:
        """Take a line of the history."""
        with self._changed:
            self._told.append(told)
            self._changed.notify_all()

    def notice(self) -> None:
        """Let whoever waits look at the processes again."""
        with self._changed:
            self._changed.notify_all()

    def history(self, *whats: str, key: str | None = None) -> list[Told]:
        """Return what was told so far, in the order of the clock."""
        with self._changed:
            chosen = [
                told
                for told in self._told
                if (not whats or told["what"] in whats) and (key is None or told.get("key") == key)
            ]
        return sorted(chosen, key=lambda told: float(told["at"]))

    def count(self, *whats: str, key: str | None = None) -> int:
        """How often something was told."""
        return len(self.history(*whats, key=key))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Block until something is so.

        Raises:
            AssertionError: It is not, by the deadline.
        """
        with self._changed:
            came = self._changed.wait_for(lambda: condition() or self._lost(), TIMEOUT)
            assert not self._lost(), "a process ended by itself; its stderr says why"
            told = Counter(f"{one['process']} {one['what']}" for one in self._told)
        assert came, f"not within {TIMEOUT:.0f} s: {what}; told {told}"

    def _lost(self) -> bool:
        return any(m.process.poll() is not None and not m.is_killed for m in self.members)

    def call(self, key: str, kinds: list[list[str]], **options: Any) -> int:
        """Let each member make calls of the given kinds; returns how many that are."""
        for member, own in zip(self.members, kinds, strict=True):
            for kind in own:
                number = f"{member.number}-{next(_numbers)}"
                member.do(do="call", number=number, kind=kind, key=key, **options)
        return sum(map(len, kinds))

    def arrive(self, key: str, kinds: list[list[str]], **options: Any) -> int:
        """Let calls be made and wait until each runs, is held, or is over."""
        total = self.count(*ARRIVED, key=key) + sum(map(len, kinds))
        self.call(key, kinds, **options)
        self.wait(lambda: self.count(*ARRIVED, key=key) >= total, f"{total} calls of {key} arrive")
        return total

    def open(self, key: str) -> None:
        """Let the bodies of a key end, now and later."""
        for member in self.members:
            if not member.is_killed:
                member.do(do="open", key=key)

    def results(self, key: str) -> list[Told]:
        """Wait for the callers that are alive, and return what they got."""
        living = {member.number for member in self.members if not member.is_killed}
        calls = sum(self.members[number].calls[key] for number in living)

        def told() -> list[Told]:
            return [one for one in self.history("got", key=key) if one["process"] in living]

        self.wait(lambda: len(told()) == calls, f"{calls} callers of {key} are told")
        check(self.history(key=key))
        return told()

    def leader(self, key: str) -> Member:
        """Return the process of the flight that began last."""
        return self.members[self.history("began", key=key)[-1]["process"]]

    def close(self) -> None:
        """End all processes."""
        for member in self.members:
            if not member.is_killed:
                member.resume()
                assert member.process.stdin is not None
                member.process.stdin.close()
        for member in self.members:
            try:
                member.wait()
            except subprocess.TimeoutExpired:
                member.kill()
                raise


@contextmanager
def crew(size: int, alias: dict[str, Any], database: dict[str, Any]) -> Iterator[Crew]:
    """Start a crew, and end it with the block."""
    started = Crew(size, alias, database)
    try:
        yield started
    except BaseException:
        for member in started.members:
            member.kill()
        raise
    started.close()


def check(history: list[Told]) -> None:
    """Find outcomes that were there before the caller asked.

    Raises:
        AssertionError: A caller got one: it asked when the flight was settled already.
    """
    asked = {one["call"]: one["at"] for one in history if one["what"] == "asked"}
    settled = {
        (one["process"], one["call"]): one["at"] for one in history if one["what"] == "call:settled"
    }
    over = {
        one["generation"]: settled.get((one["process"], one["call"]))
        for one in history
        if one["what"] == "began"
    }
    for one in history:
        at = over.get(one.get("generation"))
        if one["what"] == "got" and at is not None:
            assert at >= asked[one["call"]], f"{one} is older than its caller"


def overlaps(history: list[Told]) -> int:
    """Return how many bodies ran at once, at most."""
    running = most = 0
    for one in history:
        running += {"began": 1, "ended": -1}.get(one["what"], 0)
        most = max(most, running)
    return most
