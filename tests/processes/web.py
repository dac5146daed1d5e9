"""Settings of the web servers under test: the example's, and an app that tells who is there.

So a test can hold the upstream's answer back until every request is committed, in whichever worker
it is: the leader stands at the upstream's gate, everybody else has joined a flight.

With VEGA_TEST_CALL in the environment the process that builds the application makes a call at once.
"""

import os
from typing import Any

import redis
from django.apps import AppConfig

import django_vega
from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS as THOSE_OF_THE_EXAMPLE
from example_project.settings import REDIS

# Lists at the test's Redis. A line per process that has built the application, its id; and per
# request that has joined a flight, the process's and the call's.
READY = "test:ready"
JOINED = "test:joined"

INSTALLED_APPS = [*THOSE_OF_THE_EXAMPLE, "tests.processes.web.Web"]


class Web(AppConfig):
    """Tells the test of this process and of its requests."""

    name = "tests.processes.web"

    def ready(self) -> None:
        assert REDIS, "VEGA_EXAMPLE_REDIS names the test's own server"
        client = redis.Redis.from_url(REDIS)

        def tell(event: Any) -> None:
            client.rpush(JOINED, f"{os.getpid()}:{event.call_id}")

        django_vega.subscribe(tell, types=["coordination:reuse"])
        if "VEGA_TEST_CALL" in os.environ:
            django_vega.coordinated(key="call", scope="tests")(lambda: None)()
        client.rpush(READY, os.getpid())
