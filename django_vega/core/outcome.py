"""What callers get: the records of a refresh, and an exception of their own for each follower."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_
from types import GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from django_vega.core.errors import LeaderError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

RefreshOutcome: TypeAlias = Literal["written", "superseded", "fresh", "skipped", "stale"]
StatusState: TypeAlias = Literal["idle", "loading", "ok", "failed"]

_UNSET: Final = object()


@dataclass(frozen=True, slots=True)
class Refresh:
    """What a refresh came to, the same for its leader and every follower but for ``led``.

    A count that the database cannot give is None, never a guess.

    Attributes:
        key: The rendered key.
        outcome: ``written``: the rows are in the database, committed. ``superseded``: a newer
            refresh of this key was there first, nothing was written. ``fresh``: the last success
            is recent enough, the function was not called. ``skipped``: another call was in
            flight, or a shaper swallowed this one. ``stale``: answered with what is stored.
        generation: Orders this flight among all flights of its key; None where none was started.
        rows: Distinct rows of the response, after duplicates.
        written: Rows inserted or updated: ``rows`` without the guarded and the unchanged.
        guarded: Rows left alone because a newer generation had written them.
        unchanged: Rows left alone because they held the same values already.
        duplicates: Rows of the response that a later row with the same unique key replaced.
        pruned: Rows deleted because the response no longer has them, without cascades.
        led: Whether this caller executed the flight; False for those who shared it.
        duration: Seconds from the start of the flight to its commit.
        value: What ``write`` returned; None for an upsert.
    """

    key: str
    outcome: RefreshOutcome
    generation: int | None = None
    rows: int | None = 0
    written: int | None = 0
    guarded: int | None = 0
    unchanged: int | None = 0
    duplicates: int | None = 0
    pruned: int | None = 0
    led: bool = True
    duration: float = 0.0
    value: Any = None

    def as_follower(self) -> Refresh:
        """Return the same record for a caller that shared the flight."""
        return replace(self, led=False)


@dataclass(frozen=True, slots=True)
class RefreshStatus:
    """Where the refreshes of one key stand. Reading it starts nothing and joins nothing.

    Attributes:
        state: ``idle``: never refreshed. ``loading``: in flight now. ``ok``, ``failed``: how the
            last one ended; a cancelled one changes nothing.
        started_at: When that refresh began, aware; None when idle.
        finished_at: When it ended, aware; None when idle or loading.
        generation: Generation of the last refresh that was recorded; None when there is none.
        error: Type and message of the failure; None unless failed.
    """

    state: StatusState
    started_at: datetime | None = None
    finished_at: datetime | None = None
    generation: int | None = None
    error: str | None = None


def replica(exc: BaseException) -> BaseException:
    """Return an exception of a follower's own that says what the leader's ``exc`` says.

    One object raised in many callers would collect all their tracebacks and change under their
    hands. The replica has the type, arguments and attributes of ``exc``, a list of notes of its
    own, no traceback, and ``exc`` as its cause. No constructor of a user's class runs: it may
    require what nobody remembers, or do things again. The values of arguments and attributes are
    shared.

    Returns:
        The replica, or a `LeaderError` with ``exc`` as its cause where none can be made.
    """
    copy: BaseException
    try:
        copy = _rebuild(exc)
    except Exception:  # noqa: BLE001 - whatever stands in the way, the follower learns of ``exc``
        copy = LeaderError(name_of(type(exc)), message_of(exc))
    # Past a __setattr__ of the class, which may refuse: frozen dataclasses do.
    BaseException.__setattr__(copy, "__cause__", exc)
    return copy


def _rebuild(exc: BaseException) -> BaseException:
    kind = type(exc)
    # Two bases of Python's own may differ: along __base__ lies the one that decides the layout and
    # so how to allocate, along the MRO the one whose __init__ the class inherits.
    layout: Any = kind
    while layout.__module__ != "builtins":
        layout = layout.__base__
    first: Any = next(cls for cls in kind.__mro__ if cls.__module__ == "builtins")
    args = layout.__reduce__(exc)[1]
    # A group whose constructor takes something else has that for its arguments.
    parts = (exc.message, exc.exceptions) if isinstance(exc, BaseExceptionGroup) else args
    copy: BaseException = layout.__new__(kind, *parts)
    first.__init__(copy, *args)
    attributes = vars(copy)
    attributes.update(vars(exc))
    if isinstance(attributes.get("__notes__"), list):
        attributes["__notes__"] = list(attributes["__notes__"])
    for stored in _stored_outside_dict(kind):
        value = _read(stored, exc)
        # What is the same stays untouched: OSError shows a file name that was set, even to None.
        if value is not _UNSET and value is not _read(stored, copy):
            stored.__set__(copy, value)
    same_args = len(copy.args) == len(exc.args) and all(map(is_, copy.args, exc.args))
    if type(copy) is not kind or not same_args or str(copy) != str(exc):
        raise ValueError(f"the copy of {exc!r} differs")
    return copy


def _stored_outside_dict(
    kind: type[BaseException],
) -> Iterator[MemberDescriptorType | GetSetDescriptorType]:
    """Find the slots of users' classes and the C fields of builtin ones, e.g. OSError.errno."""
    for cls in kind.__mro__:
        if cls in {BaseException, object}:  # args are set already; the others are not to be copied
            continue
        for name, item in vars(cls).items():
            if name not in {"__dict__", "__weakref__"} and isinstance(
                item, MemberDescriptorType | GetSetDescriptorType
            ):
                yield item


def _read(stored: MemberDescriptorType | GetSetDescriptorType, exc: BaseException) -> Any:
    try:
        return stored.__get__(exc)
    except AttributeError:
        return _UNSET


def name_of(kind: type) -> str:
    """Return the dotted name of a type, without the module of builtin ones."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def message_of(exc: BaseException) -> str:
    """Return an exception's message, also where its ``__str__`` is broken."""
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide that the leader failed
        return "its message cannot be shown"
