"""What callers get in the end, and for how long they wait before they look again."""

from __future__ import annotations

from typing import Any, Final

from django_vega.core.call import Call, CallSite
from django_vega.core.errors import CallCancelled
from django_vega.core.outcome import replica

# Ended without a run, and its caller gets a value all the same.
_ANSWERED: Final = frozenset({"orphaned-intent", "busy"})

# Over before a run, for all who share the call.
_REFUSED: Final = _ANSWERED | {"queue-full"}

# Cancelled, and what the caller gets is the error that made it so.
_KEEP_THEIR_ERROR: Final = frozenset({"abandoned", "busy", "queue-full"})

# Every wait looks again this often, in seconds, in case what it waits for can no longer tell.
LOOK_AGAIN = 1.0


def wait_slice(timeout: float | None, waited: float) -> float:
    """Return for how long to wait before looking again, in seconds."""
    return LOOK_AGAIN if timeout is None else max(0.0, min(LOOK_AGAIN, timeout - waited))


def outcome(call: Call, *, first_hand: bool) -> Any:
    """Return or raise what a settled call came to.

    Args:
        call: A settled call.
        first_hand: Whether the one who asks executed it on its own thread or loop and may see the
            exception object itself.
    """
    if call.state == "success" or (call.reason in _ANSWERED and call.error is None):
        return call.value
    if call.error is not None and (call.state == "error" or call.reason in _KEEP_THEIR_ERROR):
        raise call.error if first_hand else replica(call.error)
    raise CallCancelled(call.reason or "abort", call.shown_key) from call.error


def follower_outcome(site: CallSite, key: str, leader: Call) -> Any:
    """Return or raise the leader's outcome as a follower gets it; never an abandoned one.

    Args:
        site: Of the follower.
        key: Of the follower.
        leader: The call that ran, or that was refused for all who share it.
    """
    if leader.state == "cancelled" and leader.reason not in _REFUSED:
        raise CallCancelled(leader.reason or "abort", site.display(key))
    value = outcome(leader, first_hand=False)
    adapt = site.for_follower
    return value if adapt is None or leader.state != "success" else adapt(value)


def result_outcome(call: Call, last: Call) -> Any:
    """Return or raise what ``call`` came to, whose outcome is that of ``last``, maybe its own."""
    if last is call or last.was_left or last.reason == "orphaned-intent":
        return outcome(last, first_hand=False)
    return follower_outcome(call.site, call.key, last)
