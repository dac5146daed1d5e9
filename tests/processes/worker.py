"""A process of a crew: makes the calls that it is told to, and tells what happens to them.

It reads commands as lines of JSON and writes what happens as lines of JSON, each at once and in one
piece, so that a killed process has told all that it did.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def tell(**what: Any) -> None:
    """Write one line of the history."""
    what["at"] = time.monotonic()  # one clock for all processes of a machine
    os.write(1, (json.dumps(what) + "\n").encode())


@contextmanager
def asked(number: str, key: str) -> Iterator[dict[str, Any]]:
    """Tell of a call, and of what the block says that its caller got."""
    tell(what="asked", call=number, key=key)
    got: dict[str, Any] = {}
    try:
        yield got
    except Exception as error:
        got = {"error": type(error).__name__, "text": str(error)}
    tell(what="got", call=number, key=key, **got)


class Gates:
    """Where bodies wait, by key, on threads and on loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Event] = {}
        self._tasks: dict[str, list[tuple[Any, asyncio.Event]]] = {}

    def gate(self, key: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(key, threading.Event())

    def open(self, key: str) -> None:
        self.gate(key).set()
        with self._lock:
            waiting = self._tasks.pop(key, [])
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def passed(self, key: str) -> None:
        event = asyncio.Event()
        with self._lock:
            self._tasks.setdefault(key, []).append((asyncio.get_running_loop(), event))
        if self.gate(key).is_set():
            return
        await event.wait()


class Worker:
    """The functions that a crew calls."""

    def __init__(self, options: dict[str, Any]) -> None:
        from django_vega import Upsert, coordinated, coordinator, current_call, singleflight_refresh
        from tests.writing_app.models import Quake

        self.gates = gates = Gates()
        self._loop = asyncio.new_event_loop()

        def began(key: str) -> int:
            call = current_call()
            assert call is not None
            assert call.generation is not None
            tell(what="began", key=key, generation=call.generation, call=call.id)
            return call.generation

        def body(key: str) -> str:
            generation = began(key)
            gates.gate(key).wait()
            tell(what="ended", key=key, generation=generation)
            return str(generation)

        async def abody(key: str) -> str:
            generation = began(key)
            try:
                await gates.passed(key)
            finally:
                tell(what="ended", key=key, generation=generation)
            return str(generation)

        def rows(key: str) -> list[dict[str, str]]:
            return [{"code": key, "place": body(key)}]

        @coordinator("first")
        def first(ctx: Any) -> None:
            if ctx.peers():
                ctx.reuse(ctx.peers()[0])
            else:
                ctx.proceed()

        self._strategies = {"by hand": first}
        shared = {"key": "key:{key}", "scope": "crew"}
        self._functions = {
            "sync": coordinated(**shared)(body),
            "async": coordinated(**shared)(abody),
            "rows": singleflight_refresh(upsert=Upsert(Quake, ["code"]), **shared)(rows),
        }

    def call(self, number: str, kind: str, key: str, strategy: Any = None, **options: Any) -> None:
        """Make a call on a thread of its own, or as a task of the loop."""
        if isinstance(strategy, list):
            from django_vega import Strategy

            options["strategy"] = Strategy(*strategy)
        elif strategy is not None:
            options["strategy"] = self._strategies.get(strategy, strategy)
        function = self._functions[kind].with_options(**options)
        if kind == "async":
            asyncio.run_coroutine_threadsafe(self._atell(number, function, key), self._loop)
        else:
            threading.Thread(target=self._tell, args=(number, function, key)).start()

    def _tell(self, number: str, function: Any, key: str) -> None:
        with asked(number, key) as got:
            got.update(shown(function(key)))

    async def _atell(self, number: str, function: Any, key: str) -> None:
        with asked(number, key) as got:
            got.update(shown(await function(key)))

    def run(self) -> None:
        """Take commands until there are no more."""
        import django_vega

        django_vega.subscribe(
            lambda event: tell(
                what=event.type, key=event.key.removeprefix("key:"), call=event.call_id
            ),
            [
                "call:parked",
                "call:settled",
                "coordination:reuse",
                "coordination:dropped",
                "lease:lost",
            ],
        )
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        tell(what="ready")
        for line in sys.stdin:
            command = json.loads(line)
            match command.pop("do"):
                case "call":
                    self.call(**command)
                case "open":
                    self.gates.open(command["key"])
                case "cancel":
                    count = django_vega.cancel(f"key:{command['key']}")
                    tell(what="cancelled", count=count)
                case "in_flight":
                    tell(what="in_flight", keys=[one.key for one in django_vega.in_flight()])
        django_vega.close()
        tell(what="closed")
        os._exit(0)


def shown(value: Any) -> dict[str, Any]:
    """Return what came of a call: its value, or of a refresh what is known of it."""
    if isinstance(value, str):
        return {"generation": int(value)}
    return {"generation": value.generation, "outcome": value.outcome, "led": value.led}


def main() -> None:
    """Set Django up as the crew says, and work."""
    options = json.loads(sys.argv[1])
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django_vega", "tests.writing_app"],
        DATABASES={"default": options["database"]},
        DJANGO_VEGA={"default": options["alias"]},
        USE_TZ=True,
    )
    import django

    django.setup()
    Worker(options).run()


if __name__ == "__main__":
    main()
