"""What the upstream writes down when a request starts: its number, version and weather."""

import random
import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weather:
    """The upstream's temper: how slow it is and how often it fails, repeatable by its seed.

    Attributes:
        seed: The same seed gives the same latencies and failures to the same requests, in whatever
            order they arrive.
        latency: Shortest and longest time to an answer, in seconds.
        failure_rate: Share of the requests that end with 503, from 0 to 1.
    """

    seed: int = 2018
    latency: tuple[float, float] = (0.05, 0.15)
    failure_rate: float = 0.0

    def draw(self, key: str, number: int) -> tuple[float, bool]:
        """Return latency in seconds and whether it fails, for the nth request of a key."""
        # A generator per request: one that is shared would depend on the threads' order.
        dice = random.Random(f"{self.seed}:{key}:{number}")
        latency = dice.uniform(*self.latency)
        return latency, dice.random() < self.failure_rate


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a request got when it started. ``version`` is None when it is going to fail."""

    key: str
    version: int | None
    latency: float


class Ledger:
    """Counts requests per key, and numbers the versions of each key.

    A version is given when a request *starts*: an answer that takes long arrives old.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Both under _lock.
        self._started: Counter[str] = Counter()
        self._versions: Counter[str] = Counter()

    def start(self, key: str, weather: Weather) -> Ticket:
        """Write down a request that starts now."""
        with self._lock:
            self._started[key] += 1
            latency, fails = weather.draw(key, self._started[key])
            if fails:
                return Ticket(key, None, latency)
            self._versions[key] += 1
            return Ticket(key, self._versions[key], latency)

    def newest_version(self, key: str) -> int:
        """Return the newest version given to a request of this key; 0 when there was none."""
        with self._lock:
            return self._versions[key]

    def stats(self) -> dict[str, int]:
        """Return how many requests of each key have started, the refused ones among them."""
        with self._lock:
            return dict(self._started)
