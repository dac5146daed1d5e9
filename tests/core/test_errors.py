"""Errors can be pickled and compared, and each message says what to do next."""

import copy
import pickle

import pytest

from django_vega.core import errors
from django_vega.core.errors import (
    Busy,
    CallCancelled,
    CoordinationProtocolError,
    DeadlockError,
    DuplicateRowError,
    EmptyResponseError,
    InAtomicBlockError,
    IncompleteKeyError,
    KeyTemplateError,
    LeaderError,
    LeaseLost,
    NotAdmitted,
    OrphanedIntentError,
    QueueFull,
    ReentrantCallError,
    RemoteCallError,
    UnstableKeyError,
    VegaError,
    WaitTimeout,
)

# Error; its attributes; what the message says: what happened, with which value, what to do next.
SAMPLES = [
    (
        IncompleteKeyError("feed.refresh", ("user_id", "page")),
        {"function": "feed.refresh", "parameters": ("user_id", "page")},
        [
            "feed.refresh: the key does not mention 'user_id', 'page'",
            "Add {user_id}:{page} to the key, or pass ignore=('user_id', 'page',)",
        ],
    ),
    (KeyTemplateError("key='': pass a template"), {}, ["key='': pass a template"]),
    (
        UnstableKeyError("user", "app.User", "it is not saved"),
        {"field": "user", "type_name": "app.User", "reason": "it is not saved"},
        ["'user'", "app.User: it is not saved", "Use str, int,", "{user.pk}"],
    ),
    (
        CallCancelled("abort", "quakes:alaska"),
        {"reason": "abort", "key": "quakes:alaska"},
        ["the call for quakes:alaska was cancelled (abort)", "call again if you still need it"],
    ),
    (
        CallCancelled("my-reason"),
        {"reason": "my-reason", "key": ""},
        ["the call was cancelled (my-reason): call again if you still need it"],
    ),
    (
        Busy("quakes:alaska", "web:1", 7.2, 7.2),
        {"key": "quakes:alaska", "owner": "web:1", "age": 7.2, "retry_after": 7.2},
        [
            "quakes:alaska is in flight on web:1, for 7.2 s",
            "Call again in about 7 s",
        ],
    ),
    (
        RemoteCallError("app.UpstreamError", "503", "web:1"),
        {"type_name": "app.UpstreamError", "message": "503", "process": "web:1"},
        ["web:1, failed with app.UpstreamError: 503", "Its log has the traceback"],
    ),
    (
        QueueFull("save:7", 50, "call 3, running"),
        {"key": "save:7", "capacity": 50, "holder": "call 3, running"},
        [
            "50 calls already wait for save:7 (held by call 3, running)",
            "Call again later, or raise the strategy's capacity",
        ],
    ),
    (
        NotAdmitted("report:1", 4, 100),
        {"key": "report:1", "workers": 4, "capacity": 100},
        ["report:1 was not admitted: 4 workers", "100 calls", "Use submit()", "raise WORKERS"],
    ),
    (
        WaitTimeout("quakes:alaska", 5.04, "call 3, running for 7.2 s"),
        {"key": "quakes:alaska", "waited": 5.04, "holder": "call 3, running for 7.2 s"},
        [
            "waited 5.0 s for quakes:alaska (call 3, running for 7.2 s); the flight continues",
            "Raise timeout",
        ],
    ),
    (
        ReentrantCallError(("a:1", "b:2", "a:1")),
        {"chain": ("a:1", "b:2", "a:1")},
        ["a:1 -> b:2 -> a:1: ", "Use .raw(...) for the inner call, or give it a key of its own"],
    ),
    (
        DeadlockError(("a:1", "b:2", "a:1")),
        {"cycle": ("a:1", "b:2", "a:1")},
        ["a:1 -> b:2 -> a:1: ", "never end", "Take these keys in the same order everywhere"],
    ),
    (
        LeaderError("app.Odd", "no luck"),
        {"type_name": "app.Odd", "message": "no luck"},
        ["the leader of this call failed with app.Odd: no luck"],
    ),
    (
        LeaseLost("quakes:alaska", "taken"),
        {"key": "quakes:alaska", "reason": "taken"},
        ["quakes:alaska: this leader has lost its lease (taken)", "raise LEASE above"],
    ),
    (CoordinationProtocolError("queue() after drop()"), {}, ["queue() after drop()"]),
    (
        OrphanedIntentError("quakes:alaska", "forgetful"),
        {"key": "quakes:alaska", "coordinator": "forgetful"},
        ["'forgetful' decided nothing for quakes:alaska", "Call one of proceed, reuse, queue or"],
    ),
    (
        InAtomicBlockError("quakes:alaska", "default"),
        {"key": "quakes:alaska", "alias": "default"},
        [
            "quakes:alaska was refreshed inside transaction.atomic() on database 'default'",
            "Call it after the block, or use",
        ],
    ),
    (
        DuplicateRowError("feed.Quake", (("usgs_id", "us1"), ("day", 3))),
        {"model": "feed.Quake", "unique_key": (("usgs_id", "us1"), ("day", 3))},
        ["two rows of feed.Quake with usgs_id='us1', day=3; nothing was written", "duplicates="],
    ),
    (
        EmptyResponseError("feed.Quake"),
        {"model": "feed.Quake"},
        ["no row of feed.Quake", "nothing was changed", "allow_empty=True"],
    ),
]
each_sample = pytest.mark.parametrize(
    ("error", "attributes", "message"),
    SAMPLES,
    ids=[f"{type(error).__name__}({error.args[0]!r:.20})" for error, _, _ in SAMPLES],
)


def test_samples__name_every_error():
    """An error that is added gets a sample here, and descends from VegaError."""
    every = {
        cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)
    }
    assert every == {VegaError, *(type(error) for error, _, _ in SAMPLES)}
    assert all(issubclass(cls, VegaError) for cls in every)
    assert all(cls.__doc__ for cls in every)


@each_sample
def test_error__survives_pickle_and_copy(error, attributes, message):
    """The twin has the same type, arguments, attributes and message, by every protocol."""
    error.add_note("note")
    twins = [pickle.loads(pickle.dumps(error, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)]
    for twin in (*twins, copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert twin.args == error.args
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


@each_sample
def test_error__tells_what_it_knows(error, attributes, message):
    """Attributes hold the values, the message shows them and says what to do next."""
    assert {name: getattr(error, name) for name in attributes} == attributes
    for part in message:
        assert part in str(error)


@pytest.mark.parametrize("reason", sorted(errors._CANCEL_ADVICE))
def test_call_cancelled__advises_for_each_reason(reason):
    """Each reason that a caller can meet says what became of the call and what to do."""
    assert str(CallCancelled(reason, "k")) == (
        f"the call for k was cancelled ({reason}): {errors._CANCEL_ADVICE[reason]}"
    )


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (IncompleteKeyError, ValueError),
        (KeyTemplateError, ValueError),
        (UnstableKeyError, TypeError),
        (WaitTimeout, TimeoutError),
        (DuplicateRowError, ValueError),
        (EmptyResponseError, ValueError),
    ],
)
def test_error__is_also_what_a_caller_would_expect(error, base):
    """Errors descend from the builtin that says the same."""
    assert issubclass(error, base)


def test_wait_timeout__is_no_system_error():
    """TimeoutError is an OSError: what is told is not read as errno and file name."""
    error = WaitTimeout("k", 1.0, "call 3")
    assert (error.errno, error.strerror, error.filename) == (None, None, None)
