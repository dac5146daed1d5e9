"""The site of the example: made from nothing, filled with the week, served until Ctrl-C."""

from django.contrib.auth import get_user_model
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from example_project.console import Console
from example_project.feed.client import UpstreamError
from example_project.feed.repository import QuakeRepository

LOGIN = "admin"
PASSWORD = "admin"  # noqa: S105

ATTEMPTS = 5  # per page, before the upstream's refusal ends the demo


def prepare(console: Console) -> None:
    """Create the tables and the demo's superuser; both may already be there."""
    call_command("migrate", verbosity=0, interactive=False)
    users = get_user_model().objects
    if not users.filter(username=LOGIN).exists():
        users.create_superuser(LOGIN, f"{LOGIN}@example.invalid", PASSWORD)
    console.say(f"database ready; log in as {LOGIN} / {PASSWORD}")


def load_week(quakes: QuakeRepository, console: Console) -> None:
    """Store every page of every region, so that there is something to browse.

    The upstream refuses some requests. A refresh that fails writes nothing and is not remembered:
    asking again runs again. How often to ask is this function's decision, not the decorator's.
    """
    pages = [
        (region, cursor)
        for region, cursors in quakes.client.cursors().items()
        for cursor in cursors
    ]
    refused = 0
    for done, (region, cursor) in enumerate(pages, start=1):
        refused += _refresh_patiently(quakes, region, cursor) - 1
        console.progress(done, len(pages), "pages of the week stored")
    console.say(f"  the upstream refused {refused} requests; they were made again")


def _refresh_patiently(quakes: QuakeRepository, region: str, cursor: str) -> int:
    """Refresh a page, again if need be; return how many attempts that took."""
    for attempt in range(1, ATTEMPTS):
        try:
            quakes.refresh(region, cursor)
        except UpstreamError:
            continue
        return attempt
    quakes.refresh(region, cursor)
    return ATTEMPTS


def serve(port: int, console: Console) -> None:
    """Serve the site on the loopback interface until Ctrl-C. Port 0 picks a free one."""
    with ThreadedWSGIServer(("127.0.0.1", port), WSGIRequestHandler) as server:
        server.daemon_threads = True
        server.set_app(StaticFilesHandler(get_wsgi_application()))
        console.say(f"http://127.0.0.1:{server.server_port}/admin/  (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.say("bye")
