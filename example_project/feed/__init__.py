"""The feed: stored earthquakes, and the repository that refreshes them from the upstream."""
