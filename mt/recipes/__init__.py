"""Recipes: a new config, and a reproduced recipe."""
