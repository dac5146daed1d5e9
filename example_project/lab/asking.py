"""What the experiments coordinate: one page of a feed, asked for from threads or from a loop."""

from collections.abc import Awaitable, Callable
from typing import Final

from django_vega import coordinated

# The run is part of the key: what one visitor plays never meets what another one plays.
KEY: Final = "feed:{page}:{run}"


@coordinated(key=KEY, ignore=("body",))
def ask(page: str, run: str, body: Callable[[], str]) -> str:  # noqa: ARG001  # for the key
    """Ask for a page; the body is what a request would be."""
    return body()


@coordinated(key=KEY, ignore=("body",))
async def aask(page: str, run: str, body: Callable[[], Awaitable[str]]) -> str:  # noqa: ARG001
    """Ask for a page, from async code."""
    return await body()


# The events of other functions are none of the lab's.
FUNCTIONS: Final = frozenset({f"{__name__}.ask", f"{__name__}.aask"})
