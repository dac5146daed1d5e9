"""Weighted tokens that any number of fan-outs and functions share: first come, first served.

Note [Lent tokens]
    A body that holds tokens, and waits for other work that needs tokens of the same budget, would
    wait for itself. So code inside of what holds tokens takes from those: they are lent to it, as a
    small account of their own. Nothing waits in a circle, and the limit still holds for all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from types import MappingProxyType, TracebackType
from typing import Any, Self

from django_vega.core.clock import Clock, SystemClock
from django_vega.core.errors import VegaError, WaitTimeout
from django_vega.runtime.aio import LoopWaiter
from django_vega.runtime.outcomes import wait_slice
from django_vega.runtime.permits import Permits
from django_vega.runtime.threads import ThreadWaiter


class TooHeavy(VegaError, ValueError):
    """A weight is above the limit, so that no wait would ever be long enough.

    Raised at once, and nothing was called. ``limit`` is that of the budget, of ``max_weight``, or
    of what the body around the call holds of the budget, whichever is less.
    """

    def __init__(self, subject: str, weight: int, limit: int) -> None:
        super().__init__(subject, weight, limit)
        self.subject = subject
        self.weight = weight
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.subject} weighs {self.weight}, and {self.limit} is allowed; it was not begun. "
            "Split it, or raise max_weight or the budget's limit; inside of a body that holds "
            "tokens of the same budget, no more than those are there"
        )


class BudgetTimeout(WaitTimeout):
    """The tokens did not come in time; none is held.

    Raise ``timeout``, or hold tokens for less long.
    """

    def __init__(self, weight: int, waited: float, limit: int) -> None:
        # Past WaitTimeout, whose message is about flights, to the one argument of TimeoutError.
        TimeoutError.__init__(
            self,
            f"waited {waited:.1f} s for {weight} of {limit} tokens of the budget; none is held. "
            "Raise timeout, or hold tokens for less long",
        )
        self.weight = weight
        self.waited = waited
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.weight, self.waited, self.limit), vars(self)


class Account(Permits):
    """Tokens and the line for them.

    Args:
        limit: How many there are.
        lender: The account that they were taken from, if they are lent.
    """

    def __init__(self, limit: int, lender: Account | None = None) -> None:
        super().__init__(limit)
        self.lender = lender
        #: The body that they were lent to is over; written by its runner.
        self.is_returned = False


# Budget -> what the code of this context may take of it, where that is not the whole.
_lent: ContextVar[Mapping[Budget, Account]] = ContextVar(
    "django_vega_lent_tokens", default=MappingProxyType({})
)


class Budget:
    """Weighted tokens; see `django_vega.Budget`, which adds Django's kind of error."""

    def __init__(self, limit: int) -> None:
        check_int("limit", limit, at_least=1)
        self._account = Account(limit)
        self._clock: Clock = SystemClock()

    def __repr__(self) -> str:
        return f"<Budget: {self.used} of {self.limit} taken>"

    @property
    def limit(self) -> int:
        """How many tokens there are."""
        return self._account.limit

    @property
    def used(self) -> int:
        """How many of them are taken at the moment."""
        return self._account.used

    def acquire(self, weight: int = 1, timeout: float | None = None) -> None:
        """Take tokens, and block until they are there.

        Args:
            weight: How many, 0 or more.
            timeout: Seconds; None waits without limit.

        Raises:
            TooHeavy: There are not so many; at once.
            BudgetTimeout: They did not come in time; a WaitTimeout. None is held.
            SynchronousCallError: The wait would block a running event loop; use `aacquire`.
        """
        check_seconds("timeout", timeout)
        self.take(self.account_for(weight), weight, timeout)

    async def aacquire(self, weight: int = 1, timeout: float | None = None) -> None:
        """Take tokens, and wait as a task until they are there; see `acquire`.

        A task that is cancelled while it waits leaves the line and holds nothing.
        """
        check_seconds("timeout", timeout)
        await self.atake(self.account_for(weight), weight, timeout)

    def acquire_nowait(self, weight: int = 1) -> bool:
        """Take tokens if they are free and nobody waits for some.

        Returns:
            Whether they are held now. False is no success: nothing was begun.

        Raises:
            TooHeavy: There are not so many.
        """
        return self.account_for(weight).take_nowait(weight)

    def release(self, weight: int = 1) -> None:
        """Give tokens back, from any thread or task.

        Raises:
            ValueError: More come back than were taken.
        """
        check_int("weight", weight, at_least=0)
        account = _lent.get().get(self, self._account)
        # What was taken of lent tokens returns to them, also after they went back themselves.
        while account.is_returned and account.used < weight and account.lender is not None:
            account = account.lender
        account.give_back(weight)

    def tokens(self, weight: int = 1, timeout: float | None = None) -> Tokens:
        """Return a block that holds tokens: ``with budget.tokens(3):``, or ``async with``.

        Args:
            weight: How many, 0 or more.
            timeout: Seconds to wait for them; None waits without limit.

        Raises:
            TooHeavy, BudgetTimeout, SynchronousCallError: On entering; see `acquire`.
        """
        check_seconds("timeout", timeout)
        return Tokens(self, weight, timeout)

    # For fan-outs and blocks

    def account(self) -> Account:
        """Return where the running code takes its tokens from."""
        account = _lent.get().get(self, self._account)
        while account.is_returned and account.lender is not None:
            account = account.lender
        return account

    def lend(self, weight: int, account: Account) -> tuple[Account, Token[Any]]:
        """Let the code of this context take from tokens that are held; who holds none, as before.

        Args:
            weight: How many are held.
            account: Where they were taken from.
        """
        lent = Account(weight, account)
        lent.is_returned = not weight
        return lent, _lent.set({**_lent.get(), self: lent})

    def blocking_error(self, message: str) -> Exception:
        """Return what is raised where a wait would block a running event loop."""
        return RuntimeError(message)

    def account_for(self, weight: int) -> Account:
        """Return where the running code takes so many tokens from.

        Raises:
            TooHeavy: There are not so many.
        """
        check_int("weight", weight, at_least=0)
        account = self.account()
        if weight > account.limit:
            raise TooHeavy("what asks the budget for tokens", weight, account.limit)
        return account

    def take(self, account: Account, weight: int, timeout: float | None) -> None:
        """Take tokens of an account; see `acquire`."""
        if account.take_nowait(weight):
            return
        if asyncio._get_running_loop() is not None:
            raise self.blocking_error(
                f"a wait for {weight} tokens of {self!r} would block the running event loop; "
                "await aacquire(), or use `async with budget.tokens():`"
            )
        account.wait_turn(ThreadWaiter(()), self._patience(account, weight, timeout), weight)

    async def atake(self, account: Account, weight: int, timeout: float | None) -> None:
        """Take tokens of an account; see `aacquire`."""
        await account.await_turn(LoopWaiter(), self._patience(account, weight, timeout), weight)

    def _patience(
        self, account: Account, weight: int, timeout: float | None
    ) -> Callable[[], float]:
        began = self._clock.monotonic()

        def patience() -> float:
            waited = self._clock.monotonic() - began
            if timeout is not None and waited >= timeout:
                raise BudgetTimeout(weight, waited, account.limit)
            return wait_slice(timeout, waited)

        return patience


class Tokens:
    """A block that holds tokens of a budget; use each once at a time."""

    def __init__(self, budget: Budget, weight: int, timeout: float | None) -> None:
        self._budget = budget
        self._weight = weight
        self._timeout = timeout
        self._account: Account
        self._lent: Account
        self._token: Token[Any]

    def __enter__(self) -> Self:
        account = self._budget.account_for(self._weight)
        self._budget.take(account, self._weight, self._timeout)
        return self._hold(account)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lent.is_returned = True
        _lent.reset(self._token)
        self._account.give_back(self._weight)

    async def __aenter__(self) -> Self:
        account = self._budget.account_for(self._weight)
        await self._budget.atake(account, self._weight, self._timeout)
        return self._hold(account)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(exc_type, exc, traceback)

    def _hold(self, account: Account) -> Self:
        self._account = account
        self._lent, self._token = self._budget.lend(self._weight, account)
        return self


def check_int(name: str, value: object, *, at_least: int) -> None:
    """Refuse what is no int, or below ``at_least``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is no int. Pass a whole number from {at_least}")
    if value < at_least:
        raise ValueError(f"{name}={value!r} is below {at_least}. Pass {at_least} or more")


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no span of time; None is one without an end."""
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is no number. Pass seconds, or None for no limit")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value!r} is no span of time. Pass 0 or more, or None for none")
