"""The right to lead a key across processes, as the process that leads sees it. Pure."""

from __future__ import annotations

from collections.abc import Callable

# A leader stops believing a little before the server does: its last renewal took time to travel.
_BELIEF = 0.9
# Why a lease ends without anybody having cancelled the call.
_NO_CANCELLATION = frozenset({"taken", "released", "settled", "abandoned"})


class Lease:
    """What a call has at the server of its backend: a place to lead, or one in the queue.

    Written under the lock of the flights; `is_over` is read without it.

    Args:
        token: Names the participation for all time.
        key_hash: Of its key.
        about: What other processes see of the call.
        seconds: For how long the server believes without a renewal.
        monotonic: The time, in seconds.
    """

    __slots__ = (
        "_monotonic",
        "_until",
        "about",
        "beat",
        "key_hash",
        "lost",
        "seconds",
        "token",
        "voids_older",
    )

    def __init__(
        self,
        token: str,
        key_hash: str,
        about: bytes,
        seconds: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.token = token
        self.key_hash = key_hash
        self.about = about
        #: How many renewals were sent.
        self.beat = 0
        #: Why the server says that this call leads no more; None while it does.
        self.lost: str | None = None
        #: Whether flights of other processes were cancelled for this one: their writes are void.
        self.voids_older = False
        self.seconds = seconds
        self._monotonic = monotonic
        self._until = float("inf")

    def renew(self, sent_at: float) -> None:
        """Believe for another lease, counted from when the request was sent."""
        self._until = sent_at + _BELIEF * self.seconds

    @property
    def is_over(self) -> bool:
        """Whether somebody else may lead by now."""
        return self.lost is not None or self._monotonic() >= self._until

    @property
    def was_cancelled(self) -> bool:
        """Whether the server says that the call was cancelled, wherever that was asked for."""
        return self.lost is not None and self.lost not in _NO_CANCELLATION
