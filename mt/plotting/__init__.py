"""Plots of runs with matplotlib (the extra `plot`)."""
