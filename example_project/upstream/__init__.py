"""The far side: a small HTTP server with the USGS week, seeded weather and gates. No Django."""

from example_project.upstream.catalog import Catalog
from example_project.upstream.gates import PATIENCE, Gate
from example_project.upstream.ledger import Weather
from example_project.upstream.server import Upstream

__all__ = ["PATIENCE", "Catalog", "Gate", "Upstream", "Weather"]
