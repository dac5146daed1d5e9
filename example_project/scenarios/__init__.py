"""What the demo plays. Each scenario makes one promise, and measures it without and with vega."""

from example_project.scenarios.compare import Compare
from example_project.scenarios.crossing import Crossing
from example_project.scenarios.fanout import FanOut
from example_project.scenarios.feed import Feed
from example_project.scenarios.keystrokes import Typing
from example_project.scenarios.pages import Pages
from example_project.scenarios.result import Scenario
from example_project.scenarios.stampede import Stampede

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (Stampede(), Crossing(), Pages(), Typing(), Compare(), FanOut(), Feed())
}

__all__ = ["SCENARIOS", "Scenario"]
