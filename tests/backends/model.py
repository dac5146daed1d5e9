"""What the scripts promise, written down once more: plain lists, searched through."""

from dataclasses import dataclass, field

from django_vega.backends.protocol import Outcome

CANCELLED = Outcome("cancelled", b"abort")


@dataclass
class Parked:
    """A ticket that waits for its turn."""

    token: str
    limit: int


@dataclass
class Model:
    """One key.

    A step returns what the script answers, as words: what led gets its generation from `started`.
    """

    flights: dict[str, int] = field(default_factory=dict)  # token -> generation, oldest first
    stopping: dict[str, int] = field(default_factory=dict)
    parked: list[Parked] = field(default_factory=list)
    spent: dict[str, str] = field(default_factory=dict)  # token -> why
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    followers: set[str] = field(default_factory=set)
    issued: int = 0  # newest generation that the server knows
    admitted: int = 0  # newest generation of a flight that it let in

    # A call

    def admit(self, token, process, limit, when_full, capacity, want):
        if (known := self._known(token)) is not None:
            return known
        if want and (wanted := self._wanted(want, process)) is not None:
            return wanted
        peers = [*self.flights, *(ticket.token for ticket in self.parked)]
        if limit is None:
            return "lead", []
        if when_full == "queue":
            occupied = len(self.flights) + len(self.stopping)
            runs = occupied < limit and not self.parked
            if not runs and capacity is not None and len(self.parked) >= capacity:
                return ("full",)
            self.parked.append(Parked(token, limit))
            return self._known(token)
        if len(peers) < limit:
            return "lead", []
        if when_full == "reuse":
            self.followers.add(process)
            oldest = next(iter(self.flights.values()), None)
            return "follow", oldest if oldest is not None else self.newest() + 1
        if when_full == "drop":
            return ("dropped",)
        doomed = peers[: len(peers) - limit + 1]
        for peer in doomed:
            self._cancel(peer, "abort")
        return "lead", doomed

    def apply(self, token, process, choice, capacity, peer, cancel):
        room = [ticket for ticket in self.parked if ticket.token not in cancel]
        busy = self.flights or self.stopping or self.parked
        if choice == "queue" and busy and capacity is not None and len(room) >= capacity:
            return ("full",)
        if choice == "reuse":
            self.followers.add(process)
            follow = "follow", self.flights.get(peer) or self.newest() + 1
        for other in cancel:
            self._cancel(other, "abort")
        if choice == "reuse":
            return follow
        if choice == "drop":
            return ("dropped",)
        if choice == "queue" and (self.flights or self.stopping or self.parked):
            self.parked.append(Parked(token, 1))
            return "queued", len(self.parked) - 1
        return "lead", list(cancel)

    def started(self, token, generation):
        assert generation > self.newest()
        self.parked = [ticket for ticket in self.parked if ticket.token != token]
        self.flights[token] = self.issued = self.admitted = generation

    def renew(self, token, generation, limit):
        if token in self.flights:
            return "renewed"
        if token in self.stopping:
            return "abort"
        if token in self.spent:
            return self.spent[token]
        full = limit is not None and len(self.flights) >= limit
        if full or self._is_parked(token) or self.admitted > generation:
            return "taken"
        self.flights[token] = generation
        self.flights = dict(sorted(self.flights.items(), key=lambda item: item[1]))
        return "restored"

    def settle(self, token, generation, outcome):
        if token in self.spent:
            return self.spent[token]
        if token in self.stopping:
            self._spend(token, "abort")
            return "abort"
        newer = token not in self.flights and self.admitted > generation
        if newer or self._is_parked(token):
            return "taken"
        self._spend(token, "settled")
        self._conclude(generation, outcome)
        return "settled"

    def leave(self, token, process):
        self.followers.discard(process)
        if token not in self.spent:
            self._spend(token, "abort" if token in self.stopping else "abandoned")

    # A key

    def cancel(self, tokens):
        parked = [ticket.token for ticket in self.parked if ticket.token in tokens]
        flights = [token for token in tokens if token in self.flights]
        parked.sort(key=tokens.index)
        for token in (*parked, *flights):
            self._cancel(token, "abort")
        return [*parked, *flights]

    def release(self):
        newest = self.newest()
        for token in (*self.flights, *self.stopping):
            self._spend(token, "released")
        return newest

    def lapse(self, token):
        self._take_out(token)

    def forget(self):
        self.__init__()

    def newest(self):
        return max(self.issued, 0, *self.flights.values(), *self.stopping.values())

    # What these are made of

    def _known(self, token):
        if token in self.spent:
            return "ended", self.spent[token]
        if token in self.stopping:
            return "ended", "abort"
        if token in self.flights:
            return "leads already", self.flights[token]
        occupied = len(self.flights) + len(self.stopping)
        may_start = True
        for place, ticket in enumerate(self.parked):
            may_start = may_start and occupied + place < ticket.limit
            if ticket.token == token:
                return ("lead", []) if may_start else ("queued", place)
        return None

    def _wanted(self, want, process):
        lost = want not in self.flights.values()
        for generation in sorted(self.outcomes):
            if generation == want or (generation > want and lost):
                return "done", generation, self.outcomes[generation]
        standing = [generation for generation in self.flights.values() if generation >= want]
        if not standing:
            return None
        self.followers.add(process)
        return "follow", want if not lost else min(standing)

    def _is_parked(self, token):
        """Whether a call that led, before the server forgot it, was admitted once more since."""
        return any(ticket.token == token for ticket in self.parked)

    def _cancel(self, token, reason):
        if token in self.flights:
            generation = self.flights.pop(token)
            self.stopping[token] = generation
            self._conclude(generation, CANCELLED)
        else:
            self._spend(token, reason)

    def _conclude(self, generation, outcome):
        self.outcomes[generation] = outcome
        if not self.flights and not self.parked:
            self.followers.clear()

    def _spend(self, token, reason):
        self._take_out(token)
        self.spent[token] = reason

    def _take_out(self, token):
        self.flights.pop(token, None)
        self.stopping.pop(token, None)
        self.parked = [ticket for ticket in self.parked if ticket.token != token]
