"""URLs of the feed."""

from django.urls import path

from example_project.feed import api

app_name = "feed"
urlpatterns = [
    path("api/quakes/<str:region>/<str:cursor>/refresh/", api.refresh, name="refresh"),
    path("api/quakes/<str:region>/<str:cursor>/arefresh/", api.arefresh, name="arefresh"),
]
