"""URLs of the example: the plain Django admin, the way to it, the lab, and the feed's own."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("lab/", include("example_project.lab.urls")),
    path("", include("example_project.feed.urls")),
]
