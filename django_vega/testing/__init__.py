"""For tests of projects, and of backends that others write."""
