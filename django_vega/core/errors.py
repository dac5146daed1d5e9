"""Every error of django-vega that needs no Django. Each says what happened and what to do next.

All of them are picklable and comparable by their arguments: the constructor's arguments are the
exception's ``args``, and the message is composed when it is shown.
"""

from __future__ import annotations


class VegaError(Exception):
    """Base of everything that django-vega raises on purpose."""


class IncompleteKeyError(VegaError, ValueError):
    """A parameter of the function takes no part in the key.

    You see this at decoration. Name the parameter in the key template, or list it in
    ``ignore=`` when two calls that differ only in it may share one result.
    """

    def __init__(self, function: str, parameters: tuple[str, ...]) -> None:
        super().__init__(function, parameters)
        self.function = function
        self.parameters = parameters

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.parameters)
        fields = ":".join("{" + name + "}" for name in self.parameters)
        return (
            f"{self.function}: the key does not mention {names}, so calls that differ only there "
            f"would share one result. Add {fields} to the key, or pass "
            f"ignore=({names},) if that is what you want"
        )


class KeyTemplateError(VegaError, ValueError):
    """The ``key=`` of a decorator is missing, empty, malformed or ambiguous.

    You see this at decoration, never at a call.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


class UnstableKeyError(VegaError, TypeError):
    """A value in the key has no text that is the same for equal values and different for others.

    Raised at the call, before anything runs. Pass an identifier (a primary key, a name) instead of
    the object, or use an attribute in the template: ``{user.pk}``.
    """

    def __init__(self, field: str, type_name: str, reason: str) -> None:
        super().__init__(field, type_name, reason)
        self.field = field
        self.type_name = type_name
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the key field {self.field!r} holds a value of type {self.type_name}: {self.reason}. "
            "Use str, int, bool, None, bytes, float, Decimal, UUID, dates, Enum, saved model "
            "instances or containers of these, or name an attribute such as {user.pk}"
        )


class CallCancelled(VegaError):
    """The call was cancelled before it produced a value.

    ``reason`` says why: ``abort`` (restart, or somebody cancelled it), ``exhaust-dropped``,
    ``admission-reset``, ``shutdown``, ``caller-gone``, ``throttled``. What the body raised on its
    way out, if anything, is ``__cause__``.
    """

    def __init__(self, reason: str, key: str = "") -> None:
        super().__init__(reason, key)
        self.reason = reason
        self.key = key

    def __str__(self) -> str:
        subject = f"the call for {self.key}" if self.key else "the call"
        advice = _CANCEL_ADVICE.get(self.reason, "call again if you still need it")
        return f"{subject} was cancelled ({self.reason}): {advice}"


_CANCEL_ADVICE = {
    "abort": "a newer call took over, or somebody cancelled it; call again if you still need it",
    "exhaust-dropped": "the same work is already running; its outcome is not yours to wait for",
    "admission-reset": "the queue was voided by cancel_all(); call again to join the new queue",
    "shutdown": "the coordinator was closed; make calls before close()",
    "caller-gone": "the caller left before the work was allowed to start",
    "abandoned": "the thread, loop or process that ran it went away; call again",
    "throttled": "the last call of this key was too recent; call again later",
}


class QueueFull(VegaError):
    """``serialize`` already parks as many calls of this key as its capacity allows.

    Raised at once, nothing was queued. Raise ``capacity``, call again later, or use a strategy that
    does not queue.
    """

    def __init__(self, key: str, capacity: int, holder: str) -> None:
        super().__init__(key, capacity, holder)
        self.key = key
        self.capacity = capacity
        self.holder = holder

    def __str__(self) -> str:
        return (
            f"{self.capacity} calls already wait for {self.key} (held by {self.holder}); this one "
            "was not queued. Call again later, or raise the strategy's capacity"
        )


class Busy(VegaError):
    """The key is in flight, and ``while_busy="raise"``.

    Raised at once; nothing was waited for and nothing ran. ``owner`` is the ``host:pid`` that it is
    in flight on, ``age`` the seconds for which. ``retry_after`` is a guess in seconds, for a
    Retry-After header: as long as the flight has taken so far, at least 1.
    """

    def __init__(self, key: str, owner: str, age: float, retry_after: float) -> None:
        super().__init__(key, owner, age, retry_after)
        self.key = key
        self.owner = owner
        self.age = age
        self.retry_after = retry_after

    def __str__(self) -> str:
        return (
            f"{self.key} is in flight on {self.owner}, for {self.age:.1f} s; this call did not "
            f"wait. Call again in about {self.retry_after:.0f} s, or use "
            'while_busy="wait"'
        )


class NotAdmitted(VegaError):
    """``submit_nowait`` found the pool full; the function was not called.

    Use ``submit`` or ``asubmit`` to wait for room, or raise WORKERS or CAPACITY.
    """

    def __init__(self, key: str, workers: int, capacity: int) -> None:
        super().__init__(key, workers, capacity)
        self.key = key
        self.workers = workers
        self.capacity = capacity

    def __str__(self) -> str:
        return (
            f"{self.key} was not admitted: {self.workers} workers are busy and {self.capacity} "
            "calls are queued. Use submit() to wait for room, or raise WORKERS or CAPACITY"
        )


class WaitTimeout(VegaError, TimeoutError):
    """The caller's timeout passed before the call it waited for settled.

    Only this caller left: the flight goes on, and other callers still get its outcome. A parked
    call gives up its place and never runs.
    """

    def __init__(self, key: str, waited: float, holder: str) -> None:
        # TimeoutError is an OSError: several arguments would be read as errno and strerror.
        super().__init__(
            f"waited {waited:.1f} s for {key} ({holder}); the flight continues. "
            "Raise timeout above the work's p99, or cancel the flight"
        )
        self.key = key
        self.waited = waited
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.key, self.waited, self.holder), vars(self)


class ReentrantCallError(VegaError):
    """The call would wait for, or cancel, a flight that it is itself part of.

    Raised at once instead of a deadlock. Call the plain function with ``.raw(...)`` inside, or give
    the inner work a key of its own. ``chain`` lists the keys from the outermost flight inwards.
    """

    def __init__(self, chain: tuple[str, ...]) -> None:
        super().__init__(chain)
        self.chain = chain

    def __str__(self) -> str:
        return (
            f"{' -> '.join(self.chain)}: this call would wait for or cancel a flight that it runs "
            "inside of. Use .raw(...) for the inner call, or give it a key of its own"
        )


class DeadlockError(VegaError):
    """Waiting would close a cycle between flights: each waits for the other.

    Raised at once in the caller that closes the cycle; the others go on. Take the keys in the same
    order everywhere. ``cycle`` lists the keys, the caller's own first.
    """

    def __init__(self, cycle: tuple[str, ...]) -> None:
        super().__init__(cycle)
        self.cycle = cycle

    def __str__(self) -> str:
        return (
            f"{' -> '.join(self.cycle)}: waiting here would never end, because the flights wait "
            "for each other. Take these keys in the same order everywhere"
        )


class LeaderError(VegaError):
    """The leader failed with an exception that could not be rebuilt for this follower.

    The leader's own exception is ``__cause__``; the function was not called again.
    """

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    def __str__(self) -> str:
        return f"the leader of this call failed with {self.type_name}: {self.message}"


class RemoteCallError(LeaderError):
    """The leader ran in another process and failed there; here is what it said.

    The exception itself stays in that process, with its traceback in its log: nothing that another
    process wrote is unpickled for an error. The function was not called again.
    """

    def __init__(self, type_name: str, message: str, process: str) -> None:
        super().__init__(type_name, message)
        self.args = (type_name, message, process)
        self.process = process

    def __str__(self) -> str:
        return (
            f"the leader of this call, {self.process}, failed with {self.type_name}: "
            f"{self.message}. Its log has the traceback"
        )


class LeaseLost(VegaError):
    """This leader could not renew its lease, so another process may lead its key by now.

    Raised by `checkpoint`. Stop what has effects outside; what the refresh would write is fenced by
    the database in any case. If the work is alive, look for what held up its process, or the server
    of the backend, for longer than ``LEASE``.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.key}: this leader has lost its lease ({self.reason}); another process may lead "
            "by now. Stop here; raise LEASE above the longest pause of a process if that happens "
            "to work that is alive"
        )


class CoordinationProtocolError(VegaError):
    """A coordinator broke the protocol: it decided twice, or emitted an event that is not its own.

    Goes to the caller whose call the coordinator was deciding on.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


class OrphanedIntentError(VegaError):
    """A coordinator returned without a decision, and ``ON_ORPHAN`` is ``"raise"``.

    Call exactly one of ``ctx.proceed()``, ``ctx.reuse(peer)``, ``ctx.queue()``, ``ctx.drop()``.
    """

    def __init__(self, key: str, coordinator: str) -> None:
        super().__init__(key, coordinator)
        self.key = key
        self.coordinator = coordinator

    def __str__(self) -> str:
        return (
            f"the coordinator {self.coordinator!r} decided nothing for {self.key}, so the call did "
            "not run. Call one of proceed, reuse, queue or drop on every path"
        )


class InAtomicBlockError(VegaError):
    """A refresh was called inside a transaction of its caller.

    Its rows could still be rolled back after other callers were told of them. Call it after the
    transaction, or decorate with ``in_atomic="solo"``: then this call is not coordinated and writes
    inside your transaction. Raised before the function runs.
    """

    def __init__(self, key: str, alias: str) -> None:
        super().__init__(key, alias)
        self.key = key
        self.alias = alias

    def __str__(self) -> str:
        return (
            f"{self.key} was refreshed inside transaction.atomic() on database {self.alias!r}; "
            "what it writes may still be rolled back. Call it after the block, or use "
            'in_atomic="solo" to write uncoordinated inside it'
        )


class DuplicateRowError(VegaError, ValueError):
    """Two rows of one response have the same unique key, and ``duplicates="error"``.

    Nothing was written. Use ``duplicates="last"`` to keep the last one.
    """

    def __init__(self, model: str, unique_key: tuple[tuple[str, object], ...]) -> None:
        super().__init__(model, unique_key)
        self.model = model
        self.unique_key = unique_key

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.unique_key)
        return (
            f"the response holds two rows of {self.model} with {values}; nothing was written. Make "
            'the response unique, or use duplicates="last"'
        )


class EmptyResponseError(VegaError, ValueError):
    """A response has no rows, and ``prune=`` would delete everything that is stored in its scope.

    Nothing was written or deleted. Use ``allow_empty=True`` where an empty answer is a true one.
    """

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return (
            f"the response holds no row of {self.model}, and prune would delete all of its scope; "
            "nothing was changed. Raise in the function when the source is broken, or use "
            "allow_empty=True where an empty answer is a true one"
        )
