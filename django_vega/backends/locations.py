"""Where Redis is: what ``LOCATION`` and ``OPTIONS`` of CACHES say, read without connecting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry

from django_vega.core.errors import VegaError

Kind = Literal["single", "sentinel", "cluster"]

_SCHEMES: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_DEFAULTS: Final[Mapping[str, Any]] = {
    "socket_timeout": 1.0,
    "socket_connect_timeout": 1.0,
    "health_check_interval": 5,
}
# What the scripts rely on is not for the options of a cache to change. One place tries again, see
# `Connections.execute_command`: a retry within a retry would multiply the attempts.
_FIXED: Final[Mapping[str, Any]] = {
    "decode_responses": False,
    "retry": Retry(NoBackoff(), 0),
}
_UPPER: Final = {
    "USERNAME": "username",
    "PASSWORD": "password",
    "SOCKET_TIMEOUT": "socket_timeout",
    "SOCKET_CONNECT_TIMEOUT": "socket_connect_timeout",
}
# What caches take beside the arguments of a connection, and retries of their own.
_PASSED_OVER: Final = frozenset(
    {"serializer", "pool_class", "parser_class", "retry_on_timeout", "retry_on_error"}
)


class InvalidLocationError(VegaError, ValueError):
    """``LOCATION``, or an option beside it, says nothing that one can connect to.

    Raised before any connection is made.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Location:
    """Where Redis is, and how to connect.

    Attributes:
        kind: Decides which of the others say where.
        url: Of the single server.
        nodes: Host and port of each Sentinel, or of each node of a Cluster to ask first.
        service: What Sentinel calls the master.
        arguments: Of each connection, for redis-py.
        sentinel_arguments: Of connections to the Sentinels themselves.
    """

    kind: Kind
    url: str = field(default="", repr=False)
    nodes: tuple[tuple[str, int], ...] = ()
    service: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)


def locate(location: object, options: Mapping[str, Any] | None = None) -> Location:
    """Read ``LOCATION`` and ``OPTIONS`` as CACHES has them.

    Args:
        location: ``redis://``, ``rediss://``, ``unix://``, or ``redis+cluster://`` and
            ``rediss+cluster://``; several in a list, or in one text with ``,`` or ``;`` between
            them. Of several servers that are no Cluster the first one is the master.
        options: Those of django-redis (``SENTINELS``, ``SENTINEL_KWARGS``, ``USERNAME``,
            ``PASSWORD``, ``SOCKET_TIMEOUT``, ``SOCKET_CONNECT_TIMEOUT``,
            ``CONNECTION_POOL_KWARGS``) and of Django's own cache (arguments of a connection). What
            concerns a cache alone is passed over.

    Raises:
        InvalidLocationError: One cannot connect to that.
    """
    options = {} if options is None else options
    urls = _urls(location)
    parts = [_split(url) for url in urls]
    arguments = _arguments(options)
    client_class = str(options.get("CLIENT_CLASS", ""))
    if client_class.endswith("ShardClient"):
        raise InvalidLocationError(
            f"CLIENT_CLASS={client_class!r} spreads keys over servers that know nothing of each "
            "other: give DJANGO_VEGA a LOCATION of its own, one server or redis+cluster://"
        )
    if client_class.endswith("SentinelClient") and not options.get("SENTINELS"):
        raise InvalidLocationError(
            f"CLIENT_CLASS={client_class!r} without SENTINELS: add "
            'OPTIONS["SENTINELS"] = [("host", 26379)]'
        )
    try:
        if any(part.scheme.endswith("+cluster") for part in parts):
            found = _cluster(parts, arguments)
        elif options.get("SENTINELS"):
            found = _sentinel(parts[0], options, arguments)
        else:
            found = Location("single", url=urls[0], arguments=arguments)
        _examine(found)
    except InvalidLocationError:
        raise
    except (TypeError, ValueError, redis.RedisError) as error:
        raise InvalidLocationError(
            f"LOCATION={shown(urls[0])!r} or its OPTIONS: {error}; use arguments that a connection "
            "of redis-py takes"
        ) from error
    return found


def shown(url: str) -> str:
    """Return a URL as people may see it, without its password."""
    masked = re.sub(r"(?<=://)([^/@]*?):[^/]*@", r"\1:***@", url)
    return re.sub(r"(?<=[?&]password=)[^&]*", "***", masked)


def _urls(location: object) -> list[str]:
    given = [location] if isinstance(location, str) else location
    if not isinstance(given, Sequence) or not given or not all(isinstance(u, str) for u in given):
        raise InvalidLocationError(
            f"LOCATION={location!r}: pass a URL such as redis://127.0.0.1:6379/0, or a list of them"
        )
    # A password may hold these signs too; between servers a scheme follows.
    return [url.strip() for text in given for url in re.split(r"[;,]\s*(?=[\w+]+://)", text)]


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it is read for the error
    except ValueError as error:
        raise InvalidLocationError(
            f"LOCATION={shown(url)!r}: {error}; write it as redis://127.0.0.1:6379/0"
        ) from None
    if parts.scheme not in _SCHEMES:
        allowed = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise InvalidLocationError(f"LOCATION={shown(url)!r}: begin it with one of {allowed}")
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise InvalidLocationError(
            f"LOCATION={shown(url)!r}: {database!r} is no database; use a number, as in "
            "redis://127.0.0.1:6379/0"
        )
    return parts


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    of_pool = options.get("CONNECTION_POOL_KWARGS") or {}
    if not isinstance(of_pool, Mapping):
        raise InvalidLocationError(
            f"CONNECTION_POOL_KWARGS={of_pool!r}: pass a dict of arguments of a connection"
        )
    given = {
        **{name: options[key] for key, name in _UPPER.items() if key in options},
        **{name: value for name, value in options.items() if name.islower()},
        **of_pool,
    }
    kept = {name: value for name, value in given.items() if name not in _PASSED_OVER}
    return {**_DEFAULTS, **kept, **_FIXED}


def _cluster(parts: Sequence[SplitResult], arguments: Mapping[str, Any]) -> Location:
    first = parts[0]
    if any(part.scheme != first.scheme for part in parts):
        raise InvalidLocationError(
            f"LOCATION={[shown(part.geturl()) for part in parts]!r}: begin all nodes of the "
            f"Cluster with the same scheme, as in {first.scheme}://"
        )
    if any(part.path.strip("/") not in {"", "0"} for part in parts) or arguments.get("db"):
        raise InvalidLocationError(
            f"LOCATION={shown(first.geturl())!r}: a Cluster has only database 0; leave the number "
            "away"
        )
    return Location(
        "cluster",
        nodes=tuple((part.hostname or "localhost", part.port or 6379) for part in parts),
        arguments={**arguments, **_arguments_of(first)},
    )


def _sentinel(
    part: SplitResult, options: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Location:
    sentinels = options["SENTINELS"]
    try:
        nodes = tuple((str(host), int(port)) for host, port in sentinels)
    except (TypeError, ValueError):
        raise InvalidLocationError(
            f'SENTINELS={sentinels!r}: pass pairs of host and port, as in [("host", 26379)]'
        ) from None
    if not part.hostname:
        raise InvalidLocationError(
            f"LOCATION={shown(part.geturl())!r} names no master: with SENTINELS the host is what "
            "Sentinel calls it, as in redis://mymaster/0"
        )
    return Location(
        "sentinel",
        nodes=nodes,
        # Sentinel tells capitals from small letters, `hostname` does not.
        service=unquote(part.netloc.rpartition("@")[2].partition(":")[0]),
        arguments={**arguments, **_arguments_of(part)},
        sentinel_arguments={**_DEFAULTS, **(options.get("SENTINEL_KWARGS") or {}), **_FIXED},
    )


def _arguments_of(part: SplitResult) -> dict[str, Any]:
    """Return what a URL says beside where the server is."""
    scheme = part.scheme.removesuffix("+cluster")
    url = part._replace(scheme=scheme).geturl()
    said: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    for name in ("host", "port", "connection_class"):
        said.pop(name, None)
    return {**said, **({"ssl": True} if scheme == "rediss" else {}), **_FIXED}


def _examine(location: Location) -> None:
    """Refuse now what would fail at the first command, or wait for ever."""
    if location.kind == "single":
        pool = ConnectionPool.from_url(location.url, **location.arguments)
    else:
        pool = redis.Redis(**location.arguments).connection_pool
    pool.make_connection()
    for name in ("socket_timeout", "socket_connect_timeout"):
        value = pool.connection_kwargs.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise InvalidLocationError(
                f"{name}={value!r}: no command may wait for ever; pass seconds above 0"
            )
