"""URLs of the lab: a page for each experiment, and the runs under them."""

from django.urls import path
from django.views.generic import RedirectView

from example_project.lab import views
from example_project.lab.tabs import TABS

app_name = "lab"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="lab:coordinators"), name="index"),
    path("run/<str:run_id>/", views.RunView.as_view(), name="run"),
    path("run/<str:run_id>/act/", views.ActView.as_view(), name="act"),
    *(path(f"{tab.slug}/", views.TabView.as_view(tab=tab), name=tab.slug) for tab in TABS),
]
