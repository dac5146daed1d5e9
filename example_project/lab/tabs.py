"""The six tabs, in their order."""

from dataclasses import dataclass
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from example_project.lab import forms, own
from example_project.lab.panel import BUTTONS
from example_project.lab.walk import NAMES
from example_project.scenarios.fanout import MEMBERS


@dataclass(frozen=True)
class Button:
    """A button that acts on a run.

    Attributes:
        action: What is done.
        value: To what.
        label: What stands on it.
    """

    action: str
    value: str
    label: str | Promise


@dataclass(frozen=True)
class Tab:
    """One experiment's page.

    Attributes:
        slug: Its address under ``/lab/``, and the name of its result's template.
        title: What stands on the tab.
        about: What it shows, in a sentence or two.
        form: What may be chosen.
        start: What stands on the button that starts a run.
        buttons: What can be done with a run. Without any a run ends by itself.
        sources: Code that the page shows, by name.
    """

    slug: str
    title: str | Promise
    about: str | Promise
    form: type[forms.Experiment]
    start: str | Promise
    buttons: tuple[Button, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def result_template(self) -> str:
        """The template of what a run has come to."""
        return f"lab/results/{self.slug}.html"

    @property
    def ends_by_itself(self) -> bool:
        """Whether a run needs nobody to end."""
        return not self.buttons

    def show(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the context of the result's template."""
        return {"tab": self, "run": document, "began": _began(document)}


def _began(document: dict[str, Any]) -> float:
    """Return when the first thing happened: times are shown from there."""
    times: list[float] = [line["at"] for line in document["events"]]
    return min(times, default=0.0)


_PRESS: Final[dict[str, str | Promise]] = {
    "open": _("Open the page (feed:home)"),
    "pull": _("Pull to refresh (feed:home)"),
    "header": _("Header (feed:home)"),
    "suggest": _("Suggestions (feed:suggest)"),
}

TABS: Final = (
    Tab(
        "coordinators",
        _("Coordinators"),
        _(
            "Calls on one key, made at once. The state says whether a call executed; what its "
            "caller got says whether the caller has what it wanted."
        ),
        forms.CoordinatorsForm,
        _("Fire"),
    ),
    Tab(
        "own",
        _("Your own"),
        _(
            "Two coordinators written by hand. The bounded one equals the built-in one, cell by "
            "cell, and dedupe at limit 1; the forgetful one decides nothing."
        ),
        forms.OwnForm,
        _("Fire"),
        sources=tuple(own.SOURCES.items()),
    ),
    Tab(
        "panel",
        _("Panel"),
        _(
            "Three buttons ask for feed:home, one for feed:suggest. A request takes 1,200 ms; the "
            "clock ticks every 200 ms."
        ),
        forms.PanelForm,
        _("New panel"),
        (
            *(Button("press", name, _PRESS[name]) for name in BUTTONS),
            Button("tick", "", _("One tick of 200 ms")),
        ),
    ),
    Tab(
        "compare",
        _("Compare"),
        _(
            "Two callers for feed:home and one for feed:suggest at once; when all are over, "
            "feed:home again. Without anything, with one mutex, with singleflight, with a cache."
        ),
        forms.CompareForm,
        _("Play"),
    ),
    Tab(
        "walk",
        _("Walk"),
        _("One flight with three waiters in eight steps. Whoever is cancelled goes alone."),
        forms.WalkForm,
        _("New walk"),
        (
            Button("next", "", _("Next step")),
            *(Button("cancel", name, _("Cancel %s") % name) for name in NAMES),
        ),
    ),
    Tab(
        "fan-out",
        _("Fan-out"),
        _(
            "Six targets over two workers and a queue of three. A delivery ends when its gate is "
            "opened; a gate may be opened before its turn."
        ),
        forms.FanOutForm,
        _("New fan-out"),
        (
            *(Button("release", name, _("Release %s") % name) for name in MEMBERS),
            Button("release-all", "", _("Release all")),
        ),
    ),
)
BY_SLUG: Final = {tab.slug: tab for tab in TABS}
