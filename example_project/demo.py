"""Play the example: ``python -m example_project.demo``.

Sets everything up from nothing, starts the upstream, plays the scenarios without and with vega,
then serves the site with the Django admin until Ctrl-C. The exit code is 1 when a promise did not
hold.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace

import django

DEFAULT_PORT = 8000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code: 0 when every promise held, else 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    django.setup()
    # Everything below needs models, so it can be imported only now.
    from example_project import website
    from example_project.console import Console
    from example_project.feed.client import UpstreamClient
    from example_project.feed.repository import QuakeRepository
    from example_project.scenarios import SCENARIOS
    from example_project.scenarios.stage import Stage
    from example_project.upstream import Upstream

    options = _parse(argv, list(SCENARIOS))
    console = Console(sys.stderr if options.json else sys.stdout)
    website.prepare(console)

    with Upstream() as upstream:
        console.say(f"upstream at {upstream.url}, {len(upstream.catalog.events)} events")
        console.say()
        names = list(SCENARIOS) if options.scenario == "all" else [options.scenario]
        results = []
        for number, name in enumerate(names, start=1):
            scenario = SCENARIOS[name]
            console.say(f"[{number}/{len(names)}] {name}: {scenario.promise}")
            results.append(scenario.play(Stage(upstream)))
            console.show(results[-1])

        held = all(result.held for result in results)
        if options.json:
            document = {
                "held": held,
                "python": platform.python_version(),
                "django": django.get_version(),
                "scenarios": [result.as_dict() for result in results],
            }
            print(json.dumps(document, indent=2), flush=True)
        if not options.no_serve:
            upstream.reset()
            upstream.weather = replace(upstream.weather, failure_rate=0.15)
            website.load_week(QuakeRepository(UpstreamClient(upstream.address)), console)
            website.serve(options.port, console)
    return 0 if held else 1


def _parse(argv: Sequence[str] | None, scenarios: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument(
        "--scenario", choices=["all", *scenarios], default="all", help="what to play (all)"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on stdout, all else on stderr"
    )
    parser.add_argument("--no-serve", action="store_true", help="end after the scenarios")
    parser.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        help=f"where to serve the site ({DEFAULT_PORT}; 0 picks a free port)",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
