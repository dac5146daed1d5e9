"""A feed of earthquakes, its upstream, and a demo that plays both. Start with ``README.md``."""
