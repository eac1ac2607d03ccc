"""Experiments: a reproduced recipe and ablations."""
