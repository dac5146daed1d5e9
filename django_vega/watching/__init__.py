"""Watching: the present result first, then again after each change."""
