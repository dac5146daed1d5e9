"""Measurements: each module prints a table and ratios; nothing here is collected as a test."""
