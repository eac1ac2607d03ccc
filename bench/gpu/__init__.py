"""Checks and measurements of `mt` on one GPU, for `make gpu`."""
