"""Processes and connections that end in the middle of a write: all of it stands, or nothing."""

import multiprocessing
import os
import signal

import pytest
from django.db import DatabaseError, connections

from django_vega.models import RefreshState
from django_vega.writing import rows as rows_module
from django_vega.writing.fence import read_status, record_failure
from tests.writing import crowd
from tests.writing.refreshing import STARTED, identity, refresh
from tests.writing_app.models import Quake

pytestmark = pytest.mark.django_db(transaction=True)


def stored():
    """Return the rows and the fences."""
    places = dict(Quake.objects.values_list("code", "place"))
    return places, list(RefreshState.objects.values_list("fence", flat=True))


def test_connection__killed_between_fence_and_rows(monkeypatch):
    """The server ends the connection after the fence has moved: rows and fence are as before."""
    connection = connections["default"]
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no connection that somebody else could end")
    refresh([{"code": "a", "place": "good"}], 1)
    write = rows_module.Batch.write

    def end_connection(batch, alias, generation):
        own = "pg_backend_pid()" if connection.vendor == "postgresql" else "connection_id()"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {own}")
            (number,) = cursor.fetchone()
        killer = connection.copy()
        with killer.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SELECT pg_terminate_backend(%s)", [number])
            else:
                cursor.execute(f"KILL {number}")
        killer.close()
        return write(batch, alias, generation)

    with monkeypatch.context() as patched:
        patched.setattr(rows_module.Batch, "write", end_connection)
        with pytest.raises(DatabaseError) as caught:
            refresh([{"code": "a", "place": "half"}, {"code": "b"}], 2)
    record_failure(identity(), 2, STARTED, caught.value)
    assert stored() == ({"a": "good"}, [1])
    assert read_status(identity()).state == "failed"
    assert refresh([{"code": "a", "place": "next"}], 3).outcome == "written"


@pytest.fixture
def writer():
    """Start a process that stops at a point of its write; it is gone after the test."""
    processes = []

    def start(work):
        settings = connections["default"].settings_dict
        database = {"NAME": settings["NAME"], "OPTIONS": settings["OPTIONS"]}
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        process = spawn.Process(target=crowd.write_until_told, args=(work, database, there))
        process.start()
        there.close()
        processes.append(process)
        assert here.poll(crowd.TIMEOUT)
        assert here.recv() == "there"
        return process, here

    yield start
    for process in processes:
        process.kill()
        process.join(10)


def test_process__killed_in_the_write(writer):
    """A process is killed -9 behind the fence and after the rows: as if it had never been."""
    refresh([{"code": "a", "place": "good"}], 1)
    process, _ = writer("stop before the commit")
    process.kill()
    process.join(10)
    # The server notices on its own; whoever comes next waits for that at the fence.
    assert refresh([{"code": "a", "place": "next"}], 3).outcome == "written"
    assert stored() == ({"a": "next"}, [3])


def test_process__paused_before_the_write(writer):
    """A writer that sleeps through a newer write is superseded when it wakes."""
    refresh([{"code": "a", "place": "good"}], 1)
    process, pipe = writer("stop before the transaction")
    os.kill(process.pid, signal.SIGSTOP)
    assert refresh([{"code": "a", "place": "next"}], 3).outcome == "written"
    pipe.send("go on")
    os.kill(process.pid, signal.SIGCONT)
    assert pipe.poll(crowd.TIMEOUT)
    assert pipe.recv() == "superseded"
    assert stored() == ({"a": "next"}, [3])
