"""Who waits for whom: finds, before anybody waits, that the wait would never end.

Note [Stuck calls]
    A flight goes on once every call that code inside of it waits for is over. A parked call goes on
    once enough of the bodies ahead of it are over. So a call is stuck if it cannot be reached from
    those that surely go on; a search that merely looks for a circle would miss that several flights
    hold each other up through one queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from django_vega.core.call import Call
from django_vega.core.errors import DeadlockError, ReentrantCallError


class WaitGraph:
    """The waits of code that runs inside flights; waits of other callers hold nobody up.

    A flight has an edge to each call that code inside of it waits for: its body cannot end before
    all of them did.

    Args:
        ahead: Tells of a parked call which bodies are ahead of it, and how many of them have to
            end before it may run.
    """

    def __init__(self, ahead: Callable[[Call], tuple[Sequence[Call], int]]) -> None:
        self._ahead = ahead
        self._edges: dict[Call, list[Call]] = {}

    def __len__(self) -> int:
        return len(self._edges)

    def check(self, chain: Sequence[Call], target: Call) -> None:
        """Refuse a wait for ``target`` by code that runs inside ``chain``.

        Raises:
            ReentrantCallError: The target is a flight of the chain, or parked behind one.
            DeadlockError: The target waits, through others, for a flight of the chain.
        """
        inside = frozenset(chain)
        path = self._path(target, inside)
        if path is None:
            return
        if all(call in inside or call.state == "parked" for call in path):
            outermost_first = tuple(call.shown_key for call in reversed(chain))
            raise ReentrantCallError((*outermost_first, target.shown_key))
        # A parked call and the bodies ahead of it stand on one key, which is named once.
        circle = itertools.groupby((path[-1], *path), key=lambda call: call.slot)
        raise DeadlockError(tuple(next(calls).shown_key for _, calls in circle))

    def begin(self, chain: Sequence[Call], target: Call) -> None:
        """Note that code inside ``chain`` now waits for ``target``."""
        for call in chain:
            self._edges.setdefault(call, []).append(target)

    def end(self, chain: Sequence[Call], target: Call) -> None:
        """Forget one wait that `begin` noted."""
        for call in chain:
            targets = self._edges[call]
            targets.remove(target)
            if not targets:
                del self._edges[call]

    def _path(self, target: Call, inside: frozenset[Call]) -> tuple[Call, ...] | None:
        """Return the shortest way from a stuck ``target`` to one of ``inside``, else None."""
        waits = self._waits(target, inside)
        stuck = _stuck(waits, inside)
        if target not in stuck:
            return None
        found, came_from = [target], {target: target}
        for call in found:
            if call in inside:
                path = [call]
                while path[-1] is not target:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path))
            for other in waits[call][0]:
                if other in stuck and other not in came_from:
                    came_from[other] = call
                    found.append(other)
        return None

    def _waits(
        self, target: Call, inside: frozenset[Call]
    ) -> dict[Call, tuple[Sequence[Call], int]]:
        """Return what each call waits for that ``target`` depends on, and how much of that."""
        waits: dict[Call, tuple[Sequence[Call], int]] = {}
        found = [target]
        for call in found:
            if call not in waits and call not in inside:
                waits[call] = self._waits_of(call)
                found.extend(waits[call][0])
        return waits

    def _waits_of(self, call: Call) -> tuple[Sequence[Call], int]:
        if call.state == "parked":
            return self._ahead(call)
        # Whoever waits for a settled call has been told; it is about to go on.
        targets = [target for target in self._edges.get(call, ()) if not target.settled]
        return targets, len(targets)


def _stuck(waits: dict[Call, tuple[Sequence[Call], int]], inside: frozenset[Call]) -> set[Call]:
    """Return the calls that never go on if those of ``inside`` do not; see Note [Stuck calls]."""
    stuck = {*waits, *inside}
    before = 0
    while before != len(stuck):
        before = len(stuck)
        # From the far end: a line of flights that wait one for the next is dissolved in one round.
        for call, (targets, needed) in reversed(waits.items()):
            if sum(target not in stuck for target in targets) >= needed:
                stuck.discard(call)
    return stuck
