"""Pages of the lab. Each works without JavaScript, which only makes it live."""

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views import View

from example_project.lab.forms import Experiment
from example_project.lab.runs import Refused, Run, TooManyRuns, runs
from example_project.lab.tabs import BY_SLUG, TABS, Tab

VISITOR = "lab_visitor"


class TabView(View):
    """A tab: its form, and the run that ``?run=`` names."""

    tab: Tab = TABS[0]

    def get(self, request: HttpRequest) -> HttpResponse:
        """Show the tab, with the run that was asked for."""
        visitor = _visitor(request)
        form = self.tab.form(label_suffix="")
        if "run" not in request.GET:
            return self._page(request, form)
        run = runs.get(visitor, request.GET["run"])
        if run is None or run.slug != self.tab.slug:
            return self._page(request, form, error=_missing(), status=404)
        return self._page(request, form, run)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Start a run; without JavaScript wait for its end, where that comes by itself."""
        form = self.tab.form(request.POST, label_suffix="")
        if not form.is_valid():
            if _wants_json(request):
                return _answer({"error": _faults(form)}, status=400)
            return self._page(request, form, status=400)
        try:
            run = runs.start(_visitor(request), form.run())
        except TooManyRuns as error:
            if _wants_json(request):
                return _answer({"error": str(error)}, status=429)
            return self._page(request, form, error=str(error), status=429)
        if _wants_json(request):
            return _answer(_document(request, run), status=201)
        run.wait()
        return redirect(_address(run))

    def _page(
        self,
        request: HttpRequest,
        form: Experiment,
        run: Run | None = None,
        *,
        error: str = "",
        status: int = 200,
    ) -> HttpResponse:
        context: dict[str, Any] = {"tab": self.tab, "tabs": TABS, "form": form, "error": error}
        if run is not None:
            document = run.document()
            context |= self.tab.show(document)
            context["buttons"] = [
                button
                for button in self.tab.buttons
                if button.action != "tick" or document.get("clock") == "by-hand"
            ]
        response = render(request, "lab/tab.html", context, status=status)
        patch_vary_headers(response, ["Accept"])
        return response


class RunView(View):
    """A run as JSON, as it stands now."""

    def get(self, request: HttpRequest, run_id: str) -> HttpResponse:
        """Return the run's document."""
        run = runs.get(_visitor(request), run_id)
        if run is None:
            return _answer({"error": _missing()}, status=404)
        return _answer(_document(request, run))


class ActView(View):
    """Something that is done with a run."""

    def post(self, request: HttpRequest, run_id: str) -> HttpResponse:
        """Do it, and show what it has come to."""
        run = runs.get(_visitor(request), run_id)
        if run is None:
            return self._refuse(request, _missing(), 404)
        try:
            run.act(request.POST.get("action", ""), request.POST.get("value", ""))
        except Refused as error:
            return self._refuse(request, str(error), 400, run)
        if _wants_json(request):
            return _answer(_document(request, run))
        return redirect(_address(run))

    def _refuse(
        self, request: HttpRequest, message: str, status: int, run: Run | None = None
    ) -> HttpResponse:
        if _wants_json(request):
            return _answer({"error": message}, status=status)
        context = {"tabs": TABS, "error": message, "back": run and _address(run)}
        return render(request, "lab/refused.html", context, status=status)


def _visitor(request: HttpRequest) -> str:
    """Return who asks: an id in the session, so that two visitors do not mix."""
    visitor: str = request.session.setdefault(VISITOR, uuid.uuid4().hex)
    return visitor


def _wants_json(request: HttpRequest) -> bool:
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"


def _document(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Return a run's document with what the page shows of it."""
    tab, document = BY_SLUG[run.slug], run.document()
    return {
        **document,
        "address": _address(run),
        "url": reverse("lab:run", args=[run.id]),
        "html": render_to_string(tab.result_template, tab.show(document), request),
    }


def _answer(data: dict[str, Any], status: int = 200) -> JsonResponse:
    response = JsonResponse(data, status=status)
    response["Cache-Control"] = "no-store"
    patch_vary_headers(response, ["Accept"])
    return response


def _address(run: Run) -> str:
    return f"{reverse(f'lab:{run.slug}')}?run={run.id}"


def _missing() -> str:
    return _("This run is not there: it is too old, or somebody else's. Start another one.")


def _faults(form: Experiment) -> str:
    lines = []
    for name, errors in form.errors.items():
        label = form[name].label if name in form.fields else ""
        lines.append(f"{label}: {' '.join(map(str, errors))}")
    return " ".join(lines)
