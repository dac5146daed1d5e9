"""Tests of the example project: its upstream in process, its demo as the user starts it."""
