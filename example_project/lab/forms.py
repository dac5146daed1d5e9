"""What visitors may choose; the bounds keep an experiment small."""

from django import forms
from django.utils.translation import gettext_lazy as _

from example_project.lab.compare import CompareRun
from example_project.lab.coordinators import STRATEGIES, CoordinatorsRun
from example_project.lab.fanout import FanOutRun
from example_project.lab.own import OwnRun
from example_project.lab.panel import PanelRun
from example_project.lab.runs import Run
from example_project.lab.walk import WalkRun

MOST_CALLS = 12
MOST_MS = 2000  # per call: a burst of twelve in a row is over before a follower's timeout
SECOND = 1000  # milliseconds


class Experiment(forms.Form):
    """The choices of an experiment; a valid one makes a run."""

    def run(self) -> Run:
        """Return the run that was chosen, not yet started."""
        raise NotImplementedError


class CoordinatorsForm(Experiment):
    """A burst on one key."""

    strategy = forms.ChoiceField(
        label=_("Strategy"), choices=[(name, name) for name in STRATEGIES], initial="dedupe"
    )
    calls = forms.IntegerField(label=_("Calls"), min_value=1, max_value=MOST_CALLS, initial=4)
    spacing = forms.IntegerField(
        label=_("Spacing, ms"),
        min_value=0,
        max_value=SECOND,
        initial=0,
        help_text=_("0: all of them overlap."),
    )
    duration = forms.IntegerField(
        label=_("Duration, ms"), min_value=0, max_value=MOST_MS, initial=600
    )

    def run(self) -> CoordinatorsRun:
        """Return a burst under the chosen strategy."""
        data = self.cleaned_data
        return CoordinatorsRun(
            data["strategy"], data["calls"], data["spacing"] / SECOND, data["duration"] / SECOND
        )


class OwnForm(Experiment):
    """A burst under a coordinator written by hand."""

    coordinator = forms.ChoiceField(
        label=_("Coordinator"), choices=[("bounded", "bounded"), ("forgetful", "forgetful")]
    )
    limit = forms.IntegerField(
        label=_("Limit"), min_value=1, max_value=4, initial=2, help_text=_("Of bounded.")
    )
    calls = forms.IntegerField(label=_("Calls"), min_value=1, max_value=MOST_CALLS, initial=4)
    duration = forms.IntegerField(
        label=_("Duration, ms"), min_value=0, max_value=MOST_MS, initial=600
    )

    def run(self) -> OwnRun:
        """Return a burst under the chosen coordinator."""
        data = self.cleaned_data
        return OwnRun(data["coordinator"], data["limit"], data["calls"], data["duration"] / SECOND)


class PanelForm(Experiment):
    """A panel to play on."""

    mode = forms.ChoiceField(
        label=_("Requests"),
        choices=[("singleflight", _("singleflight")), ("plain", _("plain"))],
    )
    clock = forms.ChoiceField(
        label=_("Clock"),
        choices=[("runs", _("runs, a tick each 200 ms")), ("by-hand", _("ticks by hand"))],
    )

    def run(self) -> PanelRun:
        """Return an empty panel."""
        return PanelRun(self.cleaned_data["mode"], self.cleaned_data["clock"])


class CompareForm(Experiment):
    """The four answers."""

    duration = forms.IntegerField(
        label=_("Duration of a fetch, ms"), min_value=0, max_value=MOST_MS, initial=400
    )

    def run(self) -> CompareRun:
        """Return the four answers, to be played side by side."""
        return CompareRun(self.cleaned_data["duration"] / SECOND)


class WalkForm(Experiment):
    """A walk; nothing to choose."""

    def run(self) -> WalkRun:
        """Return a walk at its first step."""
        return WalkRun()


class FanOutForm(Experiment):
    """A fan-out; nothing to choose."""

    def run(self) -> FanOutRun:
        """Return a fan-out whose gates are closed."""
        return FanOutRun()
