# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""`singleflight_refresh` keeps the signature, and its callers get a `Refresh`."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, assert_type

from django_vega import Call, Refresh, RefreshStatus, Upsert, singleflight_refresh
from example_project.feed.models import Quake

UPSERT = Upsert(Quake, unique_fields=["usgs_id"])


@singleflight_refresh(key="quakes:{region}", upsert=UPSERT)
def listed(region: str) -> list[Quake]:
    return []


@singleflight_refresh(key="quakes:{region}", upsert=UPSERT)
def generated(region: str) -> Iterator[Quake]:
    yield Quake()


@singleflight_refresh(key="quakes:{region}", upsert=UPSERT, in_atomic="solo")
async def alisted(region: str) -> list[dict[str, Any]]:
    return []


@singleflight_refresh(key="quakes:{region}", upsert=UPSERT)
async def agenerated(region: str) -> AsyncIterator[Quake]:
    yield Quake()


class QuakeRepository:
    """Methods of each kind."""

    @singleflight_refresh(key="quakes:{region}:{cursor}", upsert=UPSERT)
    def refresh(self, region: str, cursor: str = "head") -> list[Quake]:
        return []

    @singleflight_refresh(key="quakes:{region}:{cursor}", upsert=UPSERT)
    async def arefresh(self, region: str, cursor: str = "head") -> Iterable[Quake]:
        return []

    @singleflight_refresh(key="quakes:{region}", upsert=UPSERT)
    @classmethod
    def refresh_all(cls, region: str) -> list[Quake]:
        return []

    @singleflight_refresh(key="quakes:{region}", upsert=UPSERT)
    @classmethod
    async def arefresh_all(cls, region: str) -> AsyncIterator[Quake]:
        yield Quake()


def functions() -> None:
    """Plain functions."""
    assert_type(listed("alaska"), Refresh)
    assert_type(generated("alaska"), Refresh)
    assert_type(listed.status("alaska"), RefreshStatus)
    assert_type(listed.submit("alaska"), Call)
    assert_type(listed.with_options(timeout=3)("alaska"), Refresh)
    assert_type(listed.with_options(timeout=3).status("alaska"), RefreshStatus)
    assert_type(listed.with_options(force=True, fresh_for=5, next=True)("alaska"), Refresh)
    assert_type(listed.with_options(while_busy="skip")("alaska"), Refresh)
    assert_type(listed.key_for("alaska"), str | None)

    listed(5)  # type: ignore[arg-type]
    listed()  # type: ignore[call-arg]
    generated(5)  # type: ignore[arg-type]
    listed.status(5)  # type: ignore[arg-type]
    assert_type(listed("alaska").led, bool)
    assert_type(listed("alaska").generation, int | None)
    listed("alaska").outcome = "written"  # type: ignore[misc]


async def async_functions() -> None:
    """Coroutine functions and async generators."""
    assert_type(await alisted("alaska"), Refresh)
    assert_type(await agenerated("alaska"), Refresh)
    assert_type(await alisted.status("alaska"), RefreshStatus)
    assert_type(await agenerated.with_options(strategy="restart")("alaska"), Refresh)
    assert_type(await agenerated.with_options(force=True)("alaska"), Refresh)

    await alisted(5)  # type: ignore[arg-type]
    await agenerated(5)  # type: ignore[arg-type]
    await alisted.status()  # type: ignore[call-arg]


def methods(repository: QuakeRepository) -> None:
    """Methods and class methods, bound."""
    assert_type(repository.refresh("alaska"), Refresh)
    assert_type(repository.refresh("alaska", cursor="2"), Refresh)
    assert_type(repository.refresh.status("alaska"), RefreshStatus)
    assert_type(repository.refresh.with_options(timeout=3).status("alaska"), RefreshStatus)
    assert_type(repository.refresh.submit("alaska"), Call)
    assert_type(QuakeRepository.refresh_all("alaska"), Refresh)
    assert_type(repository.refresh_all.status("alaska"), RefreshStatus)

    repository.refresh(5)  # type: ignore[arg-type]
    repository.refresh()  # type: ignore[call-arg]
    repository.refresh.status(5)  # type: ignore[arg-type]
    QuakeRepository.refresh_all(5)  # type: ignore[arg-type]
    repository.refresh.with_options(in_atomic="solo")  # type: ignore[call-arg]
    repository.refresh.with_options(while_busy="drop")  # type: ignore[arg-type]


async def async_methods(repository: QuakeRepository) -> None:
    """The same, async."""
    assert_type(await repository.arefresh("alaska"), Refresh)
    assert_type(await repository.arefresh.status("alaska"), RefreshStatus)
    assert_type(await QuakeRepository.arefresh_all("alaska"), Refresh)

    await repository.arefresh(5)  # type: ignore[arg-type]


def options() -> None:
    """What the decorator takes."""
    singleflight_refresh(key="k", upsert=Upsert("feed.Quake", ["usgs_id"], duplicates="error"))

    singleflight_refresh(key="k")  # type: ignore[call-overload]
    singleflight_refresh(upsert=UPSERT)  # type: ignore[call-overload]
    singleflight_refresh(key="k", upsert=Quake)  # type: ignore[call-overload]
    singleflight_refresh(key="k", upsert=UPSERT, in_atomic="ignore")  # type: ignore[call-overload]
    singleflight_refresh(key="k", upsert=UPSERT, strategy="newest")  # type: ignore[call-overload]
    singleflight_refresh(key="k", upsert=UPSERT, timeout="3")  # type: ignore[call-overload]
    singleflight_refresh(key="k", upsert=UPSERT, shaper=3)  # type: ignore[call-overload]
    Upsert(Quake, "usgs_id", duplicates="first")  # type: ignore[arg-type]
    Upsert(5, ["usgs_id"])  # type: ignore[arg-type]
    Upsert(Quake)  # type: ignore[call-arg]


@singleflight_refresh(key="count:{region}", upsert=UPSERT)  # type: ignore[arg-type]
def counted(region: str) -> int:
    """A refresh returns rows."""
    return 5
