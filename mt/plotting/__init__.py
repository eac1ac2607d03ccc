"""Plots of configs and runs with matplotlib (the extra `plot`)."""
