"""What is watched, what was read last, and who is to look again. Pure; its owner serialises it.

Each watched set has a version that grows with every change of what it is about. A reading carries
the version at which it began, so a change that comes while it runs makes its result outdated and
leads to one more reading. There is never more than one reading of a set at a time, therefore no
older result follows a newer one.

Note [What a watcher gets]
    The latest result that it has not had and that was read at the version of its arrival or later.
    Results in between, which it was too slow for, are skipped. An error is a result for those who
    were there, and none for who comes after it.

Note [A reading begins where it runs]
    A reading is claimed on the thread that runs it, at the moment at which it begins. Async
    watchers have to be given a thread first; while one has sent for it the others wait for that
    one, but no longer than `PATIENCE`, and a thread waits for no watcher that has none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

# A client that lost its connection, or turned its phone, is back within that many seconds.
LINGER: Final = 5.0

# A thread that was sent for and has not begun by then, in seconds, may never come.
PATIENCE: Final = 1.0


@dataclass(slots=True, eq=False)
class Result:
    """What a reading came to.

    Attributes:
        version: Of the set when the reading began.
        value: What was read; None after an error.
        error: What the reading raised.
        keeps: Whether it is worth keeping when nobody watches.
    """

    version: int
    value: Any = None
    error: BaseException | None = None
    keeps: bool = True


@dataclass(slots=True, eq=False)
class Watched:
    """One watched set.

    Attributes:
        key: What tells it from others.
        topics: What it is about; a change of one of them is a change of it.
        version: Grows with each change.
        watchers: Who is here, in order of arrival.
        result: The last one.
        reading: The one that runs.
        sent: The async watcher that has sent for a thread, and when.
    """

    key: Hashable
    topics: frozenset[Hashable]
    version: int = 0
    watchers: dict[Watcher, None] = field(default_factory=dict)
    result: Result | None = None
    reading: Reading | None = None
    sent: tuple[Watcher, float] | None = None

    @property
    def is_current(self) -> bool:
        """Whether nothing has changed since the last result was read."""
        result = self.result
        return result is not None and result.error is None and result.version == self.version


@dataclass(slots=True, eq=False)
class Watcher:
    """One who watches a set.

    Attributes:
        watched: The set.
        since: Its version on arrival.
        had: The last result that this watcher had, or must not have.
        waiter: Who is to be woken; None while it does not wait.
    """

    watched: Watched
    since: int
    had: Result | None
    waiter: Any = None


@dataclass(slots=True, eq=False)
class Reading:
    """A reading that runs.

    Attributes:
        watched: Of this set.
        version: The set's when it began.
    """

    watched: Watched
    version: int


Step: TypeAlias = Result | Literal["join", "read", "wait"]


class Watches:
    """The watched sets of a process.

    Args:
        linger: Seconds for which a set is kept when its last watcher has left, until the owner
            calls `forget`: before each step, so that whatever happens next to any set does it.
    """

    def __init__(self, linger: float = LINGER) -> None:
        self._linger = linger
        self._sets: dict[Hashable, Watched] = {}
        self._by_topic: dict[Hashable, set[Watched]] = {}
        # When those without watchers are forgotten, the next one first.
        self._ends: OrderedDict[Watched, float] = OrderedDict()
        self._to_wake: list[Any] = []

    def __len__(self) -> int:
        return len(self._sets)

    def is_watched(self, topic: Hashable) -> bool:
        """Whether a set is about the topic."""
        return topic in self._by_topic

    def join(self, key: Hashable, topics: Iterable[Hashable]) -> Watcher:
        """Add a watcher to the set of this key, which begins with the first one."""
        watched = self._sets.get(key)
        if watched is None:
            watched = self._sets[key] = Watched(key, frozenset(topics))
            for topic in watched.topics:
                self._by_topic.setdefault(topic, set()).add(watched)
        self._ends.pop(watched, None)
        result = watched.result
        had = result if result is not None and result.error is not None else None
        watcher = Watcher(watched, watched.version, had)
        watched.watchers[watcher] = None
        return watcher

    def look(self, watcher: Watcher, waiter: Any, now: float, *, sends: bool) -> Step:
        """Say what a watcher does next: take a result, read, or wait until it is woken.

        One that belongs to another table, that of the process before a fork, has to join anew.

        Args:
            watcher: The one who looks.
            waiter: Who is woken when there is reason to look again.
            now: The time.
            sends: Whether it has to send for a thread before it can read.
        """
        watched = watcher.watched
        if self._sets.get(watched.key) is not watched:
            return "join"
        result = watched.result
        if result is not None and result is not watcher.had and result.version >= watcher.since:
            watcher.had = result
            watcher.waiter = None
            return result
        watcher.waiter = waiter
        if watched.reading is not None or watched.is_current:
            return "wait"
        if sends:
            if watched.sent is not None and now - watched.sent[1] < PATIENCE:
                return "wait"
            watched.sent = watcher, now
        watcher.waiter = None
        return "read"

    def claim(self, watcher: Watcher) -> Reading | None:
        """Begin a reading; None when there is no need for it any more."""
        watched = watcher.watched
        self._call_back(watcher)
        if watcher not in watched.watchers or watched.reading is not None or watched.is_current:
            return None
        watched.reading = Reading(watched, watched.version)
        return watched.reading

    def finish(self, reading: Reading, result: Result) -> None:
        """Take what a reading came to, unless it was given up."""
        watched = reading.watched
        if watched.reading is reading:
            watched.reading = None
            watched.result = result
            self._wake(watched)
            self._drop_if_useless(watched)

    def give_up(self, reading: Reading) -> None:
        """Let somebody else read."""
        watched = reading.watched
        if watched.reading is reading:
            watched.reading = None
            self._wake(watched)
            self._drop_if_useless(watched)

    def stop_waiting(self, watcher: Watcher) -> None:
        """Let a watcher go that still watches but waits no more; others do what it had begun."""
        watcher.waiter = None
        if self._call_back(watcher):
            self._wake(watcher.watched)

    def leave(self, watcher: Watcher, now: float) -> None:
        """Remove a watcher; doing it twice does no harm."""
        watched = watcher.watched
        if watcher not in watched.watchers:
            return
        self.stop_waiting(watcher)
        del watched.watchers[watcher]
        if not watched.watchers:
            self._ends[watched] = now + self._linger
            self._drop_if_useless(watched)

    def changed(self, topics: Iterable[Hashable]) -> None:
        """Take note that something has changed, and is there for who reads from here on."""
        self._change({one for topic in topics for one in self._by_topic.get(topic, ())})

    def changed_all(self) -> None:
        """Take note that anything may have changed."""
        self._change(set(self._sets.values()))

    def forget(self, now: float) -> None:
        """Forget the sets that nobody has come back to in time."""
        while self._ends:
            watched, end = next(iter(self._ends.items()))
            if end > now:
                return
            self._drop(watched)

    def wake_all(self) -> None:
        """Let every watcher look again."""
        for watched in self._sets.values():
            self._wake(watched)

    def take_woken(self) -> list[Any]:
        """Return who has to be woken since the last time, for the owner to do it unlocked."""
        woken, self._to_wake = self._to_wake, []
        return woken

    def _change(self, sets: Iterable[Watched]) -> None:
        for watched in sets:
            watched.version += 1
            self._wake(watched)
            self._drop_if_useless(watched)

    def _call_back(self, watcher: Watcher) -> bool:
        sent = watcher.watched.sent
        if sent is None or sent[0] is not watcher:
            return False
        watcher.watched.sent = None
        return True

    def _wake(self, watched: Watched) -> None:
        for watcher in watched.watchers:
            if watcher.waiter is not None:
                self._to_wake.append(watcher.waiter)
                watcher.waiter = None

    def _drop_if_useless(self, watched: Watched) -> None:
        """Forget a set at once that nobody watches and that has nothing for who comes back."""
        if watched.watchers or watched.reading is not None:
            return
        if not watched.is_current or (watched.result is not None and not watched.result.keeps):
            self._drop(watched)

    def _drop(self, watched: Watched) -> None:
        self._ends.pop(watched, None)
        if self._sets.get(watched.key) is not watched:
            return
        del self._sets[watched.key]
        for topic in watched.topics:
            about = self._by_topic[topic]
            about.discard(watched)
            if not about:
                del self._by_topic[topic]
