"""Asks the upstream over HTTP. No Django, no coordination: one method, one request."""

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any, Self
from urllib.parse import quote, urlencode


class UpstreamError(Exception):
    """The upstream did not answer with 200: it failed, or could not be reached.

    Nothing was stored. Whether to ask again is the caller's decision; the next call asks anew.
    """

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(target, reason)
        self.target = target
        self.reason = reason

    def __str__(self) -> str:
        return f"the upstream did not answer {self.target}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the feed as the upstream sent it.

    Attributes:
        features: GeoJSON features, newest event first.
        version: Which revision of the feed this answer shows.
        next: Cursor of the following page, None on the last one.
    """

    features: tuple[dict[str, Any], ...]
    version: int
    next: str | None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Self:
        """Read an answer of the upstream."""
        metadata = answer["metadata"]
        return cls(tuple(answer["features"]), metadata["version"], metadata["next"])


class UpstreamClient:
    """Speaks to one upstream.

    Args:
        address: Host and port.
        timeout: Seconds that one request may take.
    """

    def __init__(self, address: tuple[str, int], timeout: float = 40.0) -> None:
        self._host, self._port = address
        self._timeout = timeout

    def page(self, region: str, cursor: str = "head") -> Page:
        """Fetch one page of a region. Raises UpstreamError."""
        return Page.of(self._get(_page_target(region, cursor)))

    async def apage(self, region: str, cursor: str = "head") -> Page:
        """Fetch one page of a region without a thread. Raises UpstreamError."""
        return Page.of(await self._aget(_page_target(region, cursor)))

    def search(self, text: str) -> Page:
        """Fetch the newest events whose place contains ``text``. Raises UpstreamError."""
        return Page.of(self._get(f"/search?{urlencode({'text': text})}"))

    def unread(self, region: str) -> int:
        """Fetch how many events of a region nobody has read. Raises UpstreamError."""
        return int(self._get(f"/unread/{quote(region, safe='')}")["unread"])

    def cursors(self) -> dict[str, list[str]]:
        """Fetch the cursors of all pages by region. Raises UpstreamError."""
        return dict(self._get("/cursors"))

    def stats(self) -> dict[str, int]:
        """Fetch how many requests of each key the upstream has seen. Raises UpstreamError."""
        return dict(self._get("/stats"))

    def _get(self, target: str) -> dict[str, Any]:
        connection = HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            connection.request("GET", target)
            response = connection.getresponse()
            return _document(target, response.status, response.read())
        except (OSError, HTTPException) as error:
            raise UpstreamError(target, repr(error)) from error
        finally:
            connection.close()

    async def _aget(self, target: str) -> dict[str, Any]:
        request = f"GET {target} HTTP/1.0\r\nHost: {self._host}\r\n\r\n"
        try:
            async with asyncio.timeout(self._timeout):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    writer.write(request.encode("ascii"))
                    # HTTP/1.0: the answer ends where the connection does.
                    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                finally:
                    writer.close()
            return _document(target, int(head.split(maxsplit=2)[1]), body)
        except OSError as error:  # TimeoutError is one
            raise UpstreamError(target, repr(error)) from error


def _page_target(region: str, cursor: str) -> str:
    return f"/quakes/{quote(region, safe='')}?{urlencode({'cursor': cursor})}"


def _document(target: str, status: int, body: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(body)
    if status != HTTPStatus.OK:
        raise UpstreamError(target, f"{status}, {document['error']}")
    return document
