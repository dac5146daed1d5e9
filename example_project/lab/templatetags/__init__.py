"""Filters of the lab's templates."""
