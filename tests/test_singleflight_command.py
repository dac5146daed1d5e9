"""Commands that do not overlap: what a second start does while the first is running."""

import io
import os
import platform
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import CommandParser

from django_vega import checkpoint
from django_vega.management import SingleflightCommand
from tests import threads
from tests.gates import TIMEOUT, Arrivals, Gate


def command(gate: Gate, **attributes: Any) -> SingleflightCommand:
    """Return a command whose work waits at a gate."""

    def add_arguments(self: Any, parser: CommandParser) -> None:
        parser.add_argument("--region", default="ak")

    def handle(self: Any, *args: Any, **options: Any) -> str:
        value = gate()
        checkpoint()
        return f"{options['region']}: {value}"

    body = {"add_arguments": add_arguments, "handle": handle, "requires_system_checks": ()}
    return type("Command", (SingleflightCommand,), {**body, **attributes})()


def start(one: SingleflightCommand, *arguments: str) -> str:
    """Run a command and return what it printed."""
    out = io.StringIO()
    call_command(one, *arguments, stdout=out)
    return out.getvalue()


def start_and_wait(one: SingleflightCommand, gate: Gate) -> threads.Running[str]:
    """Start a command that is at its gate when this returns."""
    running = threads.start(lambda: start(one))
    assert gate.entered.wait(TIMEOUT)
    return running


def test_second_start__goes_away():
    """It says where the first one runs and since when, and does nothing; a later one runs."""
    gate = Gate("done")
    first = start_and_wait(command(gate), gate)
    second = command(Gate("never"))
    assert start(second) == f"already running on {platform.node()}:{os.getpid()} for 0 s\n"
    gate.open()
    assert first.result() == "ak: done\n"
    assert gate.runs == 1
    later = Gate("again")
    later.open()
    assert start(command(later)) == "ak: again\n"


def test_options__in_the_key():
    """Starts for other regions run beside it, those for the same one do not."""
    gate, other = Gate("ak"), Gate("hv")
    other.open()
    attributes = {"vega_key": "sync:{options.region}"}
    first = start_and_wait(command(gate, **attributes), gate)
    assert start(command(other, **attributes), "--region=hv") == "hv: hv\n"
    assert start(command(other, **attributes), "--region=ak").startswith("already running on")
    gate.open()
    assert first.result() == "ak: ak\n"


def test_serialize__waits_for_its_turn():
    """The second one runs when the first has ended."""
    gate, next_gate = Gate("one"), Gate("two")
    next_gate.open()
    first = start_and_wait(command(gate, vega_strategy="serialize"), gate)
    with Arrivals(["call:parked"]) as arrivals:
        second = threads.start(lambda: start(command(next_gate, vega_strategy="serialize")))
        arrivals.wait(1)
    assert next_gate.runs == 0
    gate.open()
    assert threads.results([first, second]) == ["ak: one\n", "ak: two\n"]


def test_restart__cancels_the_first():
    """The first one ends with an error at its next checkpoint, the second one runs."""
    gate, next_gate = Gate("one"), Gate("two")
    next_gate.open()
    first = start_and_wait(command(gate, vega_strategy="restart"), gate)
    assert start(command(next_gate, vega_strategy="restart")) == "ak: two\n"
    gate.open()
    error = first.exception()
    assert isinstance(error, CommandError)
    assert "abort" in str(error)


def test_error__is_the_commands_own():
    """What ``handle`` raises comes out as it was, and nothing is left in the way."""
    gate = Gate(CommandError("the disk is full", returncode=4))
    gate.open()
    with pytest.raises(CommandError, match="the disk is full") as caught:
        start(command(gate))
    assert caught.value.returncode == 4
    after = Gate("fine")
    after.open()
    assert start(command(after)) == "ak: fine\n"
