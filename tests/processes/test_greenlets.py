"""Under gevent, where every thread is a greenlet: a body that holds up the hub keeps its lease."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.servers import Server
from tests.interpreters import ROOT
from tests.processes.crew import TIMEOUT

pytestmark = pytest.mark.once

SCRIPT = """
from gevent import monkey
monkey.patch_all()
import sys
url, lease = sys.argv[1], 1.0
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_vega"],
    DJANGO_VEGA={"default": {
        "BACKEND": "django_vega.backends.redis.RedisBackend", "LOCATION": url, "LEASE": lease,
    }},
)
django.setup()
import django_vega
from django_vega.handler import handler

sleep = monkey.get_original("time", "sleep")

@django_vega.coordinated(key="hub")
def hold_up():
    call = django_vega.current_call()
    sleep(3 * lease)  # no greenlet gets a turn meanwhile; that it lasts is what is tested
    snapshot = handler.coordinator("default").backend.snapshot(call.lease.key_hash)
    return [flight.generation for flight in snapshot.flights] == [call.generation], call.lease.lost

lost = []
django_vega.subscribe(lost.append, types=["lease:lost"])
is_there, why_lost = hold_up()
print(is_there, why_lost, len(lost))
django_vega.close()
"""


def test_lease__body_that_holds_up_the_hub(own_server: Server, tmp_path: Path):
    """A real thread renews in place of the heartbeat, which gets no turn, and ends with `close`."""
    pytest.importorskip("gevent", reason="gevent is not installed")
    script = tmp_path / "holds_up.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), own_server.url],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True None 0\n"
