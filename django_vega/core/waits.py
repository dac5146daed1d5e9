"""Who waits for whom: finds, before anybody waits, that the wait would never end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django_vega.core.call import Call
from django_vega.core.errors import DeadlockError, ReentrantCallError


class WaitGraph:
    """The waits of code that runs inside flights; waits of other callers hold nobody up.

    A flight has an edge to each call that code inside of it waits for: its body cannot end before
    all of them did. A parked call waits for any one of the bodies that occupy its key.
    """

    def __init__(self, occupants: Callable[[Call], Sequence[Call]]) -> None:
        self._occupants = occupants
        self._edges: dict[Call, list[Call]] = {}

    def __len__(self) -> int:
        return len(self._edges)

    def check(self, chain: Sequence[Call], target: Call) -> None:
        """Refuse a wait for ``target`` by code that runs inside ``chain``.

        Raises:
            ReentrantCallError: The target is a flight of the chain, or parked behind one.
            DeadlockError: The target waits, through others, for a flight of the chain.
        """
        path = self._path(target, frozenset(chain), set())
        if path is None:
            return
        inside = set(chain)
        keys = tuple(call.shown_key for call in path)
        if all(call in inside or call.state == "parked" for call in path):
            outermost_first = tuple(call.shown_key for call in reversed(chain))
            raise ReentrantCallError((*outermost_first, target.shown_key))
        raise DeadlockError((path[-1].shown_key, *keys))

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

    def _path(
        self, target: Call, inside: frozenset[Call], seen: set[Call]
    ) -> tuple[Call, ...] | None:
        """Return the calls from ``target`` to one of ``inside`` that it cannot end before."""
        if target in inside:
            return (target,)
        if target in seen:
            return None
        seen.add(target)
        if target.leader is not None:
            return self._path(target.leader, inside, seen)
        if target.state == "parked":
            paths = [self._path(call, inside, seen) for call in self._occupants(target)]
            blocked = bool(paths) and all(path is not None for path in paths)
            first = paths[0] if blocked else None
        else:
            found = (self._path(call, inside, seen) for call in self._edges.get(target, ()))
            first = next((path for path in found if path is not None), None)
        return None if first is None else (target, *first)
