import asyncio
import json
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from example_project.feed.client import UpstreamClient, UpstreamError
from example_project.upstream import Catalog, Upstream, Weather
from tests import threads

CALM = Weather(latency=(0, 0))
STORMY = Weather(latency=(0, 0), failure_rate=0.5)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """An upstream without latency and failures."""
    with Upstream(CALM) as upstream:
        yield upstream


@pytest.fixture
def client(upstream: Upstream) -> UpstreamClient:
    """A client of that upstream."""
    return UpstreamClient(upstream.address, timeout=threads.TIMEOUT)


def failures_of(client: UpstreamClient, region: str, count: int) -> list[bool]:
    """Ask ``count`` times; return which of the requests failed."""
    failures = []
    for _ in range(count):
        try:
            client.page(region)
        except UpstreamError:
            failures.append(True)
        else:
            failures.append(False)
    return failures


class TestCatalog:
    def test_all_events_of_the_week_are_served__on_the_pages_of_all_regions(
        self, client: UpstreamClient
    ):
        """Reading every page of every region gives each of the 1,707 events exactly once."""
        ids = []
        for region, cursors in client.cursors().items():
            for cursor in cursors:
                page = client.page(region, cursor)
                assert {feature["properties"]["net"] for feature in page.features} == {region}
                ids += [feature["id"] for feature in page.features]

        assert len(ids) == len(set(ids)) == 1707

    def test_pages_follow_each_other__by_the_cursor_of_the_answer(self, client: UpstreamClient):
        """Following ``next`` from the head visits the pages that ``/cursors`` names."""
        visited, cursor = [], "head"
        while cursor is not None:
            visited.append(cursor)
            cursor = client.page("ak", cursor).next

        assert visited == client.cursors()["ak"] == ["head", "page-2", "page-3"]

    def test_version_1_is_the_week_as_published(self):
        """The first event is served with the numbers of the source."""
        feature = Catalog().page("ci", "head", version=1)["features"][0]

        assert feature["id"] == "ci37868143"
        assert feature["geometry"]["coordinates"] == [-118.6671667, 34.4945, 26.49]
        assert feature["properties"] == {
            "net": "ci",
            "type": "earthquake",
            "status": "automatic",
            "mag": 2,
            "magType": "ml",
            "place": "4km W of Castaic, CA",
            "time": 1517966773840,
            "updated": 1517966996303,
        }

    def test_a_later_version_is_revised_later__for_every_event(self):
        """Each version moves ``updated`` of every event on, so that old can be told from new."""
        catalog = Catalog()
        first = catalog.page("hv", "head", version=1)["features"]
        second = catalog.page("hv", "head", version=2)["features"]

        assert [feature["id"] for feature in first] == [feature["id"] for feature in second]
        assert all(
            old["properties"]["updated"] < new["properties"]["updated"]
            for old, new in zip(first, second, strict=True)
        )

    def test_search_finds_places__whatever_their_case(self, client: UpstreamClient):
        """A search returns at most one page of events whose place contains the text."""
        page = client.search("ALASKA")

        assert len(page.features) == 100
        assert all("Alaska" in feature["properties"]["place"] for feature in page.features)

    def test_unread_counts_the_region(self, client: UpstreamClient):
        """The badge of Alaska shows its 297 events."""
        assert client.unread("ak") == 297


class TestVersions:
    def test_versions_count_up__per_key(self, client: UpstreamClient):
        """Each request of a key is one version newer; other keys have a count of their own."""
        versions = [
            client.page("ak").version,
            client.page("ak").version,
            client.page("ak", "page-2").version,
            client.page("hv").version,
            client.page("ak").version,
        ]

        assert versions == [1, 2, 1, 1, 3]

    def test_a_version_belongs_to_the_start__when_the_old_answer_arrives_last(
        self, upstream: Upstream, client: UpstreamClient
    ):
        """The request that started first is version 1, also when it is answered second."""
        with upstream.gate("quakes:ak:*") as gate:
            old = threads.start(lambda: client.page("ak"))
            gate.wait_for(1)
            new = threads.start(lambda: client.page("ak"))
            gate.wait_for(2)
            gate.release(2)
            assert new.result().version == 2
            assert old.is_running
            gate.release(1)
            assert old.result().version == 1

    def test_reset_begins_again(self, upstream: Upstream, client: UpstreamClient):
        """After a reset nothing has been counted, and the next answer is version 1."""
        client.page("ak")
        upstream.reset()

        assert client.stats() == {}
        assert client.page("ak").version == 1

    def test_stats_count_what_has_started__per_key(
        self, upstream: Upstream, client: UpstreamClient
    ):
        """Requests count under their key once started; ``/stats`` and ``/cursors`` do not."""
        client.search("alaska")
        client.search("hawaii")
        client.unread("ak")
        client.cursors()
        with upstream.gate("quakes:*") as gate, threads.start(lambda: client.page("ak")):
            gate.wait_for(1)
            assert client.stats() == {"search": 2, "unread:ak": 1, "quakes:ak:head": 1}
            gate.open()


class TestGates:
    def test_a_gate_holds_only_what_matches(self, upstream: Upstream, client: UpstreamClient):
        """Requests of other keys pass while one is held."""
        with upstream.gate("quakes:ak:*") as gate:
            held = threads.start(lambda: client.page("ak"))
            gate.wait_for(1)
            assert client.page("hv").version == 1
            assert held.is_running
            gate.release(1)
            assert held.result().version == 1

    def test_leaving_the_block_lets_everybody_go__also_after_an_error(
        self, upstream: Upstream, client: UpstreamClient
    ):
        """A script that fails leaves no request behind."""

        class ScriptError(Exception):
            pass

        def script() -> None:
            with upstream.gate() as gate:
                held.append(threads.start(lambda: client.page("ak")))
                gate.wait_for(1)
                raise ScriptError

        held: list[threads.Running[object]] = []
        with pytest.raises(ScriptError):
            script()

        held[0].result()
        assert client.page("ak").version == 2

    def test_arrivals_are_announced__before_the_answer(
        self, upstream: Upstream, client: UpstreamClient
    ):
        """``on_arrival`` is called once for each request that is held."""
        arrivals: list[str] = []
        with upstream.gate(on_arrival=lambda: arrivals.append("arrived")) as gate:
            gate.release(1)
            client.page("ak")
            gate.release(2)
            client.unread("ak")

        assert arrivals == ["arrived", "arrived"]


class TestFailures:
    def test_the_same_seed_fails_the_same_requests(self):
        """Two upstreams with one seed refuse the same requests, and not all of them."""
        runs = []
        for _ in range(2):
            with Upstream(STORMY) as upstream:
                client = UpstreamClient(upstream.address, timeout=threads.TIMEOUT)
                runs.append(failures_of(client, "ak", 12))

        assert runs[0] == runs[1]
        assert 0 < sum(runs[0]) < 12

    def test_a_refused_request_counts__but_makes_no_version(self):
        """Requests that end with 503 stand in the stats; the next answer is still version 1."""
        with Upstream(Weather(latency=(0, 0), failure_rate=1)) as upstream:
            client = UpstreamClient(upstream.address, timeout=threads.TIMEOUT)
            with pytest.raises(UpstreamError, match="503"):
                client.page("ak")
            upstream.weather = CALM

            assert client.page("ak").version == 1
            assert client.stats() == {"quakes:ak:head": 2}

    def test_an_unknown_region_is_named__with_those_that_exist(self, client: UpstreamClient):
        """A wrong region gives an error that names it and lists the right ones."""
        with pytest.raises(UpstreamError, match=r"404.*'atlantis'.*'ak'"):
            client.page("atlantis")

    def test_an_unknown_path_is_not_found(self, upstream: Upstream):
        """What is not served is answered with 404 and a JSON document, over plain HTTP."""
        connection = HTTPConnection(*upstream.address, timeout=threads.TIMEOUT)
        try:
            connection.request("GET", "/volcanoes")
            response = connection.getresponse()
            document = json.loads(response.read())
        finally:
            connection.close()

        assert response.status == 404
        assert "/volcanoes" in document["error"]

    def test_an_upstream_that_is_gone_raises_upstream_error(self):
        """The client has one error for everything that is no answer, sync and async."""
        with Upstream(CALM) as upstream:
            client = UpstreamClient(upstream.address, timeout=threads.TIMEOUT)

        with pytest.raises(UpstreamError):
            client.page("ak")
        with pytest.raises(UpstreamError):
            asyncio.run(client.apage("ak"))


class TestAsyncClient:
    def test_async_and_sync_pages_are_the_same(self, client: UpstreamClient):
        """Both ways read the same document, but for the version that each gets."""
        sync, other = client.page("hv"), asyncio.run(client.apage("hv"))

        assert (sync.version, other.version) == (1, 2)
        assert [quake["id"] for quake in sync.features] == [quake["id"] for quake in other.features]

    def test_async_errors_are_those_of_sync(self, client: UpstreamClient):
        """An async request for a page that is not there raises UpstreamError with the reason."""
        with pytest.raises(UpstreamError, match=r"404.*page-9"):
            asyncio.run(client.apage("ak", "page-9"))
