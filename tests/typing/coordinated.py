# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""`coordinated` keeps the signature: right calls have their types, wrong ones are errors."""

from collections.abc import Callable
from typing import Any, assert_type

from django_vega import (
    DEDUPE,
    Call,
    CallCancelled,
    CoordinationContext,
    FlightRecord,
    Strategy,
    bounded,
    coordinated,
    coordinator,
    current_call,
    in_flight,
    serialize,
    subscribe,
)


class Token:
    """A value of one's own."""


@coordinated(key="oauth:{account_id}:{scope}", timeout=10)
def access_token(account_id: int, scope: str = "read", *, renew: bool = False) -> Token:
    return Token()


@coordinated(key="oauth:{account_id}")
async def aaccess_token(account_id: int) -> Token:
    return Token()


class Accounts:
    """One method of each kind that type checkers follow."""

    @coordinated(key="account:{number}")
    def load(self, number: int) -> Token:
        return Token()

    @coordinated(key="account:{number}")
    async def aload(self, number: int) -> Token:
        return Token()

    @coordinated(key="accounts:{number}")
    @classmethod
    def count(cls, number: int) -> int:
        return number

    @coordinated(key="accounts:{number}")
    @classmethod
    async def acount(cls, number: int) -> int:
        return number


class MoreAccounts(Accounts):
    """Inherits them."""


def functions() -> None:
    """Plain functions."""
    assert_type(access_token(1), Token)
    assert_type(access_token(1, "write", renew=True), Token)
    assert_type(access_token.key_for(1), str | None)
    assert_type(access_token.cancel(1), bool)
    assert_type(access_token.in_flight(1), tuple[FlightRecord, ...])
    assert_type(access_token.submit(1), Call)
    assert_type(access_token.submit_nowait(1, renew=True), Call)
    assert_type(access_token.with_options(strategy="restart", timeout=None)(1), Token)

    access_token()  # type: ignore[call-arg]
    access_token("1")  # type: ignore[arg-type]
    access_token(1, 2)  # type: ignore[arg-type]
    access_token(1, "read", True)  # type: ignore[call-arg]
    access_token(1, again=True)  # type: ignore[call-arg]
    access_token.key_for("1")  # type: ignore[arg-type]
    access_token.submit()  # type: ignore[call-arg]
    access_token.cancel("1")  # type: ignore[arg-type]
    access_token.raw("1")  # type: ignore[arg-type]
    access_token.status(1)  # type: ignore[attr-defined]
    access_token.with_options(strategy="restrat")  # type: ignore[arg-type]
    access_token.with_options(timeout="3")  # type: ignore[arg-type]
    access_token.with_options(force=True)  # type: ignore[call-arg]
    access_token.with_options(while_busy="skip")  # type: ignore[arg-type]
    coordinated(key="k", shaper=5)  # type: ignore[arg-type]
    coordinated(key="k", fresh_for=5)  # type: ignore[call-arg]


async def async_functions() -> None:
    """Coroutine functions."""
    assert_type(await aaccess_token(1), Token)
    assert_type(await aaccess_token.submit(1), Call)
    assert_type(await aaccess_token.asubmit(1), Call)
    assert_type(await access_token.asubmit(1), Call)
    assert_type(await aaccess_token.with_options(timeout=3)(1), Token)
    assert_type(aaccess_token.in_flight(1), tuple[FlightRecord, ...])

    await aaccess_token("1")  # type: ignore[arg-type]
    await aaccess_token()  # type: ignore[call-arg]
    await access_token(1)  # type: ignore[misc]
    await access_token.asubmit("1")  # type: ignore[arg-type]


def methods(accounts: Accounts, more: MoreAccounts) -> None:
    """Methods and class methods, bound."""
    assert_type(accounts.load(1), Token)
    assert_type(more.load(number=1), Token)
    assert_type(accounts.load.key_for(1), str | None)
    assert_type(accounts.load.submit(1), Call)
    assert_type(accounts.load.with_options(strategy=DEDUPE)(1), Token)
    assert_type(Accounts.count(1), int)
    assert_type(accounts.count(1), int)
    assert_type(MoreAccounts.count(1), int)
    assert_type(MoreAccounts.count.with_options(timeout=1)(1), int)

    accounts.load("1")  # type: ignore[arg-type]
    accounts.load()  # type: ignore[call-arg]
    accounts.load(accounts, 1)  # type: ignore[arg-type, call-arg]
    accounts.load.key_for("1")  # type: ignore[arg-type]
    Accounts.count("1")  # type: ignore[arg-type]
    more.count("1")  # type: ignore[arg-type]


async def async_methods(accounts: Accounts) -> None:
    """The same, async."""
    assert_type(await accounts.aload(1), Token)
    assert_type(await accounts.aload.submit(1), Call)
    assert_type(await Accounts.acount(1), int)
    assert_type(await accounts.acount.with_options(timeout=1)(1), int)

    await accounts.aload("1")  # type: ignore[arg-type]
    await Accounts.acount("1")  # type: ignore[arg-type]


# Options


@coordinator("newest")
def newest(ctx: CoordinationContext) -> None:
    assert_type(ctx.peers(), tuple[FlightRecord, ...])
    assert_type(ctx.intent, FlightRecord)
    ctx.reuse(ctx.peers()[-1])
    ctx.reuse("peer")  # type: ignore[arg-type]
    ctx.emit("event")  # type: ignore[arg-type]
    ctx.settle()  # type: ignore[attr-defined]


def by_key(account_id: int) -> str | None:
    return None


def tenant() -> str:
    return ""


def options(function: Callable[[int], Token]) -> None:
    """What the decorator takes."""
    coordinated(key="k", strategy="none")
    coordinated(key="k", strategy="serialize")
    coordinated(key="k", strategy=Strategy(limit=4, when_full="queue", capacity=None))
    coordinated(key="k", strategy=bounded(3))
    coordinated(key="k", strategy=serialize(capacity=3))
    coordinated(key="k", strategy=newest, timeout=None, using="shared", scope="accounts")
    coordinated(key=by_key, vary=["language", tenant], ignore=("client",))

    coordinated()  # type: ignore[call-arg]
    coordinated("k")  # type: ignore[call-arg]
    coordinated(key=5)  # type: ignore[arg-type]
    coordinated(key="k", strategy="dedup")  # type: ignore[arg-type]
    coordinated(key="k", strategy=tenant)  # type: ignore[arg-type]
    coordinated(key="k", strategy=None)  # type: ignore[arg-type]
    coordinated(key="k", timeout="3")  # type: ignore[arg-type]
    coordinated(key="k", scope=3)  # type: ignore[arg-type]
    coordinated(key="k", using=None)  # type: ignore[arg-type]
    coordinated(key="k", vary=[3])  # type: ignore[list-item]
    coordinated(key="k", in_atomic="solo")  # type: ignore[call-arg]
    coordinated(key="k", upsert=None)  # type: ignore[call-arg]
    coordinated(key="k")(5)  # type: ignore[call-overload]
    Strategy(when_full="wait")  # type: ignore[arg-type]
    bounded("3")  # type: ignore[arg-type]
    coordinator(5)  # type: ignore[arg-type]


# The rest of the package


def the_rest(call: Call, error: CallCancelled) -> None:
    """Names beside the decorators."""
    assert_type(in_flight(), tuple[FlightRecord, ...])
    assert_type(current_call(), Call | None)
    assert_type(call.cancel(), bool)
    assert_type(call.done(), bool)
    assert_type(call.cancel_reason, str | None)
    assert_type(call.result(timeout=3), Any)
    assert_type(error.reason, str)
    assert_type(subscribe(print, ["call:settled"]), Callable[[], None])

    in_flight("default")  # type: ignore[call-arg]
    call.result(timeout="3")  # type: ignore[arg-type]
    subscribe(5)  # type: ignore[arg-type]
