"""The feed over HTTP: refresh a page, and hear in JSON what came of it.

The two views are one, for threads and for event loops. Neither knows how many others ask for the
same page, in whichever worker of the site; that is the repository's matter.
"""

import os
from http import HTTPStatus
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_vega import LeaderError, Refresh
from example_project.feed.client import UpstreamClient, UpstreamError
from example_project.feed.repository import QuakeRepository

# The far side failed: in this caller's flight, or in one of another process that it shared.
FAILURES = (UpstreamError, LeaderError)


# Exempt from CSRF: the views read no cookie, so a foreign page that makes a visitor come here gets
# nothing done that it could not do by itself.
@csrf_exempt
@require_POST
def refresh(request: HttpRequest, region: str, cursor: str) -> JsonResponse:
    """Refresh one page of a region.

    With ``?fresh_for=30`` a success of the last 30 seconds is answer enough. A site whose workers
    serve one request at a time needs that: what waits in front of a worker has joined nothing yet
    when the flight that it would have joined is over.
    """
    try:
        bound = repository().refresh.with_options(fresh_for=fresh_for(request))
    except ValueError as error:
        return refused(error, HTTPStatus.BAD_REQUEST)
    try:
        return told(bound(region, cursor))
    except FAILURES as error:
        return refused(error, HTTPStatus.BAD_GATEWAY)


@csrf_exempt
@require_POST
async def arefresh(request: HttpRequest, region: str, cursor: str) -> JsonResponse:
    """Refresh one page of a region, on the event loop; otherwise as `refresh`."""
    try:
        bound = repository().arefresh.with_options(fresh_for=fresh_for(request))
    except ValueError as error:
        return refused(error, HTTPStatus.BAD_REQUEST)
    try:
        return told(await bound(region, cursor))
    except FAILURES as error:
        return refused(error, HTTPStatus.BAD_GATEWAY)


def repository() -> QuakeRepository:
    """Return a repository that asks the upstream of the settings."""
    upstream = urlsplit(settings.UPSTREAM)
    return QuakeRepository(UpstreamClient((upstream.hostname or "127.0.0.1", upstream.port or 80)))


def fresh_for(request: HttpRequest) -> float:
    """Return the seconds that the query asks for; none is 0, a success is never answer enough."""
    return float(request.GET.get("fresh_for", 0))


def told(result: Refresh) -> JsonResponse:
    """Tell what came of a refresh, and which process of the site says so."""
    return JsonResponse(
        {
            "key": result.key,
            "outcome": result.outcome,
            "generation": result.generation,
            "led": result.led,
            "rows": result.rows,
            "process": os.getpid(),
        }
    )


def refused(error: Exception, status: HTTPStatus) -> JsonResponse:
    """Say why there is no result."""
    return JsonResponse({"error": str(error)}, status=status)
