"""What LOCATION and OPTIONS may say, and what people are told who write something else."""

import pickle

import pytest

from django_vega.backends.locations import InvalidLocationError, locate, shown

SENTINELS = [("one", 26379), ("two", "26380")]


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0",
        "redis://user:pa%2Fss@redis.example:6380/3",
        "rediss://redis.example/0?ssl_cert_reqs=none",
        "unix:///run/redis.sock?db=2",
        "redis://[::1]:6379",
    ],
)
def test_single__url(url):
    """Every URL that redis-py takes for one server."""
    found = locate(url)
    assert (found.kind, found.url) == ("single", url)


@pytest.mark.parametrize(
    "location",
    [
        ["redis://master:1/0", "redis://replica:2/0"],
        ("redis://master:1/0",),
        "redis://master:1/0,redis://replica:2/0",
        "redis://master:1/0; redis://replica:2/0",
    ],
)
def test_single__first_of_several_is_the_master(location):
    """As Django's own cache and django-redis have it."""
    assert locate(location).url == "redis://master:1/0"


def test_single__signs_in_a_password():
    """A comma in a password does not separate servers."""
    assert locate("redis://:a,b;c@host:1/0").url == "redis://:a,b;c@host:1/0"


def test_options__of_django_redis():
    """Those that concern a connection are taken, those of a cache are passed over."""
    options = {
        "CLIENT_CLASS": "django_redis.client.DefaultClient",
        "PASSWORD": "secret",
        "USERNAME": "vega",
        "SOCKET_TIMEOUT": 2,
        "SOCKET_CONNECT_TIMEOUT": 3,
        "SERIALIZER": "django_redis.serializers.json.JSONSerializer",
        "COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor",
        "IGNORE_EXCEPTIONS": True,
        "CONNECTION_POOL_KWARGS": {
            "max_connections": 7,
            "retry_on_timeout": True,
            "decode_responses": True,
        },
    }
    arguments = locate("redis://host:1/0", options).arguments
    assert (arguments["username"], arguments["password"]) == ("vega", "secret")
    assert (arguments["socket_timeout"], arguments["socket_connect_timeout"]) == (2, 3)
    assert arguments["max_connections"] == 7
    assert arguments["decode_responses"] is False
    assert "retry_on_timeout" not in arguments
    assert arguments["retry"]._retries == 0


def test_options__of_djangos_own_cache():
    """Small letters are arguments of a connection."""
    options = {"db": 3, "pool_class": "app.Pool", "parser_class": "app.Parser", "serializer": "s"}
    arguments = locate("redis://host:1", options).arguments
    assert arguments["db"] == 3
    assert not {"pool_class", "parser_class", "serializer"} & set(arguments)


def test_sentinel__as_django_redis_has_it():
    """The host of the URL is what Sentinel calls the master, capitals and all."""
    found = locate(
        "redis://:secret@My-Master/2",
        {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "SENTINELS": SENTINELS,
            "SENTINEL_KWARGS": {"password": "of the sentinels"},
        },
    )
    assert (found.kind, found.service) == ("sentinel", "My-Master")
    assert found.nodes == (("one", 26379), ("two", 26380))
    assert (found.arguments["password"], found.arguments["db"]) == ("secret", 2)
    assert found.sentinel_arguments["password"] == "of the sentinels"
    assert found.sentinel_arguments["socket_timeout"] == 1


def test_sentinel__tls():
    """With rediss:// the master is reached by TLS."""
    assert locate("rediss://mymaster/0", {"SENTINELS": SENTINELS}).arguments["ssl"] is True


@pytest.mark.parametrize(
    "location",
    [
        ["redis+cluster://user:pw@one:7000", "redis+cluster://two:7001/0"],
        "redis+cluster://user:pw@one:7000,redis+cluster://two:7001",
    ],
)
def test_cluster(location):
    """Each URL is a node to ask first; what the first says holds for all."""
    found = locate(location)
    assert (found.kind, found.nodes) == ("cluster", (("one", 7000), ("two", 7001)))
    assert (found.arguments["username"], found.arguments["password"]) == ("user", "pw")
    assert "ssl" not in found.arguments
    assert locate("rediss+cluster://one").arguments["ssl"] is True


@pytest.mark.parametrize(
    ("location", "options", "told"),
    [
        (None, {}, ["LOCATION=None", "pass a URL such as redis://127.0.0.1:6379/0"]),
        ([], {}, ["LOCATION=[]", "pass a URL"]),
        ([6379], {}, ["LOCATION=[6379]", "pass a URL"]),
        ("", {}, ["LOCATION=''", "begin it with one of redis://, rediss://, unix://"]),
        ("127.0.0.1:6379", {}, ["'127.0.0.1:6379'", "begin it with one of"]),
        ("http://:pw@host", {}, ["'http://:***@host'", "begin it with one of"]),
        ("redis://host:99999", {}, ["'redis://host:99999'", "Port out of range"]),
        ("redis://host:1/main", {}, ["'main' is no database", "use a number"]),
        ("redis://host?nope=1", {}, ["nope", "use arguments that a connection of redis-py takes"]),
        ("redis://host?db=x", {}, ["'db'", "use arguments"]),
        ("redis://host", {"nope": 1}, ["nope", "LOCATION='redis://host' or its OPTIONS"]),
        ("redis://host", {"SOCKET_TIMEOUT": None}, ["socket_timeout=None", "seconds above 0"]),
        ("redis://host?socket_timeout=0", {}, ["socket_timeout=0.0", "seconds above 0"]),
        ("redis://host", {"CONNECTION_POOL_KWARGS": 3}, ["CONNECTION_POOL_KWARGS=3", "a dict"]),
        (
            "redis://mymaster/0",
            {"CLIENT_CLASS": "django_redis.client.SentinelClient"},
            ["SentinelClient' without SENTINELS", 'OPTIONS["SENTINELS"] = [("host", 26379)]'],
        ),
        (
            "redis://m",
            {"SENTINELS": ["host:1"]},
            ["SENTINELS=['host:1']", "pairs of host and port"],
        ),
        ("redis:///0", {"SENTINELS": SENTINELS}, ["names no master", "redis://mymaster/0"]),
        (
            "redis://host",
            {"CLIENT_CLASS": "django_redis.client.ShardClient"},
            ["ShardClient' spreads keys", "redis+cluster://"],
        ),
        ("redis+cluster://host/1", {}, ["a Cluster has only database 0"]),
        ("redis+cluster://host", {"db": 1}, ["a Cluster has only database 0"]),
        (
            ["redis+cluster://:pw@one", "redis://two"],
            {},
            ["['redis+cluster://:***@one', 'redis://two']", "the same scheme"],
        ),
    ],
)
def test_refused__says_what_is_allowed(location, options, told):
    """Before anything connects, with the value, what is allowed and what to do."""
    with pytest.raises(InvalidLocationError) as caught:
        locate(location, options)
    for part in told:
        assert part in str(caught.value)
    assert "pw" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host:1/0", "redis://host:1/0"),
        ("redis://user:pw@host:1/0", "redis://user:***@host:1/0"),
        ("redis://:p@w@host", "redis://:***@host"),
        ("unix:///run/r.sock?password=pw&db=1", "unix:///run/r.sock?password=***&db=1"),
    ],
)
def test_shown__hides_the_password(url, expected):
    """Messages and pages show where, not how to get in."""
    assert shown(url) == expected


def test_location__shows_no_secret():
    """Neither does the record."""
    options = {"SENTINELS": SENTINELS, "PASSWORD": "pw"}
    assert "pw" not in repr(locate("redis://:pw@m/0", options))
    assert "pw" not in repr(locate("redis://:pw@m/0"))
