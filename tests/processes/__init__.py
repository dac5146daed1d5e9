"""Coordination over processes: crews of them, on servers of the tests' own."""
